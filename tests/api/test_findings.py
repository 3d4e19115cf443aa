"""The findings that `inspect` shows are those of `check`, as far as they need no more than `inspect` reads."""

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForSequenceClassification, LlamaForTokenClassification

from headscope import api
from headscope.facts import Profile, Severity
from headscope.shell import main


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


def test_a_head_for_another_task_is_an_error_that_quiet_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = LlamaConfig(**small, vocab_size=40, num_labels=3, pad_token_id=0)
    LlamaForTokenClassification(config).save_pretrained(tmp_path)
    _, loaded = LlamaForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded["missing_keys"]  # so the verdict alone is green
    assert main(["inspect", str(tmp_path), "--task", "sequence-classification", "-q"]) == 0
    verdict, *errors = capsys.readouterr().out.splitlines()
    assert "fully loaded" in verdict
    assert [line.split()[:2] for line in errors if line[0] != " "] == [["error", "HS401"]]


def test_the_findings_are_the_same_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    first = api.inspect("gpt2", offline=True, cache=True)
    again = api.inspect("gpt2", offline=True, cache=True)
    assert again == first
    assert [item.id for item in again.findings if item.severity is Severity.ERROR] == ["HS301"]
