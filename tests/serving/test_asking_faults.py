"""Servers that fail, lie or attack: each is an error that says what was found, in bounded time and memory."""

import datetime
import gzip
import json
import ssl
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from serving.servers import Answer, Asked, answer_paths, send_bytes, send_json, serve_with

from headscope.errors import ExitCode, HeadscopeError, Malformed, NetworkError, UsageError
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.asking.address import ServerAddress
from headscope.shared.serving.asking.ask import ask
from headscope.shared.serving.asking.discovery import find_protocol
from headscope.shared.serving.asking.protocols import ServerProtocol

Handler = BaseHTTPRequestHandler
TOKEN = "hf_verysecrettoken"
TWO = [("a",), ("b",)]
PAIRS = [("q", "a"), ("q", "b")]


def asked_of(url: str, name: str, texts: list[tuple[str, ...]], timeout: float = 60, retries: int = 0) -> Answers:
    server = ServerAddress(url, TOKEN, timeout=timeout, retries=retries)
    return ask(server, ServerProtocol(name, url, url), texts)


def failure(answer: Answer, name: str = "tei", **options: Any) -> HeadscopeError:
    """The error of asking a server that answers with a function, checked for what every error must be."""
    with serve_with(answer) as url, pytest.raises(HeadscopeError) as caught:
        asked_of(url, name, options.pop("texts", TWO), **options)
    error = caught.value
    assert error.exit_code is ExitCode.UNDETERMINED
    assert error.message and error.hint
    assert error.message.isprintable() and len(error.message) < 700
    assert TOKEN not in error.message + error.hint
    return error


def row(*scores: float, labels: str = "xyz") -> list[dict[str, Any]]:
    return [{"label": label, "score": score} for label, score in zip(labels, scores, strict=False)]


NAN, HUGE = float("nan"), 10**400


@pytest.mark.parametrize(
    ("name", "payload", "says"),
    [
        ("tei", {"x\x1b[2J": 1}, "an object with x"),
        ("tei", [], "0 rows to 2 texts"),
        ("tei", [row(1, 2)], "1 rows to 2 texts"),
        ("tei", [row(1, 2)] * 3, "3 rows to 2 texts"),
        ("tei", [row(1, 2), row(1, 2, 3)], "2 scores for one text, 3 for another"),
        ("tei", [row(1, 2), row(1, 2, labels="xz")], "labels that differ between texts (y, z)"),
        ("tei", [row(1, 2), row(1, 2, labels="xx")], "the label x twice"),
        ("tei", [row(1, 2), []], "a list of 0 for a text"),
        ("tei", [row(1, 2), None], "null for a text"),
        ("tei", [row(1, 2), [{"label": 1, "score": 1}]], "1 as label"),
        ("tei", [row(1, 2), [{"label": "x"}]], "null as a score"),
        ("tei", [row(1, 2), [{"label": "x", "score": "0.5"}]], "'0.5' as a score"),
        ("tei", [row(1, 2), [{"label": "x", "score": True}]], "True as a score"),
        ("tei", [row(1, 2), [{"label": "x", "score": HUGE}]], "inf as a score"),
        ("tei", [row(1, 2), row(1, NAN)], "NaN, which is not a finite number"),
        ("tei", "hello", "'hello'"),
        ("vllm", {"data": None}, "null as data"),
        ("vllm", {"error": "no"}, "an object with error"),
        ("vllm", {"data": [{"index": 0, "probs": [1]}, {"index": 0, "probs": [1]}]}, "rows with index 0, 0"),
        ("vllm", {"data": [{"index": 0, "probs": [1]}, {"index": 2, "probs": [1]}]}, "rows with index 0, 2"),
        ("vllm", {"data": [{"index": 0, "probs": [1]}, {"index": True, "probs": [1]}]}, "rows with index 0, True"),
        ("vllm", {"data": [{"index": 0, "probs": []}, {"index": 1, "probs": [1]}]}, "a list of 0 as scores"),
        ("vllm", {"data": [{"probs": [1], "num_classes": 2}, {"probs": [1]}]}, "1 probs with num_classes 2"),
        ("sglang", {"data": [{"index": i, "label": "Default", "probs": [1.0]} for i in (0, 1)]}, "after a failure"),
        ("infinity", {"data": [row(1)]}, "1 rows to 2 texts"),
        ("kserve", {"outputs": []}, "the outputs (none)"),
        ("kserve", {"outputs": [{"name": "o", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 3]}]}, "[3, 1]"),
        ("kserve", {"outputs": [{"name": "o", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3]}]}, "3 values"),
        ("kserve", {"outputs": [{"name": "o", "datatype": "FP32", "shape": [2, -2], "data": [1, 2]}]}, "[2, -2]"),
        ("kserve", {"outputs": [{"name": "o", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}, "o (INT64)"),
        ("kserve", {"outputs": [{"name": "o", "datatype": "BYTES", "shape": [2], "data": ["{", "1"]}]}, "'{' as the"),
    ],
)  # fmt: skip
def test_an_answer_in_another_form_says_what_it_is(name: str, payload: Any, says: str) -> None:
    error = failure(lambda handler, asked: send_json(handler, payload), name)
    assert isinstance(error, Malformed)
    assert says in error.message
    assert "expected" in error.message


