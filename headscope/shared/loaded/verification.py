"""A loaded model held against the stored bytes of its checkpoint, tensor by tensor.

The loader's own report isn't used: the point is to find a loader that leaves a weight random without reporting it.
Names and shapes that are the same in model and file are a pair. Only what is left over is paired by running
Transformers' loader on header-only tensors that track the keys they came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from headscope.core.checkpoints.checkpoint_files import files_beside
from headscope.core.facts import CheckpointKind, CheckpointManifest, Gap, HeadTrace, TensorHeader
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.stored.checkpoint import architectures_in
from headscope.core.facts.stored.location import Location
from headscope.core.facts.trial import HeadTrial
from headscope.core.model.classes.catalog import saved_class_of, task_of_bases, task_of_class
from headscope.core.model.classes.model_request import Choice, class_by_name
from headscope.core.model.classes.remote_code import models_in_auto_map
from headscope.core.source.checkpoint import examine
from headscope.core.source.live.live_facts import task_of
from headscope.core.source.live.live_model import LiveModel
from headscope.core.source.live.live_tensors import LiveTensor, is_of_transformers, prompts_of, tensors_of
from headscope.core.source.live.module import Unwrapped, unwrap
from headscope.core.source.loading import load_checkpoint
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS, chain_of, loadable, read_checkpoint
from headscope.core.source.reading.tracing import trace_checkpoint
from headscope.core.source.request import Progress, Request
from headscope.core.source.storage.cache import state_of
from headscope.core.source.stored_tensors import StoredFiles, open_stored_files
from headscope.core.trace import HeadProgram
from headscope.core.upstream.loaders import LoadRequest, load_with
from headscope.core.upstream.peft import plain_name
from headscope.core.upstream.python import collection_paused
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shared.loaded.facts import LoadedModel, ModelComparison, Scope, TensorCheck, TensorStatus
from headscope.shared.loaded.pairing import StoredPairing
from headscope.shared.loaded.tensor_checks import IN_A_PICKLE, NOT_GIVEN, checked, open_gaps
from headscope.shared.trial.head_trial import try_head


@dataclass(frozen=True, slots=True)
class _HeadNames:
    """Names of the head's tensors, and of those that the scores depend on, without PEFT's wrappers in them.

    `why` says why they are not known; then every tensor counts as one of the head. `has_none`: the model has no head.
    """

    head: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    why: str = ""
    has_none: bool = False
    program: HeadProgram | None = None

    @classmethod
    def of(cls, trace: HeadTrace, program: HeadProgram | None = None) -> _HeadNames:
        names = (*trace.parameters, *trace.buffers)
        return cls(frozenset(map(plain_name, names)), frozenset(map(plain_name, trace.live)), program=program)

    def with_ties_of(self, skeleton: nn.Module) -> _HeadNames:
        """Adds the other names of the same tensors: in the model compared, they may be tensors apart."""
        by_tensor: dict[int, set[str]] = {}
        for item in tensors_of(skeleton):
            by_tensor.setdefault(id(item.tensor), set()).add(item.name)
        groups = [names for names in by_tensor.values() if len(names) > 1]
        return replace(
            self,
            head=self.head.union(*(names for names in groups if names & self.head)),
            live=self.live.union(*(names for names in groups if names & self.live)),
        )

    def holds(self, item: LiveTensor) -> bool:
        """True if a tensor is one of the head; PEFT's copy of what it trains is not.

        So is one that the class doesn't have, in a module with tensors of the head: a parameter that was added later.
        """
        name = plain_name(item.name)
        modules = {each.rpartition(".")[0] for each in self.head} - {""}
        is_named = name in self.head or name.rpartition(".")[0] in modules
        return bool(self.why) or (is_named and ".original_module." not in item.name)

    def depends_on(self, item: LiveTensor) -> bool:
        return self.reads(plain_name(item.name)) or not item.is_persistent

    def reads(self, name: str) -> bool:
        """True if what the model returns depends on a tensor, or if that is not known."""
        return bool(self.why) or self.has_none or name in self.live


def compare_with_checkpoint(
    module: nn.Module, request: Request, *, head_only: bool = False, progress: Progress | None = None
) -> ModelComparison:
    """Compares every tensor of `module` (with `head_only`, of its head) with the checkpoint that a request names.

    Raises a HeadscopeError if the checkpoint cannot be read or holds no weights.
    """
    tell = progress or (lambda sentence: None)
    unwrapped = unwrap(module)
    inner = unwrapped.module
    with collection_paused():
        manifest = read_checkpoint(request, progress)
        places = _open_weights(request, manifest)
        # A training may write to the folder while it is compared.
        before = _state_of_files(places)
        pairing = StoredPairing(inner, manifest, places)
        notes = [*pairing.prefixes.notes()]
        tell("tracing the head")
        head = _head_of(unwrapped, module, pairing)
    every = (*tensors_of(inner), *prompts_of(module))
    own = tuple(item for item in every if not pairing.adapter.is_unused(item))
    is_part = head_only and not head.why and not head.has_none
    chosen = [item for item in own if not is_part or head.holds(item) or pairing.is_of_adapter(item.name)]
    checks = []
    for number, item in enumerate(chosen, 1):
        tell(f"comparing {number:,} of {counted(len(chosen), 'tensor')}: {item.name}")
        is_head, numbers = head.holds(item), unwrapped.offloaded.get(item.name)
        is_live = head.depends_on(item) or pairing.is_of_adapter(item.name)
        checks.append(checked(item, pairing, is_head=is_head, is_live=is_live, numbers=numbers))
    compared = sum(item.status is not TensorStatus.UNKNOWN for item in checks)
    checks += _find_dropped(pairing, every, request, head)
    dropped = {item.name for item in checks if item.status is TensorStatus.DROPPED}
    # Packed weights come with scales, which a load without the packing leaves.
    unplaced = pairing.loader.unplaced if manifest.config.get("quantization_config") is None else ()
    if head.why or (head_only and not is_part):
        why = f"the head could not be traced: {head.why}" if head.why else "the model has no head"
        notes.append(f"every tensor was compared, because {why}")
    if pairing.adapter.inactive:
        notes.append(f"not compared: {few_of(pairing.adapter.inactive)}, which the model holds and does not use")
    gaps = (*open_gaps(checks), *pairing.adapter.gaps(), *_uncompared_gaps(manifest, checks))
    is_stock = is_of_transformers(inner)
    saved, is_own = saved_class_of(manifest.config, type(inner).__name__) if is_stock else (None, False)
    if is_own:
        gaps += (Gap("class", f"config.json names {saved}, a class that Transformers doesn't have; {_GIVE_CODE}"),)
    if any(pairing.adapter.is_not_given(item) for item in own):
        gaps += (Gap("adapter", NOT_GIVEN),)
    if _state_of_files(places) != before:
        gaps += (Gap("weights", "the weight files changed while they were compared; run it again"),)
    return ModelComparison(
        LoadedModel(
            reference=manifest.reference,
            class_name=type(inner).__name__,
            tensors=tuple(checks),
            trial=_try_loaded_head(head.program, unwrapped),
            unplaced=tuple(item for item in unplaced if not dropped.isdisjoint(item.tensors)),
        ),
        tuple(notes),
        (*manifest.gaps, *gaps),
        sum(place.bytes_read for place in places),
        Scope(len(own), compared, head_only=is_part),
        saved,
    )


_GIVE_CODE = "what it computes is in its code: --model-class FILE.py:CLASS"


def _try_loaded_head(program: HeadProgram | None, unwrapped: Unwrapped) -> HeadTrial | None:
    """Tries the loaded head with its values; None if its path, or one of its values, isn't at hand."""
    if program is None:
        return None
    origin = unwrapped.origin
    own = [item for item in tensors_of(origin) if ".original_module." not in item.name]  # PEFT runs its copy
    held = {plain_name(item.name): item.tensor.detach() for item in own if not item.tensor.is_meta}
    if any(name not in held or held[name].shape != item.shape for name, item in program.tensors.items()):
        return None
    given = {name: held[name].cpu() for name in program.tensors}
    return try_head(program, given, task_of(origin, None), getattr(origin.config, "problem_type", None))


