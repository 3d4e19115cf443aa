"""Servers are found and asked as each protocol says, on loopback servers written from the sources of the engines."""

from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest
from serving.classifiers import as_it_is, saved, scorer
from serving.servers import Asked, Scores, answer_paths, send_json, serve, serve_with, squashed
from transformers import pipeline

from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.asking.address import ServerAddress
from headscope.shared.serving.asking.ask import ask
from headscope.shared.serving.asking.discovery import find_protocol
from headscope.shared.serving.asking.protocols import protocol_names

LABELS = ["zeta", "alpha", "mid"]
TEXTS = [("hello",), ("hello world",), ("a",)]
PAIRS = [("q", "one"), ("q", "three"), ("other", "a long one")]


def logits(text: tuple[str, ...]) -> list[float]:
    return [len(text[0]) / 5 - 1, 0.5 * len(text), -len(text[-1]) / 7]


def one_logit(text: tuple[str, ...]) -> list[float]:
    return [len(text[-1]) / 4 - 1]


def by_label(found: Answers) -> list[dict[str, float]]:
    return [dict(zip(item.labels or LABELS, item.scores, strict=True)) for item in found.items]


def expected(texts: list[tuple[str, ...]], raw: bool, scores: Scores = logits) -> list[dict[str, float]]:
    rows = [scores(text) if raw else squashed(scores(text)) for text in texts]
    return [pytest.approx(dict(zip(LABELS, row, strict=True))) for row in rows]


def asked_of(url: str, texts: list[tuple[str, ...]], model: str = "", **options: bool) -> Answers:
    server = ServerAddress(url, timeout=20, model=model)
    return ask(server, find_protocol(server), texts, **options)


KINDS = [
    # server, protocol, engine, version, logits of texts
    ("vllm", "vllm", "vllm", "0.32.0", True),
    ("tei", "tei", "text-embeddings-inference", "1.9.3", True),
    ("sglang", "sglang", "sglang", "0.5.23", True),
    ("infinity", "infinity", "infinity", "0.0.77", False),
    ("inputs", "inputs", "inputs", "", True),
    ("kserve", "kserve", "kserve", "0.15.2", False),
    ("mlserver", "kserve", "mlserver", "1.7.0", True),
]


@pytest.mark.parametrize("prefix", ["", "/some/prefix"])
@pytest.mark.parametrize("known", KINDS, ids=lambda known: known[0])
def test_texts_are_scored(known: tuple[str, str, str, str, bool], prefix: str) -> None:
    kind, name, engine, version, gives_logits = known
    log: list[Asked] = []
    with serve(kind, logits, LABELS, prefix=prefix, log=log) as url:
        server = ServerAddress(url + "/", timeout=20, batch_size=2)
        protocol = find_protocol(server)
        assert (protocol.name, protocol.can_score_texts) == (name, True)
        assert len(log) <= 12
        posted = [asked.path.removeprefix(prefix) for asked in log if asked.method == "POST"]
        assert posted == {"inputs": ["/"], "mlserver": ["/v2/repository/index"]}.get(kind, [])
        found = ask(server, protocol, TEXTS)
        assert (found.engine, found.version, found.protocol, found.is_raw) == (engine, version, name, False)
        assert by_label(found) == expected(TEXTS, raw=False)
        assert protocol.can_give_logits() is gives_logits
        if gives_logits:
            raw = ask(server, protocol, TEXTS, raw=True)
            assert raw.is_raw
            assert by_label(raw) == expected(TEXTS, raw=True)
        else:
            with pytest.raises(Unsupported, match="logits"):
                ask(server, protocol, TEXTS, raw=True)


@pytest.mark.parametrize(
    ("kind", "gives_logits"),
    [("vllm", True), ("tei", True), ("sglang", False), ("llama-cpp", True), ("infinity", True), ("inputs", True)],
)
def test_pairs_are_scored(kind: str, gives_logits: bool) -> None:
    with serve(kind, one_logit, ["LABEL_0"]) as url:
        server = ServerAddress(url, timeout=20)
        protocol = find_protocol(server)
        assert protocol.can_give_logits(pairs=True) is gives_logits
        plain, raw = [squashed(one_logit(pair)) for pair in PAIRS], [one_logit(pair) for pair in PAIRS]
        found = [list(item.scores) for item in ask(server, protocol, PAIRS).items]
        assert found == [pytest.approx(row) for row in (raw if kind == "llama-cpp" else plain)]
        if gives_logits:
            found = [list(item.scores) for item in ask(server, protocol, PAIRS, raw=True).items]
            assert found == [pytest.approx(row) for row in raw]


