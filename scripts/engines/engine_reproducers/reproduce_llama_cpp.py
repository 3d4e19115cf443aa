"""Scores of a random checkpoint in Transformers and in llama.cpp: PYTHON reproduce_llama_cpp.py CLASS

PYTHON has torch, transformers and llama-cpp-python. PYTHONPATH holds a copy of llama.cpp (with convert_hf_to_gguf.py)
and its gguf-py. The file gets no vocabulary, because the texts are given as token IDs.
"""

import sys
import tempfile
from pathlib import Path

import conversion
import llama_cpp
import torch
import transformers


def _rounded(scores: list[float]) -> list[float]:
    return [round(score, 3) for score in scores]


torch.manual_seed(0)
cls = getattr(transformers, sys.argv[1])
model = cls(cls.config_class(vocab_size=500, num_hidden_layers=1, n_layers=1, num_labels=3)).eval()
with torch.no_grad():  # biases and norms too: what is left out changes the scores
    for tensor in model.parameters():
        tensor.normal_(0, 2 * tensor[0].numel() ** -0.5) if tensor.dim() > 1 else tensor.add_(
            torch.randn_like(tensor) / 3
        )
texts = [[10, 20, 30, 40, 50][:count] + [60, 70, 80][: count % 4] for count in range(1, 6)]
with torch.no_grad():
    expected = [model(torch.tensor([text])).logits[0].tolist() for text in texts]

folder = Path(tempfile.mkdtemp())
model.save_pretrained(folder)
parameters = conversion.ModelBase.load_hparams(folder, False)
file_type, file = conversion.base.gguf.LlamaFileType.ALL_F32, folder / "model.gguf"
writer = conversion.get_model_class(sys.argv[1])(folder, file_type, file)


def _set_vocab() -> None:
    writer.gguf_writer.add_tokenizer_model("none")
    writer.gguf_writer.add_vocab_size(parameters["vocab_size"])
    writer.gguf_writer.add_token_type_count(parameters.get("type_vocab_size", 1))


writer.set_vocab = _set_vocab
with torch.inference_mode():
    writer.write()
silent = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(silent, None)
loaded = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
options = llama_cpp.llama_context_default_params()
options.embeddings, options.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_RANK
options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
context = llama_cpp.llama_init_from_model(loaded, options)
print("transformers", transformers.__version__, "llama-cpp-python", llama_cpp.__version__, sys.argv[1])
for text, scores in zip(texts, expected, strict=True):
    batch = llama_cpp.llama_batch_init(len(text), 0, 1)
    batch.n_tokens = len(text)
    for place, token in enumerate(text):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, True
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    llama_cpp.llama_decode(context, batch)
    answer = llama_cpp.llama_get_embeddings_seq(context, 0)[:3]
    print(f"{text}: Transformers {_rounded(scores)}, llama.cpp {_rounded(answer)}")
