"""Base model with what another library puts after it, as one class: the modules of a chain, or a value head."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from headscope.core.facts import ScoreHead, SentenceModule, SentencePipeline
from headscope.core.upstream.transformers import classes_by_type
from headscope.errors import Unsupported

_Features = dict[str, torch.Tensor]


def base_class_of(model_type: str, *, is_encoder_decoder: bool) -> type[PreTrainedModel]:
    """Finds the class without a head that other libraries load for a family: of two towers, the encoder.

    Raises Unsupported for a family without one.
    """
    auto = "AutoModelForTextEncoding" if is_encoder_decoder else "AutoModel"
    names = classes_by_type(auto).get(model_type, ())
    cls = getattr(transformers, names[0], None) if names else None
    if not isinstance(cls, type) or not issubclass(cls, PreTrainedModel):
        raise Unsupported(
            f"headscope doesn't know which model of {model_type} is under this head",
            "load it with the library that saved it, and call headscope.inspect(model)",
        )
    return cls


def class_of_chain(base: type[PreTrainedModel], pipeline: SentencePipeline) -> type[PreTrainedModel]:
    """Makes a class whose forward gives the scores of a chain, or its embedding, as `logits` [texts, scores].

    It holds the base model under the prefix of its family, and each module under the name of its folder. The arithmetic
    is that of sentence-transformers without its code; a module that headscope doesn't know raises Unsupported.
    """
    first, *after = pipeline.chain

    def add_modules(model: nn.Module) -> None:
        for part in after:
            model.add_module(child_name(part), (_Unknown if part.unknown else _MODULES[part.name])(part))

    def score(self: Any, output: Any, mask: torch.Tensor | None) -> SequenceClassifierOutput:
        hidden = getattr(output, first.reads)
        if mask is None or mask.shape[-1] != hidden.shape[1]:
            mask = torch.ones(hidden.shape[:-1], dtype=torch.int64, device=hidden.device)
        features: _Features = {first.writes: hidden, "attention_mask": mask}
        for part in after:
            features = getattr(self, child_name(part))(features)
        return SequenceClassifierOutput(logits=features["scores" if pipeline.score_count else "sentence_embedding"])

    return _class_around(base, pipeline.chain_class, add_modules, score)


def class_of_value_head(base: type[PreTrainedModel], head: ScoreHead) -> type[PreTrainedModel]:
    """Makes a class whose forward gives the scores of a linear value head, as `logits` [texts, tokens, scores].

    TRL, LlamaFactory and OpenRLHF put it on the last hidden states.
    """
    path = head.weight.removesuffix(".weight")

    def add_modules(model: nn.Module) -> None:
        *parents, last = path.split(".")
        for name in parents:
            model.add_module(name, nn.Module())
            model = model.get_submodule(name)
        model.add_module(last, nn.Linear(head.input_size or 0, head.scores, bias=head.has_bias))

    def score(self: Any, output: Any, mask: torch.Tensor | None) -> TokenClassifierOutput:
        return TokenClassifierOutput(logits=self.get_submodule(path)(output.last_hidden_state))

    return _class_around(base, f"{base.__name__}WithValueHead", add_modules, score)


def class_of_decision(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Makes a decision model whose forward gives the scores of every row of its head for each token.

    Its own reads them at the token before each mark of a prompt, and there only the rows of the question's options.
    """

    def forward(
        self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> TokenClassifierOutput:
        base = self.get_submodule(cls.base_model_prefix)
        output = base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        scores = self.proj(output.last_hidden_state.to(self.proj.weight.dtype))
        if self.config.softcap is not None:
            scores = self.config.softcap * torch.tanh(scores / self.config.softcap)
        return TokenClassifierOutput(logits=scores)

    # The class's own load gives the settings too, and raises with output_loading_info=True.
    load: Any = classmethod(PreTrainedModel.from_pretrained.__func__)  # type: ignore[attr-defined]
    own = {"forward": forward, "from_pretrained": load, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), own)


