"""Tensors of a checkpoint that nothing in the model takes: why, by module, and what they look like."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from headscope.core.facts.counting import counted

_MOST_MODULES = 5
_Shapes = Mapping[str, tuple[int, ...]]
_OF_A_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def of_any_layer(key: str) -> str:
    """A key without the numbers of its layers: `encoder.layer.*.output.dense.bias`."""
    return _OF_A_LAYER.sub("*", key)


class UnplacedReason(StrEnum):
    """Why nothing in the model takes a tensor of the checkpoint.

    `pretraining_head`: another head of the family has it; `other_tower`: another part of the family has it, such as a
    pooler or a decoder; `older_version`: a buffer that Transformers computes again; `training_state`: an optimizer, an
    average of the weights, a loss; `unknown`: no class of the family has it, so the saved model may have computed with
    it.
    """

    PRETRAINING_HEAD = "pretraining_head"
    OLDER_VERSION = "older_version"
    OTHER_TOWER = "other_tower"
    TRAINING_STATE = "training_state"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The tensors of one module that the checkpoint holds and nothing in the model takes."""

    module: str
    """The module in the checkpoint, without the numbers of layers; empty for tensors outside any module."""
    tensors: tuple[str, ...]
    """Keys of the checkpoint."""
    reason: UnplacedReason
    """Why nothing takes them."""
    what: str
    """What they are, or what their names and shapes look like; may be empty."""

    @property
    def name(self) -> str:
        """Module, or the tensors if they are outside any."""
        return f"{self.module}.*" if self.module else ", ".join(self.tensors[:3])


def describe_unplaced(found: Sequence[Unplaced]) -> str:
    """Modules with what they look like: "lstm.* (8 tensors, an LSTM over the positions, 32 -> 16)"."""
    each = (
        f"{item.name} ({', '.join(filter(None, (counted(len(item.tensors), 'tensor'), item.what)))})" for item in found
    )
    more = [f"and {len(found) - _MOST_MODULES:,} more modules"] if len(found) > _MOST_MODULES else []
    return "; ".join([*islice(each, _MOST_MODULES), *more])


def modules_with(names: Iterable[str]) -> frozenset[str]:
    """Gives the paths of all modules that hold one of the tensors, at any depth, without the numbers of layers."""
    split = [name.split(".") for name in set(map(of_any_layer, names))]
    return frozenset(".".join(parts[:at]) for parts in split for at in range(len(parts)))


def keys_by_module(keys: Iterable[str], own: Set[str]) -> dict[str, list[str]]:
    """Keys by the outermost module of each that isn't among the model's `own` modules (see `modules_with`)."""
    found: dict[str, list[str]] = {}
    for key in keys:
        modules = of_any_layer(key).split(".")[:-1]
        paths = [".".join(modules[: at + 1]) for at in range(len(modules))]
        found.setdefault(next((path for path in paths if path not in own), ".".join(modules)), []).append(key)
    return found


def look_of(module: str, shapes: _Shapes) -> str:
    """Guesses a module from its tensors, such as "an LSTM over the positions, 32 -> 16"; "" if nothing tells."""
    if parametrized_among(shapes):
        return "a weight is computed from them"
    inside = {name.removeprefix(f"{module}."): shape for name, shape in sorted(shapes.items())}
    found = next((look for look in (look(inside) for look in _LOOKS) if look), "")
    is_score_head = module.rpartition(".")[2] in ("v_head", "value_head", "reward_head")
    return f"a value or reward head, {found}" if is_score_head and found else found


# Of torch.nn.utils: parametrizations, and weight_norm (g, v), spectral_norm and prune (orig) with their older names.
_PARAMETRIZED = re.compile(r"(^|\.)(parametrizations\..*|\w+_orig)$")


def parametrized_among(keys: Iterable[str]) -> list[str]:
    """Lists the tensors that a weight is computed from, as PyTorch names them: not the weights themselves."""
    names = set(keys)
    pairs = {name[:-1] for name in names if name.endswith("_g") and f"{name[:-1]}v" in names}
    return sorted(name for name in names if _PARAMETRIZED.search(name) or name[:-1] in pairs)


_GATES = {4: "an LSTM", 3: "a GRU", 1: "a recurrent layer"}


def _recurrent_layer(shapes: _Shapes) -> str:
    found = [shape for name, shape in shapes.items() if re.search(r"weight_[ih]h_l0$", name) and len(shape) == 2]
    gates = found[0][0] // found[0][1] if len(found) == 2 and found[0][1] else 0  # first that of the hidden state
    both = " in both directions" if any(name.endswith("_reverse") for name in shapes) else ""
    return f"{_GATES[gates]} over the positions{both}, {found[1][1]} -> {found[0][1]}" if gates in _GATES else ""


_TRANSITIONS = re.compile(r"(^|[._])(trans|trans_matrix|\w*transitions?)([._]|$)")


def _label_transitions(shapes: _Shapes) -> str:
    named = [shape for name, shape in shapes.items() if _TRANSITIONS.search(name)]
    square = [shape for shape in named if len(shape) == 2 and shape[0] == shape[1]]
    return f"a CRF over {counted(square[0][0], 'label')}" if square else ""


_ATTENTION = re.compile(r"in_proj_weight|(^|[._])(q|k|v|query|key|value)(_proj|_lin)?\.|attn|attention", re.IGNORECASE)


def _attention_layers(shapes: _Shapes) -> str:
    layers = {match.group() for name in shapes if (match := re.search(r"(^|\.)\d+\.", name))}
    if not any(_ATTENTION.search(name) for name in shapes):
        return ""
    return f"an encoder of {counted(len(layers), 'layer')}" if layers else "an attention"


_MOST_LAYERS = 4
_KINDS = {2: "linear layer", 3: "convolution", 4: "convolution", 5: "convolution"}


def _linear_layers(shapes: _Shapes) -> str:
    """Matrices and kernels in the order of their names, each with its sizes."""
    found = [(name, shape) for name, shape in shapes.items() if len(shape) in _KINDS]
    if not found or len(found) > _MOST_LAYERS:
        return ""
    kind = "embedding" if all("embed" in name for name, _ in found) else _KINDS[len(found[0][1])]
    each = ", ".join(f"{shape[1]} -> {shape[0]}" for _, shape in found)
    return f"{counted(len(found), kind)}: {each}" if kind != "embedding" else f"an embedding of {found[0][1][0]} rows"


def _single_numbers(shapes: _Shapes) -> str:
    """Tensors without a matrix: a norm, statistics of a score, or just numbers."""
    names = {name.rpartition(".")[2] for name in shapes}
    sizes = [shape[0] if shape else 1 for shape in shapes.values() if len(shape) < 2]
    if len(sizes) < len(shapes):
        return ""
    if names in ({"mean", "std"}, {"mean", "var"}) and set(sizes) == {1}:
        return "mean and standard deviation of one score"
    is_norm = "weight" in names and names <= {"weight", "bias"} and len(set(sizes)) == 1
    return f"a norm of {counted(sizes[0], 'feature')}" if is_norm else counted(sum(sizes), "number")


# The order matters: the first that tells something wins, and a matrix alone tells less than an LSTM that it is part of.
_LOOKS: tuple[Callable[[_Shapes], str], ...] = (
    _recurrent_layer, _label_transitions, _attention_layers, _linear_layers, _single_numbers,
)  # fmt: skip
