"""The verdict: one table of reports and the sentences they deserve."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from reports import a_head, as_diff, bert, distilbert_mismatch, gpt2, roberta, with_head

from headscope.core.words.console import Tone
from headscope.facts import (
    AdapterFacts,
    AdapterFault,
    AdapterFaultKind,
    Carried,
    CheckpointKind,
    Gap,
    Mismatch,
    ParameterStatus,
    Report,
    Tie,
    UnusedModule,
    WeightsFormat,
)
from headscope.shared.report.documents import inspect_document
from headscope.shared.report.verdict import is_missing_weights, tell_verdict


def pretrained() -> Report:
    report = with_status(bert(), ParameterStatus.LOADED)
    return replace(report, weights=replace(report.weights, new=()))


def with_status(report: Report, status: ParameterStatus) -> Report:
    """The report with this status of each parameter of its head."""
    return with_head(report, parameters=tuple(replace(item, status=status) for item in a_head(report).parameters))


def without_base_weights() -> Report:
    report = roberta()
    return replace(report, weights=replace(report.weights, new=(*report.weights.new, "roberta.embeddings.x")))


def with_dead_pooler() -> Report:
    report = with_status(gpt2(), ParameterStatus.LOADED)
    weights = replace(report.weights, new=("pooler.dense.bias", "pooler.dense.weight"))
    return replace(with_head(report, unused_modules=(UnusedModule("pooler", "Pooler", True),)), weights=weights)


def without_weights() -> Report:
    report = roberta()
    return replace(report, checkpoint=replace(report.checkpoint, tensors=0, format=WeightsFormat.NONE))


def in_memory() -> Report:
    report = without_weights()
    unknown = tuple(replace(item, status=ParameterStatus.UNKNOWN) for item in report.weights.parameters)
    weights = replace(report.weights, new=(), parameters=unknown)
    return replace(report, checkpoint=replace(report.checkpoint, kind=CheckpointKind.MEMORY), weights=weights)


def with_a_gap() -> Report:
    return replace(pretrained(), not_determined=(Gap("model-00002-of-00003.safetensors", "missing"),))


def with_a_mismatch_beside() -> Report:
    report = with_dead_pooler()
    mismatch = Mismatch("pooler.dense.weight", (3, 3), (768, 768))
    return replace(report, weights=replace(report.weights, new=(), mismatched=(mismatch,)))


def changed_and_new() -> Report:
    report = roberta()
    first, *others = a_head(report).parameters
    return with_head(report, parameters=(replace(first, status=ParameterStatus.CHANGED), *others))


def all_changed() -> Report:
    return with_head(pretrained(), parameters=a_head(with_status(roberta(), ParameterStatus.CHANGED)).parameters)


BASE = "; base model loaded"
VERDICTS: tuple[tuple[Callable[[], Report], tuple[str, str, bool], Tone, str], ...] = (
    (
        with_a_mismatch_beside, ("loaded", "broken", True), Tone.ERROR,
        f"Head fully loaded (1 tensor, 2,304 parameters){BASE}; "
        "unused by the logits, but of another shape: pooler.dense.weight",
    ),
    (
        roberta, ("new", "incomplete", True), Tone.WARNING,
        f"Head newly initialized (4 tensors, 592,899 parameters){BASE}",
    ),
    (
        bert, ("partly_new", "incomplete", True), Tone.WARNING,
        f"Head partly new: classifier (2,307 of 592,899 parameters){BASE}",
    ),
    (
        distilbert_mismatch, ("partly_new", "broken", True), Tone.ERROR,
        "Head re-initialized because of shape mismatch: classifier.weight 2x768 -> 3x768, "
        f"classifier.bias 2 -> 3 (2,307 of 592,899 parameters){BASE}",
    ),
    (pretrained, ("loaded", "complete", False), Tone.GOOD, f"Head fully loaded (4 tensors, 592,899 parameters){BASE}"),
    (
        without_base_weights, ("new", "broken", True), Tone.ERROR,
        "Head newly initialized (4 tensors, 592,899 parameters); "
        "base model incomplete: 1 of 49 tensors newly initialized: roberta.embeddings.x",
    ),
    (
        with_dead_pooler, ("loaded", "complete", False), Tone.GOOD,
        f"Head fully loaded (1 tensor, 2,304 parameters){BASE}",
    ),
    (
        without_weights, ("new", "not_determined", True), Tone.ERROR,
        "Not determined: no weights could be read (head: 4 tensors, 592,899 parameters)",
    ),
    (
        in_memory, ("new", "not_compared", False), Tone.NOTE,
        "Head of a model in memory: 4 tensors, 592,899 parameters; no checkpoint to compare it with",
    ),
    (
        with_a_gap, ("loaded", "not_determined", False), Tone.WARNING,
        f"Head fully loaded (4 tensors, 592,899 parameters){BASE}; not determined: model-00002-of-00003.safetensors",
    ),
    (
        changed_and_new, ("partly_new", "incomplete", True), Tone.WARNING,
        f"Head partly new: classifier.dense.bias, classifier.out_proj (3,075 of 592,899 parameters){BASE}",
    ),
    (
        all_changed, ("changed", "complete", False), Tone.GOOD,
        "Head changed since the load (trained, replaced or filled by an adapter): classifier.dense.{weight,bias}, "
        f"classifier.out_proj.{{weight,bias}} (4 tensors, 592,899 parameters){BASE}",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("make", "typed", "tone", "sentence"), VERDICTS, ids=[row[0].__name__ for row in VERDICTS])
def test_a_report_gets_the_verdict_it_deserves_and_json_says_it(
    make: Callable[[], Report], typed: tuple[str, str, bool], tone: Tone, sentence: str
) -> None:
    told, document = tell_verdict(make()), inspect_document(make())
    assert (told.tone, told.sentence) == (tone, sentence)
    assert document["headline"] == sentence
    is_missing = is_missing_weights(make())  # only weights that the logits depend on count
    assert (document["head"]["status"], document["verdict"], is_missing) == typed


def test_a_diff_has_a_verdict_on_the_whole_model() -> None:
    report = as_diff(bert())
    counted, names, unused = re.split("[:;] ", tell_verdict(report).sentence)
    assert (counted[:15], names, unused[:2]) == ("2 of 201 tensor", "classifier.{weight,bias}", "8 ")


def test_a_diff_counts_tied_tensors_apart_from_those_that_are_loaded() -> None:
    """The verdict and the tally below it have the same sums."""
    report = replace(roberta(), head=None)
    weights = replace(report.weights, loaded=51, new=(), mismatched=(), tied=(Tie("b", "a"), Tie("c", "a")))
    sentence = tell_verdict(replace(report, weights=weights)).sentence
    assert re.match("Fully loaded: all 51 tensors [^;]*, 2 tied [^;]*;", sentence)


def test_a_diff_says_what_the_adapter_gives() -> None:
    report = replace(roberta(), head=None)
    first, *others = report.weights.parameters
    parameters = (replace(first, adapter=Carried.SAVED), *others)
    weights = replace(report.weights, loaded=51, new=(), mismatched=(), tied=(), parameters=parameters)
    sentence = tell_verdict(replace(report, weights=weights)).sentence
    start = "Fully loaded: all 51 tensors loaded from the checkpoint or the adapter, which gives "
    assert sentence.startswith(f"{start}{first.name};")


def test_an_inspection_without_a_head_says_so() -> None:
    report = replace(bert(), head=None, not_determined=(Gap("head path", "forward failed"),))
    assert tell_verdict(report).sentence.endswith("; not determined: head path")


@pytest.mark.parametrize("kind", list(AdapterFaultKind))
def test_a_fault_of_an_adapter_fails_an_inspection(kind: AdapterFaultKind) -> None:
    fault = AdapterFault(kind, "lora_A", "1", "2")
    report = replace(pretrained(), adapter=AdapterFacts("org/a", "LORA", None, "org/b", 1, faults=(fault,)))
    assert is_missing_weights(report)
    assert tell_verdict(report).tone is Tone.ERROR
