"""Folders of other libraries, cut, lying or hostile: a clear error or a gap, and nothing of a pickle runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hostile.corpus.case import CANARY, Case, folder_of

_EVIL = "x\x1b[2J\u202e[bold]\x9b31m"
_DEEP = b"[" * 200_000


class Payload:
    """What a hostile pickle would run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._folder / CANARY}",)


Files = dict[str, bytes]


def saved(value: Any, folder: Path) -> bytes:
    place = folder / "made.pt"
    torch.save(value, place)
    content = place.read_bytes()
    place.unlink()
    return content


def _head(changes: Any, *, cut: int | None = None, key: str = "heads.a.1.weight") -> Callable[[Path], Files]:
    """A prediction head of adapters with three classes, whose settings say something else."""
    config = {"head_type": "classification", "num_labels": 3, "layers": 1, "activation_function": "tanh"}
    settings = {"config": {**config, **changes} if isinstance(changes, dict) else changes, "model_type": "bert"}

    def files(folder: Path) -> Files:
        weights = saved({key: torch.ones(3, 8)}, folder)
        return {"head_config.json": json.dumps(settings).encode(), "pytorch_model_head.bin": weights[:cut]}

    return files


def _timm(changes: dict[str, Any], shape: tuple[int, ...] = (5, 8)) -> Callable[[Path], Files]:
    config = {"architecture": "resnet18", "num_classes": 5, "pretrained_cfg": {"classifier": "fc"}, **changes}
    return lambda folder: {
        "config.json": json.dumps(config).encode(), "model.safetensors": save({"fc.weight": torch.ones(shape)}),
    }  # fmt: skip


def _open_clip(config: bytes, tensors: dict[str, torch.Tensor] | None = None) -> Callable[[Path], Files]:
    weights = {"logit_scale": torch.ones([]), "visual.proj": torch.ones(8, 4)} if tensors is None else tensors
    return lambda folder: {"open_clip_config.json": config, "open_clip_model.safetensors": save(weights)}


def _flair(value: Callable[[Path], dict[str, Any]], cut: int | None = None) -> Callable[[Path], Files]:
    def files(folder: Path) -> Files:
        state = {"state_dict": {"decoder.weight": torch.ones(3, 8)}, "__cls__": "TextClassifier", "label_type": _EVIL}
        return {"pytorch_model.bin": saved(state | value(folder), folder)[:cut]}

    return files


def _spacy(meta: bytes, config: bytes = b"") -> Callable[[Path], Files]:
    return lambda folder: {"meta.json": meta, "config.cfg": config, "textcat/model": b"\x85"}


def _meta(**changes: Any) -> bytes:
    return json.dumps({"spacy_version": "3", "lang": "en", "pipeline": ["textcat"]} | changes).encode()


_NAMED = {_EVIL: 0, "b": 1, "c": 2}
_REFUSED: dict[str, tuple[Callable[[Path], Files], tuple[str, ...]]] = {
    "adapters, labels that act on a terminal": (_head({"label2id": _NAMED}), ("AdapterHub", "classes 3")),
    "adapters, keys that act on a terminal": (_head({}, key=f"heads.{_EVIL}.1.weight"), ("AdapterHub",)),
    "adapters, a huge count": (_head({"num_labels": 10**40}), ("not determined: classes",)),
    "adapters, a count that is a text": (_head({"num_labels": "3"}), ("not determined: classes",)),
    "adapters, a negative count": (_head({"num_labels": -3}), ("not determined: classes",)),
    "adapters, labels that are no numbers": (_head({"label2id": {"a": "0", "b": None}}), ("not determined: labels",)),
    "adapters, labels in a list": (_head({"label2id": ["a"]}), ("not determined: labels",)),
    "adapters, labels with holes": (_head({"label2id": {"a": 0, "b": 2**62, "c": 2}}), ("not determined: labels",)),
    "adapters, 150,000 labels": (
        _head({"label2id": {str(at): at for at in range(150_000)}}), ("not determined: labels", "over the limit"),
    ),
    "adapters, a million layers": (_head({"layers": 10**6}), ("not determined: layers",)),
    "adapters, settings in a list": (_head([1, 2]), ("AdapterHub",)),
    "adapters, a type that acts on a terminal": (_head({"head_type": _EVIL}), ("AdapterHub",)),
    "adapters, an activation that is a list": (_head({"activation_function": ["tanh"]}), ("AdapterHub",)),
    "timm, another count than the tensor": (_timm({"num_classes": 7}), ("num_classes in config.json is 7",)),
    "timm, a huge count": (_timm({"num_classes": 10**40}), ("not determined: classes",)),
    "timm, labels that are no texts": (_timm({"label_names": [1, {}]}), ("not determined: labels",)),
    "timm, labels that act on a terminal": (_timm({"label_names": [_EVIL, "b", "c", "d", "e"]}), ("classes 5",)),
    "timm, a classifier elsewhere": (
        _timm({"pretrained_cfg": {"classifier": "../../etc/passwd"}}), ("not determined: head",),
    ),
    "timm, a thousand classifiers": (
        _timm({"pretrained_cfg": {"classifier": ["fc", *map(str, range(1000))]}}), ("fc.weight",),
    ),
    "timm, a classifier of one axis": (_timm({}, (5,)), ("not determined: head",)),
    "timm, an architecture that acts on a terminal": (_timm({"architecture": _EVIL * 50}), ("timm",)),
    "open_clip, settings cut": (_open_clip(b'{"model'), ("zero-shot",)),
    "flair, a dictionary of tensors": (_flair(lambda folder: {"label_dictionary": torch.ones(1)}), ("Flair",)),
    "spacy, a pipeline that acts on a terminal": (_spacy(_meta(pipeline=[_EVIL, 5, None])), ("spaCy",)),
    "spacy, a pipeline of a million": (_spacy(_meta(pipeline=["textcat"] * 100_000)), ("spaCy",)),
    "spacy, a configuration of bytes": (_spacy(_meta(), b"\xff\x00[components.x]\n" * 10_000), ("spaCy",)),
    "spacy, a name elsewhere": (_spacy(_meta(pipeline=["../../etc"])), ("spaCy",)),
}  # fmt: skip
_ERRORS: dict[str, tuple[Callable[[Path], Files], tuple[str, ...]]] = {
    "adapters, cut": (_head({}, cut=200), ("pytorch_model_head.bin",)),
    "adapters, settings cut": (
        lambda folder: _head({})(folder) | {"head_config.json": b'{"config": {'}, ("head_config.json",),
    ),
    "adapters, settings nested deep": (
        lambda folder: _head({})(folder) | {"head_config.json": _DEEP}, ("head_config.json",),
    ),
    "adapters, a pickle that runs": (
        lambda folder: _head({})(folder) | {"pytorch_model_head.bin": saved({"a": Payload(folder)}, folder)},
        ("pytorch_model_head.bin",),
    ),
    "flair, cut": (_flair(lambda folder: {}, cut=400), ("ends early",)),
    "flair, a pickle that runs": (_flair(lambda folder: {"x": Payload(folder)}), ("config.json",)),
    "spacy, cut": (_spacy(b'{"spacy_version": '), ("meta.json",)),
}  # fmt: skip

CASES: tuple[Case, ...] = tuple(
    Case(f"foreign: {name}", folder_of(files), words=words) for name, (files, words) in (_REFUSED | _ERRORS).items()
)
