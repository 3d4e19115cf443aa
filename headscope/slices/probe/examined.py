"""Facts of the checkpoint's report that `probe` needs: the rows that fit it, its new weights, the head's input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from headscope.core.facts import CheckpointKind, Report
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.location import Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS
from headscope.core.source.request import Progress, Request
from headscope.errors import Unsupported
from headscope.slices.probe.data.rows import AskedData, LabeledRows, kind_of, problem_of, read_rows
from headscope.slices.probe.facts.data import HeadInput
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.candidates import classifier_of_model, stages_before
from headscope.slices.probe.hidden.store import Features
from headscope.slices.probe.plan import TASK_OF, Plan


def examine_with_rows(request: Request, data: AskedData, plan: Plan, tell: Progress) -> tuple[Checkpoint, LabeledRows]:
    """Examines the checkpoint and reads the rows.

    A head that the checkpoint doesn't give gets one output per class of the data.
    """
    checkpoint = examine("probe", request, tell)
    _check_checkpoint(checkpoint, data.input)
    problem = problem_of(data.facts, checkpoint.report.model, data.asked)
    rows = read_rows(data, problem, plan, kind_of(data, _tokens_of(checkpoint.location)))
    outputs = len(rows.classes) or 1
    classifier = classifier_of_model(checkpoint.report.head)
    is_other = checkpoint.report.model.num_labels != outputs
    if is_other and isinstance(classifier, str) and is_new_head(checkpoint.report, classifier):
        checkpoint = examine("probe", replace(request, num_labels=outputs), tell)
    return checkpoint, rows


def _tokens_of(place: Location) -> Callable[[str], tuple[int, ...]]:
    """Gives a function from a text to its token ids, cut to the model's limit; spaces around the text don't count."""
    from headscope.core.model.loading.inference import open_tokenizer
    from headscope.core.model.quiet import quiet

    opened = cache(lambda: open_tokenizer(place))

    @cache
    def tokens(text: str) -> tuple[int, ...]:
        tokenizer = opened()
        with quiet():
            ids = tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
            return tuple(ids[: tokenizer.model_max_length - tokenizer.num_special_tokens_to_add()])

    return tokens


def is_new_head(report: Report, classifier: str) -> bool:
    """True if the checkpoint doesn't give the weights of the classifier."""
    return bool(classifier) and any(name.startswith(f"{classifier}.") for name in find_missing(report).head)


def _how_to_merge(input: Input) -> str:
    """Describes how an adapter becomes a whole checkpoint. PEFT's class that loads both parts is for texts only."""
    what, tool = "AutoPeftModelForSequenceClassification.from_pretrained(ADAPTER, num_labels=N)", "tokenizer"
    if input is not Input.TEXT:
        base = f"AutoModelFor{input.value.title()}Classification.from_pretrained(BASE, num_labels=N)"
        what, tool = f"PeftModel.from_pretrained({base}, ADAPTER)", "processor"
    return (
        f'merge it with peft, {what}.merge_and_unload().save_pretrained("merged"), save the {tool} there too, and give '
        '"merged"'
    )


def _check_checkpoint(checkpoint: Checkpoint, input: Input) -> None:
    """Raises Unsupported for a checkpoint without weights, and for another task."""
    manifest, report = checkpoint.manifest, checkpoint.report
    if manifest.kind in WITHOUT_WEIGHTS:
        raise Unsupported(
            f"{checkpoint.request.reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so there are no vectors to score",
            _how_to_merge(input)
            if manifest.kind is CheckpointKind.ADAPTER
            else "give the folder or the Hub ID of a whole checkpoint",
        )
    task = TASK_OF[input]
    if report.model.task is not task:
        raise Unsupported(
            f"probe scores vectors of whole {input.noun}s, and {report.model.class_name} is for "
            f"{report.model.task.value}",
            f"leave out --model-class, or name a class for {task.value.replace('-', ' ')}",
        )


def new_names(report: Report) -> tuple[str, ...]:
    """Names the parameters that the checkpoint lacks and a load initializes, those of the head first."""
    missing = find_missing(report)
    return (*missing.head, *missing.elsewhere)


def head_input_of(report: Report, classifier: str, features: Features) -> HeadInput | None:
    """Gives the facts on what the head reads; None if the pass over the texts didn't record it."""
    if report.head is None or (Vector.HEAD, None) not in features.parts:
        return None
    passed = stages_before(report.head, classifier)
    new = tuple(name for name in find_missing(report).head if name in passed)
    return HeadInput(report.model.class_name, report.head.pooling.kind.value, classifier, new)


def new_pooler(report: Report) -> tuple[str, ...]:
    """Names the weights of the base model's pooler that the checkpoint doesn't give."""
    new = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    return tuple(name for name in new if "pooler" in name.split("."))


def notes_on_base(report: Report) -> tuple[str, ...]:
    """Gives a warning if the hidden states themselves come from weights that no checkpoint gave."""
    missing = find_missing(report).elsewhere
    if not missing:
        return ()
    lost = f"{counted(len(missing), 'weight')} of the base model: {few_of(missing)}"
    return (f"the checkpoint lacks {lost}; every score depends on random values",)