@pytest.mark.parametrize(
    "results",
    [
        [{"index": 0, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}],
        [{"relevance_score": 1}, {"relevance_score": 1}],
        [{"index": "0", "relevance_score": 1}, {"index": "1", "relevance_score": 1}],
        [{"index": -1, "relevance_score": 1}, {"index": 0, "relevance_score": 1}],
        [1, 2],
        None,
    ],
)
def test_ranks_need_each_index_once(results: Any) -> None:
    error = failure(lambda handler, asked: send_json(handler, {"results": results}), "llama-cpp", texts=PAIRS)
    assert isinstance(error, Malformed)


def test_another_order_is_put_right() -> None:
    rows = [{"index": at, "probs": [at, 1 - at], "num_classes": 2} for at in (1, 0)]
    with serve_with(lambda handler, asked: send_json(handler, {"data": rows})) as url:
        assert [item.scores for item in asked_of(url, "vllm", TWO).items] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("status", "data", "says"),
    [
        (200, b"<html><b>Sign in</b></html>", "text/html"),
        (200, b"", "nothing"),
        (200, b'[[{"label": "x", "sco', "JSON was expected"),
        (200, b"\xff\xfe\x00", "JSON was expected"),
        (200, b"[" * 200_000, "JSON was expected"),
        (200, b"1" * 5000, "JSON was expected"),
        (204, b"", "nothing"),
        (404, b"<html>", "404"),
        (500, b"oops", "500"),
        (413, b'{"error": "batch too large"}', "413: batch too large"),
        (401, b"{}", "refuses access (401)"),
        (403, b"{}", "refuses access (403)"),
        (400, json.dumps({"error": {"message": f"\x1b[31mbad\u202e {TOKEN} " + "x" * 9000}}).encode(), "bad *** x"),
        (422, json.dumps({"detail": [{"loc": ["body"], "msg": "Field required"}]}).encode(), "Field required"),
    ],
)  # fmt: skip
def test_what_is_not_an_answer_says_what_came(status: int, data: bytes, says: str) -> None:
    error = failure(lambda handler, asked: send_bytes(handler, data, status, **{"Content-Type": "text/html; x=1"}))
    assert says in error.message


def drip(handler: Handler, asked: Asked) -> None:
    for _ in range(1200):
        handler.wfile.write(b"H")
        handler.wfile.flush()
        time.sleep(0.05)


def hang(handler: Handler, asked: Asked) -> None:
    time.sleep(60)


def drip_body(handler: Handler, asked: Asked) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    drip(handler, asked)


@pytest.mark.parametrize("answer", [hang, drip, drip_body])
def test_a_server_that_hangs_is_given_up_in_time(answer: Answer) -> None:
    begun = time.monotonic()
    error = failure(answer, timeout=1)
    assert isinstance(error, NetworkError)
    assert time.monotonic() - begun < 30


def test_discovery_gives_up_on_a_server_that_hangs() -> None:
    begun = time.monotonic()
    with serve_with(hang) as url, pytest.raises(NetworkError):
        find_protocol(ServerAddress(url, timeout=1))
    assert time.monotonic() - begun < 30


