"""`verify --url` against loopback servers that compute a known head of a checkpoint on disk."""

import json
import re
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from scorers import WORDS, save_tokenizer
from serving.servers import Asked, send_json, serve, serve_with, squashed
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedModel

import headscope
from headscope.errors import HeadscopeError, NetworkError, Unsupported, UsageError
from headscope.shell.app import main

LABELS = ("bad", "fair", "good")
SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "n_embd": 32, "n_layer": 2, "n_head": 2,
    "n_positions": 64, "eos_token_id": 3, "bos_token_id": 2, "head_dim": 16, "num_key_value_heads": 2,
}  # fmt: skip
TEXTS = [" ".join(f"w{(7 * at + 3 * word) % 94}" for word in range(3 + at % 9)) for at in range(30)]
REVERSED = TEXTS[::-1]
"""The second texts of pairs."""
Variant = Callable[[Any, Any], torch.Tensor]


def saved(family: str, folder: Path, seed: int = 0, **settings: Any) -> str:
    """A classifier with random weights, also of biases, and its tokenizer; pairs of BERT have segment IDs."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, "id2label": dict(enumerate(LABELS)), **settings})
    model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15 if parameter.shape[0] == len(LABELS) else 0.5)
    model.save_pretrained(folder)
    tokenizer = save_tokenizer(folder)
    special = [("[CLS]", 2), ("[SEP]", 3)]
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    tokenizer.backend_tokenizer.post_processor = template
    tokenizer.model_max_length = 64
    tokenizer.model_input_names = ["input_ids", "attention_mask", *(["token_type_ids"] * (family == "Bert"))]
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("Bert", tmp_path_factory.mktemp("bert"))


def scorer(folder: str, variant: Variant) -> Callable[[tuple[str, ...]], Sequence[float]]:
    """Logits of a text or a pair, alone, as a variant of the model computes them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    architecture = json.loads(Path(folder, "config.json").read_text())["architectures"][0]
    model: PreTrainedModel = getattr(transformers, architecture).from_pretrained(folder).eval()

    def scores(text: tuple[str, ...]) -> Sequence[float]:
        with torch.no_grad():
            found: list[float] = variant(model, dict(tokenizer(*text, return_tensors="pt")))[0].float().tolist()
        return found

    return scores


def as_it_is(model: Any, given: Any) -> torch.Tensor:
    return torch.as_tensor(model(**given).logits)


def without_pooler(model: Any, given: Any) -> torch.Tensor:
    return torch.as_tensor(model.classifier(model.bert(**given).last_hidden_state[:, 0]))


def mean_without_pooler(model: Any, given: Any) -> torch.Tensor:
    return torch.as_tensor(model.classifier(model.bert(**given).last_hidden_state.mean(1)))


def relu_pooler(model: Any, given: Any) -> torch.Tensor:
    return torch.as_tensor(
        model.classifier(model.bert.pooler.dense(model.bert(**given).last_hidden_state[:, 0]).relu())
    )


def without_segments(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model, {**given, "token_type_ids": given["token_type_ids"] * 0})


def halved(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model, given) / 2


def reversed_classes(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model, given).flip(1)


def softsign_pooler(model: Any, given: Any) -> torch.Tensor:
    pooled = model.bert.pooler.dense(model.bert(**given).last_hidden_state[:, 0])
    return torch.as_tensor(model.classifier(torch.nn.functional.softsign(pooled)))


OTHER_HEADS: dict[str, tuple[Variant, Any, str]] = {
    "no pooler": (without_pooler, None, "classifier(h[CLS])"),
    "mean, no pooler": (mean_without_pooler, None, "classifier(mean(h[non-pad]))"),
    "ReLU": (relu_pooler, None, "classifier(relu(dense(h[CLS])))"),
    "segment IDs": (without_segments, REVERSED, "classifier(tanh(dense(h[CLS])))"),
    "factor": (halved, None, "classifier(tanh(dense(h[CLS])))"),
    "order": (reversed_classes, None, "classifier(tanh(dense(h[CLS])))"),
}


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
    variant, pair, formula = OTHER_HEADS[case]
    with serve("tei", scorer(bert, variant), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS, text_pair=pair)
    assert found.served.same is False, found
    explained = found.served.explanation
    assert explained is not None, found
    assert explained.formula == formula and explained.activation == "softmax"
    assert (explained.scale != pytest.approx(1)) is (case == "factor")
    assert (explained.order != (0, 1, 2)) is (case == "order")
    assert explained.variant.startswith("segment IDs 0") is (case == "segment IDs")


