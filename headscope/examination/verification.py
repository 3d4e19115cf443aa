"""A loaded model held against the stored bytes of its checkpoint, tensor by tensor.

The loader's own report isn't used: the point is to find a loader that leaves a weight random without reporting it.
Names and shapes that are the same in model and file are a pair. Only what is left over is paired by running
Transformers' loader on header-only tensors that track the keys they came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.examination.cache import state_of
from headscope.examination.live import see
from headscope.examination.live_facts import task_of
from headscope.examination.module import Unwrapped, unwrap
from headscope.examination.reading import (
    WITHOUT_WEIGHTS,
    StoredFiles,
    loadable,
    open_stored_files,
    read_checkpoint,
)
from headscope.examination.request import Progress, Request
from headscope.examination.tracing import trace_checkpoint
from headscope.facts import (
    Carried,
    CheckpointKind,
    CheckpointManifest,
    HeadTrace,
    ParameterOrigin,
    ParameterStatus,
    TensorHeader,
    Unavailable,
    WeightsFormat,
)
from headscope.facts.counting import counted, few_of
from headscope.facts.location import Location
from headscope.facts.verification import Compared, LoadedModel, TensorCheck, TensorStatus
from headscope.facts.weights import modern_name
from headscope.upstream.accelerate import Numbers
from headscope.upstream.peft import PROMPTS, held_adapters, key_in_adapter, plain_name, rows_of_tokens

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.checkpoints import TensorBytes
    from headscope.model.loading import Loaded
    from headscope.model.numbers import Difference


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor of the model by its name; `tied_to` is the name under which the same tensor came before."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool
    is_persistent: bool
    tied_to: str = ""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The stored tensors that make one of the model; `change` are those of an adapter that were merged into it."""

    headers: tuple[TensorHeader, ...]
    place: Place
    change: Mapping[str, TensorHeader] = field(default_factory=dict)
    is_converted: bool = False


@dataclass(frozen=True, slots=True)
class _HeadNames:
    """The tensors of the head, and those that the scores depend on, without PEFT's wrappers in their names.

    `why` says why they are not known; then every tensor counts as one of the head.
    """

    head: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    why: str = ""

    @classmethod
    def of(cls, trace: HeadTrace) -> _HeadNames:
        names = (*trace.parameters, *trace.buffers)
        return cls(frozenset(map(plain_name, names)), frozenset(map(plain_name, trace.live)))

    def with_ties_of(self, skeleton: nn.Module) -> _HeadNames:
        """Also the other names of the same tensors: in the model compared, they may be tensors apart."""
        by_tensor: dict[int, set[str]] = {}
        for item in _tensors_of(skeleton):
            by_tensor.setdefault(id(item.tensor), set()).add(item.name)
        groups = [names for names in by_tensor.values() if len(names) > 1]
        return replace(
            self,
            head=self.head.union(*(names for names in groups if names & self.head)),
            live=self.live.union(*(names for names in groups if names & self.live)),
        )

    def holds(self, item: Own) -> bool:
        """Whether a tensor is one of the head; PEFT's copy of what it trains is not."""
        return bool(self.why) or (plain_name(item.name) in self.head and ".original_module." not in item.name)

    def depends_on(self, item: Own) -> bool:
        return bool(self.why) or not item.is_persistent or plain_name(item.name) in self.live


@dataclass(slots=True)
class Place:
    """A place with weights, opened for reading numbers."""

    files: StoredFiles
    bytes: TensorBytes

    @property
    def manifest(self) -> CheckpointManifest:
        return self.files.manifest


def compare_with_checkpoint(
    module: nn.Module, request: Request, *, every: bool = False, progress: Progress | None = None
) -> Compared:
    """Every tensor of the head of `module` (with `every`, every tensor) against the checkpoint that a request names.

    Raises a HeadscopeError where the checkpoint cannot be read or holds no weights.
    """
    tell = progress or (lambda sentence: None)
    unwrapped = unwrap(module)
    inner = unwrapped.module
    manifest = read_checkpoint(request, progress)
    places = _opened(request, manifest)
    before = _state_of(places)
    pairing = Pairing(inner, manifest, places)
    tell("tracing the head")
    head = _head_of(unwrapped, module, pairing)
    own = (*_tensors_of(inner), *_prompts_of(module))
    own = tuple(item for item in own if not pairing.held.is_of_inactive(item.name))
    chosen = [item for item in own if every or head.holds(item) or pairing.is_of_adapter(item.name)]
    checks = []
    for number, item in enumerate(chosen, 1):
        tell(f"comparing {number:,} of {counted(len(chosen), 'tensor')}: {item.name}")
        checks.append(_checked(item, pairing, head, unwrapped.offloaded.get(item.name)))
    checks += _dropped(pairing, own, request, head)
    if head.why:
        pairing.notes.append(f"every tensor was compared, because the head could not be traced: {head.why}")
    gaps = (*open_gaps(checks), *_unused_adapter(pairing), *_beyond(manifest, checks))
    if any(pairing.is_of_adapter_not_given(item) for item in own):
        gaps += (Unavailable("adapter", _NOT_GIVEN),)
    if _state_of(places) != before:
        gaps += (Unavailable("weights", "the weight files changed while they were compared; run it again"),)
    return Compared(
        LoadedModel(
            reference=manifest.reference,
            class_name=type(inner).__name__,
            tensors=tuple(checks),
        ),
        tuple(pairing.notes),
        (*manifest.gaps, *gaps),
        sum(place.bytes.bytes_read for place in places),
    )


