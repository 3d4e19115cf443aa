"""Classes that the keys and shapes of a state dict fit, where no config.json names one."""

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from headscope.core.facts import Task, TensorHeader
from headscope.core.facts.stored.checkpoint import Shapes
from headscope.core.facts.stored.unplaced import of_any_layer
from headscope.core.facts.stored.weights import layer_numbers, modern_name
from headscope.core.model.classes.catalog import all_classes_of_task, classes_of_family
from headscope.core.model.classes.defaults import fill_open_fields
from headscope.core.model.classes.reduced_config import DEPTHS, shallow_config
from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import config_classes, folder_of_type

_MOST_BUILT = 300_000_000
"""Numbers of the largest model that is built to be run."""
_MOST_MISFITS = 12
"""Keys in which a class may differ before its flags are tried."""
_MOST_HEIGHTS = 30
"""Different heights of stacks that are tried for each number of layers: the class is built for each."""
_START = 1000
"""Characters of a source file in which the note that it is generated stands."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_LEAF = {"weight", "bias", "gamma", "beta"}
_MOST_WORDS = 60
"""Words of the keys that are looked up in every source, the most frequent ones: a bound for hostile state dicts."""
_LEAST = 0.5
"""The share of the keys that a class has to have to be proposed."""
_MOST_FIELDS = 80
"""Fields of a configuration that are solved for: the class is built for each."""
_LARGEST = 2**31
"""Beyond every size that a field may have, and beyond every count of misfits."""
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_HEAD_WIDTH = 64
"""The width of an attention head in BERT and most families since."""
_LARGEST_SOLVED = 4096
"""The largest size of an image or of shared heads that bisection finds, in 12 steps."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Class that a state dict fits: `fits` of its `total` keys. `fields` are the sizes that the shapes tell.

    `open_fields` are those that no shape tells, with a value that makes the class work. `has_stored_shapes` tells that
    the class then has the stored keys and shapes and no others; `missing` counts the class's keys that are not stored,
    whatever their sizes.
    """

    class_name: str
    config_class: str
    fits: int
    total: int
    fields: tuple[tuple[str, int], ...] = ()
    open_fields: tuple[tuple[str, int], ...] = ()
    has_stored_shapes: bool = False
    missing: int = 0

    @property
    def is_whole(self) -> bool:
        """True if the class with these sizes loads every tensor, and needs no other."""
        return self.is_alike and self.has_stored_shapes

    @property
    def is_alike(self) -> bool:
        """True if the class has the same keys, whatever their sizes."""
        return self.fits == self.total and not self.missing


def fitting_classes(tensors: Sequence[TensorHeader]) -> tuple[Proposal, ...]:
    """Finds the classes that fit at least half of the keys, the best first; their sizes are not inferred."""
    stored = {modern_name(tensor.key): tensor.shape for tensor in tensors}
    classes = [pair for task in Task for pair in all_classes_of_task(task)]
    names = [name for model_type in _likely_model_types(stored) for kind, name in classes if kind == model_type]
    found = [item for name in dict.fromkeys(names) if (item := _fit_class(name, stored)) is not None]
    return tuple(sorted(found, key=lambda item: (-item.fits, item.missing)))


def _likely_model_types(stored: Shapes) -> list[str]:
    """Finds the model types whose source has most of the names in the keys; nothing is imported for it.

    Those come first whose name the keys begin with, then those whose source Transformers does not generate from
    another's, then those with the least code. A head's own name does not count, since Transformers writes many heads in
    one place for all families.
    """
    inner = [parts for key in stored if len(parts := key.split(".")) > 2]  # "classifier.weight" has two parts
    counted = Counter(word for parts in inner for word in parts if _WORD.fullmatch(word) and word not in _LEAF)
    words = [word for word, _ in counted.most_common(_MOST_WORDS)]
    sources = {}
    for kind in filter(classes_of_family, config_classes()):
        folder = Path(transformers.__file__).parent / "models" / folder_of_type(kind)
        files = sorted(folder.glob("modeling_*.py"))
        sources[kind] = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    scores = {kind: sum(word in text for word in words) for kind, text in sources.items()}

    def order(kind: str) -> tuple[bool, bool, int]:
        is_named = any(key.startswith(f"{kind.replace('-', '_')}.") for key in stored)
        return not is_named, "automatically generated from" in sources[kind][:_START], len(sources[kind])

    most = max(scores.values(), default=0)
    return sorted((kind for kind, score in scores.items() if score == most > 0), key=order)


def _fit_class(name: str, stored: Shapes) -> Proposal | None:
    """Counts how many keys the class has, with as many axes each, and how many of the class's keys are not stored.

    Flags of its configuration are set that bring its keys nearer to those stored: relative positions, biases.
    """
    try:
        cls = getattr(transformers, name)
    except ImportError:
        return None
    config = _default_config(cls)
    built = None if config is None else shapes_of_class(cls, shallow_config(config))
    if built is None:
        return None
    keys = {of_any_layer(key) for key in stored}
    flags = dict[str, int]()
    misfits = len(_shapes_of_any_layer(built).keys() ^ keys)
    switches = [name for name, value in vars(config).items() if type(value) is bool and not name.startswith("_")]
    for flag in switches if 0 < misfits <= _MOST_MISFITS else ():
        other = shapes_of_class(cls, _with_fields_set(config, {**flags, flag: not getattr(config, flag)}))
        if other and (left := len(_shapes_of_any_layer(other).keys() ^ keys)) < misfits:
            built, misfits, flags[flag] = other, left, not getattr(config, flag)
    own = _shapes_of_any_layer(built)
    # Nine axes are more than any stored tensor has, so a key that the class lacks never fits.
    fits = sum(len(own.get(of_any_layer(key), (None,) * 9)) == len(shape) for key, shape in stored.items())
    if fits < _LEAST * len(stored):
        return None
    return Proposal(
        name, type(config).__name__, fits, len(stored), tuple(flags.items()), missing=len(own.keys() - keys)
    )


def _shapes_of_any_layer(shapes: Shapes) -> Shapes:
    return {of_any_layer(key): shape for key, shape in shapes.items()}


def _with_fields_set(config: Any, fields: Mapping[str, int]) -> Any:
    """Copies a configuration with few layers, and sets fields; None where it refuses a value."""
    changed = shallow_config(config)
    try:
        for name, value in fields.items():
            setattr(changed, name, value)
    except Exception:  # a field that checks itself
        return None
    return changed


def _default_config(cls: Any) -> Any:
    """Makes the default configuration of a class, complete enough to build it; None where it has none."""
    try:
        with quiet():
            config = cls.config_class()
            fill_open_fields(config)
            return config
    except Exception:  # a configuration that needs arguments
        return None


def shapes_of_class(cls: Any, config: Any) -> Shapes | None:
    """Gives the shapes of what a class stores at a configuration, by key; None where it can't be built."""
    try:
        with quiet(), on_meta():
            return {name: tuple(item.shape) for name, item in cls(config).state_dict().items()}
    except Exception:  # whatever a foreign constructor raises
        return None


