"""Hostile servers: what a Hub, or whoever stands in its place, may answer, and how the command has to end."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hub import COMMIT, Answer

from hostile.corpus.case import CONFIG, ONE_TENSOR, safetensors

REPO = "someone/model"
WEIGHTS = {
    f"x{number}": {"dtype": "F32", "shape": [2], "data_offsets": [8 * number, 8 * number + 8]} for number in range(400)
}
"""A header of some 24 kB, which takes two ranges."""
BAD = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
NETWORK, MALFORMED, MISSING = "network", "malformed", "not_found"
Answerer = Callable[[str, str, str], Answer | None]


@dataclass(frozen=True)
class ServerCase:
    """`answer` replaces what the Hub would say; `code` is that of the error, "" where the command succeeds."""

    id: str
    answer: Answerer | None = None
    code: str = NETWORK
    words: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    hub: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def at(
    path: str, status: int, headers: dict[str, str] | None = None, body: bytes = b"", origin: str = "hub"
) -> Answerer:
    """This answer for every path that ends so, at that origin."""
    return lambda where, method, asked: (
        (status, headers or {}, b"" if method == "HEAD" else body) if where == origin and asked.endswith(path) else None
    )


def of_store(make: Callable[[], Answer]) -> Answerer:
    """What the store answers for weights."""
    return lambda where, method, asked: make() if where == "cdn" else None


def part(content_range: str, body: bytes = b"\0" * 64, **headers: str) -> Answer:
    """An answer to a request for a range, which may lie."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return 206, {"Content-Range": content_range} | named, body


def asleep(seconds: float, answer: Answer | None = None) -> Callable[[], Answer]:
    """Says nothing for so long."""

    def make() -> Answer:
        time.sleep(seconds)
        return answer or (0, {}, b"")

    return make


