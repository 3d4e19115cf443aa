"""Configurations that are no configurations, or ask for what no machine has."""

from pathlib import Path
from typing import Any

from hostile.corpus.case import CANARY, CONFIG, ONE_TENSOR, Case, checkpoint, inspected, safetensors

_WEIGHTS = {"model.safetensors": safetensors(ONE_TENSOR)}
_TEXTS: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "text": b'"bert"',
    "number": b"1",
    "cut": b'{"model_type": "dist',
    "not UTF-8": b'{"model_type": "\xff"}',
    "UTF-16": '{"model_type": "bert"}'.encode("utf-16"),
    "key twice": b'{"model_type": "bert", "model_type": "gpt2"}',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "long number": b'{"a": ' + b"9" * 5000 + b"}",
    "page": b"<!doctype html>",
    "pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "comment": b'{"a": 1} // more',
    "NUL": b"\0" * 20,
}
_VALUES: dict[str, dict[str, Any]] = {
    "no model type": {"model_type": None},
    "list as model type": {"model_type": ["bert"]},
    "unknown model type": {"model_type": "\x1b[31mevil\x9b\u202e"},
    "no labels": {"num_labels": 0, "id2label": {}},
    "millions of layers": {"n_layers": 10_000_000},
    "text as size": {"dim": "768"},
    "negative size": {"dim": -8},
    "list as size": {"dim": [8]},
    "null as size": {"dim": None},
    "heads that do not divide": {"n_heads": 3},
    "no heads": {"n_heads": 0},
    "unknown activation": {"activation": "evil"},
    "number as to_dict": {"to_dict": 1},
    "unknown dtype": {"dtype": "evil"},
    "labels as a list": {"id2label": ["a", "b"]},
    "labels as text": {"id2label": "ab"},
    "label numbers as words": {"id2label": {"one": "a", "two": "b"}},
    "weights elsewhere": {"transformers_weights": "../model.safetensors"},
    "weights as a number": {"transformers_weights": 1},
    "class": {"__class__": "os.system"},
    "sizes of a world": {"vocab_size": 2**62},
}

_TOLD = {
    "list as model type": ("has no model_type",),
    "unknown model type": ("does not know the model type",),
    "no labels": ("describes 0 labels",),
    "no heads": ("ZeroDivisionError",),
}
"""The words for values whose own name is not in the message: every other message names the field."""

_LABELS: dict[str, tuple[dict[str, Any], str]] = {
    "minus one label": ({"num_labels": -1}, "num_labels in config.json is '-1'"),
    "true as labels": ({"num_labels": True}, "num_labels in config.json is 'True'"),
    "text as labels": ({"num_labels": "3"}, "num_labels in config.json is '3'"),
    "broken labels": ({"num_labels": 2.5}, "num_labels in config.json is '2.5'"),
    "three million labels": ({"num_labels": 3_000_000}, "over the limit"),
    "labels that are objects": ({"id2label": {"0": {"a": 1}, "1": "b"}}, "not a string"),
    "labels that are lists": ({"id2label": {"0": [], "1": "b"}}, "not a string"),
    "labels that are null": ({"id2label": {"0": None, "1": "b"}}, "not a string"),
}


_STRAY: dict[str, dict[str, Any]] = {
    "text part as a list": {"text_config": [1]},
    "text part as a text": {"text_config": "x"},
    "text part as a number": {"text_config": 7},
    "text part as an object": {"text_config": {}},
    "text part null": {"text_config": None},
    "vision part as a list": {"vision_config": [1]},
    "all labels null": {"id2label": None},
    "label numbers null": {"label2id": {"a": None}},
}
"""What Transformers loads as if it were not there."""


def _remote(folder: Path) -> list[str]:
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "code.Evil", "AutoModel": "code.Evil"}}
    code = f"open({str(folder / CANARY)!r}, 'w')\n".encode()
    return ["inspect", str(checkpoint(folder, {**_WEIGHTS, "code.py": code}, config))]


CASES = (
    *(
        Case(f"config: {name}", inspected(_WEIGHTS, text), words=("config.json", "hint:"))
        for name, text in _TEXTS.items()
    ),
    *(
        Case(f"config: {name}", inspected(_WEIGHTS, CONFIG | changed), words=("hint:", *_TOLD.get(name, changed)))
        for name, changed in _VALUES.items()
    ),
    *(
        Case(f"config: {name}", inspected(_WEIGHTS, CONFIG | changed), words=(word, "hint:"))
        for name, (changed, word) in _LABELS.items()
    ),
    *(Case(f"config: {name}", inspected(_WEIGHTS, CONFIG | changed), codes=(0,)) for name, changed in _STRAY.items()),
    Case("code of the checkpoint", _remote, words=("auto_map", "--trust-remote-code")),
)  # fmt: skip