def with_sizes(proposal: Proposal, tensors: Sequence[TensorHeader]) -> Proposal:
    """Adds the sizes of the configuration that make the proposal's shapes those of the state dict."""
    stored = {modern_name(tensor.key): tensor.shape for tensor in tensors}
    cls = getattr(transformers, proposal.class_name)
    config = _default_config(cls)
    fields = dict(proposal.fields)
    shallow = shallow_config(config)
    before = shapes_of_class(cls, shallow) or {}
    wanted = {of_any_layer(key): shape for key, shape in stored.items()}
    for name in _sized_fields(config):
        value = _infer_field(cls, shallow, name, before, wanted)
        if value is not None:
            fields[name] = value
    opened = _choose_open_fields(cls, config, fields)
    fitting = _Fitting(cls, config, stored)
    fitting.solve_depths(fields, opened)
    fitting.solve_sizes(fields, opened)
    is_kept = fitting.survives_saving(fields | opened)
    return replace(
        proposal,
        fields=tuple(sorted(fields.items())),
        open_fields=tuple(sorted(opened.items())),
        has_stored_shapes=is_kept and fitting.shapes(fields | opened) == stored,
    )


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Class with inferred sizes, and the search for those that give the stored shapes."""

    cls: Any
    config: Any
    stored: Shapes

    def shapes(self, fields: Mapping[str, int]) -> Shapes:
        """Gives the shapes with these fields; empty where they make no model."""
        return shapes_of_class(self.cls, _config_with_fields(type(self.config), fields)) or {}

    def survives_saving(self, fields: Mapping[str, int]) -> bool:
        """True if the configuration can be written and read again, and then makes the same model."""
        config = _config_with_fields(type(self.config), fields)
        try:
            with quiet():
                again = type(self.config).from_dict(json.loads(config.to_json_string(use_diff=True)))
        except Exception:  # a configuration that cannot be written, or refuses what it wrote
            return False
        return shapes_of_class(self.cls, again) == self.shapes(fields)

    def misfits(self, fields: Mapping[str, int]) -> int:
        """Counts the parameters of the class and the stored keys that have no counterpart of the same shape."""
        built = self.shapes(fields)
        lacking = sum(self.stored.get(key) != shape for key, shape in built.items())
        return lacking + sum(key not in built for key in self.stored) if built else _LARGEST

    def solve_depths(self, fields: dict[str, int], opened: dict[str, int]) -> None:
        """Sets each number of layers to the one of the stored stacks that leaves the fewest misfits."""
        heights = {number + 1 for key in self.stored for number in layer_numbers(key)}
        names = [name for name in DEPTHS if type(getattr(self.config, name, None)) is int]
        misfits = self.misfits(fields | opened)
        for name in names if misfits and len(heights) < _MOST_HEIGHTS else ():
            for height in sorted(heights - {fields.get(name)}):
                if (left := self.misfits(fields | opened | {name: height})) < misfits:
                    misfits, fields[name] = left, height

    def solve_sizes(self, fields: dict[str, int], opened: dict[str, int]) -> None:
        """Adds sizes that an axis follows without being equal to it: of an image by its patches, of shared heads."""
        misfits = self.misfits(fields | opened)
        for name in _sized_fields(self.config) if misfits else ():
            found = None if name in fields | opened else self._solve_by_bisection(name, fields | opened)
            if found is None or (left := self.misfits(fields | opened | {name: found})) >= misfits:
                continue
            misfits = left
            (opened if "head" in name else fields)[name] = found

    def _solve_by_bisection(self, name: str, fields: Mapping[str, int]) -> int | None:
        """Finds the value with which the first parameter of another shape gets the stored one, by bisection."""
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


def _infer_field(cls: Any, shallow: Any, name: str, before: Shapes, wanted: Shapes) -> int | None:
    """Infers a field's value from the stored shapes: the size of an axis that equals the field and follows it."""
    value = getattr(shallow, name, None)
    if type(value) is not int:  # a list, as the configuration reads it
        return None
    other = 2 * value if value > 2 else 7  # a count that no default has
    after = shapes_of_class(cls, _with_fields_set(shallow, {name: other}))
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


