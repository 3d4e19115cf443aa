"""The verdict: one table of reports and the sentences they deserve."""

import re
from dataclasses import replace

import pytest
from reports import bert, distilbert_mismatch, gpt2, roberta

from headscope.core.words.console import Tone
from headscope.facts import (
    AdapterFacts,
    AdapterFault,
    AdapterFaultKind,
    Carried,
    CheckpointKind,
    Gap,
    Head,
    HeadParameter,
    Mismatch,
    ParameterStatus,
    Report,
    Tie,
    UnusedModule,
    WeightsFormat,
)
from headscope.shared.report.documents import inspect_document
from headscope.shared.report.verdict import is_missing_weights, tell_verdict


def head_of(report: Report) -> Head:
    assert report.head is not None
    return report.head


def with_head(report: Report, *parameters: HeadParameter) -> Report:
    return replace(report, head=replace(head_of(report), parameters=parameters))


def pretrained() -> Report:
    report = bert()
    loaded = (replace(item, status=ParameterStatus.LOADED) for item in head_of(report).parameters)
    return replace(with_head(report, *loaded), weights=replace(report.weights, new=()))


def without_base_weights() -> Report:
    report = roberta()
    return replace(report, weights=replace(report.weights, new=(*report.weights.new, "roberta.embeddings.x")))


def with_dead_pooler() -> Report:
    report = gpt2()
    weights = replace(report.weights, new=("pooler.dense.bias", "pooler.dense.weight"))
    loaded = replace(head_of(report).parameters[0], status=ParameterStatus.LOADED)
    head = replace(head_of(report), parameters=(loaded,), unused_modules=(UnusedModule("pooler", "Pooler", True),))
    return replace(report, weights=weights, head=head)


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
    first, *others = head_of(report).parameters
    return with_head(report, replace(first, status=ParameterStatus.CHANGED), *others)


def all_changed() -> Report:
    changed = (replace(item, status=ParameterStatus.CHANGED) for item in head_of(roberta()).parameters)
    return with_head(pretrained(), *changed)


VERDICTS = (
    (
        with_a_mismatch_beside,
        Tone.ERROR,
        "Head fully loaded (1 tensor, 2,304 parameters); base model loaded; "
        "unused by the logits, but of another shape: pooler.dense.weight",
    ),
    (
        roberta,
        Tone.WARNING,
        "Head newly initialized (4 tensors, 592,899 parameters); base model loaded",
    ),
    (
        bert,
        Tone.WARNING,
        "Head partly new: classifier (2,307 of 592,899 parameters); base model loaded",
    ),
    (
        distilbert_mismatch,
        Tone.ERROR,
        "Head re-initialized because of shape mismatch: classifier.weight 2x768 -> 3x768, "
        "classifier.bias 2 -> 3 (2,307 of 592,899 parameters); base model loaded",
    ),
    (
        pretrained,
        Tone.GOOD,
        "Head fully loaded (4 tensors, 592,899 parameters); base model loaded",
    ),
    (
        without_base_weights,
        Tone.ERROR,
        "Head newly initialized (4 tensors, 592,899 parameters); "
        "base model incomplete: 1 of 49 tensors newly initialized: roberta.embeddings.x",
    ),
    (
        with_dead_pooler,
        Tone.GOOD,
        "Head fully loaded (1 tensor, 2,304 parameters); base model loaded",
    ),
    (
        without_weights,
        Tone.ERROR,
        "Not determined: no weights could be read (head: 4 tensors, 592,899 parameters)",
    ),
    (
        in_memory,
        Tone.NOTE,
        "Head of a model in memory: 4 tensors, 592,899 parameters; no checkpoint to compare it with",
    ),
    (
        with_a_gap,
        Tone.WARNING,
        "Head fully loaded (4 tensors, 592,899 parameters); base model loaded; "
        "not determined: model-00002-of-00003.safetensors",
    ),
)


@pytest.mark.parametrize(("make", "tone", "sentence"), VERDICTS, ids=[row[0].__name__ for row in VERDICTS])
def test_a_report_gets_the_verdict_it_deserves(make: object, tone: Tone, sentence: str) -> None:
    assert callable(make)
    verdict = tell_verdict(make())
    assert (verdict.tone, verdict.sentence) == (tone, sentence)


TYPED = (
    (roberta, "new", "incomplete"),
    (bert, "partly_new", "incomplete"),
    (distilbert_mismatch, "partly_new", "broken"),
    (pretrained, "loaded", "complete"),
    (without_base_weights, "new", "broken"),
    (with_dead_pooler, "loaded", "complete"),
    (without_weights, "new", "not_determined"),
    (in_memory, "new", "not_compared"),
    (with_a_gap, "loaded", "not_determined"),
    (with_a_mismatch_beside, "loaded", "broken"),
    (changed_and_new, "partly_new", "incomplete"),
    (all_changed, "changed", "complete"),
)


@pytest.mark.parametrize(("make", "status", "verdict"), TYPED, ids=[row[0].__name__ for row in TYPED])
def test_json_says_the_verdict_the_headline_and_the_status_of_the_head(make: object, status: str, verdict: str) -> None:
    assert callable(make)
    document = inspect_document(make())
    assert (document["head"]["status"], document["verdict"]) == (status, verdict)
    assert document["headline"] == tell_verdict(make()).sentence


MISSING = (
    (roberta, True),
    (bert, True),
    (distilbert_mismatch, True),
    (without_base_weights, True),
    (with_a_mismatch_beside, True),
    (pretrained, False),
    (with_dead_pooler, False),
)


@pytest.mark.parametrize(("make", "missing"), MISSING, ids=[row[0].__name__ for row in MISSING])
def test_only_weights_that_the_logits_depend_on_count_as_missing(make: object, missing: bool) -> None:
    assert callable(make)
    assert is_missing_weights(make()) is missing


def test_a_diff_has_a_verdict_on_the_whole_model() -> None:
    report = replace(bert(), command="diff-weights", head=None)
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