def _opened(request: Request, manifest: CheckpointManifest) -> list[Place]:
    from headscope.checkpoints import TensorBytes

    found = [Place(item, TensorBytes(item.sidecar)) for item in open_stored_files(request, manifest)]
    if not any(place.manifest.tensors for place in found):
        raise Unsupported(
            f"{manifest.reference} holds no weights to compare with",
            "name the folder or the repository with the weight files; a snapshot has none",
        )
    return found


def _state_of(places: list[Place]) -> list[object]:
    """What tells that a weight file on this machine has changed."""
    from headscope.checkpoints import files_beside

    return [
        state_of(files_beside(place.files.sidecar, [file.name for file in place.manifest.files])) for place in places
    ]


def _head_of(unwrapped: Unwrapped, module: nn.Module, pairing: Pairing) -> _HeadNames:
    """The names of the head's tensors.

    A model whose modules are those of its class is traced without its numbers, as `inspect` does it; any other is run.
    """
    from headscope.model.model_request import Choice

    skeleton = pairing.skeleton() if unwrapped.scorer is None and not unwrapped.is_sharded else None
    if skeleton is not None:
        choice = Choice(type(skeleton), task_of(skeleton, None), skeleton.config)
        trace = trace_checkpoint(skeleton, choice).trace
        if trace is not None:
            return _HeadNames.of(trace).with_ties_of(skeleton)
    try:
        return _HeadNames.of(see(module).trace)
    except HeadscopeError as err:
        return _HeadNames(why=err.message)


def _tensors_of(module: nn.Module) -> Iterator[Own]:
    """The parameters and buffers of a model under all their names."""
    persistent = set(module.state_dict(keep_vars=True))
    first: dict[int, str] = {}
    parameters = ((name, item, False) for name, item in module.named_parameters(remove_duplicate=False))
    buffers = ((name, item, True) for name, item in module.named_buffers(remove_duplicate=False))
    for name, tensor, is_buffer in (*parameters, *buffers):
        source = first.setdefault(id(tensor), name)
        yield Own(name, tensor, is_buffer, name in persistent, "" if source == name else source)


def _prompts_of(module: nn.Module) -> Iterator[Own]:
    """The virtual tokens of PEFT's prompt methods, which are beside the model."""
    for part in module.modules():
        if callable(getattr(part, "get_base_model", None)) and "prompt_encoder" in dict(part.named_children()):
            for name, tensor in part.get_submodule("prompt_encoder").named_parameters(prefix=PROMPTS):
                if name.endswith(".embedding.weight"):
                    yield Own(name, tensor, is_buffer=False, is_persistent=True)


def _unused_adapter(pairing: Pairing) -> Iterator[Unavailable]:
    """Why the scores of a model may not be those of the adapter whose tensors it holds."""
    held, adapter = pairing.held, pairing.manifest.adapter
    if adapter is None or not held.names:
        return
    inactive = sorted(held.names - held.active)
    if inactive:
        pairing.notes.append(f"not compared: {few_of(inactive)}, which the model holds and does not use")
    if held.is_disabled:
        yield Unavailable("adapter", "the model holds it disabled, so the scores are those of the base model")
    if len(held.active) > 1:
        yield Unavailable("adapter", f"several adapters are active: {few_of(sorted(held.active))}")
    wrong = [path for path, scale in held.scales.items() if not _is_scale(path, scale, pairing)]
    if wrong:
        reason = "the model multiplies the change by another factor than the adapter's configuration says"
        yield Unavailable(few_of(wrong), reason)


