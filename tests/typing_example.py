"""The public API as a typed program uses it: mypy accepts every line, and a test runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import pandas
from torch import nn

import headscope
from headscope import errors
from headscope.facts import Finding, Head, PoolingKind, Profile, Severity, Verdict


def formula_of(model: str | Path | nn.Module) -> str:
    """One function for a checkpoint and a module."""
    report = headscope.inspect(model, task="sequence-classification", prove=True)
    assert_type(report, headscope.Examination)
    assert_type(report.head, Head | None)
    return report.head.formula if report.head else ""


def new_weights(model: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Every option for the place of a checkpoint."""
    report = headscope.diff_weights(
        model, labels=names, revision=None, subfolder=None, variant=None, cache_dir=None, token=None, timeout=10.0
    )
    return report.weights.new


def failures(model: str, profile: headscope.ProfileName, fail_on: headscope.SeverityName) -> Iterator[Finding]:
    """Values of options with a name for their type, or the enums of the facts."""
    ignore = (headscope.Ignore("HS202", reason="known"), "HS301")
    result = headscope.check(model, profile, fail_on=fail_on, ignore=ignore, select="HS1", num_labels=3, offline=True)
    again = headscope.check(model, Profile.INFERENCE, fail_on=Severity.ERROR, num_labels=3, offline=True)
    assert_type(again, headscope.Checked)
    assert_type(result.verdict, Verdict)
    yield from result.findings


def tables(model: str) -> list[str]:
    """Results as tables of pandas."""
    report = headscope.inspect(model, num_labels=3, offline=True)
    parameters = report.to_pandas()
    assert_type(parameters, pandas.DataFrame)
    assert_type(report.to_pandas("findings"), pandas.DataFrame)
    assert_type(headscope.check(model, offline=True).to_pandas(), pandas.DataFrame)
    return list(parameters[parameters["status"] == "new"]["name"])


def labeled_data(model: str, module: nn.Module, file: Path) -> list[int]:
    """Labeled data beside a checkpoint, and beside a module."""
    result = headscope.check(
        model, data=file, label_column="label", text_column=["premise", "hypothesis"], predict=64, device="cpu"
    )
    again = headscope.check(module, data=str(file), label_column=("toxic", "rude"), split="train")
    return [item.rows for checked in (result, again) if checked.data for item in checked.data.classes]


def best_vector(model: str, file: Path) -> tuple[str, float]:
    """Which vector to classify."""
    result = headscope.probe(model, data=file, text_column="text", label_column="label", limit=500, seed=1, folds=3)
    assert_type(result, headscope.Probed)
    return result.best, result.candidate(result.best).mean


def frozen_weights(module: nn.Module) -> tuple[str, ...]:
    """A module with what only a module has."""
    from torch import optim

    optimizer = optim.SGD(module.parameters(), lr=0.1)
    result = headscope.check(module, "training", optimizer=optimizer, labels="no,yes", offline=True)
    return tuple(finding.id for finding in result.findings)


def everything_else(folder: Path) -> list[str]:
    """The functions without a module."""
    said: list[str] = []
    written = headscope.snapshot("roberta-base", folder / "roberta.json", offline=True, progress=said.append)
    assert_type(written, headscope.Snapshot)
    compared = headscope.compare(folder / "roberta.json", "bert-base-uncased", values=True, offline=True)
    assert_type(compared, headscope.Compared)
    ran = headscope.forward("roberta-base", device="meta", num_labels=3, offline=True)
    assert_type(ran, headscope.Forwarded)
    entries = headscope.heads("squeezebert", pooling=PoolingKind.FIRST_TOKEN, workers=1)
    assert_type(entries, headscope.Heads)
    picture = headscope.diagram(headscope.inspect("roberta-base", num_labels=3, offline=True), format="svg")
    assert_type(picture, str)
    assert_type(headscope.diagram("roberta-base", "dot", num_labels=3, offline=True), str)
    explained = headscope.explain("HS102", "logits")
    assert_type(explained, headscope.Explained)
    shown = [str(compared), repr(ran), entries[0].class_name, headscope.environment().torch, headscope.__version__]
    return [written.output, *said, *shown, *(topic.text for topic in explained), picture]


def served(folder: Path, url: str) -> str:
    """A running server beside the checkpoint that it should serve."""
    found = headscope.verify_served(folder, url, text=["a fine day", "bad weather"], logits=True, server_timeout=9.0)
    assert_type(found, headscope.VerifiedServer)
    assert_type(headscope.verify_card("card.json", scores="scores.json", dtype="bfloat16"), headscope.VerifiedServer)
    written = headscope.write_card(folder, "card.json", text=["a fine day"], offline=True)
    assert_type(written.alternatives[0].name, str)
    explained = found.served.explanation
    return "" if explained is None else explained.formula


def sentence(model: str) -> str:
    """An error in two parts."""
    try:
        return formula_of(model)
    except errors.NotFound as err:
        return f"{err.message} {err.hint}"
    except headscope.errors.HeadscopeError as err:
        return err.code
