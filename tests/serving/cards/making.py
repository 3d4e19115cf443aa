"""Small checkpoints whose tokenizer knows every byte, and the faults of engines in their forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from serving.classifiers import SEGMENTS, Forward, as_it_is, hidden_states, save_model, without_pooler
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headscope
from headscope.shared.serving.served_facts import ServedScores

Row = list[float]
Inputs = Mapping[str, torch.Tensor]
Program = Callable[..., tuple[int, str]]
"""Runs a program with arguments: its exit code, and what it prints."""
LIMIT = 320


def save_tokenizer_of_bytes(folder: Path, *, has_segments: bool, side: str = "right") -> None:
    """A tokenizer with a token for each byte, so that any text has its own IDs."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    words = {word: at for at, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    inner = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = SEGMENTS
    names = ["input_ids", "attention_mask", *(["token_type_ids"] * has_segments)]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        eos_token="[SEP]", model_max_length=LIMIT, model_input_names=names, padding_side=side,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)


def save_checkpoint(family: str, folder: Path, *, side: str = "right", **settings: Any) -> str:
    """A classifier with random weights, and a tokenizer of bytes."""
    save_model(family, folder, vocab_size=260, max_position_embeddings=LIMIT, n_positions=LIMIT, **settings)
    save_tokenizer_of_bytes(folder, has_segments=family in ("Bert", "Ernie"), side=side)
    return str(folder)


def engine_logits(card: Mapping[str, Any], model: Any, forward: Forward = as_it_is) -> list[Row]:
    """What an engine gives for the token IDs of a card, each input as the card has it."""
    found = []
    for item in card["inputs"]:
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if item[name] is not None]
        given = {name: torch.tensor([item[name]]) for name in names}
        with torch.no_grad():
            found.append(forward(model, given)[0].float().tolist())
    return found


def softmax(rows: Any) -> list[Row]:
    return [list(row) for row in torch.tensor(rows).double().softmax(1).tolist()]


def judged_by_card(card: Path, folder: Path, content: Any, **options: Any) -> ServedScores:
    """The result on an engine's scores for a card, from a file that is written into the folder."""
    scores = folder / "scores.json"
    scores.write_text(json.dumps(content))
    return headscope.verify_card(card, scores=scores, **options).served


def mean_before_pooler(model: Any, given: Inputs) -> torch.Tensor:
    mask = given["attention_mask"][..., None]
    mean = (hidden_states(model, given) * mask).sum(1) / mask.sum(1)
    return torch.as_tensor(model.classifier(model.base_model.pooler.dense(mean).tanh()))


def last_position(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.score(hidden_states(model, given))[:, -1])


def tanh_for_relu(model: Any, given: Inputs) -> torch.Tensor:
    return torch.as_tensor(model.classifier(model.pre_classifier(hidden_states(model, given)[:, 0]).tanh()))


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
