"""Small classifiers that were trained for a few steps, of many families, with what they answered on fixed inputs."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

WORDS = 90
"""Token ids below this are words; 1 is the pad token."""
PAD = 1
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
_WORDS = {"vocab_size": 96, "max_position_embeddings": 66, "pad_token_id": PAD}
_ENDS = {"bos_token_id": 2, "eos_token_id": 3}
_ENCODER = _SIZES | _WORDS
_DECODER = _ENCODER | _ENDS | {"num_key_value_heads": 2}
_MODERN = _ENCODER | _ENDS | {"cls_token_id": 2, "sep_token_id": 3}
_DISTILBERT = _WORDS | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
_GPT2 = _ENDS | {
    "vocab_size": 96, "n_positions": 66, "pad_token_id": PAD, "n_embd": 32, "n_layer": 2, "n_head": 4,
}  # fmt: skip
_IMAGE = _SIZES | {"image_size": 30, "patch_size": 6}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_CLASSIFIER = "ForSequenceClassification"
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", _CLASSIFIER, _ENCODER),
    "roberta": ("Roberta", _CLASSIFIER, _ENCODER | {"type_vocab_size": 1}),
    "electra": ("Electra", _CLASSIFIER, _ENCODER | {"embedding_size": 32}),
    "albert": ("Albert", _CLASSIFIER, _ENCODER | {"embedding_size": 32}),
    "deberta": ("DebertaV2", _CLASSIFIER, _ENCODER),
    "mpnet": ("MPNet", _CLASSIFIER, _ENCODER),
    "modernbert": ("ModernBert", _CLASSIFIER, _MODERN),
    "distilbert": ("DistilBert", _CLASSIFIER, _DISTILBERT),
    "gpt2": ("GPT2", _CLASSIFIER, _GPT2),
    "llama": ("Llama", _CLASSIFIER, _DECODER),
    "qwen": ("Qwen2", _CLASSIFIER, _DECODER),
    "mistral": ("Mistral", _CLASSIFIER, _DECODER),
    "opt": ("OPT", _CLASSIFIER, _ENCODER | _ENDS | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "llama-biases": ("Llama", _CLASSIFIER, _DECODER | _BIASES),
    "modernbert-biases": ("ModernBert", _CLASSIFIER, _MODERN | _BIASES),
    "tokens": ("Bert", "ForTokenClassification", _ENCODER),
    "answers": ("Bert", "ForQuestionAnswering", _ENCODER),
    "vit": ("ViT", "ForImageClassification", _IMAGE),
    "dinov2": ("Dinov2", "ForImageClassification", _IMAGE),
    "dinov2-mask": ("Dinov2", "ForImageClassification", _IMAGE | {"use_mask_token": True}),
    "deberta-relative": (
        "DebertaV2",
        _CLASSIFIER,
        _ENCODER | {"relative_attention": True, "pos_att_type": ["c2p"], "initializer_range": 0.2},
    ),
}
TEXTS = tuple(name for name, (_, _, settings) in FAMILIES.items() if "image_size" not in settings)


@dataclass(frozen=True)
class Trained:
    """A classifier that was trained for a few steps; `scores` are its answers on `inputs`."""

    family: str
    model: PreTrainedModel
    inputs: dict[str, torch.Tensor]
    scores: torch.Tensor


def scores_of(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores of each row of the inputs, flat: [rows, scores]."""
    with torch.no_grad():
        output = model.eval()(**inputs)
    logits = output.start_logits if "start_logits" in output else output.logits
    return logits.float().flatten(1)


def inputs_of(family: str, rows: int = 48, seed: int = 5) -> dict[str, torch.Tensor]:
    """Random inputs of one length: words that are neither padding nor special."""
    draw = torch.Generator().manual_seed(seed)
    if family not in TEXTS:
        return {"pixel_values": torch.randn(rows, 3, 30, 30, generator=draw)}
    return {"input_ids": torch.randint(4, WORDS, (rows, 9), generator=draw)}


@cache
def trained(family: str, classes: int = 3, seed: int = 0) -> Trained:
    """A classifier of a family, trained on random labels that depend on the first tokens until its answers vary."""
    stem, kind, settings = FAMILIES[family]
    torch.manual_seed(100 * seed + classes)
    config = getattr(transformers, f"{stem}Config")(**settings, num_labels=classes)
    model = getattr(transformers, f"{stem}{kind}")(config)
    inputs = inputs_of(family, 64, seed + 1)
    first = next(iter(inputs.values())).flatten(1)[:, 0]
    wanted = torch.argsort(torch.argsort(first)) * classes // len(first) if classes > 1 else first.float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        output = model.train()(**inputs)
        if family == "answers":
            loss = torch.nn.functional.cross_entropy(output.start_logits, wanted % 9) + output.end_logits.var()
        elif family == "tokens":
            loss = torch.nn.functional.cross_entropy(
                output.logits.flatten(0, 1), (inputs["input_ids"] % classes).flatten()
            )
        elif classes == 1:
            loss = torch.nn.functional.mse_loss(output.logits[:, 0], wanted / WORDS)
        else:
            loss = torch.nn.functional.cross_entropy(output.logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    asked = inputs_of(family)
    return Trained(family, model.eval(), asked, scores_of(model, asked))


def state_of(made: Trained) -> dict[str, torch.Tensor]:
    """A copy of the tensors as a save would hold them."""
    return {name: value.clone() for name, value in made.model.state_dict().items()}


def config_of(made: Trained) -> dict[str, Any]:
    """The configuration as `config.json` would hold it."""
    config: dict[str, Any] = copy.deepcopy(made.model.config.to_diff_dict())
    return config | {"architectures": [type(made.model).__name__]}