def _choose_open_fields(cls: Any, config: Any, fields: Mapping[str, int]) -> dict[str, int]:
    """Chooses the number of attention heads, which no shape tells: heads of the usual width, or one if that fails."""
    name = next((name for name in _HEADS if isinstance(getattr(config, name, None), int) and name not in fields), None)
    if name is None:
        return {}
    name = config.attribute_map.get(name, name)
    width = next((fields[field] for field in ("hidden_size", "dim", "d_model", "n_embd") if field in fields), 0)
    for heads in (getattr(config, name), width // _HEAD_WIDTH, 1):
        if (
            heads
            and width % heads == 0
            and shapes_of_class(cls, _config_with_fields(type(config), {**fields, name: heads})) is not None
        ):
            return {name: heads}
    return {}


def _config_with_fields(config_class: Any, fields: Mapping[str, int]) -> Any:
    try:
        with quiet():
            return config_class(**fields)
    except Exception:  # sizes that the configuration refuses
        return None


def config_of(proposal: Proposal) -> Any:
    """Builds a proposal's configuration: its sizes, and its class's defaults; None where the class refuses them."""
    cls = getattr(transformers, proposal.class_name)
    return _config_with_fields(cls.config_class, dict((*proposal.fields, *proposal.open_fields)))


def count_of_numbers(cls: Any, config: Any) -> int:
    """Counts the numbers that a class stores at a configuration. Raises ValueError where it can't be built."""
    shapes = shapes_of_class(cls, config)
    if shapes is None:
        raise ValueError("the class can't be built with this configuration")
    return sum(map(math.prod, shapes.values()))


def build_with_named_numbers(cls: Any, config: Any) -> Any:
    """Builds a model of a class with numbers that follow from the names of its tensors alone.

    Matrices are around zero, so that activations and rotations show in the scores; vectors are positive, since
    variances are among them. None where it would hold too many numbers.
    """
    if count_of_numbers(cls, config) > _MOST_BUILT:
        return None
    with quiet(), torch.random.fork_rng(devices=[]):
        model = cls(config).float().eval()
        for name, value in model.state_dict().items():
            torch.default_generator.manual_seed(zlib.crc32(name.encode()))
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape) * 0.4 + (0.1 if value.dim() == 1 else -0.2))
    return model
