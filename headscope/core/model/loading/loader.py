"""The weight diff: what Transformers' own loader does with the keys of a checkpoint."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import (
    AdapterFault,
    CheckpointManifest,
    Mismatch,
    ParameterOrigin,
    ParameterStatus,
    Rename,
    TensorHeader,
    Tie,
    WeightDiff,
    WeightsFormat,
)
from headscope.core.facts.stored.checkpoint import own_config
from headscope.core.facts.stored.weights import in_layer_order, modern_name
from headscope.core.model.classes.defaults import diagnose_by_building
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.unexpected_keys import describe_unused, find_dropped
from headscope.core.model.loading.origins import header_only_tensors, origin_of
from headscope.core.model.loading.quantized import quantization_config, unpack, with_packed_names
from headscope.core.model.quiet import quiet
from headscope.core.upstream.imports import fault_of_import
from headscope.core.upstream.torch import buffers_of, on_meta, parameters_of, without_subclasses
from headscope.core.upstream.transformers import LoadingInfo, load_on_meta, tied_names
from headscope.errors import HeadscopeError, Malformed, Unsupported


@dataclass(frozen=True, slots=True)
class Loaded:
    """Skeleton on the meta device, and what loading the checkpoint did to it.

    `notes` are sentences on the loading, `quantization` the settings of a quantized checkpoint, `faults` what does not
    fit in its adapter. `load_options` and `word_rows` are those of `AdapterFacts`.
    """

    model: PreTrainedModel
    diff: WeightDiff
    notes: tuple[str, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[AdapterFault, ...] = ()
    load_options: tuple[str, ...] = ()
    word_rows: int | None = None


def load_skeleton(choice: Choice, manifest: CheckpointManifest) -> Loaded:
    """Loads header-only tensors through `from_pretrained` and reads off every parameter's status.

    Raises Unsupported where the class cannot be built or the loader refuses the checkpoint.
    """
    settings = quantization_config(choice.config)
    if settings:
        return _load_quantized(choice, manifest, settings)
    return _load_plain(choice, manifest)


def _load_quantized(choice: Choice, manifest: CheckpointManifest, settings: dict[str, Any]) -> Loaded:
    """Loads as if the weights had been stored unquantized, then restores the keys and formats that they really have."""
    plain = deepcopy(choice.config)
    # With it, the loader wants the package of the method and its kernels, and makes packed modules of other names.
    del plain.quantization_config
    with quiet(), on_meta():
        shapes = {name: tuple(item.shape) for name, item in choice.cls(plain).named_parameters()}
    dtype = str(plain.dtype or torch.float16).removeprefix("torch.")
    unpacked, packed = unpack(manifest, settings, dtype, shapes)
    loaded = _load_plain(replace(choice, config=plain), unpacked)
    return replace(loaded, diff=with_packed_names(loaded.diff, packed), quantization=settings)


def _load_plain(choice: Choice, manifest: CheckpointManifest) -> Loaded:
    try:
        model, info = _run_loader(choice, header_only_tensors(manifest))
    except Unsupported as err:
        if isinstance(err.__cause__, ImportError):
            raise
        # The loader's error may come from config.json alone: then the fields at fault make a better message.
        more = diagnose_by_building(choice.cls, choice.config, own_config(manifest.config))
        if not more:
            raise
        reason = type(err.__cause__).__name__ + ": " + str(err.__cause__).partition("\n")[0]
        name = choice.cls.__name__
        raise Malformed(f"config.json doesn't describe a valid {name}: {reason}{more}", "correct config.json") from err
    with without_subclasses():
        diff = _read_diff(model, info, manifest)
        # The marks have said which keys fill what. From here on the model is traced, with parameters as any model has.
        _strip_origins(model)
    return Loaded(model, diff)


def _run_loader(choice: Choice, state_dict: dict[str, torch.Tensor]) -> tuple[PreTrainedModel, LoadingInfo]:
    try:
        with quiet():
            return load_on_meta(choice.cls, choice.config, state_dict)
    except HeadscopeError:
        raise
    except ImportError as err:
        # Transformers' message says how to get the package that is missing.
        what = f"{choice.cls.__name__} cannot be built: {' '.join(str(err).split())}"
        raise fault_of_import(err) or Unsupported(what, "install it, then try again") from err
    except Exception as err:
        raise Unsupported(
            f"Transformers cannot load this checkpoint into {choice.cls.__name__}: {type(err).__name__}: {err}",
            "check config.json against the weights, or name another class with --model-class",
        ) from err


def _read_diff(model: PreTrainedModel, info: LoadingInfo, manifest: CheckpointManifest) -> WeightDiff:
    mismatched = tuple(Mismatch(*item) for item in sorted(info.mismatched, key=lambda item: in_layer_order(item[0])))
    incomplete = manifest.format is WeightsFormat.NONE or bool(manifest.gaps)
    ties = tuple(sorted(_find_ties(model)))
    judge = _status_function(info.missing, mismatched, ties, incomplete)
    parameters = _read_origins(model, judge)
    unused = tuple(sorted(info.unexpected, key=in_layer_order))
    headers = _headers_of(unused, parameters, manifest)
    groups = describe_unused(model, unused, headers)
    return WeightDiff(
        loaded=sum(item.status is ParameterStatus.LOADED for item in parameters),
        # What is not there may be in the shard that could not be read: unknown is neither loaded nor new (ADR 5).
        new=() if incomplete else tuple(sorted(info.missing, key=in_layer_order)),
        mismatched=mismatched,
        unused=unused,
        tied=ties,
        renamed=renames_of(parameters),
        unused_groups=groups,
        dropped=find_dropped(model, groups, headers),
        parameters=parameters,
        gaps=manifest.gaps,
        unused_tensors=headers,
    )


def _headers_of(
    unused: tuple[str, ...], parameters: tuple[ParameterOrigin, ...], manifest: CheckpointManifest
) -> tuple[TensorHeader, ...]:
    """Gives the headers of the unused keys under the names that Transformers reports."""
    used = {key for item in parameters for key in item.checkpoint_keys}
    # The loader renames old keys first: it reports `gamma` as `weight`.
    spare = {modern_name(header.key): header for header in manifest.tensors if header.key not in used}
    spare |= {header.key: header for header in manifest.tensors}
    return tuple(replace(spare[key], key=key) for key in unused if key in spare)


def _status_function(
    missing: frozenset[str], mismatched: tuple[Mismatch, ...], ties: tuple[Tie, ...], incomplete: bool
) -> Callable[[str, torch.Tensor], ParameterStatus]:
    """Makes a function from a parameter's name and tensor to its status."""
    reshaped, tied = {item.parameter for item in mismatched}, {tie.parameter for tie in ties}
    absent = ParameterStatus.UNKNOWN if incomplete else ParameterStatus.NEW

    def status(name: str, tensor: torch.Tensor) -> ParameterStatus:
        if name in reshaped:
            return ParameterStatus.MISMATCHED
        if name in missing:
            return absent
        if name in tied:
            return ParameterStatus.TIED
        return ParameterStatus.LOADED if origin_of(tensor) else ParameterStatus.IGNORED

    return status


