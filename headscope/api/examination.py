"""The examination of a checkpoint: manifest, class, weight diff and head trace joined into one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.api.cache import key_of, open_cache
from headscope.api.options import Progress, request_options
from headscope.api.shown import Shown
from headscope.api.versions import environment
from headscope.errors import Unsupported, UsageError
from headscope.facts import (
    AdapterFacts,
    CheckpointFacts,
    CheckpointKind,
    CheckpointManifest,
    Head,
    HeadParameter,
    HeadTrace,
    Mismatch,
    ModelFacts,
    PaddingEffect,
    ParameterCounts,
    Quantisation,
    Report,
    TensorKind,
    Unavailable,
    WeightDiff,
    WeightsFormat,
)
from headscope.facts.check import BuiltFacts
from headscope.facts.tasks import TEXT_TASKS
from headscope.facts.version import tool_version
from headscope.facts.weight_inventory import WeightInventory, contents_of

if TYPE_CHECKING:
    from headscope.checkpoints.tokenizer_file import FirstToken
    from headscope.model.loading import Loaded
    from headscope.model.model_request import Choice
    from headscope.model.remote_code import CodeSource

_LANGUAGE_MODELS = ("MaskedLM", "CausalLM", "LMHeadModel", "ForConditionalGeneration", "ForPreTraining")


class Examination(Shown, Report):
    """A report that shows itself: as text, in a Rich console, in a notebook."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What to examine and as what; `headscope.api.inspect` describes the fields."""

    reference: str
    num_labels: int | None = None
    labels: tuple[str, ...] = ()
    task: str | None = None
    model_class: str | None = None
    revision: str | None = None
    subfolder: str | None = None
    variant: str | None = None
    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    trust_remote_code: bool = False
    verify: bool = False
    adapter: str | None = None
    cache: bool = False
    timeout: float | None = None


def examine(command: str, request: Request, progress: Progress | None) -> Examined:
    """The examination that a request asks for, under the name of a command, with what it came from."""
    manifest = read_checkpoint(request, progress)
    cache = open_cache(request.cache and not request.trust_remote_code)
    first = _own_first_token(request, manifest)
    key = key_of(manifest, *_identity(request), first) if cache.is_open else ""
    known = cache.load(Remembered, key)
    if known is not None and (known.verified or not request.verify):
        return Examined(_renewed(known, command, request, manifest), manifest, known.built, None, key)
    examined = _examine(command, request, manifest, partial(_trace, own=first, verify=request.verify), progress)
    cache.save(key, Remembered(examined.report, examined.built, request.verify))
    return replace(examined, key=key)


def _identity(request: Request) -> tuple[object, ...]:
    """What a report depends on beside the manifest and the versions."""
    return request.num_labels, request.labels, request.task, request.model_class, request.reference


def _renewed(known: Remembered, command: str, request: Request, manifest: CheckpointManifest) -> Examination:
    """A report from the cache as this command and this reading would have made it."""
    report = replace(known.report, command=command, checkpoint=checkpoint_facts(manifest))
    verification = report.head.verification if report.head else None
    if report.head is None or request.verify or verification is None or verification.agrees is False:
        return report
    return replace(report, head=replace(report.head, verification=None))


def examine_weights(request: Request, progress: Progress | None) -> Examination:
    """The examination without a trace of the head."""
    return _examine("diff-weights", request, read_checkpoint(request, progress), None, progress).report


def make_request(reference: Any, options: dict[str, Any]) -> Request:
    """The request that the arguments of a use case make. Raises UsageError for arguments that make no sense."""
    if not isinstance(reference, str | PathLike):
        raise UsageError(
            f"{type(reference).__name__} is not a checkpoint", "give a Hub id, a path, or a model in memory (nn.Module)"
        )
    return Request(str(reference), **request_options(options, [item.name for item in fields(Request)][1:]))


