"""What commands print and how they end, with an api that answers from reports made by hand."""

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from reports import REPORTS

from headscope.checks.rules import every_rule
from headscope.errors import ExitCode, Gated, HeadscopeError, Malformed, NetworkError, NotFound, Offline, UsageError
from headscope.facts import Report
from headscope.shared.report.documents import inspect_document
from headscope.shell import main
from tests.cli.command import Cli
from tests.cli.fake_api import FakeApi

RULES = every_rule()

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "headscope-1.0.schema.json"


def test_inspect_prints_the_screen(fake: FakeApi, cli: Cli) -> None:
    out, err = cli("inspect", "roberta")
    assert "(4 tensors, 592,899 parameters)" in out.splitlines()[0]
    assert "hidden states" in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "left_out", "listed"),
    [
        ("inspect roberta --details", "classifier.dense.bias", ["classifier.dense.bias", "124,647,939 in total"]),
        ("diff-weights bert --all", "query.weight", ["bert.encoder.layer.{0...11}.attention.self.query.weight"]),
    ],
)
def test_an_option_lists_the_weights_that_the_screen_leaves_out(
    fake: FakeApi, cli: Cli, words: str, left_out: str, listed: list[str]
) -> None:
    assert left_out not in cli(*words.split()[:-1]).out
    long = cli(*words.split()).out
    assert [line for line in listed if line not in long] == []


def test_inspect_ends_in_commands_that_can_be_copied(fake: FakeApi, cli: Cli) -> None:
    out, _ = cli("inspect", "roberta", "--labels", "a b,c,d", "--offline", "--timeout", "5", "--token", "secret")
    assert "headscope inspect roberta --labels 'a b,c,d' --offline --timeout 5 --details" in out
    assert "headscope check roberta --labels 'a b,c,d' --offline --timeout 5 --for training" in out
    assert "secret" not in out


@pytest.mark.parametrize("spelling", ["--json", "--format json", "--format=json"])
def test_inspect_json_is_the_report(fake: FakeApi, cli: Cli, spelling: str) -> None:
    assert json.loads(cli("inspect", "bert", *spelling.split()).out) == inspect_document(REPORTS["bert"]())


def test_diff_weights_json_has_no_head(fake: FakeApi, cli: Cli) -> None:
    document = cli.json("diff-weights", "bert", "--all")
    assert "head" not in document
    assert document["weights"]["parameters"][0]["name"].startswith("bert.")


def test_a_profile_that_there_is_not_is_refused_in_plain_words(cli: Cli) -> None:
    _, err = cli("check", "bert", "--for", "prod", code=ExitCode.USAGE)
    assert "'prod' is not one of 'training', 'inference'" in err
    assert "Value error" not in err


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (["pooling"], ["How many vectors become one"]),
        (["matrix"], ["The classifier's matrix"]),
        (["hidden", "states"], ["Hidden states"]),
        (["HS101", "HS102"], [RULES[rule].title for rule in ("HS101", "HS102")]),
        (["logits", "cls", "token", "linear"], ["Logits", "The CLS token", "Matrix product and bias"]),
    ],
)
def test_explain_answers_one_topic_or_several(cli: Cli, words: list[str], titles: list[str]) -> None:
    out, _ = cli("explain", *words)
    places = [out.index(f": {title}\n") for title in titles]
    assert places == sorted(places)
    document = cli.json("explain", *words)
    assert [item["title"] for item in document.get("topics", [document])] == titles
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_explain_names_the_topic_that_is_unknown(cli: Cli) -> None:
    _, err = cli("explain", "logits", "lineer", code=ExitCode.USAGE)
    assert ": lineer\n" in err and " linear?" in err


@pytest.mark.parametrize("name", ["roberta", "distilbert-mismatch"])
@pytest.mark.parametrize("command", ["inspect", "diff-weights", "diagram"])
def test_missing_weights_are_an_exit_code_only_if_asked(fake: FakeApi, command: str, name: str) -> None:
    assert main([command, name]) == ExitCode.OK
    assert main([command, name, "--exit-code"]) == ExitCode.FINDINGS


OPTIONS = (
    (
        "inspect bert --num_labels 2 --model_class=X --trust_remote_code --cache-dir c",
        {"num_labels": 2, "model_class": "X", "trust_remote_code": True, "cache_dir": "c", "labels": None},
    ),
    ("inspect bert --labels 'bad, good'", {"labels": ("bad", "good")}),
    (
        "diagram bert --num_labels 2 --task token-classification --offline --revision x",
        {"num_labels": 2, "task": "token-classification", "offline": True, "revision": "x"},
    ),
)


@pytest.mark.parametrize(("line", "wanted"), OPTIONS)
def test_options_take_hyphens_and_underscores(fake: FakeApi, line: str, wanted: dict[str, Any]) -> None:
    main(shlex.split(line))
    assert {name: fake.options.get(name) for name in wanted} == wanted


