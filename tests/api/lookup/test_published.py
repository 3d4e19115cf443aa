"""Shipped facts of what people have: published configurations, and fine-tunes of them as libraries save them.

With HEADSCOPE_EVERY=1, every file and a fine-tune of each are compared with real examinations.
"""

import json
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from scripts.shipped.saved_manifests import saved_manifest
from tests.headers_only import NAMES, Checkpoint, write

BASES = Path(__file__).resolve().parents[4] / "shared" / "real" / "bases"
PUBLISHED = [path.parent for path in sorted(BASES.glob("*/config.json"))]
EVERY = int(os.environ.get("HEADSCOPE_EVERY", "11"))
"""Which published files the suite compares: every so many."""
COUNTS = (1, 2, 3, 5, 7, 11, 28, 77, 150, 1000)
PROBLEMS = (None, None, None, "single_label_classification", "multi_label_classification", "regression")


def saved_as_published(folder: Path) -> Checkpoint | None:
    """The configuration as it is, with the tensors of its class; None for a class that Transformers doesn't have."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    cls = getattr(transformers, (raw.get("architectures") or [""])[0], None)
    if cls is None or "model_type" not in raw:
        return None
    config = transformers.AutoConfig.from_pretrained(folder)
    manifest = saved_manifest(cls, config, str(raw.get("dtype", raw.get("torch_dtype", "float32"))))
    return headers(cls.__name__, raw, manifest.tensors)


def headers(name: str, config: dict[str, Any], tensors: Any) -> Checkpoint:
    return Checkpoint(name, config, {item.key: (NAMES[item.dtype], item.shape) for item in tensors})


def fine_tuned(folder: Path, draw: random.Random) -> Checkpoint | None:
    """A classifier made of a published configuration and saved; None where there is no class for it."""
    if "model_type" not in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        return None
    config = transformers.AutoConfig.from_pretrained(folder)
    kinds = ("SEQUENCE", "TOKEN", "IMAGE", "AUDIO")
    mappings = (getattr(transformers, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING") for kind in kinds)
    found = [cls for mapping in mappings if (cls := mapping.get(type(config), None)) is not None]
    if not found:
        return None
    cls, count, problem = draw.choice(found), draw.choice(COUNTS), draw.choice(PROBLEMS)
    if "Token" in cls.__name__ or "single_label_classification" in (problem, config.problem_type):
        count, problem = max(count, 2), None if "Token" in cls.__name__ else problem
    if getattr(config, "pad_token_id", 0) is None and isinstance(config.eos_token_id, int):
        config.pad_token_id = config.eos_token_id
    manifest = saved_manifest(cls, config, draw.choice(["float32", "float16", "bfloat16"]), count, problem)
    settings = dict(manifest.config)
    if draw.random() < 0.3:  # as the Transformers of some years ago saved it
        settings |= {
            "torch_dtype": settings.pop("dtype"),
            "transformers_version": "4.18.0",
            "_name_or_path": folder.name,
        }
    elif draw.random() < 0.3 and "label2id" in settings:  # as 5.24 saves it where only id2label was given
        settings["label2id"] = None
    name = f"{cls.__name__}, {count} classes, {problem}, {settings.get('dtype', 'as of 4.18')}"
    name += ", only id2label" if settings.get("label2id", {}) is None else ""
    return headers(name, settings, manifest.tensors)


def outcome(saved: Checkpoint, folder: Path) -> str:
    """`known`, `traced`, `not determined` by a trace, or which fields of the known answer differ from a trace."""
    write(saved, folder)
    known = headscope.inspect(folder, cache=True).to_dict()
    if not known.pop("is_shipped"):
        return "traced" if known["head"] is not None else "not determined"
    real = headscope.inspect(folder).to_dict()
    different = [name for name in real if name != "is_shipped" and known[name] != real[name]]
    return f"{saved.name} differs in {different}" if different else "known"


told: dict[str, list[str]] = defaultdict(list)
"""What the cases of each kind found."""


def noted(kind: str, saved: Checkpoint | None, place: Path) -> str:
    told[kind].append(outcome(saved, place) if saved is not None else "")
    return told[kind][-1]


needs_bases = pytest.mark.skipif(not BASES.is_dir(), reason="needs the published configurations of ../shared")


@needs_bases
@pytest.mark.parametrize("folder", PUBLISHED[::EVERY] or [BASES], ids=lambda folder: folder.name)
def test_a_published_checkpoint_is_known_and_equal_to_a_trace(folder: Path, place: Path) -> None:
    saved = saved_as_published(folder)
    assert noted("published", saved, place) in {"known", "traced", ""}


@needs_bases
@pytest.mark.parametrize("folder", PUBLISHED[5 % EVERY :: EVERY] or [BASES], ids=lambda folder: folder.name)
def test_a_fine_tune_of_a_published_checkpoint_is_known_and_equal_to_a_trace(folder: Path, place: Path) -> None:
    saved = fine_tuned(folder, random.Random(folder.name))
    assert noted("fine-tuned", saved, place) in {"known", "traced", ""}


@needs_bases
@pytest.mark.whole
@pytest.mark.parametrize(("kind", "least"), [("published", 0.9), ("fine-tuned", 0.8)])
def test_most_are_known(kind: str, least: float) -> None:
    assert told[kind].count("known") >= least * (len(told[kind]) - told[kind].count("")) > 0