@pytest.mark.parametrize(("kind", "what"), [("llama-cpp", TEXTS), ("kserve", PAIRS)])
def test_what_a_protocol_has_no_form_for_is_an_error(kind: str, what: list[tuple[str, ...]]) -> None:
    with serve(kind, logits, LABELS) as url, pytest.raises(Unsupported, match="pairs"):
        asked_of(url, what)


@pytest.mark.parametrize(
    ("kind", "tail", "name"),
    [
        ("vllm", "/classify", "vllm"),
        ("vllm", "/pooling", "vllm-pooling"),
        ("vllm", "/v1", "vllm"),
        ("vllm", "/score?x=1#y", "vllm"),
        ("tei", "/predict", "tei"),
        ("sglang", "/v1/classify", "sglang"),
        ("infinity", "/classify/", "infinity"),
        ("mlserver", "/v2/models/clf/infer", "kserve"),
        ("mlserver", "/v2/models/clf", "kserve"),
        ("kserve", "/v2", "kserve"),
    ],
)
def test_a_url_may_name_an_endpoint(kind: str, tail: str, name: str) -> None:
    with serve(kind, logits, LABELS) as url:
        server = ServerAddress(url + tail, timeout=20)
        protocol = find_protocol(server)
        assert protocol.name == name
        assert by_label(ask(server, protocol, TEXTS)) == expected(TEXTS, raw=False)


def test_a_named_protocol_is_used_where_the_server_tells_nothing() -> None:
    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        if asked.path != "/gateway/classify":
            return send_json(handler, {}, 404)
        rows = [{"index": at, "label": "x", "probs": [0.25, 0.75]} for at, _ in enumerate(asked.body["input"])]
        assert "model" not in asked.body
        return send_json(handler, {"data": rows})

    with serve_with(answer) as url:
        server = ServerAddress(f"{url}/gateway", timeout=20)
        with pytest.raises(Unsupported, match=r"/info: 404"):
            find_protocol(server)
        found = ask(server, find_protocol(server, "vllm"), TEXTS)
        assert {item.scores for item in found.items} == {(0.25, 0.75)}


def test_an_unknown_protocol_is_a_usage_error_with_the_nearest_name() -> None:
    assert "tei" in protocol_names()
    with pytest.raises(UsageError) as caught:
        find_protocol(ServerAddress("http://127.0.0.1:9"), "vlm")
    assert caught.value.hint.endswith(" vllm?")


def test_a_server_that_several_protocols_fit_needs_a_name() -> None:
    both = {"/props": {"build_info": "b1"}, "/v2": {"name": "triton", "version": "2", "extensions": []}}
    with serve_with(answer_paths(both)) as url, pytest.raises(UsageError, match="kserve, llama-cpp"):
        find_protocol(ServerAddress(url, timeout=20))


def test_an_embedding_server_gives_no_scores() -> None:
    info = {"model_id": "m", "model_type": {"embedding": {"pooling": "cls"}}, "version": "1.9.3"}
    with serve_with(answer_paths({"/info": info})) as url, pytest.raises(Unsupported, match="embedding model"):
        find_protocol(ServerAddress(url, timeout=20))


def test_several_models_of_kserve_need_a_name_in_the_url() -> None:
    known = {"/v2": {"name": "kserve", "version": "1", "extensions": []}, "/v2/models": {"models": ["b", "a"]}}
    with serve_with(answer_paths(known)) as url:
        with pytest.raises(UsageError, match="several models: a, b") as caught:
            find_protocol(ServerAddress(url, timeout=20))
        assert "/v2/models/NAME" in caught.value.hint
        assert find_protocol(ServerAddress(f"{url}/v2/models/b", timeout=20)).model == "b"