def _read_origins(
    model: PreTrainedModel, judge: Callable[[str, torch.Tensor], ParameterStatus]
) -> tuple[ParameterOrigin, ...]:
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    base = base_prefix(model)
    return tuple(
        ParameterOrigin(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            count=tensor.numel(),
            status=judge(name, tensor),
            checkpoint_keys=origin_of(tensor),
            in_base=name.startswith(f"{base}."),  # no name begins with a dot: nothing is in a base that isn't there
            is_buffer=name in buffers,
        )
        for name, tensor in _named_tensors(model)
    )


def _named_tensors(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Lists parameters and persistent buffers in the order of the state dict."""
    # `state_dict` would detach them, and with that drop the subclass's marks and the identity of tied tensors.
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return [(name, held[name]) for name in model.state_dict(keep_vars=True) if name in held]


def _find_ties(model: PreTrainedModel) -> list[Tie]:
    declared = tied_names(model)
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(model):
        by_tensor.setdefault(id(tensor), []).append(name)
    ties = []
    for names in by_tensor.values():
        source = next((name for name in names if name not in declared), names[0])
        ties += [Tie(name, source) for name in names if name != source]
    return ties


def renames_of(parameters: tuple[ParameterOrigin, ...]) -> tuple[Rename, ...]:
    """Lists the loaded parameters whose checkpoint keys bear other names, in the order of their layers."""
    found = (
        Rename(item.name, item.checkpoint_keys)
        for item in parameters
        if item.status is ParameterStatus.LOADED and item.checkpoint_keys not in ((), (item.name,))
    )
    return tuple(sorted(found, key=lambda item: in_layer_order(item.parameter)))


def base_prefix(model: PreTrainedModel) -> str:
    """Gives the path of the base model inside `model`, or "" if it has none."""
    prefix = getattr(model, "base_model_prefix", "")
    return prefix if prefix and isinstance(getattr(model, prefix, None), nn.Module) else ""


def _strip_origins(model: PreTrainedModel) -> None:
    """Replaces the marked parameters by plain meta ones; tied parameters stay one tensor."""
    plain: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in parameters_of(module).items():
            if parameter is not None:
                bare = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
                fresh = nn.Parameter(bare, requires_grad=parameter.requires_grad)
                parameters_of(module)[name] = plain.setdefault(id(parameter), fresh)
        for name, buffer in buffers_of(module).items():
            if buffer is not None and type(buffer) is not torch.Tensor:
                buffers_of(module)[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=buffer.device)