def read_checkpoint(request: Request, progress: Progress | None) -> CheckpointManifest:
    """The manifest of the checkpoint that a request names."""
    from headscope.checkpoints import read_manifest

    return read_manifest(
        request.reference,
        revision=request.revision,
        subfolder=request.subfolder,
        variant=request.variant,
        cache_dir=request.cache_dir,
        token=request.token,
        offline=request.offline,
        adapter=request.adapter,
        timeout=request.timeout,
        progress=progress,
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the cache keeps of an examination; `verified` says that the effect of padding was measured too."""

    report: Examination
    built: BuiltFacts
    verified: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """A report, what was read for it, and as what.

    `choice` is None where the report is from the cache; `key` is what the cache knows it by.
    """

    report: Examination
    manifest: CheckpointManifest
    built: BuiltFacts
    choice: Choice | None
    key: str


@dataclass(frozen=True, slots=True)
class _Traced:
    """A head trace, or the reason why there is none."""

    trace: HeadTrace | None
    gaps: tuple[Unavailable, ...] = ()


Tracer = Callable[["Loaded", "Choice"], _Traced]


def _examine(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> Examined:
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = _load(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded, choice) if tracer else _Traced(None)
    report = _report(command, manifest, choice, loaded, traced)
    built = with_purpose(built_facts(choice.config), manifest)
    return Examined(report, manifest, built, choice, "")


def with_purpose(built: BuiltFacts, manifest: CheckpointManifest) -> BuiltFacts:
    """The facts with what the checkpoint was made for."""
    from headscope.model.catalogue import task_of_class

    name = _first_architecture(manifest)
    is_own_head = name is not None and manifest.adapter is None  # an adapter's head is not its base model's
    return replace(built, kind=_kind_of(manifest), trained_for=task_of_class(name or "") if is_own_head else None)


def _first_architecture(manifest: CheckpointManifest) -> str | None:
    found = manifest.config.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


def _kind_of(manifest: CheckpointManifest) -> str | None:
    """A word for what the checkpoint was made for; None for a classifier, or where it does not say."""
    from headscope.model.catalogue import task_of_class

    name = _first_architecture(manifest)
    if name is None or task_of_class(name) is not None or "Classification" in name or manifest.adapter is not None:
        return None
    if name.endswith(_LANGUAGE_MODELS):
        return "language model"
    return "sentence embedder" if manifest.sentence is not None else "base model"


def built_facts(config: Any) -> BuiltFacts:
    """What a configuration says once Transformers has built it."""
    from headscope.model.tokenizers import padding_side_of
    from headscope.trace.inputs import text_config_of

    text = text_config_of(config)
    eos = getattr(text, "eos_token_id", None)
    spread = getattr(config, "initializer_range", None)
    return BuiltFacts(
        num_labels=int(getattr(config, "num_labels", 0) or 0),
        vocab_size=_whole(getattr(text, "vocab_size", None)),
        pad_token_id=_whole(getattr(text, "pad_token_id", None)),
        eos_token_ids=tuple(item for item in (eos if isinstance(eos, list) else [eos]) if type(item) is int),
        initializer_range=float(spread) if isinstance(spread, int | float) else None,
        padding_side=padding_side_of(str(getattr(config, "model_type", ""))),
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _load(request: Request, manifest: CheckpointManifest, tell: Progress) -> tuple[Choice, Loaded]:
    """The skeleton with its diff; an adapter's head says how many classes there are, where the request does not."""
    from headscope.model.adapters import classes_in_adapter, with_adapter
    from headscope.model.loading import load_skeleton

    choice = choose_class(request, manifest)
    tell(f"building {choice.cls.__name__} and diffing {len(manifest.tensors)} checkpoint keys")
    with _telling_contents(manifest):
        loaded = load_skeleton(choice, manifest)
    if manifest.adapter is None:
        return choice, loaded
    loaded = with_adapter(loaded, manifest.adapter)
    given = request.num_labels is not None or request.labels
    count = None if given else classes_in_adapter(loaded.diff, choice.config.num_labels)
    if count is None:
        return choice, loaded
    choice, loaded = _load(replace(request, num_labels=count), manifest, tell)
    return choice, replace(loaded, notes=(*loaded.notes, _sentence_on_adapter(count)))


def _sentence_on_adapter(count: int) -> str:
    return (
        f"the class count {count} is that of the adapter's own tensors; the base model's configuration says another: "
        f"load the base model with num_labels={count}"
    )


def choose_class(request: Request, manifest: CheckpointManifest) -> Choice:
    """The class and configuration that a request and a checkpoint come to."""
    from headscope.model.model_request import ModelRequest, choose

    code = _code_source(request, manifest)
    task = request.task or _task_of_adapter(request, manifest)
    with _telling_contents(manifest):
        return choose(
            manifest.config, ModelRequest(request.num_labels, request.labels, task, request.model_class, code)
        )


@contextmanager
def _telling_contents(manifest: CheckpointManifest) -> Iterator[None]:
    """Where the class cannot be built, the error tells what the weight files hold."""
    try:
        yield
    except Unsupported as err:
        err.contents = err.contents or _contents(manifest)
        raise


def _contents(manifest: CheckpointManifest) -> WeightInventory:
    found = checkpoint_facts(manifest)
    architecture = ", ".join(found.architectures) or found.model_type or "architecture not named"
    return contents_of(
        manifest.reference,
        architecture,
        manifest.tensors,
        format_name=manifest.format.value,
        bytes_read=manifest.bytes_read,
    )


def _task_of_adapter(request: Request, manifest: CheckpointManifest) -> str | None:
    """The task that an adapter was trained for, which its base model need not say."""
    from headscope.model.adapters import task_of_adapter

    if manifest.adapter is None or request.model_class is not None:
        return None
    task = task_of_adapter(manifest.adapter.config)
    return task.value if task else None


def _code_source(request: Request, manifest: CheckpointManifest) -> CodeSource | None:
    """Where the repository's own code may be run from, if the user trusts it and it is at hand."""
    from headscope.model.remote_code import CodeSource

    if not request.trust_remote_code or manifest.kind not in (CheckpointKind.LOCAL, CheckpointKind.HUB):
        return None
    return CodeSource(
        place_of(request, manifest),
        manifest.commit or manifest.revision,
        request.cache_dir,
        request.token,
        request.offline,
    )


def place_of(request: Request, manifest: CheckpointManifest) -> str:
    """The folder or Hub id that a request names, as `from_pretrained` takes it."""
    from headscope.checkpoints.reference import HubReference, parse_reference

    found = parse_reference(request.reference)
    if manifest.kind is CheckpointKind.HUB and isinstance(found, HubReference):
        return found.repo
    path = Path(request.reference)
    return str(path if path.is_dir() else path.parent)


def _own_first_token(request: Request, manifest: CheckpointManifest) -> FirstToken | None:
    """What the checkpoint's own tokenizer puts first; read where that costs no request, so not from the Hub."""
    from headscope.checkpoints.tokenizer_file import read_first_token

    if manifest.kind is not CheckpointKind.LOCAL or request.adapter is not None:
        return None
    folder = Path(place_of(request, manifest))
    return read_first_token(folder / request.subfolder if request.subfolder else folder)


def _trace(loaded: Loaded, choice: Choice, own: FirstToken | None = None, *, verify: bool = False) -> _Traced:
    from headscope.model.quiet import quiet
    from headscope.model.reduced_config import shallow_twin
    from headscope.model.tokenizers import special_tokens_of
    from headscope.trace import TokenNames, trace_head

    family = special_tokens_of(str(loaded.model.config.model_type))
    names = TokenNames(own.token if own else family.first, family.eos, is_own=own is not None)
    try:
        with quiet():
            trace = trace_head(loaded.model, choice.task, names, verify=True, twin=lambda: shallow_twin(loaded.model))
        return _Traced(with_padding(trace, choice) if verify else unless_contradicted(trace))
    except Unsupported as err:
        return _Traced(None, (Unavailable("head path", err.message),))


def _report(command: str, manifest: CheckpointManifest, choice: Choice, loaded: Loaded, traced: _Traced) -> Examination:
    head = join_head(traced.trace, loaded.diff) if traced.trace else None
    return Examination(
        tool_version=tool_version(),
        command=command,
        environment=environment(),
        checkpoint=checkpoint_facts(manifest),
        model=_model_facts(choice, loaded, traced.trace, head),
        weights=loaded.diff,
        head=head,
        notes=(
            *choice.notes,
            *_mismatch_notes(loaded.diff),
            *loaded.notes,
            *(traced.trace.notes if traced.trace else ()),
        ),
        not_determined=(
            *_gaps_of(manifest),
            *_gaps_of_packing(loaded, manifest),
            *traced.gaps,
            *(traced.trace.not_determined if traced.trace else ()),
        ),
        adapter=_adapter_facts(manifest, loaded, head),
    )


def _adapter_facts(manifest: CheckpointManifest, loaded: Loaded, head: Head | None) -> AdapterFacts | None:
    from headscope.model.adapters import adapter_facts

    return None if manifest.adapter is None else adapter_facts(loaded, manifest.adapter, manifest, head)


def unless_contradicted(trace: HeadTrace) -> HeadTrace:
    """The trace without its proof, which was not asked for, unless the proof failed."""
    failed = trace.verification is not None and trace.verification.agrees is False
    return trace if failed else replace(trace, verification=None)


def _mismatch_notes(diff: WeightDiff) -> tuple[str, ...]:
    if not diff.mismatched:
        return ()
    return ("shapes differ: from_pretrained raises unless it is given ignore_mismatched_sizes=True",)


def with_padding(trace: HeadTrace, choice: Choice) -> HeadTrace:
    """The trace with the effect of padding, measured on a small random model of the class and configuration."""
    import torch

    from headscope.model.quiet import quiet
    from headscope.model.reduced_config import fitting_config
    from headscope.trace.invariance import SIDES, measure_padding, reads_padded_texts
    from headscope.trace.randomness import OwnRandomness

    def count(config: Any) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in choice.cls(config).parameters())

    if trace.verification is None or not reads_padded_texts(choice.cls):
        return trace
    try:
        with quiet(), OwnRandomness():
            small = fitting_config(choice.config, count)
            if small is None:
                raise ValueError("the smallest model of this configuration is too large to be run")
            model = choice.cls(small).train(False)
            effects = measure_padding(model, choice.task)
    except Exception as err:  # a class that cannot be built small is not measured, which is said
        effects = tuple(PaddingEffect(side, None, reason=f"{type(err).__name__}: {err}") for side in SIDES)
    return replace(trace, verification=replace(trace.verification, padding=effects))


