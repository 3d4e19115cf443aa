"""Which classes the keys and shapes of a state dict fit, where no config.json names one."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from headscope.facts import TensorHeader
from headscope.facts.weights import modern_name
from headscope.model.catalogue import classes_of_family
from headscope.model.quiet import quiet
from headscope.model.reduced_config import DEPTHS, shallow_config

_FAMILIES = 6
_SHOWN = 3
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LEAF = {"weight", "bias", "gamma", "beta"}
_MOST_WORDS = 60
_LEAST = 0.5
_MOST_FIELDS = 80
_LARGEST = 2**31
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_HEAD_WIDTH = 64

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A class that a state dict fits: `fits` of its `total` keys. `fields` are the sizes that the shapes tell.

    `open_fields` are those that no shape tells, with a value that makes the class work.
    """

    class_name: str
    config_class: str
    fits: int
    total: int
    fields: tuple[tuple[str, int], ...] = ()
    open_fields: tuple[tuple[str, int], ...] = ()


def propose(tensors: Sequence[TensorHeader]) -> tuple[Proposal, ...]:
    """The classes that fit at least half of the keys, the best first; the sizes are told for the first."""
    stored = {modern_name(tensor.key): tensor.shape for tensor in tensors}
    names = [name for family in _families(stored) for name in _classes(family)]
    fitting = [found for name in dict.fromkeys(names) if (found := _fit(name, stored)) is not None]
    best = sorted(fitting, key=lambda item: (-item[0].fits, item[1]))[:_SHOWN]
    if not best:
        return ()
    first = _with_sizes(best[0][0], stored)
    return (first, *(item for item, _ in best[1:]))


