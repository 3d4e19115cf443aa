"""Which classes the keys and shapes of a state dict fit, where no config.json names one."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import transformers

from headscope.facts import TensorHeader
from headscope.facts.keys import layer_numbers, of_any_layer
from headscope.facts.weights import modern_name
from headscope.model.catalogue import classes_of_family
from headscope.model.quiet import quiet
from headscope.model.reduced_config import DEPTHS, shallow_config
from headscope.upstream.torch import on_meta

_FAMILIES = 6
_SHOWN = 3
_GENERATED = "automatically generated from"
_START = 1000
_OF_A_HEAD = 2
_WORD = re.compile(r"[A-Za-z_]\w*")
_LEAF = {"weight", "bias", "gamma", "beta"}
_MOST_WORDS = 60
_LEAST = 0.5
_MOST_FIELDS = 80
_LARGEST = 2**31
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_HEAD_WIDTH = 64
_HEAD = "head"
_LARGEST_SOLVED = 4096

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A class that a state dict fits: `fits` of its `total` keys. `fields` are the sizes that the shapes tell.

    `open_fields` are those that no shape tells, with a value that makes the class work. `lacking` are parameters that
    the class then has without stored weights of their shape, and `left` the keys that it does not read.
    """

    class_name: str
    config_class: str
    fits: int
    total: int
    fields: tuple[tuple[str, int], ...] = ()
    open_fields: tuple[tuple[str, int], ...] = ()
    lacking: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def propose(tensors: Sequence[TensorHeader]) -> tuple[Proposal, ...]:
    """The classes that fit at least half of the keys, the best first; the sizes are inferred for the best."""
    stored = {modern_name(tensor.key): tensor.shape for tensor in tensors}
    names = [name for family in _families(stored) for name in _classes(family)]
    fitting = [found for name in dict.fromkeys(names) if (found := _fit(name, stored)) is not None]
    best = sorted(fitting, key=lambda item: (-item[0].fits, item[1]))[:_SHOWN]
    if not best:
        return ()
    equal = [
        _with_sizes(item, stored) for item, missing in best if (item.fits, missing) == (best[0][0].fits, best[0][1])
    ]
    equal.sort(key=lambda item: len(item.lacking) + len(item.left))  # layers that hold their matrix transposed
    return (*equal, *(item for item, _ in best[len(equal) :]))


