"""One measurement of `probe`, from the request and the counted labels to the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from headscope.copies.writing import check_target
from headscope.core.facts import Gap
from headscope.core.facts.environment import tool_version
from headscope.core.source.request import Progress, Request
from headscope.slices.probe.data.label_facts import describe_labels
from headscope.slices.probe.data.rows import AskedData, LabeledRows, files_of
from headscope.slices.probe.examined import examine_with_rows, head_input_of, is_new_head, new_pooler, notes_on_base
from headscope.slices.probe.facts.data import ProbeClass
from headscope.slices.probe.facts.result import ProbeResult, Vector
from headscope.slices.probe.hidden.candidates import classifier_of_model, list_vectors
from headscope.slices.probe.hidden.numbers import feature_numbers
from headscope.slices.probe.hidden.store import vector_folder
from headscope.slices.probe.plan import Plan
from headscope.slices.probe.scoring.comparison import (
    baseline_of,
    compare_best,
    head_against,
    hear_opinions,
    score_of_choice,
    score_rivals,
    score_vectors,
)
from headscope.slices.probe.scoring.measures import flags
from headscope.slices.probe.scoring.scores import make_trial
from headscope.slices.probe.scoring.start import advise_probe_first, outputs_of, starting_loss
from headscope.slices.probe.vectors import loading_of, read_vectors, source_of_vector
from headscope.slices.probe.written_head import fit_head, write_head

FROZEN_BASE = "the base model was frozen; full fine-tuning can remove the advantage"
"""What every answer is about: the first note of every result."""


def measure_vectors(  # noqa: PLR0917  `probe` without its public names
    request: Request, data: AskedData, plan: Plan, folder: str | None, files: Path, tell: Progress
) -> ProbeResult:
    """Scores all candidates and compares the best one; writes images and sounds of the data to `files`."""
    if plan.write_head is not None:
        check_target(plan.write_head, Path(request.location.reference))
    checkpoint, texts = examine_with_rows(request, data, plan, tell)
    request, report = checkpoint.request, checkpoint.report
    classifier = classifier_of_model(report.head)
    name = classifier if isinstance(classifier, str) else ""
    with vector_folder(folder) as place:
        source = source_of_vector(checkpoint, name, plan, data.input)
        given = files_of(data, texts, files)
        features = read_vectors(checkpoint, source, given, plan, place, tell, is_kept=folder is not None)
        vectors, head = list_vectors(features), head_input_of(report, name, features)
        trial = make_trial(texts.labels, texts.groups, plan.folds, plan.seed, texts.problem)
        new = {Vector.HEAD: head.new if head else (), Vector.POOLER: new_pooler(report)}
        scored = score_vectors(vectors, trial, new, tell)
        tell("scoring the baselines")
        numbers = feature_numbers(vectors, features)
        outputs = outputs_of(texts, report.model)
        rivals, gaps = score_rivals(texts, trial, report, features, outputs, data.input)
        fitted = None
        if plan.write_head is not None:
            tell("fitting the classifier on all rows")
            fitted = fit_head(report, head, scored, vectors, trial, remote_code=bool(request.trust_remote_code))
    place_of_head = scored.place(Vector.HEAD.value)
    against = {} if place_of_head is None else {Vector.HEAD.value: scored.rated[place_of_head]}
    against |= {kind.value: rated for kind, rated in rivals.items()}
    versus = tuple(compare_best(scored, name, rated, trial) for name, rated in against.items())
    is_new = is_new_head(report, name)
    start = starting_loss(texts, trial, features.scores, outputs, new_head=is_new)
    lost = (classifier,) if isinstance(classifier, Gap) else ()
    result = ProbeResult(
        tool_version=tool_version(),
        reference=request.reference,
        data=texts.facts.file,
        texts=len(texts.texts),
        available=texts.available,
        distinct=int(texts.groups.max()) + 1,
        classes=_class_sizes(texts),
        folds=plan.folds,
        seed=plan.seed,
        device=plan.device,
        padded=features.seen.padded,
        layers=features.seen.layers - 1,
        candidates=scored.candidates,
        baselines=tuple(baseline_of(kind, rated) for kind, rated in rivals.items()),
        best=scored.candidates[scored.best].name,
        head=Vector.HEAD.value if head else None,
        selected=score_of_choice(scored, trial),
        versus=versus,
        problem=texts.problem,
        opinions=hear_opinions(scored.candidates),
        labels=describe_labels(texts, scored.rated[scored.best].values, scored.losses[scored.best]),
        start=start,
        probe_first=advise_probe_first(
            start,
            new_head=is_new,
            **head_against(scored, rivals, trial),
            random_input=head is not None and bool(head.new),
            noun=data.input.noun,
            is_finite=bool(np.isfinite(features.scores).all()),
        ),
        head_input=head,
        left_out=(*features.seen.left_out, *gaps),
        notes=(FROZEN_BASE, *data.notes, *texts.notes, *notes_on_base(report), *features.seen.notes),
        not_determined=(*lost, *features.seen.not_determined),
        numbers=numbers,
        loading=loading_of(request, source),
    )
    if fitted is None or plan.write_head is None:
        return result
    tell("writing and proving the classifier")
    return replace(result, written=write_head(result, fitted, source, given, plan.write_head))


def _class_sizes(texts: LabeledRows) -> tuple[ProbeClass, ...]:
    """Counts the rows of each class; a regression has no classes."""
    counts = flags(texts.labels, len(texts.classes)).sum(0) if texts.classes else ()
    return tuple(ProbeClass(label, int(count)) for label, count in zip(texts.classes, counts, strict=True))