def _class_around(
    base: type[PreTrainedModel], name: str, add_modules: Callable[[nn.Module], None], score: Callable[..., Any]
) -> type[PreTrainedModel]:
    """Makes a class that holds a base model under the prefix of its family and more modules beside it.

    Its forward takes the inputs of the base model, whose output and mask `score` gets.
    """
    parent: Any = next(cls for cls in base.__mro__[1:] if issubclass(cls, PreTrainedModel))
    prefix = base.base_model_prefix or "model"

    def __init__(self: Any, config: Any) -> None:
        parent.__init__(self, config)
        setattr(self, prefix, base(config))
        add_modules(self)
        self.post_init()

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | options
        return score(self, getattr(self, prefix)(**given, return_dict=True), given.get("attention_mask"))

    taken = [item for item in signature(base.forward).parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    names = [item.name for item in taken[1:]]
    forward.__signature__ = Signature(taken)  # type: ignore[attr-defined]  # what inspect.signature looks for
    ignored = getattr(base, "_keys_to_ignore_on_load_unexpected", None)
    own = {
        "__init__": __init__,
        "forward": forward,
        "__module__": base.__module__,
        "__doc__": base.__doc__,
        "base_model_prefix": prefix,
        "_keys_to_ignore_on_load_unexpected": ignored,
    }
    return type(name, (parent,), own)


def child_name(part: SentenceModule) -> str:
    """Gives the name of a module in the class: its folder, without the dots that PyTorch doesn't take."""
    return part.folder.replace(".", "_") or part.name


class _Unknown(nn.Module):
    """A module that headscope doesn't know."""

    def __init__(self, part: SentenceModule) -> None:
        super().__init__()
        self.why = f"{part.folder} ({part.name}): {part.unknown or part.fault}"

    def forward(self, features: _Features) -> _Features:
        raise Unsupported(f"headscope doesn't know what a module computes: {self.why}", "")


class _Pooling(nn.Module):
    """Vectors [texts, size] of hidden states [texts, tokens, size]; several modes are concatenated."""

    def __init__(self, part: SentenceModule) -> None:
        super().__init__()
        self.modes = part.modes

    def forward(self, features: _Features) -> _Features:
        hidden, mask = features["token_embeddings"], features["attention_mask"]
        found = [_POOLED[mode](hidden, mask) for mode in self.modes]
        return features | {"sentence_embedding": found[0] if len(found) == 1 else torch.cat(found, dim=-1)}


def _pool_first_token(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _rows_at(hidden, mask.to(torch.int).argmax(dim=1))


def _pool_last_token(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    values, from_end = mask.flip(1).max(1)
    length = hidden.shape[1]
    # The library also multiplies by the mask, which changes nothing at a position that the mask keeps.
    return _rows_at(hidden, length - torch.where(values == 0, length - 1, from_end) - 1)


def _rows_at(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return hidden.gather(1, positions.unsqueeze(-1).unsqueeze(1).expand(-1, 1, hidden.shape[-1])).squeeze(1)


def _pool_max(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.unsqueeze(-1).expand_as(hidden).to(hidden.dtype)
    return hidden.masked_fill(kept == 0, float("-inf")).max(dim=1).values


def _pool_mean(hidden: torch.Tensor, mask: torch.Tensor, *, by_root: bool = False) -> torch.Tensor:
    """Sums over the tokens, and divides by their number or its root."""
    wide = torch.float32 if hidden.dtype in (torch.float16, torch.bfloat16) else hidden.dtype
    # As the library does: half precision is summed in single precision, and the mean is rounded back.
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    count = kept.sum(dim=1, dtype=wide).clamp(min=_LEAST)
    total = (hidden * kept).sum(dim=1, dtype=wide)
    return (total / (count.sqrt() if by_root else count)).to(hidden.dtype)


def _pool_weighted_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Weights later tokens more: the first that isn't padding once, the second twice."""
    wide = torch.float32 if hidden.dtype in (torch.float16, torch.bfloat16) else hidden.dtype
    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=wide).view(1, -1, 1)
    weights = mask.unsqueeze(-1).to(wide) * (places - mask.to(torch.int32).argmax(dim=1).view(-1, 1, 1))
    return ((hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=_LEAST)).to(hidden.dtype)


_LEAST = 1e-9
"""What the library divides by at least, for a text of which nothing is kept."""
_POOLED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": _pool_first_token,
    "lasttoken": _pool_last_token,
    "max": _pool_max,
    "mean": _pool_mean,
    "mean_sqrt_len_tokens": partial(_pool_mean, by_root=True),
    "weightedmean": _pool_weighted_mean,
}


class _Dense(nn.Module):
    """A linear layer with an activation, and with the residual that its settings name."""

    def __init__(self, part: SentenceModule) -> None:
        super().__init__()
        self.reads, self.writes = part.reads, part.writes
        size, out = part.input_size or 0, part.output_size or 0
        self.linear = nn.Linear(size, out, bias=part.has_bias)
        self.activation_function = _build_activation(part.activation)
        self.has_residual = part.has_residual
        if part.has_residual and size != out:
            self.residual = nn.Linear(size, out, bias=False)

    def forward(self, features: _Features) -> _Features:
        given = features[self.reads]
        found = self.activation_function(self.linear(given))
        if self.has_residual:
            found = found + (self.residual(given) if hasattr(self, "residual") else given)
        return features | {self.writes: found}


def _build_activation(path: str) -> nn.Module:
    """Builds the module at a path such as `torch.nn.modules.activation.Tanh`. Raises Unsupported for others."""
    cls = getattr(nn, path.rpartition(".")[2], None)
    try:
        if isinstance(cls, type) and issubclass(cls, nn.Module):
            return cls()
    except TypeError:  # it needs arguments, and the library gives none
        pass
    raise Unsupported(f"PyTorch has no activation {path[:80]} that needs no arguments", "")


class _Normalize(nn.Module):
    """Vectors of length 1."""

    def __init__(self, part: SentenceModule) -> None:
        super().__init__()
        self.reads, self.writes = part.reads, part.writes

    def forward(self, features: _Features) -> _Features:
        given = features.get(self.reads)
        return features if given is None else features | {self.writes: functional.normalize(given, p=2, dim=-1)}


class _OfVector(nn.Module):
    """A module of PyTorch that is applied to the vector of a text, under the name that it has in the library."""

    def __init__(self, part: SentenceModule) -> None:
        super().__init__()
        is_norm = part.name == "LayerNorm"
        self.child = "norm" if is_norm else "dropout_layer"
        self.add_module(self.child, nn.LayerNorm(part.input_size or 0) if is_norm else nn.Dropout(part.dropout))

    def forward(self, features: _Features) -> _Features:
        return features | {"sentence_embedding": getattr(self, self.child)(features["sentence_embedding"])}


_MODULES: dict[str, type[nn.Module]] = {
    "Pooling": _Pooling,
    "Dense": _Dense,
    "LayerNorm": _OfVector,
    "Normalize": _Normalize,
    "Dropout": _OfVector,
}