def cut(handler: Handler, asked: Asked) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"[[")
    handler.close_connection = True


def slam(handler: Handler, asked: Asked) -> None:
    handler.close_connection = True


def garbage(handler: Handler, asked: Asked) -> None:
    handler.wfile.write(b"\x00\x01 not http\r\n\r\n")
    handler.close_connection = True


@pytest.mark.parametrize("answer", [cut, slam, garbage])
def test_a_broken_connection_is_an_error_after_the_retries(answer: Answer) -> None:
    log: list[Asked] = []
    with serve_with(answer, log) as url, pytest.raises(NetworkError, match="connection"):
        asked_of(url, "tei", TWO, retries=1)
    assert len(log) == 2


def test_a_zip_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"[" + b" " * (300 * 2**20), 9)
    tracemalloc.start()
    error = failure(lambda handler, asked: send_bytes(handler, bomb, Content_Encoding="gzip"), timeout=60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 67,108,864 bytes" in error.message
    assert peak < 200 * 2**20


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    def answer(handler: Handler, asked: Asked) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(10_000):
            handler.wfile.write(b" " * 2**20)

    assert "more than 67,108,864 bytes" in failure(answer, timeout=60).message


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("br", b"x"), ("gzip", b"not gzip"), ("gzip", gzip.compress(b"[]", mtime=0)[:-9])],
    ids=["unknown", "not-gzip", "cut"],
)
def test_an_encoding_that_cannot_be_read_is_an_error(encoding: str, data: bytes) -> None:
    error = failure(lambda handler, asked: send_bytes(handler, data, Content_Encoding=encoding))
    assert isinstance(error, Malformed)


def test_a_zipped_answer_is_read() -> None:
    data = gzip.compress(json.dumps([row(1, 2)] * 2).encode())
    with serve_with(lambda handler, asked: send_bytes(handler, data, Content_Encoding="gzip")) as url:
        assert [item.scores for item in asked_of(url, "tei", TWO).items] == [(1, 2)] * 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("after", ["", "0", "Mon, 01 Jan 2001 00:00:00 GMT", "soon"])
def test_a_busy_server_is_asked_again(status: int, after: str) -> None:
    log: list[Asked] = []

    def answer(handler: Handler, asked: Asked) -> None:
        if len(log) < 2:
            return send_json(handler, {}, status, **({"Retry-After": after} if after else {}))
        return send_json(handler, [row(1, 2)] * 2)

    with serve_with(answer, log) as url:
        assert len(asked_of(url, "tei", TWO, retries=1).items) == 2


def test_a_pause_beyond_the_time_limit_is_not_waited_for() -> None:
    begun = time.monotonic()
    error = failure(lambda handler, asked: send_json(handler, {}, 429, **{"Retry-After": "9" * 30}), retries=3)
    assert "time limit" in error.message
    assert time.monotonic() - begun < 30


def test_a_server_that_stays_busy_is_an_error_with_its_status() -> None:
    assert "answered 503" in failure(lambda handler, asked: send_json(handler, {}, 503), retries=1).message


def test_a_redirect_never_leaves_the_origin() -> None:
    elsewhere: list[Asked] = []
    with serve_with(lambda handler, asked: send_json(handler, []), elsewhere) as other:
        error = failure(lambda handler, asked: send_json(handler, {}, 307, Location=f"{other}/x?{TOKEN}"))
        assert "another server" in error.message
        with (
            serve_with(lambda handler, asked: send_json(handler, {}, 302, Location=other)) as url,
            pytest.raises(NetworkError, match="another server"),
        ):
            find_protocol(ServerAddress(url, TOKEN, timeout=60))
    assert elsewhere == []


@pytest.mark.parametrize("location", ["//other/x", "ftp://127.0.0.1/", "http://[", "javascript:x", "http://u:p@h/"])
def test_a_strange_redirect_is_refused(location: str) -> None:
    assert isinstance(failure(lambda handler, asked: send_json(handler, {}, 308, Location=location)), NetworkError)


def test_a_circle_of_redirects_ends() -> None:
    error = failure(lambda handler, asked: send_json(handler, {}, 307, Location="/predict"))
    assert "5 times" in error.message


