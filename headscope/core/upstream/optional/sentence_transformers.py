"""sentence-transformers: chains of modules that take and return a dictionary. Only a run imports it."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscope.core.upstream.python import descends_from
from headscope.errors import Unsupported, first_line, moved

_PACKAGE = "sentence_transformers"
_KINDS = ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder")


def is_cross_encoder(module: object) -> bool:
    """True if `module` is a CrossEncoder: it gives scores of pairs."""
    return descends_from(module, _PACKAGE, "CrossEncoder")


def is_encoder(module: object) -> bool:
    """True if `module` is a chain of modules that gives embeddings."""
    return any(descends_from(module, _PACKAGE, name) for name in _KINDS)


def classifier_inside(module: nn.Module) -> nn.Module | None:
    """Gives the classifier of a CrossEncoder that has no module after it; None for anything else."""
    parts = list(module.children()) if is_cross_encoder(module) else []
    if len(parts) != 1:
        return None
    # Before version 5 the classifier was the only child.
    inner = getattr(parts[0], "model", None) if type(parts[0]).__module__.startswith(_PACKAGE) else parts[0]
    return inner if isinstance(inner, nn.Module) else None


def activation_of_encoder(encoder: nn.Module) -> str:
    """Gives the class of the function that a CrossEncoder puts on its scores by default.

    Raises Unsupported if the class has no such function.
    """
    try:
        found: Any = encoder.activation_fn
    except AttributeError as err:
        raise moved(_PACKAGE, "a CrossEncoder has no activation_fn") from err
    return (
        type(found).__name__ if isinstance(found, nn.Module) else str(getattr(found, "__name__", type(found).__name__))
    )


def check_library(folder: str, class_name: str, inputs: Sequence[tuple[str, ...]], score: Callable[..., Any]) -> None:
    """Calls the library's `predict` or `encode` on texts or pairs, as its user does, beside `score` on its tensors.

    Raises whatever the library raises, and ValueError if its scores differ from those of `score`.
    """
    library: Any = importlib.import_module(_PACKAGE)
    encoder = getattr(library, class_name)(folder, device="cpu", local_files_only=True)
    raw = {"activation_fn": nn.Identity()} if class_name == "CrossEncoder" else {}
    call = encoder.predict if raw else encoder.encode
    for one in inputs:
        given = one if len(one) > 1 else one[0]
        theirs = torch.as_tensor(call([given], convert_to_tensor=True, show_progress_bar=False, prompt="", **raw))
        ours = score(encoder.preprocess([given]))
        rounding = max(_ROUNDING, _ROUNDINGS * torch.finfo(ours.dtype).eps) * max(1.0, float(ours.abs().max()))
        apart = float((theirs.float().flatten() - ours.float().flatten()).abs().max())
        if not apart <= rounding:
            raise ValueError(f"its scores differ from those of the modules that it saved by {apart:.2g}")


_ROUNDING, _ROUNDINGS = 1e-4, 16
"""How far scores may be apart in single precision, and how many roundings of the format in half precision: the library
may sum in another order than headscope."""


def padding_side_of_encoder(encoder: nn.Module) -> str:
    """Gives the side on which the tokenizer of an encoder pads; "" where none is known."""
    side = getattr(getattr(encoder, "tokenizer", None), "padding_side", "")
    return side if side in {"left", "right"} else ""


def scores_of(returned: Any) -> dict[str, Any]:
    """Takes from a chain's output its scores, or its embedding, under the library's name. Raises Unsupported."""
    found = returned if isinstance(returned, Mapping) else {}
    name = next((name for name in ("scores", "sentence_embedding", "token_embeddings") if name in found), None)
    if name is None:
        raise Unsupported(
            f"the modules of sentence-transformers return neither scores nor an embedding (found: {', '.join(found)})",
            "give the model of Transformers inside",
        )
    return {name: found[name]}


@dataclass(frozen=True, slots=True, eq=False)
class ChainModule:
    """A module to put after the pooling: `Normalize`, or `Dense` or `LayerNorm` with `weight` and, if any, `bias`."""

    kind: str
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    activation: str = ""

    def __str__(self) -> str:
        """Writes the module as its library's model card does: `Dense (Tanh)`."""
        return f"{self.kind} ({self.activation})" if self.activation else self.kind


def pooled_model(folder: Path, mode: str, width: int) -> list[Any]:
    """Makes the modules of a base model with its tokenizer and a Pooling of vectors of `width`."""
    parts, classes = _import_modules()
    return [parts.Transformer(str(folder)), classes.Pooling(width, pooling_mode=mode)]


def modules_of_encoder(folder: Path) -> list[Any]:
    """Loads the modules of a SentenceTransformer. Raises Unsupported if the library doesn't take the folder."""
    library: Any = importlib.import_module(_PACKAGE)
    try:
        return list(library.SentenceTransformer(str(folder), device="cpu", local_files_only=True))
    except Exception as err:  # whatever the library raises for a folder that it doesn't take
        raise Unsupported(f"{_PACKAGE} can't load {folder}: {first_line(err)}", "see what the library says") from err


def save_cross_encoder(
    begin: Sequence[Any], folder: Path, modules: Sequence[ChainModule], *, activation: str, labels: Sequence[str],
    unread: Iterable[str],
) -> None:  # fmt: skip
    """Saves the CrossEncoder that has `modules` after those of `begin`; the last one makes the scores.

    Modules of the base model that are `unread` are left out. Raises Unsupported if the library has moved its classes.
    """
    library: Any = importlib.import_module(_PACKAGE)
    parts, classes = _import_modules()
    chain = list(begin)
    for name in unread:
        setattr(chain[0].model, name, None)
    config = chain[0].model.config
    config.id2label, config.label2id = dict(enumerate(labels)), {name: at for at, name in enumerate(labels)}
    for module in modules:
        if module.kind == "Normalize":
            chain.append(parts.Normalize())
            continue
        weight = module.values["weight"]
        if module.kind == "LayerNorm":
            made = classes.LayerNorm(len(weight))
        else:
            scores = {"module_output_name": "scores"} if module is modules[-1] else {}
            function = getattr(nn, module.activation)()
            options = {"bias": "bias" in module.values, "activation_function": function, **scores}
            made = parts.Dense(weight.shape[1], len(weight), **options)
        (made.norm if module.kind == "LayerNorm" else made.linear).load_state_dict(module.values)
        chain.append(made.to(weight.dtype))
    encoder = library.CrossEncoder(modules=chain, activation_fn=getattr(nn, activation)())
    encoder.save_pretrained(str(folder), create_model_card=False)


def _import_modules() -> tuple[Any, Any]:
    """Imports the library's modules: those of every chain, and those of vectors."""
    try:
        names = ("base", "sentence_transformer")
        parts, classes = (importlib.import_module(f"{_PACKAGE}.{name}.modules") for name in names)
    except ImportError as err:
        raise moved(_PACKAGE, f"its modules are elsewhere ({err})") from err
    return parts, classes
