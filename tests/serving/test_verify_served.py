"""`verify --url` against loopback servers that compute a known head of a checkpoint on disk."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from serving.classifiers import (
    LABELS,
    REVERSED,
    TEXTS,
    Forward,
    as_it_is,
    hidden_states,
    save_model,
    saved,
    scorer,
    softsign_pooler,
    verified,
    without_pooler,
    without_segments,
)
from serving.servers import Asked, serve

import headscope
from headscope.core.upstream.loaders import check_loader
from headscope.errors import HeadscopeError, NetworkError, Unsupported, UsageError
from headscope.shared.serving.running.process import runner_names
from headscope.slices.loaded.command import BOTH
from tests.cli.command import Cli

OWN = "classifier(tanh(dense(h[CLS])))"
OTHER_HEADS: dict[str, tuple[Forward, Any, str, str]] = {
    "no pooler": (without_pooler, None, "classifier(h[CLS])", "softmax({})"),
    "mean, no pooler": (
        lambda model, given: model.classifier(hidden_states(model, given).mean(1)),
        None, "classifier(mean(h[non-pad]))", "softmax({})",
    ),
    "ReLU": (
        lambda model, given: model.classifier(model.bert.pooler.dense(hidden_states(model, given)[:, 0]).relu()),
        None, "classifier(relu(dense(h[CLS])))", "softmax({})",
    ),
    "segment IDs": (without_segments, REVERSED, OWN, "softmax({}), segment IDs 0"),
    "factor": (lambda model, given: as_it_is(model, given) / 2, None, OWN, "softmax(0.5 * {})"),
    "order": (
        lambda model, given: as_it_is(model, given).flip(1),
        None, OWN, "softmax({}), with the classes in the order 2, 1, 0",
    ),
}  # fmt: skip
"""What an engine computes, the second texts that show it, its formula, and the verdict's words around the formula."""


@pytest.mark.parametrize(
    "protocol", ["vllm", "vllm-pooling", "tei", "sglang", "infinity", "inputs", "kserve", "mlserver"]
)
def test_a_server_with_the_checkpoints_own_head_is_the_same(bert: str, protocol: str) -> None:
    with serve(protocol.removesuffix("-pooling"), scorer(bert, as_it_is), LABELS) as url:
        path = "/pooling" if protocol == "vllm-pooling" else ""
        found = headscope.verify_served(bert, url + path, text=TEXTS)
    assert (found.served.same, found.verdict.value, found.served.texts) == (True, "passed", 30), found
    assert found.served.class_changes is not None and found.served.class_changes.share == 0
    assert found.served.precision == "float32"


@pytest.mark.parametrize("case", OTHER_HEADS)
def test_another_head_is_named_by_its_formula(bert: str, case: str) -> None:
    forward, pair, formula, words = OTHER_HEADS[case]
    found = verified(bert, scorer(bert, forward), "tei", text_pair=pair)
    assert found.served.same is False, found
    explained = found.served.explanation
    assert explained is not None, found
    assert explained.formula == formula and explained.activation == "softmax"
    assert (explained.scale != pytest.approx(1)) is (case == "factor")
    assert (explained.order != (0, 1, 2)) is (case == "order")
    assert explained.variant.startswith("segment IDs 0") is (case == "segment IDs")
    assert f"it computes {words.format(formula)}" in " ".join(str(found).split())


def test_a_head_that_no_variant_computes_has_no_explanation(bert: str) -> None:
    found = verified(bert, scorer(bert, softsign_pooler))
    assert (found.served.same, found.served.explanation) == (False, None)
    assert "no explanation" in found.served.reason


@pytest.mark.parametrize("family", ["GPT2", "Qwen3", "Roberta", "DistilBert", "Electra", "Llama"])
def test_other_families_are_the_same_too(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, type_vocab_size=2)
    found = verified(folder, scorer(folder, as_it_is))
    assert found.served.same is True, found


