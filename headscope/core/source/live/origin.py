"""The checkpoint that a model in memory was loaded from: which it is, what the load gave, what is still the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headscope.core.facts import (
    AdapterFacts,
    Gap,
    GapTopic,
    Mismatch,
    ParameterOrigin,
    ParameterStatus,
    Task,
    WeightDiff,
)
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.request import Request
from headscope.core.source.stored_tensors import StoredFiles, open_stored_files
from headscope.core.upstream.peft import plain_name
from headscope.errors import HeadscopeError, Unsupported, UsageError

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.model.tensors.held import Held
    from headscope.core.source.live.module import Unwrapped


_FROM_CONFIG = ("", ".", None)
# Training changes nearly every value of a tensor, so the beginning tells whether it was trained. The head decides the
# verdict and is small; reading a whole base model would cost what headscope exists to save.
_BYTES_OF_HEAD = 16_000_000
_BYTES_ELSEWHERE = 64_000


@dataclass(frozen=True, slots=True)
class LoadOrigin:
    """A checkpoint, what loading it gives (under the names of a fresh model), and sentences on that.

    `was_named` says that the caller named it: then the marks in the model may be those of another load.
    """

    checkpoint: Checkpoint
    given: WeightDiff
    notes: tuple[str, ...] = ()
    was_named: bool = False
    adapter: AdapterFacts | None = None


def find_origin(
    unwrapped: Unwrapped, task: Task, *, loaded_from: str | None = None, offline: bool = False
) -> LoadOrigin | Gap | None:
    """Finds the checkpoint that a model was loaded from: `loaded_from`, or the name that `from_pretrained` left.

    None for a model that names no checkpoint; Gap if one is named and cannot be read, or if nothing shows that the
    model was filled from it.
    """
    from headscope.core.upstream.transformers import name_and_commit, was_loaded

    module = unwrapped.origin
    config = getattr(module, "config", None)
    noted, commit = name_and_commit(config)
    name = loaded_from or noted
    if name in _FROM_CONFIG:
        return None
    # A configuration keeps its name when a new model is made of it: `Class(config)` is random, and named after a
    # checkpoint.
    if loaded_from is None and not was_loaded(module):
        return Gap(
            GapTopic.CHECKPOINT,
            f"the configuration names {name}, but nothing shows that the weights come from there; give loaded_from, "
            "or loading_info",
        )
    # The commit that was loaded: the main branch may hold other weights by now.
    revision = None if loaded_from else commit
    request = Request(Location(str(name), revision, hub=HubOptions(offline=offline)))
    try:
        found = _read_origin(module, task, request)
        return replace(found, given=prefixed(found.given, unwrapped.prefix), was_named=loaded_from is not None)
    except HeadscopeError as err:
        return Gap(GapTopic.CHECKPOINT, f"what the load of {name} gave is not known: {err.message}")


def _read_origin(module: nn.Module, task: Task, request: Request) -> LoadOrigin:
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.loading.adapters import adapter_facts, with_adapter
    from headscope.core.model.loading.loader import load_skeleton
    from headscope.core.source.reading.unseen_settings import without_idle_tensors

    if not isinstance(module, PreTrainedModel):
        raise Unsupported(f"{type(module).__name__} is not a class of Transformers", "")
    checkpoint = Checkpoint("inspect", request)
    manifest = checkpoint.manifest
    choice = Choice(type(module), task, deepcopy(module.config))
    loaded = without_idle_tensors(load_skeleton(choice, manifest), choice)
    if manifest.adapter is None:
        return LoadOrigin(checkpoint, loaded.diff, loaded.notes)
    loaded = with_adapter(loaded, manifest.adapter)
    adapter = adapter_facts(loaded, manifest.adapter, manifest, None)
    return LoadOrigin(checkpoint, loaded.diff, loaded.notes, adapter=adapter)


def prefixed(diff: WeightDiff, prefix: str) -> WeightDiff:
    """Renames what a load gave a part of a model to the names in the model. Keys stay the checkpoint's."""
    return replace(
        diff,
        new=tuple(f"{prefix}{name}" for name in diff.new),
        mismatched=tuple(replace(item, parameter=f"{prefix}{item.parameter}") for item in diff.mismatched),
        parameters=tuple(replace(item, name=f"{prefix}{item.name}") for item in diff.parameters),
    )


def diff_of_info(parameters: Iterable[ParameterOrigin], info: Mapping[str, Any]) -> WeightDiff:
    """Builds the diff of a load from `from_pretrained`'s loading_info. Raises UsageError for anything else.

    loading_info lists what the load did not give; what it gave, the marks in the model tell (`joined`).
    """
    from headscope.core.upstream.transformers import read_loading_info

    try:
        given = read_loading_info(info)
    except (KeyError, TypeError, ValueError) as err:
        raise UsageError(
            f"loading_info is not what from_pretrained returns ({type(err).__name__}: {err})",
            "model, info = Class.from_pretrained(..., output_loading_info=True)",
        ) from err
    mismatched = {item.parameter: item for item in (Mismatch(*row) for row in given.mismatched)}

    def status(name: str, shape: tuple[int, ...]) -> ParameterStatus:
        if name in mismatched:
            is_same = mismatched[name].model_shape == shape
            return ParameterStatus.MISMATCHED if is_same else ParameterStatus.NEW
        return ParameterStatus.NEW if name in given.missing else ParameterStatus.LOADED

    plain = {plain_name(item.name): item for item in parameters}
    return WeightDiff(
        loaded=0,
        new=tuple(sorted(given.missing)),
        mismatched=tuple(sorted(mismatched.values())),
        unused=given.unexpected,
        tied=(),
        renamed=(),
        parameters=tuple(replace(item, name=name, status=status(name, item.shape)) for name, item in plain.items()),
    )