def _gaps_of(manifest: CheckpointManifest) -> tuple[Unavailable, ...]:
    if manifest.format is WeightsFormat.NONE and not manifest.gaps:
        return (Unavailable("weights", "the checkpoint holds no weight file"),)
    return manifest.gaps


def _gaps_of_packing(loaded: Loaded, manifest: CheckpointManifest) -> tuple[Unavailable, ...]:
    """The gaps that unpacking found, which are not the manifest's."""
    return tuple(gap for gap in loaded.diff.gaps if gap not in manifest.gaps)


def checkpoint_facts(manifest: CheckpointManifest) -> CheckpointFacts:
    """The checkpoint as a report shows it."""
    config = manifest.config
    architectures = config.get("architectures")
    model_type = config.get("model_type")
    return CheckpointFacts(
        reference=manifest.reference,
        kind=manifest.kind,
        revision=manifest.revision,
        commit=manifest.commit,
        format=manifest.format,
        files=tuple(file.name for file in manifest.files),
        tensors=len(manifest.tensors),
        bytes_read=manifest.bytes_read,
        bytes_total=manifest.bytes_total,
        requests=manifest.requests,
        architectures=tuple(str(name) for name in architectures) if isinstance(architectures, list) else (),
        model_type=model_type if isinstance(model_type, str) else None,
        notices=manifest.notices,
        sentence_transformers=manifest.sentence,
    )