def _families(stored: Shapes) -> list[str]:
    """The families whose source has most of the names in the keys; nothing is imported for it.

    Of families with the same names, those come first whose name the keys begin with, then those whose source
    Transformers does not generate from another family's, then those with the least code: dozens share the names of
    Llama. A head's own name does not count, since Transformers writes many heads in one place for all families.
    """
    inner = [parts for key in stored if len(parts := key.split(".")) > _OF_A_HEAD]
    counted = Counter(word for parts in inner for word in parts if _WORD.fullmatch(word) and word not in _LEAF)
    words = [word for word, _ in counted.most_common(_MOST_WORDS)]
    folder = Path(transformers.__file__).parent / "models"
    scores: dict[str, int] = {}
    originals, lengths = set[str](), dict[str, int]()
    for file in sorted(folder.glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        score = sum(word in text for word in words)
        scores[file.parent.name] = max(score, scores.get(file.parent.name, 0))
        lengths[file.parent.name] = len(text) + lengths.get(file.parent.name, 0)
        originals |= set() if _GENERATED in text[:_START] else {file.parent.name}

    def order(name: str) -> tuple[int, bool, bool, int]:
        is_named = any(key.startswith(f"{name}.") for key in stored)
        return -scores[name], not is_named, name not in originals, lengths[name]

    classifying = (name for name in sorted(scores, key=order) if next(_classes(name), None))
    return list(islice(classifying, _FAMILIES))


def _classes(family: str) -> Iterator[str]:
    for model_type in dict.fromkeys((family.replace("_", "-"), family)):
        yield from (found.name for found in classes_of_family(model_type))


def _fit(name: str, stored: Shapes) -> tuple[Proposal, int] | None:
    """How many of the keys the class has, each with as many axes, and how many of the class's are not stored."""
    cls = getattr(transformers, name, None)
    config = _default(cls)
    built = None if config is None else _shapes(cls, shallow_config(config))
    if built is None:
        return None
    own = {of_any_layer(key): shape for key, shape in built.items()}
    fits = sum(len(own.get(of_any_layer(key), (None,) * 9)) == len(shape) for key, shape in stored.items())
    fits = _consistent(own, stored, fits)
    if fits < _LEAST * len(stored):
        return None
    missing = len(set(own) - {of_any_layer(key) for key in stored})
    return Proposal(name, type(config).__name__, fits, len(stored)), missing


def _consistent(own: Mapping[str, tuple[int, ...]], stored: Shapes, fits: int) -> int:
    """`fits` less the keys whose sizes contradict the others: a size of the class is one size in the state dict."""
    sizes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    pairs = [(own[of_any_layer(key)], shape) for key, shape in stored.items() if of_any_layer(key) in own]
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
        with quiet(), on_meta():
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
    wanted = {of_any_layer(key): shape for key, shape in stored.items()}
    for name in _sized_fields(config):
        told = _told(cls, shallow, name, before, wanted)
        if told is not None:
            fields[name] = told
    opened = _open_fields(cls, config, fields)
    fitting = _Fitting(cls, config, stored)
    fitting.try_flags(fields, opened)
    fitting.solve_sizes(fields, opened)
    built = fitting.shapes(fields | opened)
    return replace(
        proposal,
        fields=tuple(sorted(fields.items())),
        open_fields=tuple(sorted(opened.items())),
        lacking=tuple(key for key, shape in built.items() if stored.get(key) != shape),
        left=tuple(key for key in stored if key not in built),
    )


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A class with inferred sizes, and what of the stored shapes it does not give yet."""

    cls: Any
    config: Any
    stored: Shapes

    def shapes(self, fields: Mapping[str, int]) -> Shapes:
        """The shapes with these fields; empty where they make no model."""
        return _shapes(self.cls, _configured(type(self.config), fields)) or {}

    def misfits(self, fields: Mapping[str, int]) -> int:
        """How many parameters of the class and stored keys have no counterpart of the same shape."""
        built = self.shapes(fields)
        lacking = sum(self.stored.get(key) != shape for key, shape in built.items())
        return lacking + sum(key not in built for key in self.stored)

    def try_flags(self, fields: dict[str, int], opened: dict[str, int]) -> None:
        """Adds the flags to `fields` that give more of the stored keys: relative positions, biases."""
        misfits = self.misfits(fields | opened)
        flags = [name for name, value in self.config.to_dict().items() if type(value) is bool]
        for name in flags[:_MOST_FIELDS] if misfits else ():
            changed = fields | {name: not getattr(self.config, name)}
            if self.shapes(changed | opened) and (left := self.misfits(changed | opened)) < misfits:
                fields[name], misfits = changed[name], left

    def solve_sizes(self, fields: dict[str, int], opened: dict[str, int]) -> None:
        """Adds sizes that an axis follows without being equal to it: of an image by its patches, of shared heads."""
        misfits = self.misfits(fields | opened)
        for name in _sized_fields(self.config) if misfits else ():
            found = None if name in fields | opened else self._solved(name, fields | opened)
            if found is None or (left := self.misfits(fields | opened | {name: found})) >= misfits:
                continue
            misfits = left
            (opened if _HEAD in name else fields)[name] = found

    def _solved(self, name: str, fields: Mapping[str, int]) -> int | None:
        """The value with which the first parameter of another shape gets the stored one, by bisection."""
        built = self.shapes(fields)
        odd = [key for key, shape in built.items() if self.stored.get(key, shape) != shape]
        probe = self.shapes({**fields, name: 2 * getattr(self.config, name)})
        if not odd or probe.get(odd[0], built[odd[0]]) == built[odd[0]]:
            return None
        wanted = math.prod(self.stored[odd[0]])
        low, high = 1, _LARGEST_SOLVED
        while low < high:
            middle = (low + high) // 2
            shape = self.shapes({**fields, name: middle}).get(odd[0])
            if shape is not None and math.prod(shape) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low if self.shapes({**fields, name: low}).get(odd[0]) == self.stored[odd[0]] else None


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
        wanted[of_any_layer(key)][axis]
        for key, shape in before.items()
        if len(wanted.get(of_any_layer(key), ())) == len(shape) == len(after.get(key, ()))
        for axis, size in enumerate(shape)
        if size == value and after[key][axis] == other
    )
    best = found.most_common(1)
    return best[0][0] if best and best[0][0] < _LARGEST else None


def _depths(config: Any, stored: Shapes) -> Iterator[tuple[str, int]]:
    """The number of layers, by the highest number in the keys."""
    numbers = [number for key in stored for number in layer_numbers(key)]
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
        if (
            heads
            and width % heads == 0
            and _shapes(cls, _configured(type(config), {**fields, name: heads})) is not None
        ):
            return {name: heads}
    return {}


def _configured(config_class: Any, fields: Mapping[str, int]) -> Any:
    try:
        with quiet():
            return config_class(**fields)
    except Exception:  # sizes that the configuration refuses
        return None
