"""Shipped facts of what people have: published configurations, and fine-tunes of them as libraries save them.

`python -m tests.api.lookup.test_published` compares every file and 60 fine-tunes with real examinations.
"""

import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headscope
from tests.headers_only import NAMES, Checkpoint, write

BASES = Path(__file__).resolve().parents[4] / "shared" / "real" / "bases"
EVERY, FINE_TUNES = 11, 60
"""Which published files the suite compares, every so many; how many fine-tunes the whole comparison makes."""
COUNTS = (1, 2, 3, 5, 7, 11, 28, 77, 150, 1000)
PROBLEMS = (None, None, None, "single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True)
class Saved:
    """A checkpoint with a name for the people who read what failed."""

    name: str
    checkpoint: Checkpoint


def published() -> Iterator[Path]:
    return (path.parent for path in sorted(BASES.glob("*/config.json")))


def saved_as_published(folder: Path) -> Saved | None:
    """The configuration as it is, with the tensors of its class; None for a class that Transformers doesn't have."""
    import transformers

    from scripts.shipped.saved_manifests import saved_manifest

    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    cls = getattr(transformers, (raw.get("architectures") or [""])[0], None)
    if cls is None or "model_type" not in raw:
        return None
    config = transformers.AutoConfig.from_pretrained(folder)
    manifest = saved_manifest(cls, config, str(raw.get("dtype", raw.get("torch_dtype", "float32"))))
    return Saved(f"{folder.name}: {cls.__name__}", headers(raw, manifest.tensors))


def headers(config: dict[str, Any], tensors: Any) -> Checkpoint:
    return Checkpoint("", config, {item.key: (NAMES[item.dtype], item.shape) for item in tensors})


def fine_tuned(folder: Path, draw: random.Random) -> Saved | None:
    """A classifier made of a published configuration and saved; None where there is no class for it."""
    import transformers

    from scripts.shipped.saved_manifests import saved_manifest

    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "model_type" not in raw:
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
    name = f"{folder.name}: {cls.__name__}, {count} classes, {problem}, {settings.get('dtype', 'as of 4.18')}"
    name += ", only id2label" if settings.get("label2id", {}) is None else ""
    return Saved(name, headers(settings, manifest.tensors))


def outcome(saved: Saved, folder: Path) -> str:
    """`known`, `traced`, `not determined` by a trace, or which fields of the known answer differ from a trace."""
    write(saved.checkpoint, folder)
    known = headscope.inspect(folder, cache=True).to_dict()
    if not known.pop("is_shipped"):
        return "traced" if known["head"] is not None else "not determined"
    real = headscope.inspect(folder).to_dict()
    different = [name for name in real if name != "is_shipped" and known[name] != real[name]]
    return f"differs in {different}" if different else "known"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "model"


told: dict[str, list[str]] = defaultdict(list)
"""What the cases of each kind found."""


def noted(kind: str, saved: Saved | None, place: Path) -> str:
    told[kind].append(outcome(saved, place) if saved is not None else "")
    return told[kind][-1]


needs_bases = pytest.mark.skipif(not BASES.is_dir(), reason="needs the published configurations of ../shared")


@needs_bases
@pytest.mark.parametrize("folder", list(published())[::EVERY] or [BASES], ids=lambda folder: folder.name)
def test_a_published_checkpoint_is_known_and_equal_to_a_trace(folder: Path, place: Path) -> None:
    saved = saved_as_published(folder)
    assert noted("published", saved, place) in {"known", "traced", ""}


@needs_bases
@pytest.mark.parametrize("folder", list(published())[5::EVERY] or [BASES], ids=lambda folder: folder.name)
def test_a_fine_tune_of_a_published_checkpoint_is_known_and_equal_to_a_trace(folder: Path, place: Path) -> None:
    saved = fine_tuned(folder, random.Random(folder.name))
    assert noted("fine-tuned", saved, place) in {"known", "traced", ""}


@needs_bases
@pytest.mark.whole
@pytest.mark.parametrize(("kind", "least"), [("published", 0.9), ("fine-tuned", 0.8)])
def test_most_are_known(kind: str, least: float) -> None:
    assert told[kind].count("known") >= least * (len(told[kind]) - told[kind].count("")) > 0


def main() -> int:
    draw = random.Random(0)
    files = list(published())
    tuned = (fine_tuned(draw.choice(files), draw) for _ in range(10 * FINE_TUNES))
    kinds = {
        "published": [found for folder in files if (found := saved_as_published(folder)) is not None],
        "fine-tuned": [found for found, _ in zip(filter(None, tuned), range(FINE_TUNES), strict=False)],
    }
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind, saved in kinds.items():
            told = {item.name: outcome(item, Path(folder, kind, str(number))) for number, item in enumerate(saved)}
            print("\n".join(f"{name}: {found}" for name, found in told.items() if found != "known"))
            known = sum(found == "known" for found in told.values())
            without_head = sum(found == "not determined" for found in told.values())
            wrong += sum(found.startswith("differs") for found in told.values())
            print(f"{kind}: {known} of {len(told)} known, {without_head} not determined by a trace, {wrong} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