def _open_weights(request: Request, manifest: CheckpointManifest) -> list[StoredFiles]:
    found = open_stored_files(request, manifest)
    if not any(place.manifest.tensors for place in found):
        raise Unsupported(
            f"{manifest.reference} holds no weights to compare with",
            "name the folder or the repository with the weight files; a snapshot has none",
        )
    return found


def _state_of_files(places: list[StoredFiles]) -> list[object]:
    """Describes the weight files on this machine so that a change shows."""
    return [state_of(files_beside(place.sidecar, [file.name for file in place.manifest.files])) for place in places]


def _head_of(unwrapped: Unwrapped, module: nn.Module, pairing: StoredPairing) -> _HeadNames:
    """Finds the names of the head's tensors.

    A model whose modules are those of its class is traced without its values, as `inspect` does it; any other is run.
    """
    if _has_no_head(unwrapped.origin):
        return _HeadNames(has_none=True)
    skeleton = pairing.loader.skeleton() if unwrapped.scorer is None and not unwrapped.is_sharded else None
    if skeleton is not None:
        choice = Choice(type(skeleton), task_of(skeleton, None), skeleton.config)
        traced = trace_checkpoint(skeleton, choice)
        if traced.trace is not None:
            return _HeadNames.of(traced.trace, traced.program).with_ties_of(skeleton)
    try:
        return _HeadNames.of(LiveModel(module).trace)
    except HeadscopeError as err:
        return _HeadNames(why=err.message)


