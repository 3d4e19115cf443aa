"""The findings that `inspect` shows are those of `check`, as far as they need no more than `inspect` reads."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import LlamaForSequenceClassification

from headscope import api
from headscope.facts import Profile, Severity
from tests.families import FAMILIES


@pytest.mark.parametrize(
    ("reference", "profile", "found"),
    [
        ("gpt2", Profile.TRAINING, {"HS102", "HS202", "HS301", "HS401"}),
        ("bert-base-uncased", Profile.TRAINING, {"HS103", "HS202", "HS401"}),
        ("distilbert-base-uncased-finetuned-sst-2-english", Profile.INFERENCE, set()),
    ],
)
def test_inspect_weighs_findings_for_what_comes_next(reference: str, profile: Profile, found: set[str]) -> None:
    report = api.inspect(reference, offline=True)
    assert report.profile is profile
    assert {item.id for item in report.findings} == found


@pytest.mark.parametrize("reference", ["gpt2", "bert-base-uncased", "xlnet-base-cased", "roberta-base"])
def test_inspect_and_check_find_the_same_in_a_snapshot(reference: str) -> None:
    report = api.inspect(reference, offline=True)
    result = api.check(reference, report.profile or "", offline=True)
    unverified = {item.rule for item in result.not_determined}
    assert set(report.findings) <= set(result.findings)
    extra = {item for item in result.findings if item not in report.findings}
    assert {item.id for item in extra} <= {"HS303", "HS304", "HS305"}, (extra, unverified)


def test_a_head_for_another_task_is_an_error_that_quiet_shows(tmp_path: Path, show: Callable[..., str]) -> None:
    FAMILIES["llama"].build("LlamaForTokenClassification", num_labels=3, pad_token_id=0).save_pretrained(tmp_path)
    _, loaded = LlamaForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded["missing_keys"]  # so the verdict alone is green
    verdict, *errors = show("inspect", tmp_path, "--task", "sequence-classification", "-q").splitlines()
    assert "fully loaded" in verdict
    assert [line.split()[:2] for line in errors if line[0] != " "] == [["error", "HS401"]]


@pytest.mark.usefixtures("own_cache")
def test_the_findings_are_the_same_from_the_cache() -> None:
    first = api.inspect("gpt2", offline=True, cache=True)
    again = api.inspect("gpt2", offline=True, cache=True)
    assert again == first
    assert [item.id for item in again.findings if item.severity is Severity.ERROR] == ["HS301"]
