"""The modules of sentence-transformers one by one: sizes, activation, and the tensors in their own weight files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from headscope.checkpoints.contents.weights import FileStorage, read_weight_file
from headscope.checkpoints.formats.config_file import parse_object
from headscope.errors import Malformed, NotFound, Unsupported
from headscope.facts.stored.checkpoint import TensorHeader
from headscope.facts.stored.sentence import ModuleTensor, SentenceModule

_SETTINGS = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LARGEST_SIZE = 2**31
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Settings of before sentence-transformers 6, in the order in which it concatenates what they pool."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Read:
    """A module as its settings describe it, and the tensors that it loads; None where it has no file of weights."""

    module: SentenceModule
    shapes: Shapes | None = None


def read_module(storage: FileStorage, name: str, folder: str) -> SentenceModule:
    """One module of the chain, with its own weights. `fault` describes what doesn't fit, because the library raises an
    error for it.

    A module of a class that is not known, or without settings that matter, is named and no more.
    """
    plain = SentenceModule(name, folder)
    if name not in _READERS:
        return plain
    try:
        read = _READERS[name](plain, settings_of_module(storage, folder))
    except (Malformed, NotFound) as err:
        return replace(plain, fault=err.message)
    return read.module if read.shapes is None else _with_weights(storage, read.module, read.shapes)


def settings_of_module(storage: FileStorage, folder: str) -> dict[str, Any]:
    """The settings of the module in a folder of the checkpoint. Raises Malformed for a folder that lies elsewhere."""
    name = _inside(folder, _SETTINGS)
    return parse_object(storage.read_text(name), name)


def modes_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The pooling modes, as sentence-transformers reads its settings of every age."""
    named = settings.get("pooling_mode")
    if named is not None:
        modes = (named,) if isinstance(named, str) else tuple(named) if isinstance(named, list) else ()
        if not modes or not all(isinstance(mode, str) for mode in modes):
            raise Malformed("pooling_mode of the pooling module is not a name", "correct its config.json")
        return modes
    return tuple(mode for key, mode in _OLD_MODES.items() if settings.get(key) is True) or ("mean",)


def tokens_of_module(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of a `LogitScore`: for no, where it has one, then for yes."""
    wanted, other = settings.get("true_token_id"), settings.get("false_token_id")
    if type(wanted) is not int or not (other is None or type(other) is int) or min(wanted, other or 0) < 0:
        raise Malformed("LogitScore names no token ids (true_token_id, false_token_id)", "correct its config.json")
    return (wanted,) if other is None else (other, wanted)


def _inside(folder: str, file: str) -> str:
    if any(sign in folder for sign in "\\:\0") or PurePosixPath(folder).is_absolute() or ".." in folder.split("/"):
        raise Malformed(f"modules.json names the folder {folder[:80]!r}, which is not inside the checkpoint", "")
    return str(PurePosixPath(folder) / file)


def _with_weights(storage: FileStorage, module: SentenceModule, shapes: Shapes) -> SentenceModule:
    """The module with the tensors of its file, held against those that it loads."""
    for file in _WEIGHTS:
        try:
            found = read_weight_file(storage, _inside(module.folder, file)).tensors
        except NotFound:
            continue
        except (Malformed, Unsupported) as err:
            return replace(module, fault=err.message)
        weights = tuple(ModuleTensor(tensor.key, tensor.shape, tensor.dtype) for tensor in found)
        return replace(module, weights=weights, fault="; ".join(_faults(found, shapes)))
    return replace(module, fault=f"{module.folder} holds neither {' nor '.join(_WEIGHTS)}")


def _faults(found: tuple[TensorHeader, ...], shapes: Shapes) -> Iterator[str]:
    stored = {tensor.key: tensor.shape for tensor in found}
    for name, shape in shapes.items():
        if name not in stored:
            yield f"its file lacks {name}"
        elif stored[name] != shape:
            yield f"its file has {name} as {_size(stored[name])}, and its settings say {_size(shape)}"
    more = [name for name in stored if name not in shapes]
    if more:
        yield f"its file has {', '.join(more[:3])}, which the module does not"


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _count(settings: Mapping[str, Any], *names: str) -> int:
    """A size by the first of its names that is there. Raises Malformed where it is none."""
    value = next((settings[name] for name in names if name in settings), None)
    if type(value) is not int or not 0 < value < _LARGEST_SIZE:
        raise Malformed(f"{names[0]} in its settings is {str(value)[:40]!r}, not a size", "correct its config.json")
    return value


def _text(settings: Mapping[str, Any], name: str, default: str) -> str:
    value = settings.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name} in its settings is {str(value)[:40]!r}, not a name", "correct its config.json")
    return value


def _dense(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    size, out = _count(settings, "in_features"), _count(settings, "out_features")
    activation = _text(settings, "activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    has_residual = settings.get("use_residual") is True
    shapes: Shapes = {"linear.weight": (out, size)}
    if settings.get("bias", True):
        shapes["linear.bias"] = (out,)
    if has_residual and size != out:
        shapes["residual.weight"] = (out, size)
    detail = activation + (", plus a residual" if has_residual else "")
    target = _text(settings, "module_output_name", "") if settings.get("module_output_name") is not None else ""
    return _Read(replace(module, detail=detail, input_size=size, output_size=out, scores=target == "scores"), shapes)


def _layer_norm(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    size = _count(settings, "dimension")
    return _Read(replace(module, input_size=size, output_size=size), {"norm.weight": (size,), "norm.bias": (size,)})


def _pooling(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    modes = modes_of(settings)
    names = ("embedding_dimension", "word_embedding_dimension")
    if not any(name in settings for name in names):
        return _Read(replace(module, detail=", ".join(modes)))
    size = _count(settings, *names)
    return _Read(replace(module, detail=", ".join(modes), input_size=size, output_size=size * len(modes)))


def _splade(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    function = "log1p(relu)" if _text(settings, "activation_function", "relu") == "relu" else "log1p(log1p(relu))"
    return _Read(replace(module, detail=f"{_text(settings, 'pooling_strategy', 'max')} of {function}"))


def _logit_score(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    ids = tokens_of_module(settings)
    return _Read(replace(module, detail=" - ".join(f"token {number}" for number in reversed(ids)), output_size=1))


def _sparse_auto_encoder(module: SentenceModule, settings: Mapping[str, Any]) -> _Read:
    size, out = _count(settings, "input_dim"), _count(settings, "hidden_dim")
    detail = f"the {_count(settings, 'k')} largest"
    return _Read(replace(module, detail=detail, input_size=size, output_size=out))


_READERS: dict[str, Callable[[SentenceModule, Mapping[str, Any]], _Read]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Pooling": _pooling,
    "SpladePooling": _splade,
    "LogitScore": _logit_score,
    "SparseAutoEncoder": _sparse_auto_encoder,
}