def _has_no_head(module: Any) -> bool:
    """True if a model of Transformers is the base model alone, as its class says."""
    if not is_of_transformers(module) or module.base_model is not module:
        return False
    return task_of_bases(type(module)) is None and module.get_output_embeddings() is None


def _find_dropped(
    pairing: StoredPairing, own: Iterable[LiveTensor], request: Request, traced: _HeadNames
) -> list[TensorCheck]:
    """Finds the stored tensors that nothing in the model takes; marks those of a head, its own or the model's."""
    for item in own:
        with suppress(Unsupported):  # its keys are known all the same
            pairing.pair(item)
    manifest = pairing.manifest
    stored = [*manifest.tensors, *(manifest.adapter.tensors if manifest.adapter else ())]
    used = set(map(plain_name, pairing.used))  # PEFT saves a bias that it trains in a copy under several keys
    left = [header for header in stored if plain_name(header.key) not in used and not pairing.is_ignored(header.key)]
    if not left:
        return []
    is_classifier = any(task_of_class(name) is not None for name in architectures_in(manifest.config))
    has_own_head = is_classifier or chain_of(request, manifest) is not None
    head = _keys_of_own_head(request) if has_own_head else frozenset()
    return [_dropped_tensor(header, pairing, traced, head) for header in left]


def _dropped_tensor(
    header: TensorHeader, pairing: StoredPairing, traced: _HeadNames, head: frozenset[str]
) -> TensorCheck:
    """Describes a stored tensor that the model lacks; the scores need it in the head or inside the base model."""
    lacking = pairing.loader.without_place.get(header.key, frozenset())
    is_adapters = header.key in pairing.adapter.headers
    is_head = header.key in head or is_adapters or not traced.head.isdisjoint(lacking)
    return TensorCheck(
        name=header.key,
        status=TensorStatus.DROPPED,
        shape=header.shape,
        dtype=header.dtype,
        keys=(header.key,),
        is_head=is_head,
        is_live=is_head or any(map(traced.reads, lacking)) or pairing.is_inside_base(header),
        reason="the adapter's file holds it" if is_adapters else "",
    )


def _keys_of_own_head(request: Request) -> frozenset[str]:
    """Finds the stored tensors of the head of the class that a checkpoint names; none if it can't be examined."""
    try:
        report = examine("inspect", request, None).report
    except HeadscopeError:
        return frozenset()
    head = report.head.tensors if report.head else ()
    return frozenset(key for item in head for key in item.checkpoint_keys)