@pytest.mark.parametrize(("kind", "most"), [("vllm", 2), ("vllm", 1), ("tei", 3), ("inputs", 1)])
def test_batches_become_smaller_where_the_server_refuses_them(kind: str, most: int) -> None:
    texts = [("a" * size,) for size in range(1, 8)]
    log: list[Asked] = []
    with serve(kind, logits, LABELS, most_texts=most, log=log) as url:
        server = ServerAddress(url, timeout=20, batch_size=7)
        protocol = find_protocol(server, kind)
        log.clear()
        found = ask(server, protocol, texts)
    assert by_label(found) == expected(texts, raw=False)
    assert len(log) <= 7 + 3
    if kind != "tei":  # which tells that it takes 32
        assert any("refused batches" in note for note in found.notes)


def test_a_server_that_ignores_parameters_gives_partial_answers_and_no_logits() -> None:
    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        texts = asked.body["inputs"] if isinstance(asked.body["inputs"], list) else [asked.body["inputs"]]
        send_json(handler, [{"label": "POSITIVE", "score": 0.9} for _ in texts])

    with serve_with(answer) as url:
        server = ServerAddress(f"{url}/model", timeout=20)
        protocol = find_protocol(server, "inputs")
        found = ask(server, protocol, TEXTS, raw=True)
        assert all(item.is_partial and item.labels == ("POSITIVE",) for item in found.items)
        assert not found.is_raw
        assert any("probabilities" in note for note in found.notes)
        assert ask(server, protocol, TEXTS[:1]).items[0].is_partial


def test_logits_that_are_probabilities_are_not_called_logits() -> None:
    with serve("vllm", lambda text: [0.25, 0.25, 0.5], LABELS) as url:
        assert not asked_of(url, TEXTS, raw=True).is_raw


def test_numbered_labels_are_in_the_order_of_their_numbers() -> None:
    labels = [f"LABEL_{at}" for at in range(12)]
    with serve("inputs", lambda text: [float(-at) for at in range(12)], labels) as url:
        (item, *_) = asked_of(url, TEXTS, raw=True).items
    assert item.labels == tuple(labels)
    assert all(before > after for before, after in pairwise(item.scores))


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x", "http://", "http://a b", "http://x\x1b[2J", "http://[", "http://x:99999", "",
     "http://me:secret@host"],
)  # fmt: skip
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerAddress(url)
    assert caught.value.message.isprintable()
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("token", ["", "a\nb", "ü", " "])
def test_a_token_that_cannot_be_sent_is_a_usage_error(token: str) -> None:
    with pytest.raises(UsageError, match="token"):
        ServerAddress("http://localhost", token)


def test_no_texts_are_no_request() -> None:
    with serve("tei", logits, LABELS) as url:
        assert asked_of(url, []).items == ()


def test_errors_of_an_unreachable_server_name_it() -> None:
    with serve("tei", logits, LABELS) as url:
        pass
    with pytest.raises(HeadscopeError, match=r"127\.0\.0\.1") as caught:
        find_protocol(ServerAddress(url, timeout=10, retries=1))
    assert caught.value.exit_code == 3


def test_a_named_model_is_asked() -> None:
    log: list[Asked] = []
    with serve("sglang", logits, LABELS, log=log) as url:
        asked_of(url, TEXTS, model="lora")
    assert log[-1].body["model"] == "lora"


@pytest.mark.parametrize("named", [None, "inputs"])
def test_a_real_pipeline_is_asked(tmp_path: Path, named: str | None) -> None:
    """Not a fake: the body goes to Transformers' pipeline as inference endpoints pass it on."""
    folder = saved("Bert", tmp_path, id2label=dict(enumerate(LABELS)))
    pipe, scores = pipeline("text-classification", folder, device="cpu"), scorer(folder, as_it_is)

    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        if asked.method == "GET":
            return send_json(handler, {"ok": True})
        return send_json(handler, pipe(asked.body["inputs"], **asked.body.get("parameters", {})))

    with serve_with(answer) as url:
        server = ServerAddress(url, timeout=60, batch_size=2)
        protocol = find_protocol(server, named)
        texts: list[tuple[str, ...]] = [("w1 yes w2",), ("no w3",), ("w1",)]
        for what in (texts, [(*text, "w4 w3") for text in texts]):
            for raw in (True, False):
                assert by_label(ask(server, protocol, what, raw=raw)) == expected(what, raw, scores)
