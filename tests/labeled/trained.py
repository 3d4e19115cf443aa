"""Tiny classifiers with their tokenizer on disk: trained for a few steps on words that give the class away, or not.

And files of labeled rows.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

_NOISE = tuple(f"word{number}" for number in range(40))
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_WORDS_OF_A_CLASS = 4
_STEPS = 60


def class_words(place: int) -> tuple[str, ...]:
    return tuple(f"sign{place}x{number}" for number in range(_WORDS_OF_A_CLASS))


def text_of(place: int, draw: random.Random, noise: float = 0.1) -> str:
    """Ten words, two of them of a class; with the probability `noise` those are of no class."""
    words = draw.choices(_NOISE, k=8)
    words += draw.choices(_NOISE if draw.random() < noise else class_words(place), k=2)
    draw.shuffle(words)
    return " ".join(words)


def texts(classes: int, rows: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts with the number of their class, in turn."""
    draw = random.Random(seed)
    return [(text_of(row % classes, draw), row % classes) for row in range(rows)]


def tokenizer(classes: int) -> PreTrainedTokenizerFast:
    words = [*_SPECIAL, *_NOISE, *(word for place in range(classes) for word in class_words(place))]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16)


def untrained(labels: Sequence[str], seed: int = 0, **settings: Any) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer(len(labels))), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)}, hidden_dropout_prob=0.0, **settings,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def trained(labels: Sequence[str], seed: int = 0, **settings: Any) -> BertForSequenceClassification:
    """A classifier of these labels; with `problem_type` multi-label or regression, of what `target_of` says."""
    model, encode = untrained(labels, seed, **settings), tokenizer(len(labels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(_STEPS):
        rows = texts(max(len(labels), 2), 32, seed=1000 + seed * 100 + step)
        given = encode([text for text, _ in rows], return_tensors="pt", padding=True)
        target = target_of(model.config.problem_type, [place for _, place in rows], len(labels))
        loss = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"], labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def target_of(problem: str | None, places: Sequence[int], size: int) -> torch.Tensor:
    if problem == "regression":
        return torch.tensor([2.0 * place for place in places])
    if problem == "multi_label_classification":
        return torch.nn.functional.one_hot(torch.tensor(places), size).float()
    return torch.tensor(places)


def save(model: BertForSequenceClassification, folder: Path, labels: Sequence[str] | None = None) -> Path:
    """The checkpoint, under other names or in another order of the same names."""
    named = labels or list(model.config.id2label.values())
    model.config.id2label = dict(enumerate(named))
    model.config.label2id = {label: number for number, label in enumerate(named)}
    model.save_pretrained(folder)
    tokenizer(len(named)).save_pretrained(folder)
    return folder


def write_csv(file: Path, rows: Sequence[tuple[Any, ...]], header: str = "text,label") -> Path:
    """Each cell is written as it is, without quotes."""
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]), encoding="utf-8")
    return file


def write_lines(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_parquet(file: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    """What `datasets` writes, with the features that it declares."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), file)
    return file