def _is_scale(path: str, scale: float, pairing: Pairing) -> bool:
    """Whether a layer's factor is the one that the configuration gives; unknown counts as right."""
    from headscope.model.adapters import scale_of

    assert pairing.manifest.adapter is not None  # asked only with an adapter
    plain = plain_name(f"{path}.")[:-1]
    names = (f"base_model.model.{plain}.{end}" for end in ("lora_A.weight", "lora_embedding_A"))
    down = next((pairing.adapter_keys[name] for name in names if name in pairing.adapter_keys), None)
    if down is None:
        return True
    settings = {**pairing.manifest.adapter.config, "use_dora": False}  # DoRA scales as LoRA does
    with suppress(Unsupported):
        return math.isclose(scale, scale_of(plain, settings, down.shape[0]), rel_tol=1e-6)
    return True


def _trained_for(manifest: CheckpointManifest) -> str:
    """The classification task of the class that a checkpoint names; "" where that is none."""
    from headscope.model.catalogue import task_of_class

    named = manifest.config.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    task = next((found for name in names if (found := task_of_class(name)) is not None), None)
    return task.value if task else ""


def _headers_of_modules(manifest: CheckpointManifest, module: nn.Module) -> Iterator[tuple[str, TensorHeader]]:
    """The tensors of sentence-transformers' modules after the first, by their names in the model."""
    children = {name for name, _ in module.named_children()}
    for number, part in enumerate(manifest.sentence.parts if manifest.sentence else ()):
        if part.folder and str(number) in children:
            for tensor in part.weights:
                file = f"{part.folder}/model.safetensors"
                yield f"{number}.{tensor.name}", TensorHeader(tensor.name, tensor.dtype, tensor.shape, file)


def is_of_transformers(module: Any) -> bool:
    """Whether a model is one of Transformers' own classes."""
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