def of_api(body: bytes, **headers: str) -> Answerer:
    """What the Hub says of the repository."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda where, method, asked: (200, named, body) if "/api/models/" in asked else None


def listing(names: list[Any], commit: str = COMMIT) -> Answerer:
    """A repository that says it holds these files."""
    body = json.dumps({"id": REPO, "sha": commit, "siblings": [{"rfilename": name} for name in names]}).encode()
    return of_api(body, Content_Type="application/json", X_Repo_Commit=commit)


def config_of(commit: str, **headers: str) -> Answerer:
    """The configuration, said to be of this commit."""
    body = json.dumps(CONFIG).encode()
    answered = {"X-Repo-Commit": commit, "ETag": '"abc"', "Content-Length": str(len(body))}
    return at("/config.json", 200, answered | {name.replace("_", "-"): text for name, text in headers.items()}, body)


def index(weight_map: dict[str, Any]) -> dict[str, bytes]:
    """A repository with this index and one shard."""
    text = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return {"model.safetensors.index.json": text, "one.safetensors": safetensors(ONE_TENSOR)}


def _silent(path: str) -> Answerer:
    """Takes the question, and says nothing for half a minute."""
    wait = asleep(30)
    return lambda where, method, asked: wait() if asked.endswith(path) and method == "GET" else None


_PICKLED = {"other.safetensors": b"", "pytorch_model.bin": b"\x80\x02N."}
"""A repository without model.safetensors: then the list of its files is asked for."""
_QUICK = ("--timeout", "2")
_PATIENT = ("--timeout", "15")
_WEIGHTS_PART = "a different part of model.safetensors"
CASES: tuple[ServerCase, ...] = (
    ServerCase("range ignored, whole file sent", words=("200 to a request for a part",), hub={"ignore_range": True}),
    ServerCase("another range than asked for", words=(_WEIGHTS_PART,), hub={"wrong_range": True}),
    ServerCase("range of a file of no size", of_store(lambda: part("bytes 0-63/*")), words=(_WEIGHTS_PART,)),
    ServerCase("range that is no range", of_store(lambda: part("bytes all")), words=(_WEIGHTS_PART,)),
    ServerCase("range backwards", of_store(lambda: part("bytes 63-0/64")), words=(_WEIGHTS_PART,)),
    ServerCase("range of a size beyond numbers", of_store(lambda: part(f"bytes 0-63/{'9' * 5000}"))),
    ServerCase("range in other digits", of_store(lambda: part("bytes 0-16383/99999\u00b2"))),
    ServerCase("a part in gzip", words=(_WEIGHTS_PART,), hub={"encoding": "gzip"}),
    ServerCase("a part in an unknown encoding", words=(_WEIGHTS_PART,), hub={"encoding": BAD.encode().hex()}),
    ServerCase(
        "more bytes than asked for",
        of_store(lambda: part("bytes 0-16383/99999", b"\0" * 200_000, Content_Length="200000")),
    ),
    ServerCase(
        "a body shorter than its length",
        of_store(lambda: part("bytes 0-16383/99999", b"\0" * 10, Content_Length="16384", Connection="close")),
        options=_QUICK,
    ),
    ServerCase("the connection closed without an answer", of_store(lambda: (0, {}, b"")), options=_QUICK),
    ServerCase("no answer at all", of_store(asleep(30)), words=("longer than 2 s",), options=_QUICK),
    ServerCase("one byte a second", words=("longer than 2 s",), hub={"drip": 1.0}, options=_QUICK),
    ServerCase(
        "a pause of a day asked for", of_store(lambda: (429, {"Retry-After": "86400"}, b"")), words=("asks to wait",)
    ),
    ServerCase(
        "a pause that is no number",
        of_store(lambda: (429, {"Retry-After": BAD.encode().hex()}, b"")),
        words=("429",),
        options=_PATIENT,
    ),
    ServerCase(
        "a negative pause", of_store(lambda: (503, {"Retry-After": "-5"}, b"")), words=("503",), options=_PATIENT
    ),
    ServerCase("trouble that stays", of_store(lambda: (500, {}, b"")), words=("500",), options=_PATIENT),
    ServerCase("a refusal of the store", of_store(lambda: (403, {}, b"<Error>AccessDenied</Error>")), words=("403",)),
    ServerCase("a teapot", of_store(lambda: (418, {}, b"")), words=("418",)),
    ServerCase("a redirect to a file", hub={"redirect": "file:///etc/passwd"}),
    ServerCase("a redirect to a closed port", hub={"redirect": "http://127.0.0.1:9/x"}, options=_QUICK),
    ServerCase("a redirect to nowhere", hub={"redirect": "http://"}),
    ServerCase("a redirect to another scheme", hub={"redirect": "gopher://127.0.0.1/x"}),
    ServerCase(
        "redirects in a circle", at("model.safetensors", 302, {"Location": f"/{REPO}/resolve/main/model.safetensors"})
    ),
    ServerCase(
        "a page in place of the configuration",
        code=MALFORMED,
        words=("config.json is not valid JSON",),
        files={"config.json": b"<!doctype html><p>Sign in"},
    ),
    ServerCase(
        "half a configuration",
        code=MALFORMED,
        words=("config.json is not valid JSON",),
        files={"config.json": b'{"model_type": "bert", '},
    ),
    ServerCase("a listing that is no JSON", of_api(b"<html>"), files=_PICKLED),
    ServerCase("a listing that is a list", of_api(b"[1, 2]", Content_Type="application/json"), files=_PICKLED),
    ServerCase("a listing without files", listing([]), code="", words=("holds no weight file",), files=_PICKLED),
    ServerCase(
        "a listing of names that lead elsewhere",
        listing(["../../model.safetensors", "/model.safetensors", 7, None]),
        code="",
        words=("holds no weight file",),
        files=_PICKLED,
    ),
    ServerCase(
        "a listing of what is not sent",
        listing(["config.json", "model.safetensors"]),
        words=("the Hub lists model.safetensors in someone/model and does not send it",),
        files=_PICKLED,
    ),
    ServerCase(
        "a listing of another commit",
        listing(["config.json", "pytorch_model.bin"], commit="f" * 40),
        words=("the server sent commit ",),
        files=_PICKLED,
    ),
    ServerCase(
        "weights of another commit",
        lambda where, method, path: (
            (302, {"X-Repo-Commit": "f" * 40, "Location": f"/{REPO}/resolve/main/model.safetensors2"}, b"")
            if path.endswith("model.safetensors")
            else part("bytes 0-63/64")
            if path.endswith("model.safetensors2")
            else None
        ),
        words=("the server sent commit ",),
    ),
    ServerCase(
        "a configuration of no commit",
        at("config.json", 200, {"ETag": '"abc"'}, json.dumps(CONFIG).encode()),
        words=("does not say which commit",),
    ),
    ServerCase(
        "a configuration in gzip",
        config_of(COMMIT, Content_Encoding="gzip"),
        words=("an encoding that headscope didn't request",),
    ),
    ServerCase("a commit that leads out of the cache", config_of("../../../../../escaped")),
    ServerCase("a commit that acts on the terminal", config_of("\x1b[31mred")),
    ServerCase("an entity tag that leads out of the cache", config_of(COMMIT, ETag='"../../../escaped"')),
    ServerCase(
        "a shard elsewhere on the Hub",
        code=MALFORMED,
        words=("not a file name beside it",),
        files=index({"x": "../../other/model.safetensors"}),
    ),
    ServerCase(
        "a shard at an address",
        code=MALFORMED,
        words=("not a file name beside it",),
        files=index({"x": "https://127.0.0.1/x"}),
    ),
    ServerCase(
        "a shard with a query",
        code="",
        words=("the shard is missing",),
        files=index({"x": "one.safetensors?download=true"}),
    ),
    ServerCase(
        "a shard that acts on the terminal",
        code="",
        words=("the shard is missing",),
        files=index({"x": f"{BAD}.safetensors"}),
    ),
    ServerCase(
        "ten thousand shards",
        code="",
        words=("the shards are missing",),
        files=index({f"x{number}": f"{number}.safetensors" for number in range(300)}),
        options=("--timeout", "60"),
    ),
    ServerCase(
        "a refusal whose text acts on the terminal",
        at("config.json", 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "\x1b[2Jowned"}),
        code="gated",
        words=("gated",),
    ),
    ServerCase("an unknown refusal", at("config.json", 451, {"X-Error-Code": "Unheard", "X-Error-Message": "\x1b[2J"})),
    ServerCase(
        "a configuration without an end", config_of(COMMIT, Content_Length=str(50 * 10**9)), words=("over the limit",)
    ),
    ServerCase("a configuration that never comes", _silent("/config.json"), options=_QUICK),
    ServerCase(
        "a listing that never comes", _silent(f"/api/models/{REPO}/revision/{COMMIT}"), files=_PICKLED, options=_QUICK
    ),
)