def test_a_head_that_no_variant_computes_has_no_explanation(bert: str) -> None:
    with serve("vllm", scorer(bert, softsign_pooler), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS)
    assert (found.served.same, found.served.explanation) == (False, None)
    assert "no explanation" in found.served.reason


@pytest.mark.parametrize("family", ["GPT2", "Qwen3", "Roberta", "DistilBert", "Electra", "Llama"])
def test_other_families_are_the_same_too(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, type_vocab_size=2)
    with serve("vllm", scorer(folder, as_it_is), LABELS) as url:
        found = headscope.verify_served(folder, url, text=TEXTS)
    assert found.served.same is True, found


def test_a_position_that_is_the_same_in_all_texts_explains_nothing(tmp_path: Path) -> None:
    folder = saved("GPT2", tmp_path)
    with serve(
        "vllm", scorer(folder, lambda model, given: model.score(model.transformer(**given)[0][:, 0])), LABELS
    ) as url:
        found = headscope.verify_served(folder, url, text=[f"w{at} {text}" for at, text in enumerate(TEXTS)])
    assert found.served.same is False
    assert found.served.explanation is None and "differ" in found.served.reason


def test_a_recorded_answer_of_vllm_for_ernie_is_read_and_explained(tmp_path: Path) -> None:
    """vLLM 0.32.0 answers /pooling for ERNIE with one more axis, and leaves out the pooler's dense and tanh."""
    folder = saved("Ernie", tmp_path)
    scores = scorer(folder, lambda model, given: model.classifier(model.ernie(**given).last_hidden_state[:, 0]))

    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        if asked.method == "GET":
            send_json(handler, {"data": [{"id": folder, "owned_by": "vllm"}], "version": "0.32.0"})
            return
        rows = [{"index": at, "data": [squashed(scores((text,)))]} for at, text in enumerate(asked.body["input"])]
        send_json(handler, {"object": "list", "data": rows})

    with serve_with(answer) as url:
        found = headscope.verify_served(folder, f"{url}/pooling", text=TEXTS)
    assert found.served.explanation is not None, found
    assert found.served.explanation.formula == "classifier(h[CLS])" and found.engine_version == "0.32.0"


def test_truncation_is_named(tmp_path: Path) -> None:
    folder = saved("Bert", tmp_path, max_position_embeddings=300)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 300
    tokenizer.save_pretrained(folder)
    long = [" ".join(f"w{(5 * at + word) % 94}" for word in range(200)) for at in range(10)]

    def cut(model: Any, given: Any) -> torch.Tensor:
        if given["input_ids"].shape[1] <= 128:
            return as_it_is(model, given)
        end = {"input_ids": torch.tensor([[3]])}
        return as_it_is(
            model, {name: torch.cat((value[:, :127], end.get(name, value[:, -1:])), 1) for name, value in given.items()}
        )

    with serve("vllm", scorer(folder, cut), LABELS) as url:
        found = headscope.verify_served(folder, url, text=[*TEXTS, *long])
    assert found.served.explanation is not None, found
    assert found.served.explanation.variant == "texts cut to 128 tokens" and found.longest == 202


def test_logits_are_compared_on_request(bert: str) -> None:
    with serve("vllm", scorer(bert, as_it_is), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS, logits=True)
    assert found.served.same is True and found.requested == "logits"


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