def test_a_position_that_is_the_same_in_all_texts_explains_nothing(tmp_path: Path) -> None:
    folder = saved("GPT2", tmp_path)
    scores = scorer(folder, lambda model, given: model.score(model.transformer(**given)[0][:, 0]))
    found = verified(folder, scores, text=[f"w{at} {text}" for at, text in enumerate(TEXTS)])
    assert found.served.same is False
    assert found.served.explanation is None and "differ" in found.served.reason


def test_texts_come_from_a_file_or_are_the_sample(bert: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,text\n" + "".join(f"{at},{text}\n" for at, text in enumerate([*TEXTS, ""])))
    log: list[Asked] = []
    with serve("vllm", scorer(bert, as_it_is), LABELS, log=log) as url:
        found = headscope.verify_served(bert, url, data=rows, text_column="text", limit=12)
        sampled = headscope.verify_served(bert, url, batch_size=4)
    sent = [text for one in log if one.path == "/classify" for text in one.body["input"]]
    assert (
        found.served.texts == 12 and set(sent[:12]) < set(TEXTS) and sent[:12] == [t for t in TEXTS if t in sent[:12]]
    )
    assert sampled.served.texts == 16 == len(sent[12:])
    assert max(len(one.body["input"]) for one in log[-3:]) == 4


def test_a_server_of_pairs_gets_pairs(tmp_path: Path) -> None:
    folder = saved("Bert", tmp_path, id2label={0: "LABEL_0"}, num_labels=1, problem_type="regression")
    with serve("llama-cpp", scorer(folder, as_it_is), ["LABEL_0"]) as url:
        found = headscope.verify_served(folder, url)
    assert (found.served.same, found.served.texts, found.served.class_changes) == (True, 15, None)


def test_the_command_tells_what_the_server_computes(bert: str, cli: Cli) -> None:
    options = [word for text in TEXTS for word in ("--text", text)]
    with serve("vllm", scorer(bert, without_pooler), LABELS) as url:
        shown = cli("verify", bert, "--url", url, *options, code=1)
        sentence = cli("verify", bert, "--url", url, *options, "-q", code=1).words
        document = cli.json("verify", bert, "--url", url, *options, code=1)
    assert sentence.endswith(" softmax(classifier(h[CLS]))") and shown.words.startswith(sentence)
    assert "without dense and tanh; softmax" in shown.out and "not looked at:" in shown.out
    assert (document["command"], document["verdict"]) == ("verify-served", "failed")
    served = document["served"]
    assert (served["same"], served["texts"]) == (False, 30)
    assert served["explanation"]["formula"] == "classifier(h[CLS])" and served["explanation"]["activation"] == "softmax"
    assert set(served["class_changes"]) == {"share", "low", "high"}


@pytest.mark.parametrize(
    ("text", "pair"),
    [(5, None), ([1, 2], None), ([], None), ([("a", "b")], None), ([""], None), (["a"], ["b", "c"]), (None, "b")],
)
def test_what_is_no_text_is_refused(bert: str, text: Any, pair: Any) -> None:
    with pytest.raises(UsageError):
        headscope.verify_served(bert, "http://localhost", text=text, text_pair=pair)


def test_the_token_is_sent_and_never_shown(bert: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_SERVER_TOKEN", "secret-token")
    log: list[Asked] = []
    with serve("vllm", scorer(bert, as_it_is), LABELS, log=log) as url:
        assert "secret" not in cli("verify", bert, "--url", f"{url}?key=secret-query", "--json").words
    assert all(one.headers["Authorization"] == "Bearer secret-token" for one in log)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text", "a"], "is for a running server or an engine"),
        (["--limit", "3"], "is for a running server or an engine"),
        (["--url", "URL", "--with", "vllm"], "--url and --with vllm were given"),
        (["--with", "vllm", "--head"], "doesn't go with --with vllm"),
        (["--with", "vllm", "--format", "sarif"], "--with vllm gives none"),
        (["--with", "vllm", "--python", "/no/such/python"], "is not a program that can be run"),
        (["--url", "URL", "--head"], "doesn't go with --url"),
        (["--url", "URL", "--with", "peft"], "doesn't go with --url"),
        (["--url", "URL", "--adapter", "x"], "doesn't go with --url"),
        (["--url", "URL", "--format", "junit"], "--format junit"),
        (["--url", "URL", "--text", "a", "--data", "b.csv"], "both texts and data"),
        (["--url", "URL", "--text-column", "a"], "without data"),
        (["--url", "URL", "--data", "b.csv"], "without the column of its texts"),
        (["--url", "URL", "--text", "a", "--text-pair", "b", "--text-pair", "c"], "2 --text-pair for 1 --text"),
        (["--url", "URL", "--text", " "], "something other than texts"),
        (["--url", "URL", "--limit", "0", "--data", "b.csv", "--text-column", "a"], "--limit must be at least 1"),
        (["--url", "URL", "--batch-size", "0"], "must be positive"),
        (["--url", "URL", "--protocol", "grpc"], "no such protocol"),
        (["--url", "ftp://x"], "is not an http or https URL"),
    ],
)
def test_options_that_contradict_each_other_are_refused(bert: str, options: list[str], words: str, cli: Cli) -> None:
    with serve("vllm", scorer(bert, as_it_is), LABELS) as url:
        refused = cli("verify", bert, *(url if word == "URL" else word for word in options), code=2)
    assert words in " ".join(refused.err.split())