def test_a_redirect_that_would_drop_the_texts_is_refused() -> None:
    error = failure(lambda handler, asked: send_json(handler, {}, 302, Location="/predict/"))
    assert "URL" in error.hint


def test_a_redirect_within_the_origin_is_followed_with_the_token() -> None:
    log: list[Asked] = []

    def answer(handler: Handler, asked: Asked) -> None:
        if asked.path == "/predict":
            return send_json(handler, {}, 307, Location="/predict/")
        return send_json(handler, [row(1, 2)] * 2)

    with serve_with(answer, log) as url:
        asked_of(url, "tei", TWO)
    assert [asked.path for asked in log] == ["/predict", "/predict/"]
    assert {asked.headers["Authorization"] for asked in log} == {f"Bearer {TOKEN}"}


def test_the_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(ServerAddress("http://localhost", TOKEN))


def test_no_fitting_protocol_lists_what_was_tried() -> None:
    def answer(handler: Handler, asked: Asked) -> None:
        send_bytes(handler, b"<html>", 401 if asked.path == "/v1/models" else 200, **{"Content-Type": "text/html"})

    with serve_with(answer) as url, pytest.raises(HeadscopeError) as caught:
        find_protocol(ServerAddress(url, timeout=20))
    assert "/info: 200, 6 bytes of text/html" in caught.value.message
    assert "/v1/models: 401" in caught.value.message
    assert "--protocol NAME (infinity, inputs," in caught.value.hint


def test_surrogates_and_nulls_in_texts_can_be_sent() -> None:
    log: list[Asked] = []
    texts = [("\ud800",), ("a\x00b",)]
    with serve_with(lambda handler, asked: send_json(handler, [row(1, 2)] * 2), log) as url:
        asked_of(url, "tei", texts)
    assert log[0].body["inputs"] == [list(text) for text in texts]


@pytest.mark.parametrize("payload", [None, 1, [], {"data": {}}, {"data": [None]}, {"model_type": []}, {"data": [{}]}])
def test_odd_answers_to_discovery_fit_nothing(payload: Any) -> None:
    with serve_with(lambda handler, asked: send_json(handler, payload)) as url, pytest.raises(HeadscopeError):
        find_protocol(ServerAddress(url, timeout=20))


def test_a_server_that_takes_only_post_and_wants_a_token_is_asked_for_one() -> None:
    def answer(handler: Handler, asked: Asked) -> None:
        send_json(handler, {"detail": "no"}, 401 if asked.method == "POST" else 405)

    with serve_with(answer) as url, pytest.raises(HeadscopeError) as caught:
        find_protocol(ServerAddress(url, retries=0))
    assert "(POST): 401" in caught.value.message and "pass a token" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "texts", "hint"),
    [(422, [("a long text",)], "limit is shorter than this text of 11 characters"), (500, TWO, "--batch-size 1")],
)
def test_a_refusal_names_the_option_that_may_avoid_it(status: int, texts: list[tuple[str, ...]], hint: str) -> None:
    error = failure(lambda handler, asked: send_json(handler, {"error": "no"}, status), texts=texts)
    assert f"answered {status}: no" in error.message and hint in error.hint


def test_a_certificate_that_is_not_trusted_is_named_and_can_be_given(tmp_path: Path) -> None:
    place = tmp_path / "own.pem"
    place.write_bytes(_self_signed())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)

    info = {"model_id": "m", "model_type": {"classifier": {}}, "version": "1"}
    with serve_with(answer_paths({"/info": info}), context=context) as url:
        address = url.replace("127.0.0.1", "localhost")
        with pytest.raises(NetworkError) as caught:
            find_protocol(ServerAddress(address, retries=0))
        assert "certificate is not trusted: self-signed" in caught.value.message and "--ca FILE" in caught.value.hint
        assert find_protocol(ServerAddress(address, retries=0, ca=str(place))).name == "tei"
        with pytest.raises(UsageError, match="holds no certificates"):
            find_protocol(ServerAddress(address, ca=str(tmp_path / "missing.pem")))


def _self_signed() -> bytes:
    """A key and a certificate of localhost, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 7, start, start + datetime.timedelta(days=36500))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