def test_the_command_tells_what_the_server_computes(
    bert: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [word for text in TEXTS for word in ("--text", text)]
    with serve("vllm", scorer(bert, without_pooler), LABELS) as url:
        assert main(["verify", bert, "--url", url, *options]) == 1
        shown = capsys.readouterr().out
        assert main(["verify", bert, "--url", url, *options, "-q"]) == 1
        quiet = capsys.readouterr().out
        assert main(["verify", bert, "--url", url, *options, "--json", "-o", str(tmp_path / "served.json")]) == 1
    sentence = " ".join(quiet.split())
    assert sentence.endswith(" softmax(classifier(h[CLS]))") and " ".join(shown.split()).startswith(sentence)
    assert "without dense and tanh; softmax" in shown and "not looked at:" in shown
    document = json.loads((tmp_path / "served.json").read_text())
    assert (document["command"], document["verdict"]) == ("verify-served", "failed")
    served = document["served"]
    assert (served["same"], served["texts"]) == (False, 30)
    assert served["explanation"]["formula"] == "classifier(h[CLS])" and served["explanation"]["activation"] == "softmax"
    assert set(served["class_changes"]) == {"share", "low", "high"}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("order", "it computes softmax(classifier(tanh(dense(h[CLS])))), with the classes in the order 2, 1, 0"),
        ("factor", "it computes softmax(0.5 * classifier(tanh(dense(h[CLS]))))"),
        ("segment IDs", "it computes softmax(classifier(tanh(dense(h[CLS])))), segment IDs 0"),
    ],
)
def test_the_verdict_names_what_a_formula_does_not_show(bert: str, case: str, words: str) -> None:
    variant, pair, _ = OTHER_HEADS[case]
    with serve("tei" if case == "segment IDs" else "vllm", scorer(bert, variant), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS, text_pair=pair)
    assert words in " ".join(str(found).split())


@pytest.mark.parametrize(
    ("text", "pair"),
    [(5, None), ([1, 2], None), ([], None), ([("a", "b")], None), ([""], None), (["a"], ["b", "c"]), (None, "b")],
)
def test_what_is_no_text_is_refused(bert: str, text: Any, pair: Any) -> None:
    with pytest.raises(UsageError):
        headscope.verify_served(bert, "http://localhost", text=text, text_pair=pair)


def test_the_token_is_sent_and_never_shown(
    bert: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_SERVER_TOKEN", "secret-token")
    log: list[Asked] = []
    with serve("vllm", scorer(bert, as_it_is), LABELS, log=log) as url:
        assert main(["verify", bert, "--url", f"{url}?key=secret-query", "--json"]) == 0
    assert all(one.headers["Authorization"] == "Bearer secret-token" for one in log)
    out, err = capsys.readouterr()
    assert "secret" not in out + err


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
def test_options_that_contradict_each_other_are_refused(
    bert: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve("vllm", scorer(bert, as_it_is), LABELS) as url:
        assert main(["verify", bert, *(url if word == "URL" else word for word in options)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_what_has_no_scores_to_compare_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "base")
    transformers.BertForTokenClassification(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "tags")
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
            headscope.verify_served(transformers.BertModel(transformers.BertConfig(**SIZES)), url)  # type: ignore[arg-type]


def test_a_server_that_is_not_there_ends_with_3(bert: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NetworkError):
        headscope.verify_served(bert, "http://127.0.0.1:9", server_timeout=2)
    assert main(["verify", bert, "--url", "http://127.0.0.1:9", "--server-timeout", "2", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"]


def test_scores_of_another_number_of_classes_are_not_determined(bert: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serve("vllm", lambda text: [float(len(text[0])), 1.0], ["a", "b"]) as url:
        assert main(["verify", bert, "--url", url]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert re.match("Not determined: .* 2 scores .* has 3\\b", shown)


def test_an_installed_engine_is_compared_like_a_server(bert: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The pipeline of the installed Transformers, for real; nothing is written beside the checkpoint."""
    before = sorted(path.name for path in Path(bert).iterdir())
    assert main(["verify", bert, "--with", "transformers-pipeline"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "scores (16 texts)" in shown and "separate process" in shown
    assert sorted(path.name for path in Path(bert).iterdir()) == before
    options = [word for text in TEXTS[:8] for word in ("--text", text)]
    assert main(["verify", bert, "--with", "transformers-pipeline", *options, "--logits", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["url"], document["protocol"], document["requested"]) == ("", "process", "logits")


def test_one_name_is_that_of_a_loader_and_of_an_engine() -> None:
    from headscope.core.upstream.loaders import check_loader
    from headscope.shared.serving.running.process import runner_names
    from headscope.slices.loaded.command import BOTH

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
