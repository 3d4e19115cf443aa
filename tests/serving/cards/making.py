"""Small checkpoints whose tokenizer knows every byte, and the faults of engines in their forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from serving.test_verify_served import LABELS, SIZES
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

Row = list[float]
Inputs = Mapping[str, torch.Tensor]
Forward = Callable[[Any, Inputs], torch.Tensor]
Program = Callable[..., tuple[int, str]]
"""Runs a program with arguments: its exit code, and what it prints."""
LIMIT = 320


def save_tokenizer_of_bytes(folder: Path, *, has_segments: bool, side: str = "right") -> None:
    """A tokenizer with a token for each byte, so that any text has its own IDs."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    words = {word: at for at, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    inner = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] * has_segments)]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        eos_token="[SEP]", model_max_length=LIMIT, model_input_names=names, padding_side=side,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)


def save_checkpoint(family: str, folder: Path, *, side: str = "right", **settings: Any) -> str:
    """A classifier with random weights, also of biases, and a tokenizer of bytes."""
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": 260, "max_position_embeddings": LIMIT, "n_positions": LIMIT}
    names = {"id2label": dict(enumerate(LABELS)), "cls_token_id": 2, "sep_token_id": 3}
    config = getattr(transformers, f"{family}Config")(**{**sizes, **names, **settings})
    model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15 if parameter.shape[0] == config.num_labels else 0.5)
    model.save_pretrained(folder)
    save_tokenizer_of_bytes(folder, has_segments=family in ("Bert", "Ernie"), side=side)
    return str(folder)


def load_model(folder: str, **settings: Any) -> Any:
    """The saved model, with other settings in its configuration."""
    name = json.loads(Path(folder, "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder, **settings).eval()


def as_it_is(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model(**given).logits)


def engine_logits(card: Mapping[str, Any], model: Any, forward: Forward = as_it_is) -> list[Row]:
    """What an engine gives for the token IDs of a card, each input as the card has it."""
    found = []
    for item in card["inputs"]:
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if item[name] is not None]
        given = {name: torch.tensor([item[name]]) for name in names}
        with torch.no_grad():
            found.append(forward(model, given)[0].float().tolist())
    return found


def _hidden(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.base_model(**given).last_hidden_state)


def without_pooler(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.classifier(_hidden(model, given)[:, 0]))


def mean_before_pooler(model: Any, given: Inputs) -> torch.Tensor:
    mask = given["attention_mask"][..., None]
    mean = (_hidden(model, given) * mask).sum(1) / mask.sum(1)
    return torch.as_tensor(model.classifier(model.base_model.pooler.dense(mean).tanh()))


def last_position(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.score(_hidden(model, given))[:, -1])


def tanh_for_relu(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.classifier(model.pre_classifier(_hidden(model, given)[:, 0]).tanh()))


def fixed_gelu(model: Any, given: Inputs) -> torch.Tensor:
    before, model.head.act = model.head.act, torch.nn.GELU()
    try:
        return as_it_is(model, given)
    finally:
        model.head.act = before


FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Forward, str]] = {
    "ERNIE without its pooler": ("Ernie", {}, {}, without_pooler, "without dense and tanh"),
    "ModernBERT's fixed GELU": ("ModernBert", {"classifier_activation": "relu"}, {}, fixed_gelu, "gelu for relu"),
    "DistilBERT's tanh for ReLU": ("DistilBert", {}, {}, tanh_for_relu, "tanh for relu"),
    "BERT without its pooler": ("Bert", {}, {}, without_pooler, "without dense and tanh"),
    "a causal mask left out": (
        "Bert", {"is_decoder": True}, {"is_decoder": False}, as_it_is, "without the causal mask"
    ),
    "last token read though it is padding": ("GPT2", {}, {}, last_position, "last token"),
    "a mean before the pooler": (
        "Bert", {}, {}, mean_before_pooler, "mean over the tokens that are not padding"
    ),
}  # fmt: skip
"""Seen in engines (ENGINES.md): family, settings of the checkpoint, those that the engine reads, what it computes, and
the name that the card has for it."""