class Pairing:
    """Which stored tensors make which of the model's."""

    def __init__(self, module: nn.Module, manifest: CheckpointManifest, places: list[Place]) -> None:
        self.module = module
        self.manifest = manifest
        self.notes: list[str] = []
        self.used: set[str] = set()
        self._pairs: dict[str, _Pair | Unsupported | None] = {}
        self._converted: dict[torch.dtype, dict[str, torch.Tensor]] = {}
        self._adapter = next((item for item in places if item.manifest is manifest.adapter), None)
        self._base = next((item for item in places if item is not self._adapter), None)
        self._headers = {header.key: header for header in manifest.tensors}
        self._of_adapter = {header.key: header for header in manifest.adapter.tensors} if manifest.adapter else {}
        self.held = held_adapters(module)
        self._of_modules = dict(_headers_of_modules(manifest, module))
        self._prefix, self._instead = self._prefixes()
        self._loaded = self._load() if self._needs_loader() else None
        self._origins = {item.name: item for item in self._loaded.diff.parameters} if self._loaded else {}

    def _prefixes(self) -> tuple[str, str]:
        """What is before the names of a model that is not Transformers' own, and before the stored keys."""
        names = [plain_name(name) for name in self.module.state_dict()]
        if not self._headers or any(name in self._headers for name in names) or is_of_transformers(self.module):
            return "", ""
        position = {key: number for number, key in enumerate(self._headers)}
        inside: dict[str, str] = {}
        for key in self._headers:
            for end in _ends_of(key):
                inside.setdefault(end, key)
        for name in names:
            found = [end for end in _ends_of(name) if end in position]
            found += [inside[name]] if name in inside else []
            if not found:
                continue
            key = min(found, key=position.__getitem__)
            if len(key) < len(name):
                prefix = name.removesuffix(key)
                self.notes.append(f"names were matched without {prefix!r}, which the model puts before them")
                return prefix, ""
            prefix = key.removesuffix(name)
            self.notes.append(f"names were matched with {prefix!r}, which the checkpoint puts before them")
            return "", prefix
        return "", ""

    def _needs_loader(self) -> bool:
        """Whether names and shapes alone don't pair everything. An adapter changes weights, which no name shows."""
        if not is_of_transformers(self.module):
            return False
        state = {plain_name(name): tuple(item.shape) for name, item in self.module.state_dict(keep_vars=True).items()}
        stored = {key: header.shape for key, header in self._headers.items()}
        return self.manifest.adapter is not None or state != stored

    def _load(self) -> Loaded:
        """What the loader pairs, from headers alone."""
        from headscope.model.adapters import with_adapter
        from headscope.model.loading import load_skeleton
        from headscope.model.model_request import Choice

        cls, config = type(self.module), deepcopy(self.module.config)
        loaded = load_skeleton(Choice(cls, task_of(self.module, None), config), self.manifest)  # type: ignore[arg-type]
        return with_adapter(loaded, self.manifest.adapter) if self.manifest.adapter else loaded

    def skeleton(self) -> PreTrainedModel | None:
        """The model without numbers; None where its modules are not those that its class makes."""
        from headscope.model.held import fresh_skeleton, has_kinds_of

        if not is_of_transformers(self.module):
            return None
        with suppress(Exception):  # whatever a foreign constructor raises
            fresh = self._loaded.model if self._loaded else fresh_skeleton(self.module)  # type: ignore[arg-type]
            return fresh if has_kinds_of(self.module, fresh) else None
        return None

    def is_of_adapter(self, name: str) -> bool:
        """Whether the adapter's file may hold a tensor, or change it."""
        if not self._of_adapter or ".original_module." in name:
            return False
        if key_in_adapter(name, self._of_adapter, self.held.active) is not None:
            return True
        item = self._origins.get(plain_name(name))
        return item is not None and item.adapter is not None

    def pair(self, item: Own) -> _Pair | None:
        """The stored tensors behind a tensor; None for none. Raises Unsupported for packed ones."""
        if item.name not in self._pairs:
            try:
                self._pairs[item.name] = self._found(item)
            except Unsupported as err:
                self._pairs[item.name] = err
        found = self._pairs[item.name]
        if isinstance(found, Unsupported):
            raise found
        return found

    def _found(self, item: Own) -> _Pair | None:
        key = key_in_adapter(item.name, self._of_adapter, self.held.active)
        if key is not None and self._adapter is not None and ".original_module." not in item.name:
            return self._taken((self._of_adapter[key],), self._adapter)
        return self._in_base(item, self._base) if self._base is not None else None

    def _in_base(self, item: Own, base: Place) -> _Pair | None:
        """The stored tensors of the base model, or of the only checkpoint, behind a tensor."""
        if item.name in self._of_modules:
            return _Pair((self._of_modules[item.name],), base)
        name = f"{self._instead}{plain_name(item.name).removeprefix(self._prefix)}"
        origin = self._origins.get(name)
        change = self._change(item, origin)
        same = self._headers.get(name)
        if same is not None and same.shape == tuple(item.tensor.shape) and not change:
            return self._taken((same,), base)
        if origin is not None and origin.quantised is not None and not _is_as_stored(item, same):
            self.used.update(origin.checkpoint_keys)
            raise Unsupported("the checkpoint holds it packed, and headscope does not unpack numbers", "")
        if origin is None or not origin.checkpoint_keys:
            return self._taken((same,), base) if same is not None else None
        found = tuple(self._headers[key] for key in origin.checkpoint_keys if key in self._headers)
        if len(found) < len(origin.checkpoint_keys):
            return None
        is_converted = origin.status is ParameterStatus.LOADED
        return self._taken(found, base, change, is_converted=is_converted)

    def _taken(
        self,
        headers: tuple[TensorHeader, ...],
        place: Place,
        change: Mapping[str, TensorHeader] | None = None,
        *,
        is_converted: bool = False,
    ) -> _Pair:
        self.used.update(header.key for header in (*headers, *(change or {}).values()))
        return _Pair(headers, place, change or {}, is_converted)

    def converted(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A tensor as the loader makes it; all that it converts are made together. Raises Unsupported."""
        from headscope.model.conversion import check_size, converted

        if dtype not in self._converted:
            check_size(self.module)  # type: ignore[arg-type]  # the loader paired it, so it is Transformers' own
            pairs = {item.name: found for item in _tensors_of(self.module) if (found := self._if_converted(item))}
            stored = {h.key: _whole(pair.place, h) for pair in pairs.values() for h in pair.headers}
            names = [plain_name(each) for each in pairs]
            self._converted[dtype] = converted(self.module, names, stored, dtype)  # type: ignore[arg-type]
        if plain_name(name) not in self._converted[dtype]:
            raise Unsupported("Transformers' loader makes no such tensor a second time", "")
        return self._converted[dtype][plain_name(name)].detach()

    def _if_converted(self, item: Own) -> _Pair | None:
        pair = self.pair(item)
        is_other = pair is not None and (len(pair.headers) > 1 or pair.headers[0].shape != tuple(item.tensor.shape))
        return pair if is_other and pair is not None and pair.is_converted else None

    @cached_property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The buffers that the class computes; none where it cannot be made, or is not one of Transformers."""
        from headscope.model.conversion import computed_buffers

        adapters = self.held.active
        found: dict[str, torch.Tensor] = {}
        for path, part in _parts_of_transformers(self.module):
            for names in dict.fromkeys([frozenset[str](), adapters]):  # PEFT can't put every method on a bare model
                with suppress(Unsupported):
                    made = computed_buffers(part, names)
                    found |= {f"{path}.{name}".lstrip("."): item for name, item in made.items()}
        return found

    @cached_property
    def _added(self) -> frozenset[str]:
        """The tensors that PEFT adds to the model."""
        from headscope.model.held import added_by_peft

        return added_by_peft(self.module) if self.held.names else frozenset()

    def is_of_adapter_not_given(self, item: Own) -> bool:
        """Whether a tensor belongs to an adapter of the model, while nothing was named that stores the adapter."""
        return not self._of_adapter and (item.name in self._added or item.name.startswith(PROMPTS))

    @cached_property
    def settled(self) -> Mapping[str, torch.Tensor]:
        """The parameters of an adapter that PEFT stores nowhere, because the stored ones decide them."""
        import torch

        found: dict[str, torch.Tensor] = {}
        for name in self._added:
            key = key_in_adapter(name.replace(".ranknum.", ".lora_E."), self._of_adapter, self.held.active)
            if ".ranknum." in name and key is not None:  # AdaLoRA's rank, by which the forward divides
                found[name] = torch.tensor([float(self._of_adapter[key].shape[0])])
        return found

    def rows_behind(self, item: Own) -> Callable[[int, int], torch.Tensor] | None:
        """The stored rows of an embedding that PEFT copies beside those which it trains; None for another tensor."""
        import torch

        found = rows_of_tokens(self.module).get(item.name) if item.is_buffer and item.name in self._added else None
        header = self._headers.get(f"{self._instead}{found[0].removeprefix(self._prefix)}") if found else None
        if found is None or header is None or self._base is None or item.tensor.dim() != len(header.shape):
            return None
        width, read = header.shape[-1], numbers_of(self._base, header)
        if any(not 0 <= row < header.shape[0] for row in found[1]):
            return None
        rows = torch.cat([read(row * width, (row + 1) * width) for row in found[1]])
        return lambda begin, end: rows[begin:end]

    def is_plain_float8(self, pair: _Pair) -> bool:
        """Whether a tensor is stored in a float of 8 bits, and nothing that the checkpoint holds would scale it."""
        if "quantization_config" in self.manifest.config:
            return False
        return all(header.dtype.startswith("float8") for header in pair.headers) and not self._scales

    @cached_property
    def _scales(self) -> bool:
        return any("scale" in key.rpartition(".")[2] for key in self._headers)

    @property
    def adapter_keys(self) -> Mapping[str, TensorHeader]:
        """The headers of the adapter's file by their keys."""
        return self._of_adapter

    def _change(self, item: Own, origin: ParameterOrigin | None) -> dict[str, TensorHeader]:
        """The adapter's tensors that a merge adds to a weight; none where the model holds the adapter beside it."""
        path = plain_name(item.name).rpartition(".")[0]
        is_beside = plain_name(item.name) != item.name and path not in self.held.merged
        if origin is None or origin.adapter is not Carried.ADAPTED or is_beside:
            return {}
        return {
            key.removeprefix(f"base_model.model.{path}."): header
            for key, header in self._of_adapter.items()
            if key.startswith(f"base_model.model.{path}.")
        }

    @property
    def adapter(self) -> Place | None:
        """The place of the adapter's file."""
        return self._adapter

    @cached_property
    def without_place(self) -> Mapping[str, frozenset[str]]:
        """The stored tensors of parameters that the class has and this model lacks, with the names of these."""
        own = {plain_name(item.name) for item in _tensors_of(self.module)}
        found: dict[str, frozenset[str]] = {}
        for item in self._origins.values():
            for key in item.checkpoint_keys if item.name not in own else ():
                found[key] = found.get(key, frozenset()) | {item.name}
        return found

    def is_ignored(self, key: str) -> bool:
        """Whether the loader leaves a stored tensor out on purpose, as an old buffer or a second name of one tensor."""
        once = key.replace(".original_module.", ".").replace(".modules_to_save.", ".")
        if once != key and once in self._of_adapter:  # what PEFT saves a second time with bias="all"
            return True
        if self._loaded is None or key in self._of_adapter or key in self.without_place:
            return False
        return key not in self._loaded.diff.unused and modern_name(key) not in self._loaded.diff.unused


def _ends_of(name: str) -> Iterator[str]:
    """`a.b.c` -> `b.c`, `c`."""
    return (name[at + 1 :] for at, sign in enumerate(name) if sign == ".")


_PACKED = ("int", "uint", "float8")


def _is_as_stored(item: Own, header: TensorHeader | None) -> bool:
    return header is not None and str(item.tensor.dtype) == f"torch.{header.dtype}"


def _parts_of_transformers(module: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """The models of Transformers in a module, each with its path; those inside of others are left out."""
    from transformers import PreTrainedModel

    found: list[str] = []
    for path, part in module.named_modules():
        if isinstance(part, PreTrainedModel) and not any(path.startswith(f"{other}.") or not other for other in found):
            found.append(path)
            yield path, part


def _checked(item: Own, pairing: Pairing, head: _HeadNames, numbers: Numbers | None = None) -> TensorCheck:
    """What one tensor of the model is; `numbers` reads one that is offloaded."""
    bare = TensorCheck(
        name=item.name,
        status=TensorStatus.UNKNOWN,
        shape=tuple(item.tensor.shape),
        dtype=str(item.tensor.dtype).removeprefix("torch."),
        is_head=head.holds(item),
        is_live=head.depends_on(item),
        is_buffer=item.is_buffer,
    )
    try:
        pair = pairing.pair(item)
        item = item if numbers is None else replace(item, tensor=read_offloaded(numbers))
    except Unsupported as err:
        return replace(bare, reason=err.message)
    if pair is None:
        return _without_pair(bare, item, pairing)
    keyed = replace(bare, keys=tuple(header.key for header in pair.headers))
    try:
        return against_stored(keyed, item.tensor, pair, pairing)
    except HeadscopeError as err:
        return replace(keyed, reason=err.message)


def _without_pair(bare: TensorCheck, item: Own, pairing: Pairing) -> TensorCheck:
    """A tensor for which the checkpoint holds none."""
    if item.tied_to:
        return replace(bare, status=TensorStatus.TIED, reason=f"the same tensor as {item.tied_to}")
    if pairing.is_of_adapter_not_given(item):
        return replace(bare, is_live=False, reason=_NOT_GIVEN)  # one gap speaks for all of the adapter
    if item.is_buffer or item.name in pairing.settled:
        return _computed(bare, item, pairing)
    if pairing.manifest.sentence is not None and pairing.manifest.sentence.classifier:
        return replace(bare, reason=_IN_A_PICKLE)
    return replace(bare, status=TensorStatus.RANDOM, reason="the checkpoint holds nothing for it")


def read_offloaded(numbers: Numbers) -> torch.Tensor:
    """A tensor from where it was offloaded to. Raises Unsupported where it is no longer there."""
    try:
        return numbers()
    except Exception as err:  # a file that was deleted, in whatever library reads it
        raise Unsupported(f"it was offloaded, and can't be read back ({type(err).__name__})", "") from err


def against_stored(bare: TensorCheck, tensor: torch.Tensor, pair: _Pair, pairing: Pairing) -> TensorCheck:
    from headscope.model.numbers import why_not_comparable

    if not tensor.numel() and 0 not in pair.headers[0].shape:
        return replace(bare, status=TensorStatus.PLACEHOLDER, reason="it has no elements, as ZeRO-3 leaves a weight")
    reason = why_not_comparable(tensor)
    if reason:
        return replace(bare, reason=reason)
    packed = [item for item in pair.headers if item.dtype.startswith(_PACKED) and item.dtype != bare.dtype]
    if tensor.is_floating_point() and packed and not pairing.is_plain_float8(pair):
        return replace(bare, reason=f"it is stored as {packed[0].dtype}, which the loader scales")
    if pair.change:
        return _against_merge(bare, tensor, pair, pairing)
    if len(pair.headers) > 1 or pair.headers[0].shape != bare.shape:
        return _against_conversion(bare, tensor, pair, pairing)
    from headscope.model.numbers import compare

    return _judged(bare, tensor, compare(tensor, numbers_of(pair.place, pair.headers[0])))


def _judged(bare: TensorCheck, tensor: torch.Tensor, found: Difference) -> TensorCheck:
    """The status that a comparison of numbers comes to."""
    largest = found.largest if math.isfinite(found.largest) else None
    is_matrix = tensor.dim() > 1
    if found.has_nan:
        return replace(bare, status=TensorStatus.PLACEHOLDER, max_error=largest, reason="it holds NaN")
    if found.zeros and is_matrix and not found.equal:  # zeros that are stored are the checkpoint's own: HS502
        return replace(bare, status=TensorStatus.PLACEHOLDER, max_error=largest, reason="it holds zeros throughout")
    if found.equal:
        return replace(bare, status=TensorStatus.EQUAL, max_error=0.0)
    is_lost = found.overflows and not bare.is_buffer  # a mask of the smallest number may become infinite
    if found.cast and not is_lost:
        return replace(bare, status=TensorStatus.CAST, max_error=largest)
    reason = "" if largest is not None else "finite numbers are where the other has none"
    if found.cast:
        reason = f"it holds infinite numbers: those of the checkpoint are too large for {bare.dtype}"
    return replace(bare, status=TensorStatus.DIFFERENT, max_error=largest, reason=reason)


def numbers_of(place: Place, header: TensorHeader) -> Callable[[int, int], torch.Tensor]:
    """A function that reads some of a stored tensor's elements, flat. Raises Unsupported where it can't."""
    import torch

    from headscope.model.numbers import read_numbers

    kind = getattr(torch, header.dtype, None)
    if not isinstance(kind, torch.dtype):
        raise Unsupported(f"its dtype {header.dtype} is not one that PyTorch reads", "")
    if place.manifest.format is WeightsFormat.TORCH:
        flat = _from_pickle(place, header).reshape(-1)
        return lambda begin, end: flat[begin:end]

    def read(begin: int, end: int) -> torch.Tensor:
        data = place.bytes.read(header.file, header.key, begin * kind.itemsize, (end - begin) * kind.itemsize)
        return read_numbers(data, kind)

    return read


def _whole(place: Place, header: TensorHeader) -> torch.Tensor:
    return numbers_of(place, header)(0, math.prod(header.shape)).reshape(header.shape)


def _from_pickle(place: Place, header: TensorHeader) -> torch.Tensor:
    from headscope.checkpoints import path_in
    from headscope.model.values import stored_tensors

    path = path_in(place.files.sidecar, header.file)
    if path is None:
        raise Unsupported("a PyTorch file that is not on this machine cannot be read by range", "download it first")
    return stored_tensors(path, [header.key])[header.key]


def _against_merge(bare: TensorCheck, tensor: torch.Tensor, pair: _Pair, pairing: Pairing) -> TensorCheck:
    """A weight against what PEFT would merge; where it is the base model's, the reason names that."""
    from headscope.model.numbers import compare, merge_lora

    assert pairing.adapter is not None and pairing.manifest.adapter is not None  # a change comes from an adapter
    adapter = pairing.adapter
    changes = {name: _whole(adapter, header) for name, header in pair.change.items()}
    layer = pairing.module.get_submodule(bare.name.rpartition(".")[0])
    path = plain_name(bare.name).rpartition(".")[0]
    base = _whole(pair.place, pair.headers[0])
    merge = merge_lora(base, changes, path, pairing.manifest.adapter.config, layer)
    flat = merge.merged.reshape(-1)
    found = compare(tensor, lambda begin, end: flat[begin:end])
    keyed = replace(bare, keys=(*bare.keys, *(header.key for header in pair.change.values())))
    if not found.has_nan and not found.overflows and merge.made(tensor):
        return replace(keyed, status=TensorStatus.MERGED, max_error=found.largest)
    judged = _judged(keyed, tensor, found)
    plain = base.reshape(-1)
    unmerged = compare(tensor, lambda begin, end: plain[begin:end])
    if judged.status is TensorStatus.DIFFERENT and unmerged.cast:
        return replace(judged, reason="these are the base model's numbers: the adapter was not merged into it")
    return judged


def _against_conversion(bare: TensorCheck, tensor: torch.Tensor, pair: _Pair, pairing: Pairing) -> TensorCheck:
    """A tensor that Transformers makes of several stored ones, or of one in another form."""
    from headscope.model.numbers import compare

    if not pair.is_converted:
        shapes = few_of("x".join(map(str, header.shape)) for header in pair.headers)
        reason = f"the checkpoint holds {shapes}, another shape, which no load puts here"
        return replace(bare, status=TensorStatus.DIFFERENT, reason=reason)
    flat = pairing.converted(bare.name, tensor.dtype).reshape(-1)
    judged = _judged(bare, tensor, compare(tensor, lambda begin, end: flat[begin:end]))
    is_same = judged.status in (TensorStatus.EQUAL, TensorStatus.CAST)
    return replace(judged, status=TensorStatus.TRANSFORMED) if is_same else judged


def _computed(bare: TensorCheck, item: Own, pairing: Pairing) -> TensorCheck:
    """A buffer that is stored nowhere, against the one that the class computes again."""
    from headscope.model.numbers import compare, why_not_comparable

    reason = why_not_comparable(item.tensor)
    rows = None if reason else pairing.rows_behind(item)
    if rows is not None:
        return _judged(bare, item.tensor, compare(item.tensor, rows))
    fresh = pairing.settled.get(item.name, pairing.buffers.get(item.name))
    if reason or fresh is None or fresh.shape != item.tensor.shape:
        return replace(bare, reason=reason or "the checkpoint does not hold it, and the class computes no such buffer")
    flat = fresh.reshape(-1)
    found = compare(item.tensor, lambda begin, end: flat[begin:end])
    judged = _judged(replace(bare, reason="computed, not stored"), item.tensor, found)
    is_same = found.equal or found.cast or _is_close(item.tensor, found)
    return replace(judged, status=TensorStatus.COMPUTED, reason="computed, not stored") if is_same else judged


def _is_close(tensor: torch.Tensor, found: Difference) -> bool:
    """Whether two computations of one buffer differ by rounding alone: another device sums in another order."""
    return tensor.is_floating_point() and found.is_within_rounding(tensor.dtype)


def _dropped(pairing: Pairing, own: Iterable[Own], request: Request, traced: _HeadNames) -> list[TensorCheck]:
    """The stored tensors that nothing in the model takes; those of a head, its own or the model's, are marked."""
    for item in own:
        with suppress(Unsupported):  # its keys are known all the same
            pairing.pair(item)
    manifest = pairing.manifest
    stored = [*manifest.tensors, *(manifest.adapter.tensors if manifest.adapter else ())]
    left = [header for header in stored if header.key not in pairing.used and not pairing.is_ignored(header.key)]
    if not left:
        return []
    head = _keys_of_own_head(request) if _trained_for(manifest) else frozenset()
    return [
        TensorCheck(
            name=header.key,
            status=TensorStatus.DROPPED,
            shape=header.shape,
            dtype=header.dtype,
            keys=(header.key,),
            is_head=header.key in head
            or header.key in pairing.adapter_keys
            or not traced.head.isdisjoint(pairing.without_place.get(header.key, ())),
            reason="the adapter's file holds it" if header.key in pairing.adapter_keys else "",
        )
        for header in left
    ]


def _keys_of_own_head(request: Request) -> frozenset[str]:
    """The stored tensors of the head of the class that a checkpoint names; none where that cannot be examined."""
    from headscope.examination.checkpoint import examine

    try:
        report = examine("inspect", request, None).report
    except HeadscopeError:
        return frozenset()
    head = report.head.tensors if report.head else ()
    return frozenset(key for item in head for key in item.checkpoint_keys)


def _beyond(manifest: CheckpointManifest, checks: Iterable[TensorCheck]) -> Iterator[Unavailable]:
    """What belongs to the checkpoint's head, or may belong to it, and is not compared."""
    if manifest.sentence is not None and manifest.sentence.classifier:
        yield Unavailable(manifest.sentence.classifier, _IN_A_PICKLE)
    dropped = [item.name for item in checks if item.status is TensorStatus.DROPPED and not item.is_head]
    if dropped and not manifest.config.get("architectures"):
        yield Unavailable(
            few_of(dropped), "config.json names no class, so whether the load dropped a head is not known"
        )


_NOT_GIVEN = "the model holds a PEFT adapter, and none was given to compare with: name it with adapter=..."
_IN_A_PICKLE = "it is a classifier in a pickle, whose numbers headscope does not compare"


def open_gaps(checks: Iterable[TensorCheck]) -> Iterator[Unavailable]:
    """Tensors that could not be compared, by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in checks:
        if item.status is TensorStatus.UNKNOWN and item.is_live:
            by_reason.setdefault(item.reason, []).append(item.name)
    for reason, names in by_reason.items():
        yield Unavailable(few_of(names), reason)


def load_model(request: Request, loader: str) -> nn.Module:
    """The model that a loader makes of the checkpoint that a request names. Raises a HeadscopeError."""
    from headscope.upstream.loaders import Wanted, load_with

    manifest = read_checkpoint(request, None)
    if manifest.kind is CheckpointKind.SNAPSHOT:
        raise Unsupported(
            f"{manifest.reference} is {WITHOUT_WEIGHTS[manifest.kind]} to load",
            "name the folder or the repository with the weight files",
        )
    place = loadable(request, manifest)
    adapter = manifest.adapter
    if loader != "transformers":
        place = _as_path(request, place, loader)
    variant = {"variant": place.variant} if place.variant else {}
    made: nn.Module = load_with(
        loader,
        Wanted(
            reference=place.reference,
            keywords={name: value for name, value in place.keywords().items() if value is not None} | variant,
            config=manifest.config,
            adapter=request.adapter,
            adapter_config=adapter.config if adapter else None,
            sentence_class=manifest.sentence.library_class if manifest.sentence else "",
            num_labels=_class_count(request, manifest),
        ),
    )
    return made


def _class_count(request: Request, manifest: CheckpointManifest) -> int | None:
    """The class count to load with: the requested one, or that of an adapter's head where the base has another."""
    if manifest.adapter is None or request.num_labels is not None:
        return request.num_labels
    from headscope.examination.loading import load_checkpoint

    try:
        choice, _ = load_checkpoint(request, manifest, lambda _: None)
    except HeadscopeError:
        return None  # then the loader says what it makes of it
    return int(choice.config.num_labels)


def _as_path(request: Request, place: Location, loader: str) -> Location:
    """What a loader gets that takes a path or a Hub ID only. Raises UsageError for options that it can't have."""
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