def _uncompared_gaps(manifest: CheckpointManifest, checks: Iterable[TensorCheck]) -> Iterator[Gap]:
    """Lists what belongs to the checkpoint's head, or may belong to it, and is not compared."""
    if manifest.sentence is not None and manifest.sentence.classifier:
        yield Gap(manifest.sentence.classifier, IN_A_PICKLE)
    dropped = [item.name for item in checks if item.status is TensorStatus.DROPPED and not item.is_head]
    if dropped and not manifest.config.get("architectures"):
        named = models_in_auto_map(manifest.config)
        why = f"names {named} in auto_map, whose code was not run" if named else "names no class"
        yield Gap(few_of(dropped), f"config.json {why}, so whether the load dropped a head is not known")


def load_model_with(request: Request, named: str | None) -> tuple[nn.Module, str]:
    """Loads the checkpoint that a request names; gives the model and the loader.

    If no loader is named, PEFT loads an adapter and Transformers everything else. Raises a HeadscopeError.
    """
    manifest = read_checkpoint(request, None)
    if manifest.kind is CheckpointKind.SNAPSHOT:
        raise Unsupported(
            f"{manifest.reference} is {WITHOUT_WEIGHTS[manifest.kind]} to load",
            "name the folder or the repository with the weight files",
        )
    place = loadable(request, manifest)
    adapter = manifest.adapter
    sentence = manifest.sentence or (adapter.sentence if adapter else None)
    loader = named or ("peft" if adapter else "transformers")
    if named is None and chain_of(request, manifest) is not None:
        loader = _loader_of_chain(manifest)
    if loader != "transformers":
        place = _as_plain_path(request, place, loader)
    variant = {"variant": place.variant} if place.variant else {}
    made: nn.Module = load_with(
        loader,
        LoadRequest(
            reference=place.reference,
            keywords={name: value for name, value in place.keywords().items() if value is not None} | variant,
            config=manifest.config,
            adapter=request.adapter,
            adapter_config=adapter.config if adapter else None,
            sentence_class=sentence.library_class if sentence else "",
            num_labels=_class_count(request, manifest),
            model_class=class_by_name(request.model_class) if request.model_class else None,
        ),
    )
    return made, loader


def _loader_of_chain(manifest: CheckpointManifest) -> str:
    """Chooses sentence-transformers for a chain if it is installed. Raises Unsupported if the chain needs it."""
    if find_spec("sentence_transformers") is not None:
        return "sentence-transformers"
    if any("/" in header.file for header in manifest.tensors):
        raise Unsupported(
            f"the head of {manifest.reference} is a chain that sentence-transformers loads, which is not installed",
            "run `pip install sentence-transformers`, or add --with transformers for the base model alone",
        )
    return "transformers"


def _class_count(request: Request, manifest: CheckpointManifest) -> int | None:
    """Counts the classes to load with: as requested, or those of an adapter's head if the base has another count."""
    if manifest.adapter is None or request.num_labels is not None:
        return request.num_labels
    try:
        choice, _ = load_checkpoint(request, manifest, lambda _: None)
    except HeadscopeError:
        return None  # then the loader says what it makes of it
    return int(choice.config.num_labels)


def _as_plain_path(request: Request, place: Location, loader: str) -> Location:
    """Changes a location for a loader that takes only a path or a Hub ID.

    Raises UsageError for options that such a loader can't have.
    """
    given = [name for name in ("revision", "variant") if getattr(request.location, name)]
    folder = Path(place.reference)
    if place.subfolder and folder.is_dir():
        place = replace(place, reference=str(folder / place.subfolder), subfolder=None)
    if place.subfolder:
        given.append("subfolder")
    if given:
        raise UsageError(
            f"{loader} gets only the path or the Hub ID, so {' and '.join(given)} can't be given",
            "download the checkpoint, and name the folder",
        )
    return place
