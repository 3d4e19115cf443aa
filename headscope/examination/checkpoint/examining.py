"""An opened checkpoint, which reads, builds and traces on first use, and keeps the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from headscope.examination.base.assembly import assemble, without_head
from headscope.examination.base.cache import key_of, open_cache
from headscope.examination.base.configuration import built_facts, with_purpose, with_tables
from headscope.examination.base.diagnosis import diagnose
from headscope.examination.base.reading import loadable, own_first_token, read_checkpoint
from headscope.examination.base.request import Progress, Request
from headscope.examination.base.token_rows import tokens_of
from headscope.examination.base.tracing import Traced, trace_checkpoint
from headscope.examination.checkpoint.loading import choose_class, load_checkpoint
from headscope.examination.checkpoint.memory import Memory
from headscope.examination.checkpoint.shipped_structures import with_version
from headscope.examination.checkpoint.stored_tensors import StoredFiles, open_stored_files
from headscope.examination.checkpoint.structure import renewed, structure_of
from headscope.facts import CheckpointManifest, Report, Verification
from headscope.facts.heads.head import classifier_weight
from headscope.facts.results.check import BuiltFacts
from headscope.facts.results.health import InitialSpread
from headscope.facts.stored.location import Location

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.checkpoints.contents.tokenizer_file import FirstToken
    from headscope.model.classes.model_request import Choice
    from headscope.trace import HeadProgram

Tracer = Callable[["PreTrainedModel", "Choice"], Traced]


class Checkpoint:
    """The checkpoint of a request, examined under the name of a command.

    Its manifest is read once, and its places are opened once. A report that is known is taken from `memory` (without
    one, the user's cache); then no class was built, and `skeleton` is None. With `takes_class` the request may name a
    class of Transformers, which is examined in its default configuration. `on_build` is called before a class is
    built, which takes seconds.
    """

    def __init__(
        self,
        command: str,
        request: Request,
        progress: Progress | None = None,
        memory: Memory | None = None,
        *,
        takes_class: bool = False,
        on_build: Callable[[], None] = lambda: None,
    ) -> None:
        self.command, self.request = command, request
        self._tell = progress or (lambda sentence: None)
        self._memory = memory or Memory(open_cache(request.cache))
        self._takes_class, self._on_build = takes_class, on_build

    @cached_property
    def manifest(self) -> CheckpointManifest:
        """What the files say: the configuration, and the headers of all tensors. Raises a HeadscopeError."""
        return read_checkpoint(self.request, self._tell, takes_class=self._takes_class)

    @cached_property
    def location(self) -> Location:
        """Where `from_pretrained` loads it from: a folder or a Hub ID, at the examined commit."""
        return loadable(self.request, self.manifest)

    @cached_property
    def stored_files(self) -> tuple[StoredFiles, ...]:
        """Places with its weights, opened; none for a snapshot. Raises a HeadscopeError if one can't be reached."""
        return tuple(open_stored_files(self.request, self.manifest))

    def release(self) -> None:
        """Lets go of the weights that were read; the places stay open."""
        for place in self.__dict__.get("stored_files", ()):  # a place that nobody has asked for stays closed
            place.release()

    @cached_property
    def _first_token(self) -> FirstToken | None:
        return own_first_token(self.request, self.manifest)

    @property
    def report(self) -> Report:
        """What an examination shows. Raises a HeadscopeError if there can be none."""
        return self._outcome_of_examination.report

    @property
    def built(self) -> BuiltFacts:
        """Facts of the configuration as its class reads it."""
        return self._outcome_of_examination.built

    @property
    def key(self) -> str:
        """What the cache knows the report by; "" if it isn't cached."""
        return self._outcome_of_examination.key

    @property
    def skeleton(self) -> PreTrainedModel | None:
        """The model on the meta device; None where the report was known."""
        return self._outcome_of_examination.skeleton

    @cached_property
    def choice(self) -> Choice:
        """The class and the configuration as which it is examined."""
        if self._outcome_of_examination.choice is not None:
            return self._outcome_of_examination.choice
        # The head that an adapter stores can have another class count than the configuration of its base model.
        is_given = self.report.adapter is None or self.request.labels
        count = self.request.num_labels if is_given else self.report.model.num_labels
        return choose_class(replace(self.request, num_labels=count), self.manifest)

    @cached_property
    def program(self) -> HeadProgram | None:
        """What runs the head again, traced first where only the report was known; None if its path isn't known."""
        return self._outcome_of_examination.make_program()

    @cached_property
    def _outcome_of_examination(self) -> ExaminationOutcome:
        found = self._known_or_new()
        head = found.report.head
        if self.command != "check" or head is None or head.verification is None:
            return found
        head = replace(head, verification=without_measures(head.verification))
        return replace(found, report=replace(found.report, head=head))

    def _known_or_new(self) -> ExaminationOutcome:
        request, manifest, memory, first = self.request, self.manifest, self._memory, self._first_token
        tracer = partial(trace_checkpoint, own=first, prove=request.prove)
        # With code of the repository, a report also depends on files that no key names.
        if request.runs_code or not memory.is_open:
            self._on_build()
            return examine_manifest(self.command, request, manifest, tracer, self._tell)
        rows = tokens_of(request, manifest)
        options = (request.num_labels, request.labels, request.task, request.model_class, request.reference)
        key = key_of(manifest, *options, first, rows) if memory.cache.is_open else ""
        structure = structure_of(manifest, request, first, rows)
        is_known = not request.prove or self.command == "check"  # needs what padding does, and shows no positions
        known = memory.find(structure, manifest, verified=request.prove)
        known = known or (memory.shipped(request, manifest, first) if is_known else None)
        if known is not None:
            report = with_version(renewed(known, structure, manifest, self.command, verified=request.prove))
            program = partial(memory.program, structure, partial(_trace_again, request, manifest, tracer))
            return ExaminationOutcome(report, known.built, program, key)
        self._on_build()
        found = examine_manifest(self.command, request, manifest, tracer, self._tell)
        memory.keep(structure, manifest, found.report, found.built, verified=request.prove)
        memory.program(structure, found.make_program)
        return replace(found, key=key)


def _trace_again(request: Request, manifest: CheckpointManifest, tracer: Tracer) -> HeadProgram | None:
    """Traces the program of a head whose report is known.

    A function, as a method would tie a checkpoint to itself: a command runs without the search for such cycles.
    """
    choice, loaded = load_checkpoint(request, manifest, lambda sentence: None)
    return tracer(loaded.model, choice).program


@dataclass(frozen=True, slots=True)
class ExaminationOutcome:
    """What an examination came to; it has neither choice nor skeleton where the report was known."""

    report: Report
    built: BuiltFacts
    make_program: Callable[[], HeadProgram | None]
    key: str = ""
    choice: Choice | None = None
    skeleton: PreTrainedModel | None = None


def examine(
    command: str,
    request: Request,
    progress: Progress | None,
    memory: Memory | None = None,
    *,
    takes_class: bool = False,
    on_build: Callable[[], None] = lambda: None,
) -> Checkpoint:
    """Opens the checkpoint of a request and examines it immediately, so that what can't be examined is refused here."""
    checkpoint = Checkpoint(command, request, progress, memory, takes_class=takes_class, on_build=on_build)
    _ = checkpoint.report
    return checkpoint


def without_measures(proof: Verification) -> Verification:
    """Returns a proof without what depends on the sizes of the model that was run: a check needs no more."""
    padding = tuple(replace(effect, difference=None) for effect in proof.padding)
    return replace(proof, positions=(), padding=padding)


def examine_weights(request: Request, progress: Progress | None) -> Report:
    """Examines a checkpoint without a trace of the head; takes the report of a shipped structure if there is one."""
    manifest = read_checkpoint(request, progress)
    memory = Memory(open_cache(request.cache))
    known = None if request.runs_code else memory.shipped(request, manifest, None)
    if known is None or known.report.notes or known.report.not_determined:  # some may be those of the trace
        return examine_manifest("diff-weights", request, manifest, None, progress).report
    return with_version(without_head(replace(known.report, command="diff-weights")))


def examine_manifest(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> ExaminationOutcome:
    """Examines a checkpoint that was read; leaves the head out if there is no `tracer`."""
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = load_checkpoint(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded.model, choice) if tracer else Traced(None)
    report = assemble(command, manifest, choice, loaded, traced, diagnose(choice, manifest, loaded.diff, request.take))
    built = with_purpose(built_facts(choice.config), manifest, is_reranker=bool(choice.rows))
    built = with_tables(replace(built, initial=_spread_of_fresh_classifier(loaded.model, report, built)), loaded.model)
    return ExaminationOutcome(report, built, lambda: traced.program, choice=choice, skeleton=loaded.model)


def _spread_of_fresh_classifier(skeleton: PreTrainedModel, report: Report, built: BuiltFacts) -> InitialSpread | None:
    """Measures the numbers that the class puts into a fresh classifier."""
    from headscope.model.tensors.initialization import initial_spread

    weight = classifier_weight(report.head) if report.head else None
    return None if weight is None else initial_spread(skeleton, weight.name, built.initializer_range)
