"""A classifier of scikit-learn or SetFit in a pickle of joblib: class, labels and shapes, read and never executed."""

import io
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any

from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.checkpoints.formats.pickle.interpreter import read_pickle
from headscope.core.checkpoints.formats.pickle.values import Dialect, Global, Instance
from headscope.core.facts.stored.sentence import PickledHead
from headscope.errors import Malformed, Unsupported

_LARGEST = 64 << 20
_LONGEST = 8 << 20
_MOST_AXES = 8
_MOST_LABELS = 100_000
_PICKLES = (b"\x80", b"(", b"c")
_WRAPPER = Global("joblib.numpy_pickle", "NumpyArrayWrapper")
_ARRAYS = {
    Global("numpy", "ndarray"), Global("numpy", "dtype"), Global("_codecs", "encode"), _WRAPPER,
    *(Global(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
}  # fmt: skip
_OF_LABELS = _ARRAYS - {_WRAPPER}
"""What is in an array of texts, which joblib pickles apart; no further array of joblib, or they could nest."""
_TORCH = {
    Global("setfit.modeling", "SetFitHead"), Global("torch.nn.modules.linear", "Linear"),
    Global("torch._utils", "_rebuild_parameter"), Global("torch._utils", "_rebuild_tensor_v2"),
    Global("torch.storage", "_load_from_bytes"), Global("torch", "device"),
}  # fmt: skip

_COMPRESSED = {
    b"\x78": "zlib", b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x5d\x00\x00": "lzma",
    b"\x04\x22M\x18": "lz4",
}  # fmt: skip
"""How the files begin that `joblib.dump(..., compress=...)` writes."""


def read_pickled_head(source: ByteSource) -> PickledHead:
    """Reads the head in a `model_head.pkl`. Raises Malformed, also for a pickle that names what such a head lacks."""
    made = _read_classifier(source)
    return _torch_head(made, source.name) if made.kind in _TORCH else _scikit_head(made, source.name)


def read_linear_classifier(source: ByteSource) -> tuple[Any, Any]:
    """Reads the numbers of a LogisticRegression as arrays of NumPy: weights [scores, features], intercepts [scores].

    Its probabilities are the softmax of the scores, or the sigmoid of a single one. Raises as `read_pickled_head`, and
    Unsupported for another classifier, other probabilities, and numbers that don't fit each other.
    """
    import numpy as np

    made = _read_classifier(source)
    if made.kind.name not in _LOGISTIC:
        raise Unsupported(f"{source.name} holds a {made.kind.name}, which is not a LogisticRegression", "")
    arrays = [made.state.get(name) for name in ("coef_", "intercept_")]
    if not all(_describe_array(one)[1] in _FLOATS.values() and one.kind == _WRAPPER for one in arrays):
        what = f"{source.name} holds a {made.kind.name} without weights and intercepts as joblib saves them"
        raise Unsupported(what, "fit it, and save it with joblib.dump(head, path)")
    weight, bias = (
        np.frombuffer(one.arguments[0], "".join(map(str, _dtype_of(one.state["dtype"])))).reshape(
            _shape_of(one.state["shape"]), order="F" if one.state.get("order") == "F" else "C"
        )
        for one in arrays
    )
    classes = made.state.get("classes_")
    count = len(_read_labels(classes)[0])
    if weight.ndim != 2 or bias.shape != weight.shape[:1] or len(weight) != (1 if count == 2 else count):
        sizes = f"weights of shape {list(weight.shape)}, intercepts of shape {list(bias.shape)} and {count} classes"
        raise Unsupported(f"{source.name} holds {sizes}, which don't fit each other", "save the model again")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise Unsupported(f"{source.name} holds numbers that are not finite", "fit the classifier again")
    if fault := _other_probabilities(made.state, len(weight)):
        raise Unsupported(f"{source.name}: {fault}", "fit the classifier again with scikit-learn 1.7 or later")
    return weight, bias


_LOGISTIC = ("LogisticRegression", "LogisticRegressionCV")


def _other_probabilities(state: Mapping[str, Any], scores: int) -> str:
    """Says how `predict_proba` differs from a softmax of several scores or the sigmoid of one; "" if it doesn't.

    Before scikit-learn 1.7, `multi_class` chose it:
    https://github.com/scikit-learn/scikit-learn/blob/1.5.2/sklearn/linear_model/_logistic.py (`predict_proba`)
    """
    chosen = state.get("multi_class", "auto")
    if chosen not in ("auto", "deprecated", "multinomial", "ovr", "warn"):
        return "its multi_class is none that headscope knows"
    option = "solver='liblinear'" if state.get("solver") == "liblinear" else f"multi_class='{chosen}'"
    if scores > 1 and (option.startswith("solver") or chosen in ("ovr", "warn")):
        return f"its probabilities are one scaled sigmoid for each class ({option}), not a softmax"
    if scores == 1 and chosen == "multinomial":
        return f"its probabilities are the softmax of the one score and its opposite ({option}), not the sigmoid of it"
    return ""


def _read_classifier(source: ByteSource) -> Instance:
    if source.size > _LARGEST:
        raise Malformed(f"{source.name} has {source.size:,} bytes, over the limit of {_LARGEST:,}", "check the file")
    content = source.read_at(0, source.size)
    if not content.startswith(_PICKLES):
        packed = next((name for start, name in _COMPRESSED.items() if content.startswith(start)), "")
        what = f"is compressed ({packed}), and was not examined" if packed else "is not a pickle, and was not examined"
        hint = "save it again with joblib.dump(head, path), without compress" if packed else ""
        raise Unsupported(f"{source.name} {what}", hint)
    dialect = Dialect(_is_known, _read_array, "a head of scikit-learn or SetFit", _LONGEST)
    value = read_pickle(io.BytesIO(content), source.name, dialect=dialect)
    if not isinstance(value, Instance) or not isinstance(value.state, dict):
        raise Malformed(f"{source.name} holds no classifier", "save the model again")
    return value


def _is_known(found: Global) -> bool:
    is_estimator = found.module.startswith("sklearn.") and found.name[:1].isupper() and found.name.isidentifier()
    return is_estimator or found in _ARRAYS or found in _TORCH


def _read_array(file: IO[bytes], made: Instance, read_inside: Callable[[str, Dialect], Any]) -> None:
    """Reads the data that joblib writes behind the description of an array into the arguments of `made`."""
    if made.kind != _WRAPPER:
        return
    if not isinstance(made.state, dict):
        raise Malformed("an array has no description", "")
    shape, (kind, width) = _shape_of(made.state.get("shape")), _dtype_of(made.state.get("dtype"))
    if kind == "O":
        dialect = Dialect(lambda item: item in _OF_LABELS, _read_array, "an array of labels", _LONGEST)
        made.arguments = (read_inside("labels", dialect),)
        return
    if made.state.get("numpy_array_alignment_bytes") is not None:
        # joblib aligns the numbers: a byte says how many bytes of padding follow.
        file.read(int.from_bytes(file.read(1), "little"))
    size = width
    for axis in shape:
        size *= axis
    data = file.read(min(size, _LARGEST))
    if len(data) < size:
        raise Malformed("the numbers of an array end early", "download the file again")
    made.arguments = (data,)


def _shape_of(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MOST_AXES or not all(type(axis) is int for axis in value):
        raise Malformed("an array has no shape", "")
    if any(not 0 <= axis <= _LARGEST for axis in value):
        raise Malformed("the shape of an array is out of bounds", "")
    return value


def _dtype_of(value: Any) -> tuple[str, int]:
    """Reads the letter of a dtype and its bytes: `f8` is 8 bytes, `U3` are three characters of 4 bytes each."""
    code = value.arguments[0] if isinstance(value, Instance) and value.arguments else None
    letter, digits = (code[:1], code[1:]) if isinstance(code, str) else ("", "")
    if letter == "O":
        # The items are pickled apart, so the width is not used.
        return "O", 8
    is_text = letter in {"U", "S"} and digits.isascii() and digits.isdigit() and len(digits) <= 5
    if not is_text and not (letter in {"f", "i", "u", "b"} and digits in {"1", "2", "4", "8"}):
        raise Malformed("an array has a number format that is not known", "")
    if isinstance(value.state, tuple) and value.state[1:2] == (">",):
        raise Malformed("an array is in the byte order of another kind of machine", "")
    return letter, int(digits) * (4 if letter == "U" else 1)


def _scikit_head(made: Instance, name: str) -> PickledHead:
    state = made.state
    coefficients, classes = state.get("coef_"), state.get("classes_")
    shape, dtype = _describe_array(coefficients)
    if shape is None:
        return PickledHead(made.kind.name, reason=f"{name} holds a {made.kind.name}, whose weights are not read")
    labels, are_texts = _read_labels(classes)
    has_bias = _describe_array(state.get("intercept_"))[0] is not None
    version = state.get("_sklearn_version")
    library = f"scikit-learn {version}" if isinstance(version, str) else ""
    return PickledHead(made.kind.name, tuple(labels), shape, dtype, has_bias, library, classes_are_texts=are_texts)


def _describe_array(value: Any) -> tuple[tuple[int, ...] | None, str]:
    """Gives shape and number format of an array as joblib or NumPy describes it; None for anything else."""
    if not isinstance(value, Instance):
        return None, ""
    if value.kind == _WRAPPER and isinstance(value.state, dict):
        kind, width = _dtype_of(value.state.get("dtype"))
        return _shape_of(value.state.get("shape")), _FLOATS.get((kind, width), f"{kind}{width}")
    if value.kind.name == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) > 2:
        kind, width = _dtype_of(value.state[2])
        return _shape_of(value.state[1]), _FLOATS.get((kind, width), f"{kind}{width}")
    return None, ""


_FLOATS = {("f", 8): "float64", ("f", 4): "float32", ("f", 2): "float16"}


def _read_labels(made: Any) -> tuple[list[str], bool]:
    """Reads the classes as texts, none if their kind is not known, and whether they are texts and not numbers."""
    if not isinstance(made, Instance):
        return [], False
    data = made.arguments[0] if made.arguments else None
    if made.kind == _WRAPPER and isinstance(data, bytes):
        kind, width = _dtype_of(made.state.get("dtype"))
        return _decode_items(data, kind, width), kind in {"U", "S"}
    inner = data if isinstance(data, Instance) else made
    found = inner.state[-1] if isinstance(inner.state, tuple) and inner.state else None
    items = found if isinstance(found, list) else []  # an array that is stored as a list
    labels = [str(item) for item in items[:_MOST_LABELS] if isinstance(item, str | int)]
    return labels, bool(items) and all(isinstance(item, str) for item in items)


def _decode_items(data: bytes, kind: str, width: int) -> list[str]:
    pieces = [data[at : at + width] for at in range(0, min(len(data), _MOST_LABELS * width), max(width, 1))]
    if kind == "U":
        return [piece.decode("utf-32-le", "replace").rstrip("\0") for piece in pieces]
    if kind in {"i", "u", "b"}:
        return [str(int.from_bytes(piece, "little", signed=kind == "i")) for piece in pieces]
    if (kind, width) == ("f", 8):
        return [f"{struct.unpack('<d', piece)[0]:g}" for piece in pieces]
    return []


def _torch_head(made: Instance, name: str) -> PickledHead:
    state = made.state
    sizes = (state.get("out_features"), state.get("in_features"))
    if not all(type(size) is int and 0 < size <= _LARGEST for size in sizes):
        return PickledHead(made.kind.name, reason=f"{name} says no sizes")
    return PickledHead(made.kind.name, (), sizes, "float32", bool(state.get("bias", True)), "SetFit")