def _model_facts(choice: Choice, loaded: Loaded, trace: HeadTrace | None, head: Head | None) -> ModelFacts:
    from headscope.model.labels import activation_for, are_placeholders, read_labels
    from headscope.model.tokenizers import padding_side_of

    labels = read_labels(choice.config)
    loss = trace.loss if trace else ""
    return ModelFacts(
        class_name=choice.cls.__name__,
        task=choice.task,
        num_labels=len(labels),
        labels=labels,
        labels_are_placeholders=are_placeholders(labels),
        problem_type=choice.config.problem_type or problem_of(trace, len(labels)),
        loss=loss or "not determined",
        activation=activation_for(loss) if trace else "not determined",
        parameters=_counts(loaded, head),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        quantization=_quantisation(loaded, head),
        padding_side=padding_side_of(str(choice.config.model_type)) if choice.task in TEXT_TASKS else "",
        reads_problem_type=trace.reads_problem_type if trace else None,
    )


def problem_of(trace: HeadTrace | None, count: int) -> str | None:
    """The problem type that a forward chooses for one score where the configuration names none."""
    chosen = trace is not None and trace.reads_problem_type and trace.loss == "MSELoss" and count == 1
    return "regression" if chosen else None


def _quantisation(loaded: Loaded, head: Head | None) -> Quantisation | None:
    from headscope.model.quantised import quantisation_facts

    if not loaded.quantisation:
        return None
    live = {item.name for item in head.parameters if item.live} if head else set()
    return quantisation_facts(loaded.quantisation, [item for item in loaded.diff.parameters if item.name in live])


