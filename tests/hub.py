"""A Hub on loopback: two origins, LFS redirects, ranges, error codes, a log of every request, faults on demand."""

import hashlib
import json
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from tests import warm

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MOVED = "89abcdef0123456789abcdef0123456789abcdef"
OWN_CACHE = "/api/resolve-cache/"
"""To where the Hub redirects small files: its edge cache, which no limit counts."""
LARGE = (".safetensors", ".bin", ".gguf", ".pt", ".ckpt", ".distcp")


def client_settings(endpoint: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process whose client asks the Hub at `endpoint`, with a cache of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"} | more


def run_asking(
    endpoint: str, home: Path, *arguments: str, given: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments in a process of its own, whose client asks the Hub at `endpoint`."""
    ran = subprocess.run(
        [*warm.python(), *arguments], input=given, env=client_settings(endpoint, home, **more), check=False,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def files_of(folder: Path) -> dict[str, bytes]:
    """What a folder holds at any depth, as a repository."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Request:
    """One request that a server answered."""

    origin: str
    method: str
    path: str
    range: str
    has_token: bool
    sent: int


Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Quota:
    """The Hub's limit: `allowed` requests of one kind (`resolvers`, `api`) in fixed windows of so many seconds."""

    allowed: int
    seconds: float = 300
    kind: str = "resolvers"
    retry_after: bool = False
    taken: list[int] = field(default_factory=list)
    refused: int = 0
    _begun: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, path: str) -> tuple[bool, dict[str, str]]:
        """Whether one more request is allowed, and what the Hub says of the limit; nothing for another kind."""
        kind = "api" if path.startswith("/api/") else "resolvers"
        if kind != self.kind or path.startswith(OWN_CACHE):
            return True, {}
        with self._lock:
            window, into = divmod(time.monotonic() - self._begun, self.seconds)
            self.taken += [0] * (int(window) + 1 - len(self.taken))
            allowed = self.taken[-1] < self.allowed
            self.taken[-1] += allowed
            self.refused += not allowed
            left, ends = self.allowed - self.taken[-1], math.ceil(self.seconds - into)
        told = {
            "RateLimit": f'"{kind}";r={left};t={ends}',
            "RateLimit-Policy": f'"fixed window";"{kind}";q={self.allowed};w={math.ceil(self.seconds)}',
        }
        return allowed, {"Retry-After": str(ends)} if self.retry_after and not allowed else told


@dataclass
class Hub:
    """Repositories by id, the log, `gated` ids, and the faults on demand.

    Of weight requests: `ignore_range`, `wrong_range`, `encoding`, `weight_status`, `redirect` (elsewhere than to the
    CDN), `drip` (seconds a byte), `busy` (so many are first answered with 503 and `busy_headers`) and `broken` (so
    many are broken off); of the API: `api_status`. Every answer waits for `latency` seconds. `answer` may
    answer by itself: from origin (`hub`, `cdn`), method and path to status, headers and body, None for what is usual;
    with the status 0 the connection is closed without one.

    With `own_cache` small files are redirected within the Hub, and with `cors` a page of another origin may read the
    answers: both as on the real one. `moved` are the repositories as they are at the commit MOVED, to which `main`
    leads once `head` is set to it. `quota` limits the requests. Listings come in pages of `page` models. `renamed`
    leads from old ids to new ones.
    """

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    ignore_range: bool = False
    wrong_range: bool = False
    encoding: str = ""
    weight_status: int | None = None
    api_status: int | None = None
    busy: int = 0
    busy_headers: dict[str, str] = field(default_factory=dict)
    broken: int = 0
    redirect: str = ""
    drip: float = 0
    latency: float = 0
    own_cache: bool = False
    cors: bool = False
    moved: dict[str, dict[str, bytes]] = field(default_factory=dict)
    head: str = COMMIT
    quota: Quota | None = None
    collections: dict[str, list[str]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    page: int = 2
    answer: Callable[[str, str, str], Answer | None] | None = None
    log: list[Request] = field(default_factory=list)
    endpoint: str = ""
    cdn: str = ""

    def files(self, repo: str, revision: str) -> dict[str, bytes]:
        """The files of a repository at a revision."""
        return self.moved.get(repo, self.repos[repo]) if self.commit(repo, revision) == MOVED else self.repos[repo]

    def commit(self, repo: str, revision: str) -> str:
        """The commit that a revision means; empty for one that there is not."""
        return {"main": self.head, "v1": COMMIT, COMMIT: COMMIT, MOVED: MOVED}.get(revision, "")

    def weight_bytes(self) -> int:
        """Bytes of weight files that were sent."""
        return sum(request.sent for request in self.log if request.path.endswith(LARGE) and request.method == "GET")


_POLL = 0.01
"""Seconds until a server notices that it should stop. The default is half a second, in each test."""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub and its CDN, each on a port of their own, until the block ends."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, origin)) for origin in ("hub", "cdn")]
    ports = [server.server_address[1] for server in servers]
    hub.endpoint, hub.cdn = f"http://127.0.0.1:{ports[0]}", f"http://localhost:{ports[1]}"  # two hosts, as in the world
    threads = [threading.Thread(target=server.serve_forever, args=(_POLL,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub, origin: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(hub.latency)
            path = unquote(self.path.partition("?")[0])
            allowed, told = hub.quota.take(path) if hub.quota is not None and origin == "hub" else (True, {})
            status, headers, body = self.made(path) if allowed else (429, {}, b"")
            if not status:
                self.close_connection = True
                hub.log.append(Request(origin, self.command, path, "", "Authorization" in self.headers, 0))
                return
            shared = _cross_origin(origin, self.headers.get("Origin", "*")) if hub.cors else {}
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | shared | told | headers).items():
                self.send_header(name, value)
            self.end_headers()
            sent = 0
            if self.command == "GET" and body:
                with suppress(OSError):
                    is_slow = hub.drip and origin == "cdn"
                    sent = _drip(self.wfile, body, hub.drip) if is_slow else self.wfile.write(body)
            range_, has_token = self.headers.get("Range", ""), "Authorization" in self.headers
            hub.log.append(Request(origin, self.command, path, range_, has_token, sent))

        do_HEAD = do_OPTIONS = do_GET

        def made(self, path: str) -> Answer:
            found = hub.answer(origin, self.command, path) if hub.answer is not None else None
            if found is not None:
                return found
            return (
                _cdn(hub, path, self.headers)
                if origin == "cdn"
                else _hub(hub, path, parse_qs(urlsplit(self.path).query))
            )

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


def _cross_origin(origin: str, asking: str) -> dict[str, str]:
    """What lets a page of another origin read an answer: the Hub names the page's, the store behind it allows any."""
    if origin == "cdn":
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    shown = "X-Repo-Commit,X-Request-Id,X-Error-Code,X-Error-Message,ETag,Link,Accept-Ranges,Content-Range"
    return {"Access-Control-Allow-Origin": asking, "Vary": "Origin", "Access-Control-Expose-Headers": shown}


def _drip(file: Any, body: bytes, pause: float) -> int:
    """Sends a body byte by byte."""
    for at in range(len(body)):
        file.write(body[at : at + 1])
        file.flush()
        time.sleep(pause)
    return len(body)


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b""


def _hub(hub: Hub, path: str, query: dict[str, list[str]]) -> Answer:
    if path.startswith("/api/"):
        return _api(hub, path, query)
    repo, is_of_file, rest = path.lstrip("/").partition("/resolve/")
    if not is_of_file:
        return 404, {}, b"{}"
    revision, _, name = rest.partition("/")
    if repo in hub.renamed:
        return 307, {"Location": f"/{hub.renamed[repo]}/resolve/{rest}"}, b""
    problem = _problem(hub, repo, revision)
    if problem:
        return problem
    if name not in hub.files(repo, revision):
        return _error(404, "EntryNotFound")
    return _file(hub, repo, hub.commit(repo, revision), name)


def _problem(hub: Hub, repo: str, revision: str) -> Answer | None:
    if repo in hub.gated:
        return _error(403, "GatedRepo")
    if repo not in hub.repos:
        return _error(404, "RepoNotFound")
    return None if hub.commit(repo, revision) else _error(404, "RevisionNotFound")


def _api(hub: Hub, path: str, query: dict[str, list[str]]) -> Answer:
    if path.startswith(OWN_CACHE):
        return _own_cache(hub, path.removeprefix(f"{OWN_CACHE}models/"))
    if hub.api_status:
        return hub.api_status, {}, b""
    if path == "/api/models":
        return _listing(hub, query)
    if path.startswith("/api/collections/"):
        return _collection(hub, path.removeprefix("/api/collections/"))
    return _model(hub, path.removeprefix("/api/models/")) if path.startswith("/api/models/") else (404, {}, b"{}")


def _model(hub: Hub, rest: str) -> Answer:
    repo, _, revision = rest.partition("/revision/")
    revision = revision or "main"
    problem = _problem(hub, repo, revision)
    if problem:
        return problem
    body = json.dumps(_described(hub, repo, revision))
    headers = {"Content-Type": "application/json", "X-Repo-Commit": hub.commit(repo, revision)}
    return 200, headers, body.encode()


def _described(hub: Hub, repo: str, revision: str = "main") -> dict[str, Any]:
    siblings = [{"rfilename": name} for name in hub.files(repo, revision)]
    return {"id": repo, "modelId": repo, "sha": hub.commit(repo, revision), "siblings": siblings, "private": False}


def _listing(hub: Hub, query: dict[str, list[str]]) -> Answer:
    """A page of the models of an author, or whose ids hold a text; commit and files only where they are asked for."""
    author, search = query.get("author", [""])[0], query.get("search", [""])[0]
    found = [repo for repo in hub.repos if repo.startswith(f"{author}/" if author else "") and search in repo]
    if query.get("filter"):
        found = [repo for repo in found if f"{query['filter'][0]}.tag" in hub.repos[repo]]
    begin = int(query.get("cursor", ["0"])[0])
    shown = [_described(hub, repo) for repo in found[begin : begin + hub.page]]
    wanted = {"id", "modelId"} | set(query.get("expand", ()))
    if "full" not in query:
        shown = [{name: value for name, value in item.items() if name in wanted} for item in shown]
    headers = {"Content-Type": "application/json"}
    if begin + hub.page < len(found):
        more = urlencode(query | {"cursor": [str(begin + hub.page)]}, doseq=True)
        headers["Link"] = f'<{hub.endpoint}/api/models?{more}>; rel="next"'
    return 200, headers, json.dumps(shown).encode()


def _collection(hub: Hub, slug: str) -> Answer:
    """A collection of models, with ids only, as the Hub has it."""
    if slug not in hub.collections:
        return 404, {}, b"{}"
    listed = enumerate(hub.collections[slug])
    found = {
        "slug": slug, "title": slug, "owner": {"name": "someone"}, "lastUpdated": "2026-01-01T00:00:00.000Z",
        "items": [{"_id": str(at), "id": repo, "type": "model", "position": at} for at, repo in listed],
        "position": 0, "private": False, "theme": "blue", "upvotes": 0,
    }  # fmt: skip
    return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


def _file(hub: Hub, repo: str, commit: str, name: str) -> Answer:
    content = hub.files(repo, commit)[name]
    common = {"X-Repo-Commit": commit, "ETag": _etag(name, content)}
    if name.endswith(LARGE):
        linked = {
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": common["ETag"],
            "Location": hub.redirect or f"{hub.cdn}/{repo}/{commit}/{name}",
        }
        return 302, common | linked | {"Content-Length": "0"}, b""
    if hub.own_cache:
        return 307, common | {"Location": f"{OWN_CACHE}models/{repo}/{commit}/{name}"}, b"Temporary Redirect"
    return 200, common | {"Content-Type": "text/plain"}, content[:]


def _etag(name: str, content: bytes) -> str:
    known = f"{name} {len(content)}".encode() if name.endswith(LARGE) else content[:]  # never all of a large file
    return f'"{hashlib.sha256(known).hexdigest()}"'


def _stored(hub: Hub, place: str) -> tuple[str, str, Any]:
    """The commit, name and content of a file at `REPO/COMMIT/NAME`."""
    repo = next(repo for repo in hub.repos if place.startswith(f"{repo}/"))
    commit, _, name = place.removeprefix(f"{repo}/").partition("/")
    return commit, name, hub.files(repo, commit)[name]


def _own_cache(hub: Hub, rest: str) -> Answer:
    commit, name, content = _stored(hub, rest)
    return 200, {"X-Repo-Commit": commit, "ETag": _etag(name, content), "Content-Type": "text/plain"}, content[:]


def _cdn(hub: Hub, path: str, headers: Any) -> Answer:
    if hub.weight_status:
        return hub.weight_status, {}, b""
    if hub.busy:
        hub.busy -= 1
        return 503, hub.busy_headers, b""
    _, _, content = _stored(hub, path.lstrip("/"))
    wanted = headers.get("Range", "")
    if not wanted or hub.ignore_range:
        return 200, {}, content[:]
    start, _, end = wanted.removeprefix("bytes=").partition("-")
    last = min(int(end), len(content) - 1)
    part = content[int(start) : last + 1]
    shift = int(hub.wrong_range)
    if hub.broken:
        hub.broken -= 1
        length = {"Content-Length": str(len(part)), "Connection": "close"}
        return 206, length | {"Content-Range": f"bytes {start}-{last}/{len(content)}"}, part[: len(part) // 2]
    encoding = {"Content-Encoding": hub.encoding} if hub.encoding else {}
    return 206, encoding | {"Content-Range": f"bytes {int(start) + shift}-{last + shift}/{len(content)}"}, part