@dataclass(frozen=True, slots=True)
class Present:
    """State of the parameters that a model holds now.

    `same` says of those that could be compared whether they hold the stored values. `resized` names the embeddings,
    whose rows may have been added after the load: a different number of them leaves their status open. Of what does not
    begin with `prefix` the load says nothing: it is of a part of the model.
    """

    held: Held
    same: Mapping[str, bool]
    resized: frozenset[str]
    marks_count: bool
    prefix: str = ""


def joined(diff: WeightDiff, given: WeightDiff, present: Present) -> WeightDiff:
    """Joins the parameters that a model holds with what a load gave them.

    A parameter that the load does not know was made after it, or is PEFT's and left out.
    """
    by_name = {item.name: item for item in given.parameters}
    parameters = [
        _with_status(item, by_name.get(plain_name(item.name)), present)
        for item in diff.parameters
        if item.name not in present.held.of_adapter
    ]
    names: dict[str, list[str]] = {}
    for item in parameters:
        if ".original_module." not in item.name:  # PEFT's copy of what it trains; nothing reads it
            names.setdefault(plain_name(item.name), []).append(item.name)
    status = {item.name: item.status for item in parameters}
    elsewhere = [name for name in given.new if name not in names and (name not in by_name or by_name[name].is_buffer)]
    made_new = [name for some in names.values() for name in some if status[name] is ParameterStatus.NEW]
    return replace(
        given,
        loaded=sum(item.status is ParameterStatus.LOADED for item in parameters),
        new=tuple(sorted([*made_new, *elsewhere])),
        mismatched=tuple(
            sorted(
                replace(item, parameter=name)
                for item in given.mismatched
                for name in names.get(item.parameter, ())
                if status[name] is ParameterStatus.MISMATCHED
            )
        ),
        parameters=(*parameters, *(item for item in given.parameters if item.is_buffer)),
    )


def _with_status(item: ParameterOrigin, stated: ParameterOrigin | None, present: Present) -> ParameterOrigin:
    if not item.name.startswith(present.prefix):
        return replace(item, status=ParameterStatus.UNKNOWN)
    if stated is None:
        return replace(item, status=ParameterStatus.NEW)
    return replace(
        item,
        status=_status_now(item, stated, present),
        checkpoint_keys=stated.checkpoint_keys,
        in_base=stated.in_base,
        quantized=stated.quantized,
    )


def _status_now(item: ParameterOrigin, stated: ParameterOrigin, present: Present) -> ParameterStatus:
    """Decides the status of a parameter: by its values, then the loader's mark, then what the load gave its name."""
    is_resizable = plain_name(item.name) in present.resized
    if item.name in present.held.empty:
        return ParameterStatus.UNKNOWN
    # Replaced after the load. Packed and sharded parameters have shapes that say nothing.
    is_reshaped = item.shape != stated.shape and item.count > 0 and not _is_packed(item, stated)
    if is_reshaped or (is_resizable and stated.status is ParameterStatus.MISMATCHED):
        return ParameterStatus.UNKNOWN if is_resizable else ParameterStatus.NEW
    if item.name in present.held.changed:
        return ParameterStatus.CHANGED
    if stated.status is not ParameterStatus.LOADED or _is_packed(item, stated):
        return stated.status
    return _status_of_loaded(item.name, present)


def _status_of_loaded(name: str, present: Present) -> ParameterStatus:
    """Decides whether a parameter is still the one that the load gave."""
    if present.same.get(name):
        return ParameterStatus.LOADED
    is_marked, is_compared = name in present.held.marked, name in present.same
    if present.marks_count and present.held.marked and not is_marked:
        return ParameterStatus.NEW
    if is_compared:
        return ParameterStatus.CHANGED
    return ParameterStatus.LOADED if is_marked else ParameterStatus.UNKNOWN


def _is_packed(held: ParameterOrigin, stated: ParameterOrigin) -> bool:
    return stated.quantized is not None or held.dtype.startswith(("int", "uint"))


def same_numbers(module: nn.Module, origin: LoadOrigin, head: frozenset[str]) -> dict[str, bool]:
    """Compares the parameters with the numbers that they were loaded with; leaves out what cannot be compared.

    Tensors of the head are read whole (up to 16 MB), of the others the beginning. No network is used.
    """
    try:
        request = origin.checkpoint.request
        location = request.location
        offline = replace(location, hub=replace(location.hub, offline=True))
        places = open_stored_files(replace(request, location=offline), origin.checkpoint.manifest)
        return {name: same for place in places for name, same in _compare_with_place(place, module, origin, head)}
    except (HeadscopeError, OSError):  # what cannot be read is not compared
        return {}


def _compare_with_place(
    place: StoredFiles, module: nn.Module, origin: LoadOrigin, head: frozenset[str]
) -> Iterator[tuple[str, bool]]:
    """Compares the parameters that a place fills: True for one that a load of its values gives."""
    from headscope.core.model.tensors.numbers import compare_numbers, why_not_comparable

    stated = {item.name: item for item in origin.given.parameters if not item.is_buffer}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        given = stated.get(plain_name(name))
        header = place.header_of(given) if given is not None and given.quantized is None else None
        # Other shapes and packed values are the loader's to convert: they say nothing about training.
        if header is None or header.shape != tuple(tensor.shape) or "float" not in header.dtype:
            continue
        if tensor.is_floating_point() and tensor.numel() and not why_not_comparable(tensor):
            count = (_BYTES_OF_HEAD if name in head else _BYTES_ELSEWHERE) // tensor.itemsize
            with suppress(Unsupported):
                yield name, compare_numbers(tensor.flatten()[:count], partial(place.part, header)).is_load
