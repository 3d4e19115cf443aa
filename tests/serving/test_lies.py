"""`verify --url` against loopback servers that lie: the right explanation or none, and never green."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import servers
from serving.servers import FakeServer, Scores, serve, tei
from serving.test_verify_served import LABELS, REVERSED, TEXTS, as_it_is, saved, scorer
from transformers import AutoTokenizer

import headscope
from headscope.errors import Malformed, UsageError
from headscope.shell.app import main


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("Bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("DistilBert", tmp_path_factory.mktemp("distilbert"))


def leaky(model: Any, given: Any) -> torch.Tensor:
    given.pop("token_type_ids", None)
    first = model.distilbert(**given).last_hidden_state[:, 0]
    return torch.as_tensor(model.classifier(torch.nn.functional.leaky_relu(model.pre_classifier(first), 1e-3)))


def other_weights(model: Any, given: Any) -> torch.Tensor:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        inner = model.classifier.weight
        model.classifier.weight = torch.nn.Parameter(inner + torch.randn(inner.shape, generator=generator) * 1e-3)
        found = as_it_is(model, given)
        model.classifier.weight = inner
    return found


def noisy(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model, given) + torch.randn(1, len(LABELS)) * 2e-3


def in_bfloat16(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model.bfloat16(), given)


@pytest.mark.parametrize(("family", "lie"), [("distilbert", leaky), ("bert", other_weights), ("bert", noisy)])
def test_small_lies_are_never_green_and_have_no_explanation(
    family: str, lie: Callable[[Any, Any], torch.Tensor], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(family)
    with serve("vllm", scorer(folder, lie), LABELS) as url:
        found = headscope.verify_served(folder, url, text=TEXTS, logits=True).served
        claimed = headscope.verify_served(folder, url, text=TEXTS, logits=True, dtype="float32").served
    assert found.same is not True and found.explanation is None, found
    assert claimed.same is False and claimed.explanation is None, claimed


def test_a_small_difference_is_said_to_be_rounding_or_other_weights(
    bert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for text in TEXTS for word in ("--text", text)]
    with serve("vllm", scorer(bert, other_weights), LABELS) as url:
        assert main(["verify", bert, "--url", url, "--logits", *options]) == 3
        shown = " ".join(capsys.readouterr().out.split())
        assert main(["verify", bert, "--url", url, "--logits", *options, "--dtype", "float32"]) == 1
    assert "rounding of bfloat16, or slightly different weights" in shown and "may be rounding" in shown


def test_the_checkpoints_own_model_in_half_precision_is_equal_within_its_rounding(bert: str) -> None:
    with serve("vllm", scorer(bert, in_bfloat16), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
        claimed = headscope.verify_served(bert, url, text=TEXTS, dtype="float32").served
    assert (found.same, found.precision) == (True, "bfloat16"), found
    assert claimed.same is False


def test_names_in_another_case_are_matched_and_unknown_ones_give_no_order(
    bert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve("inputs", scorer(bert, as_it_is), [name.upper() for name in LABELS]) as url:
        assert main(["verify", bert, "--url", url]) == 0
    capsys.readouterr()
    with serve("inputs", scorer(bert, as_it_is), ["schlecht", "mittel", "gut"]) as url:
        assert main(["verify", bert, "--url", url]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "names the classes gut, mittel, schlecht, and the checkpoint bad, fair, good" in shown
    assert "another class" not in shown and "in the order" not in shown


PAIRED: dict[str, Callable[[tuple[str, ...]], tuple[str, ...]]] = {
    "pairs in the other order": lambda pair: pair[::-1],
    "pairs joined to one text": lambda pair: (" ".join(pair),),
}


@pytest.mark.parametrize("case", PAIRED)
def test_what_a_server_does_to_pairs_is_named(bert: str, case: str) -> None:
    right = scorer(bert, as_it_is)
    with serve("tei", lambda text: right(PAIRED[case](text)), LABELS) as url:
        explained = headscope.verify_served(bert, url, text=TEXTS, text_pair=REVERSED).served.explanation
    assert explained is not None and explained.variant == case


def test_truncation_at_any_length_is_named(bert: str) -> None:
    tokenizer, right = AutoTokenizer.from_pretrained(bert), scorer(bert, as_it_is)
    long = [" ".join(f"w{(5 * at + word) % 94}" for word in range(20 + at)) for at in range(6)]

    def cut(text: tuple[str, ...]) -> Sequence[float]:
        return right((tokenizer.decode(tokenizer(text[0], truncation=True, max_length=19)["input_ids"][1:-1]),))

    with serve("vllm", cut, LABELS) as url:
        found = headscope.verify_served(bert, url, text=[*TEXTS, *long])
        short = headscope.verify_served(bert, url, text=TEXTS)
    assert found.served.explanation is not None, found
    assert found.served.explanation.variant == "texts cut to 19 tokens"
    assert short.served.same is True and any("longer than" in item for item in short.served.not_looked_at)


def test_a_softmax_on_a_softmax_is_named(bert: str) -> None:
    right = scorer(bert, as_it_is)
    with serve("vllm", lambda text: servers.squashed(right(text)), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS)
    assert "it computes softmax of softmax(classifier(tanh(dense(h[CLS]))))" in " ".join(str(found).split())


def shuffled(rows: list[Any]) -> list[Any]:
    return random.Random(len(rows)).sample(rows, len(rows))


@pytest.mark.parametrize("change", [shuffled, lambda rows: rows[:1] * len(rows)], ids=["shuffled", "first only"])
def test_a_server_that_is_wrong_in_batches_alone_is_found_out(
    bert: str, change: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lying(fake: FakeServer, method: str, path: str, body: Any) -> Any:
        found = tei(fake, method, path, body)
        return change(found) if isinstance(found, list) else found

    monkeypatch.setitem(servers._PROTOCOLS, "tei", lying)
    right: Scores = scorer(bert, as_it_is)
    with serve("tei", right, LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
    assert (found.same, found.explanation) == (False, None)
    assert "a text gets other scores than alone, where they are the checkpoint's" in found.reason


def test_the_top_class_alone_is_said_to_be_that(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def top(fake: FakeServer, method: str, path: str, body: Any) -> Any:
        found = servers.inputs(fake, method, path, body)
        return found and ([row[0] for row in found] if isinstance(found[0], list) else found[:1])

    monkeypatch.setitem(servers._PROTOCOLS, "inputs", top)
    with serve("inputs", scorer(bert, as_it_is), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
    assert found.same is None and "only the class with the highest score" in found.reason
    assert found.class_changes is not None and found.class_changes.share == 0


def test_no_limit_is_tried_beyond_the_models_own(bert: str) -> None:
    tokenizer, right = AutoTokenizer.from_pretrained(bert), scorer(bert, as_it_is)
    long = [" ".join(f"w{(5 * at + word) % 94}" for word in range(90 + at)) for at in range(4)]

    def cut(text: tuple[str, ...]) -> Sequence[float]:
        return right((tokenizer.decode(tokenizer(text[0], truncation=True, max_length=19)["input_ids"][1:-1]),))

    with serve("vllm", cut, LABELS) as url:
        found = headscope.verify_served(bert, url, text=[*TEXTS, *long]).served
    assert found.explanation is not None and found.explanation.variant == "texts cut to 19 tokens"


def test_the_precision_of_an_engine_that_is_run_cannot_be_stated(bert: str) -> None:
    with pytest.raises(UsageError, match="requests float32"):
        headscope.verify_served(bert, engine="vllm", dtype="bfloat16")


def test_a_prompt_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    folder = saved("Bert", tmp_path)
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    settings = {"model_type": "CrossEncoder", "prompts": {"query": "w1 w2 ", "document": "w3 ", "none": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    right = scorer(folder, as_it_is)
    for prompt, name in (("w1 w2 ", "the prompt query in front"), ("w3 ", "the prompt document in front"), ("w9 ", "")):
        with serve("tei", lambda text, prompt=prompt: right((prompt + text[0], *text[1:])), LABELS) as url:
            found = headscope.verify_served(folder, url, text=TEXTS).served
        assert found.same is False and (found.explanation.variant if found.explanation else "") == name, found


def test_a_text_that_gets_the_scores_of_another_is_said_to_do_so(bert: str) -> None:
    right, kept = scorer(bert, as_it_is), dict[int, Sequence[float]]()
    with serve("vllm", lambda text: kept.setdefault(len(text[0]), right(text)), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
    alike = [at for at, text in enumerate(TEXTS) if any(len(other) == len(text) for other in TEXTS[:at])]
    assert len(alike) > 1 and found.same is False and found.explanation is None
    assert found.reason.startswith(
        f"{len(alike)} texts get the scores of other texts (text {alike[0] + 1} those of text"
    )


def test_a_label_that_contradicts_the_scores_of_vllm_is_said(bert: str) -> None:
    with serve("vllm", scorer(bert, as_it_is), LABELS[::-1]) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
    assert found.same is True and "the engine names class 2 bad, and the checkpoint has bad as class 0" in found.notes
    with serve("vllm", scorer(bert, as_it_is), LABELS) as url:
        assert not headscope.verify_served(bert, url, text=TEXTS).served.notes


@pytest.mark.parametrize(
    ("turned", "words"), [(False, ""), (True, "logits and probabilities whose highest values are of other classes")]
)
def test_of_logits_and_probabilities_the_logits_are_compared(
    bert: str, turned: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(fake: FakeServer, method: str, path: str, body: Any) -> Any:
        found = servers.kserve(fake, method, path, body)
        if not path.endswith("/infer"):
            return found
        rows = [fake.given((text,), True) for text in body["inputs"][0]["data"]]
        rows = [row[::-1] for row in rows] if turned else rows
        logits = {
            "name": "logits",
            "datatype": "FP32",
            "shape": [len(rows), 3],
            "data": [one for row in rows for one in row],
        }
        return {"outputs": [*found["outputs"], logits]}

    monkeypatch.setitem(servers._PROTOCOLS, "kserve", both)
    with serve("kserve", scorer(bert, as_it_is), LABELS) as url:
        if turned:
            with pytest.raises(Malformed, match=words):
                headscope.verify_served(bert, url, text=TEXTS)
            return
        found = headscope.verify_served(bert, url, text=TEXTS)
    assert (found.served.same, found.requested) == (True, "logits"), found