def _counts(loaded: Loaded, head: Head | None) -> ParameterCounts:
    sizes = {name: parameter.numel() for name, parameter in loaded.model.named_parameters()}
    total = sum(sizes.values())
    in_head = sum(item.count for item in head.parameters) if head else _outside_base(loaded.diff)
    live = sum(item.count for item in head.parameters if item.live) if head else 0
    return ParameterCounts(total, total - in_head, in_head, live)


def _outside_base(diff: WeightDiff) -> int:
    return sum(item.count for item in diff.parameters if not (item.in_base or item.is_buffer))


def join_head(trace: HeadTrace, diff: WeightDiff) -> Head:
    """The head of a trace with the status of its parameters and buffers."""
    origins = {origin.name: origin for origin in diff.parameters}
    mismatches = {item.parameter: item for item in diff.mismatched}
    live = set(trace.live)

    def parameter(name: str) -> HeadParameter:
        origin, mismatch = origins[name], mismatches.get(name)
        return HeadParameter(
            name=name,
            shape=origin.shape,
            dtype=origin.dtype,
            count=origin.count,
            status=origin.status,
            live=name in live,
            checkpoint_keys=_keys_of(origin.checkpoint_keys, mismatch, name),
            checkpoint_shape=mismatch.checkpoint_shape if mismatch else None,
            adapter=origin.adapter,
            quantised=origin.quantised,
            kind=TensorKind.BUFFER if origin.is_buffer else TensorKind.PARAMETER,
        )

    return Head(
        modules=trace.modules,
        pooling=trace.pooling,
        stages=trace.stages,
        parameters=tuple(parameter(name) for name in trace.parameters if name in origins),
        formula=trace.formula,
        hidden_shape=trace.hidden_shape,
        verification=trace.verification,
        not_live=tuple(name for name in origins if name not in live),
        unused_modules=trace.unused_modules,
        buffers=tuple(parameter(name) for name in trace.buffers if name in origins),
    )


def _keys_of(keys: tuple[str, ...], mismatch: Mismatch | None, name: str) -> tuple[str, ...]:
    return keys if keys or mismatch is None else (name,)