def _any_layer(key: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", key)


def _families(stored: Shapes) -> list[str]:
    """The families whose source has most of the names in the keys; nothing is imported for it."""
    counted = Counter(word for key in stored for word in key.split(".") if _WORD.fullmatch(word) and word not in _LEAF)
    words = [word for word, _ in counted.most_common(_MOST_WORDS)]
    folder = Path(transformers.__file__).parent / "models"
    scores: dict[str, int] = {}
    for file in sorted(folder.glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        score = sum(word in text for word in words)
        scores[file.parent.name] = max(score, scores.get(file.parent.name, 0))
    best = sorted(scores, key=lambda name: (-scores[name], not any(key.startswith(f"{name}.") for key in stored), name))
    return best[:_FAMILIES]


def _classes(family: str) -> Iterator[str]:
    for model_type in dict.fromkeys((family.replace("_", "-"), family)):
        yield from (found.name for found in classes_of_family(model_type))


def _fit(name: str, stored: Shapes) -> tuple[Proposal, int] | None:
    """How many of the keys the class has, each with as many axes, and how many of its own are not stored."""
    cls = getattr(transformers, name, None)
    config = _default(cls)
    built = None if config is None else _shapes(cls, shallow_config(config))
    if built is None:
        return None
    own = {_any_layer(key): shape for key, shape in built.items()}
    fits = sum(len(own.get(_any_layer(key), (None,) * 9)) == len(shape) for key, shape in stored.items())
    fits = _consistent(own, stored, fits)
    if fits < _LEAST * len(stored):
        return None
    missing = len(set(own) - {_any_layer(key) for key in stored})
    return Proposal(name, type(config).__name__, fits, len(stored)), missing


def _consistent(own: Mapping[str, tuple[int, ...]], stored: Shapes, fits: int) -> int:
    """`fits` less the keys whose sizes contradict the others: a size of the class is one size in the state dict."""
    sizes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    pairs = [(own[_any_layer(key)], shape) for key, shape in stored.items() if _any_layer(key) in own]
    pairs = [(ours, theirs) for ours, theirs in pairs if len(ours) == len(theirs)]
    for ours, theirs in pairs:
        for size, other in zip(ours, theirs, strict=True):
            sizes[size][other] += 1
    usual = {size: found.most_common(1)[0][0] for size, found in sizes.items()}
    odd = sum(ours == theirs[::-1] != theirs for ours, theirs in pairs)
    odd += sum(tuple(usual[size] for size in ours) == theirs[::-1] != theirs for ours, theirs in pairs)
    return fits - odd


def _default(cls: Any) -> Any:
    """The default configuration of a class; None where it has none."""
    try:
        with quiet():
            return cls.config_class()
    except Exception:  # a configuration that needs arguments
        return None


def _shapes(cls: Any, config: Any) -> Shapes | None:
    try:
        with quiet(), torch.device("meta"):
            return {name: tuple(item.shape) for name, item in cls(config).state_dict().items()}
    except Exception:  # whatever a foreign constructor raises
        return None


def _with_sizes(proposal: Proposal, stored: Shapes) -> Proposal:
    """The proposal with the sizes of the configuration that make its shapes those of the state dict."""
    cls = getattr(transformers, proposal.class_name)
    config = _default(cls)
    fields = dict(_depths(config, stored))
    shallow = shallow_config(config)
    before = _shapes(cls, shallow) or {}
    wanted = {_any_layer(key): shape for key, shape in stored.items()}
    for name in _sized_fields(config):
        told = _told(cls, shallow, name, before, wanted)
        if told is not None:
            fields[name] = told
    opened = _open_fields(cls, config, fields)
    return Proposal(
        proposal.class_name,
        proposal.config_class,
        proposal.fits,
        proposal.total,
        tuple(sorted(fields.items())),
        tuple(sorted(opened.items())),
    )


def _sized_fields(config: Any) -> list[str]:
    values = config.to_dict()
    names = [name for name, value in values.items() if type(value) is int and value > 0 and name not in DEPTHS]
    return ["num_labels", *(name for name in names if not name.endswith("_token_id"))][:_MOST_FIELDS]


def _told(cls: Any, shallow: Any, name: str, before: Shapes, wanted: Shapes) -> int | None:
    """The value of a field by the stored shapes: the size of an axis that is the field's value and follows it."""
    from copy import deepcopy

    value = getattr(shallow, name)
    changed = deepcopy(shallow)
    other = 2 * value if value > 2 else 7  # noqa: PLR2004 - a count that no default has
    try:
        setattr(changed, name, other)
    except Exception:  # a field that checks itself
        return None
    after = _shapes(cls, changed)
    if after is None:
        return None
    found = Counter(
        wanted[_any_layer(key)][axis]
        for key, shape in before.items()
        if len(wanted.get(_any_layer(key), ())) == len(shape) == len(after.get(key, ()))
        for axis, size in enumerate(shape)
        if size == value and after[key][axis] == other
    )
    best = found.most_common(1)
    return best[0][0] if best and best[0][0] < _LARGEST else None


def _depths(config: Any, stored: Shapes) -> Iterator[tuple[str, int]]:
    """The number of layers, by the highest number in the keys."""
    numbers = [int(part) for key in stored for part in key.split(".") if _NUMBER.fullmatch(part)]
    name = next((name for name in DEPTHS if isinstance(getattr(config, name, None), int)), None)
    if name is not None and numbers:
        yield name, max(numbers) + 1


def _open_fields(cls: Any, config: Any, fields: Mapping[str, int]) -> dict[str, int]:
    """The number of attention heads, which no shape tells: of the usual width, or one where that makes no model."""
    name = next((name for name in _HEADS if isinstance(getattr(config, name, None), int) and name not in fields), None)
    if name is None:
        return {}
    width = next((fields[field] for field in ("hidden_size", "dim", "d_model", "n_embd") if field in fields), 0)
    for heads in (getattr(config, name), width // _HEAD_WIDTH, 1):
        if heads and _shapes(cls, _configured(type(config), {**fields, name: heads})) is not None:
            return {name: heads}
    return {}


def _configured(config_class: Any, fields: Mapping[str, int]) -> Any:
    try:
        with quiet():
            return config_class(**fields)
    except Exception:  # sizes that the configuration refuses
        return None