def test_what_has_no_scores_to_compare_is_refused(tmp_path: Path) -> None:
    save_model("Bert", tmp_path / "tags", "TokenClassification")
    base = transformers.BertModel.from_pretrained(tmp_path / "tags")
    base.save_pretrained(tmp_path / "base")
    expected: dict[str, tuple[type[HeadscopeError], str]] = {
        str(tmp_path / "base"): (Unsupported, "lacks weights"),
        str(tmp_path / "tags"): (Unsupported, "whole texts"),
        "roberta-base": (Unsupported, "snapshot"),
    }
    with serve("vllm", lambda text: [0.1, 0.2, 0.3], LABELS) as url:
        for reference, (kind, words) in expected.items():
            with pytest.raises(kind, match=words):
                headscope.verify_served(reference, url, offline=True)
        with pytest.raises(UsageError, match="in memory"):
            headscope.verify_served(base, url)  # type: ignore[arg-type]


def test_a_server_that_is_not_there_ends_with_3(bert: str, cli: Cli) -> None:
    with pytest.raises(NetworkError):
        headscope.verify_served(bert, "http://127.0.0.1:9", server_timeout=2)
    assert cli.json("verify", bert, "--url", "http://127.0.0.1:9", "--server-timeout", "2", code=3)["error"]["code"]


def test_an_installed_engine_is_compared_like_a_server(bert: str, cli: Cli) -> None:
    """The pipeline of the installed Transformers, for real; nothing is written beside the checkpoint."""
    before = sorted(path.name for path in Path(bert).iterdir())
    shown = cli("verify", bert, "--with", "transformers-pipeline").words
    assert "scores (16 texts)" in shown and "separate process" in shown
    assert sorted(path.name for path in Path(bert).iterdir()) == before
    options = [word for text in TEXTS[:8] for word in ("--text", text)]
    document = cli.json("verify", bert, "--with", "transformers-pipeline", *options, "--logits")
    assert (document["url"], document["protocol"], document["requested"]) == ("", "process", "logits")


def test_one_name_is_that_of_a_loader_and_of_an_engine() -> None:
    for name in runner_names():
        if name != BOTH:
            with pytest.raises(UsageError):
                check_loader(name)
    check_loader(BOTH)


def test_a_server_or_an_engine_is_needed(bert: str) -> None:
    for given in ({}, {"url": "http://localhost", "engine": "vllm"}):
        with pytest.raises(UsageError, match=r"URL .* engine"):
            headscope.verify_served(bert, **given)
    with pytest.raises(UsageError, match="sglang"):
        headscope.verify_served(bert, engine="sglang")