USAGE = (
    (["inspect"], "missing argument 'MODEL'", "try `headscope inspect --help`"),
    (["inspect", "bert", "--bogus"], "no such option: --bogus", "try `headscope inspect --help`"),
    (["version"], "no such command 'version'. Did you mean 'verify'?", "try `headscope --version`"),
    (["help", "inspect"], "no such command 'help'", "try `headscope inspect --help`"),
    (
        ["bert-base-uncased", "--offline"],
        "no such command 'bert-base-uncased'",
        "a command comes first: `headscope inspect bert-base-uncased`",
    ),
    (["inspct", "bert"], "no such command 'inspct'. Did you mean 'inspect'?", "try `headscope --help`"),
    (
        ["inspect", "bert", "--num-labels", "0"],
        "--num-labels must be at least 1, not 0",
        "1 means regression, 2 or more are classes",
    ),
    (
        ["inspect", "bert", "--num-labels", "-3"],
        "--num-labels must be at least 1, not -3",
        "1 means regression, 2 or more are classes",
    ),
    (
        ["diff-weights", "bert", "--num-labels", "3", "--labels", "a,b"],
        "--num-labels 3 contradicts --labels, which names 2",
        "leave one of them out",
    ),
    (
        ["inspect", "bert", "--labels", "a,,b"],
        "--labels 'a,,b' has an empty name",
        "write the names as A,B,C",
    ),
    (
        ["inspect", "bert", "--labels", "a,a"],
        "--labels 'a,a' names a class twice",
        "give every class a different name",
    ),
)


@pytest.mark.parametrize(("arguments", "message", "hint"), USAGE, ids=[" ".join(row[0]) for row in USAGE])
def test_wrong_usage_is_told_in_one_sentence_with_a_hint(
    fake: FakeApi, cli: Cli, arguments: list[str], message: str, hint: str
) -> None:
    assert cli(*arguments, code=ExitCode.USAGE) == ("", f"error: {message}\nhint: {hint}\n")
    assert cli.json(*arguments, code=ExitCode.USAGE)["error"]["code"] == "usage"


ERRORS = (
    (NotFound("no\x1b[2J such", "look"), 3, "not_found"),
    (Gated("gated"), 3, "gated"),
    (Offline("offline"), 3, "offline"),
    (NetworkError("network"), 3, "network"),
    (Malformed("broken"), 3, "malformed"),
    (UsageError("no class X"), 2, "usage"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RuntimeError("ours"), 3, "internal"),
)


@pytest.mark.parametrize(("error", "code", "name"), ERRORS, ids=[row[2] for row in ERRORS])
def test_a_failure_has_its_exit_code_and_its_object(
    fake: FakeApi, cli: Cli, error: BaseException, code: int, name: str
) -> None:
    fake.error = error
    out, err = cli("inspect", "bert", "--json", code=code)
    assert json.loads(out)["error"]["code"] == name
    assert "\x1b" not in err
    assert ("Traceback" in err) is (name == "internal")


def test_a_failure_without_json_leaves_stdout_empty(fake: FakeApi, cli: Cli) -> None:
    fake.error = HeadscopeError("it failed", "try again")
    assert cli("inspect", "bert", code=ExitCode.UNDETERMINED) == ("", "error: it failed\nhint: try again\n")


def test_env_tells_settings_and_no_secret(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://me:secret@hub.example")
    out, _ = cli("env", "--json")
    settings = json.loads(out)["settings"]
    assert settings["token_set"] is True
    assert settings["hf_endpoint"] == "https://***@hub.example"
    assert "secret" not in out
    shown = dict(line.split(maxsplit=1) for line in cli("env").out.splitlines())
    assert shown["token_set"] == "yes"
    assert {"torchvision", "peft", "transformers"} < shown.keys()


@pytest.mark.parametrize("command", ["inspect", "diff-weights", "diagram", "forward"])
def test_two_models_are_compared(command: str, cli: Cli) -> None:
    told = cli(command, "first", "the second", "--offline", code=ExitCode.USAGE).err
    assert "headscope compare first 'the second'" in told


@pytest.mark.parametrize(
    ("words", "other"),
    [("verify a b", "check"), ("snapshot a b -o x", "scan"), ("heads a b", "--help"), ("env a", "--help")],
)
def test_words_that_are_too_many_get_a_next_step(words: str, other: str, cli: Cli) -> None:
    error, hint = cli(*words.split(), code=ExitCode.USAGE).err.splitlines()
    assert words.split(maxsplit=1)[0] in error and other in hint


def test_no_command_shows_the_help_as_wrong_usage(cli: Cli) -> None:
    assert "Usage: headscope" in cli(code=ExitCode.USAGE).out


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ([], "meta"),
        (["--text", "a"], "cpu"),
        (["--image", "a.png"], "cpu"),
        (["--text", "a", "--device", "cuda"], "cuda"),
        (["--device", "cpu"], "cpu"),
    ],
)
def test_what_is_to_be_scored_runs_on_the_cpu(given: list[str], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def forward(reference: str, **options: Any) -> Report:
        asked.update(options)
        raise UsageError("enough", "")

    monkeypatch.setattr("headscope.slices.forward.run.forward", forward)
    assert main(["forward", "bert", *given]) == ExitCode.USAGE
    assert asked["device"] == device
