"""An opened checkpoint, which reads, builds and traces on first use, and keeps the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, Report, Verification
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.stored.location import Location
from headscope.core.source.memory.memory import Memory
from headscope.core.source.memory.shipped_structures import with_version
from headscope.core.source.reading.assembly import without_head
from headscope.core.source.reading.reading import loadable, own_first_token, read_checkpoint
from headscope.core.source.reading.token_rows import tokens_of
from headscope.core.source.request import Progress, Request
from headscope.core.source.storage.cache import key_of, open_cache
from headscope.core.source.structure import ExaminationOutcome, renewed, structure_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.source.stored_tensors import StoredFiles
    from headscope.core.trace import HeadProgram


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
        """Reads what the files say: the configuration, and the headers of all tensors. Raises a HeadscopeError."""
        return read_checkpoint(self.request, self._tell, takes_class=self._takes_class)

    @cached_property
    def location(self) -> Location:
        """Gives where `from_pretrained` loads it from: a folder or a Hub ID, at the examined commit."""
        return loadable(self.request, self.manifest)

    @cached_property
    def stored_files(self) -> tuple[StoredFiles, ...]:
        """Opens the places with its weights; none for a snapshot. Raises a HeadscopeError if one can't be reached."""
        from headscope.core.source.stored_tensors import open_stored_files

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
        """Examines it: builds and traces it, or takes a known report. Raises a HeadscopeError if there can be none."""
        return self._outcome_of_examination.report

    @property
    def built(self) -> BuiltFacts:
        """Gives the facts of the configuration as its class reads it."""
        return self._outcome_of_examination.built

    @property
    def key(self) -> str:
        """Gives what the cache knows the report by; "" if it isn't cached."""
        return self._outcome_of_examination.key

    @property
    def skeleton(self) -> PreTrainedModel | None:
        """Gives the model on the meta device; None where the report was known."""
        return self._outcome_of_examination.skeleton

    @cached_property
    def choice(self) -> Choice:
        """Chooses the class and the configuration as which it is examined."""
        if self._outcome_of_examination.choice is not None:
            return self._outcome_of_examination.choice
        from headscope.core.source.loading import choose_class

        # The head that an adapter stores can have another class count than the configuration of its base model.
        is_given = self.report.adapter is None or self.request.labels
        count = self.request.num_labels if is_given else self.report.model.num_labels
        return choose_class(replace(self.request, num_labels=count), self.manifest)

    @cached_property
    def program(self) -> HeadProgram | None:
        """Gives what runs the head again, traced first where only the report was known; None without a known path."""
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
        # With code of the repository, a report also depends on files that no key names.
        if request.runs_code or not memory.is_open:
            return self._build_and_trace()
        rows = tokens_of(request, manifest)
        options = (request.num_labels, request.labels, request.task, request.model_class, request.reference)
        key = key_of(manifest, *options, first, rows) if memory.cache.is_open else ""
        structure = structure_of(manifest, request, first, rows)
        is_known = not request.prove or self.command == "check"  # needs what padding does, and shows no positions
        known = memory.find(structure, manifest, verified=request.prove)
        known = known or (memory.shipped(request, manifest, first) if is_known else None)
        if known is not None:
            report = with_version(renewed(known, structure, manifest, self.command, verified=request.prove))
            program = partial(memory.program, structure, partial(_trace_again, request, manifest, first))
            return ExaminationOutcome(report, known.built, program, key)
        found = self._build_and_trace()
        memory.keep(structure, manifest, found.report, found.built, verified=request.prove)
        memory.program(structure, found.make_program)
        return replace(found, key=key)

    def _build_and_trace(self) -> ExaminationOutcome:
        # Imported here: a known report needs no class, no loader and no trace.
        from headscope.core.source.loading import examine_manifest
        from headscope.core.source.reading.tracing import trace_checkpoint

        self._on_build()
        tracer = partial(trace_checkpoint, own=self._first_token, prove=self.request.prove)
        return examine_manifest(self.command, self.request, self.manifest, tracer, self._tell)


def _trace_again(request: Request, manifest: CheckpointManifest, first: FirstToken | None) -> HeadProgram | None:
    """Traces the program of a head whose report is known.

    A function, as a method would tie a checkpoint to itself: a command runs without the search for such cycles.
    """
    from headscope.core.source.loading import load_checkpoint
    from headscope.core.source.reading.tracing import trace_checkpoint

    choice, loaded = load_checkpoint(request, manifest, lambda sentence: None)
    return trace_checkpoint(loaded.model, choice, first, prove=request.prove).program


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
        from headscope.core.source.loading import examine_manifest

        return examine_manifest("diff-weights", request, manifest, None, progress).report
    return with_version(without_head(replace(known.report, command="diff-weights")))
