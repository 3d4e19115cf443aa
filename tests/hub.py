"""A Hub on loopback: two origins, LFS redirects, ranges, error codes, a log of every request, faults on demand."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".gguf", ".pt", ".ckpt", ".distcp")


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
class Hub:
    """Repositories by id, the log, `gated` ids, and the faults on demand.

    Of weight requests: `ignore_range`, `wrong_range`, `encoding`, `weight_status`, `redirect` (elsewhere than to the
    CDN), `drip` (seconds a byte), `busy` (so many are first answered with 503 and `busy_headers`) and `broken` (so
    many are broken off); of the API: `api_status`. Every answer waits for `latency` seconds. `answer` may
    answer by itself: from origin (`hub`, `cdn`), method and path to status, headers and body, None for what is usual;
    with the status 0 the connection is closed without one.
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
    answer: Callable[[str, str, str], Answer | None] | None = None
    log: list[Request] = field(default_factory=list)
    endpoint: str = ""
    cdn: str = ""

    def weight_bytes(self) -> int:
        """Bytes of weight files that were sent."""
        return sum(request.sent for request in self.log if request.path.endswith(LARGE) and request.method == "GET")


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub and its CDN, each on a port of their own, until the block ends."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, origin)) for origin in ("hub", "cdn")]
    ports = [server.server_address[1] for server in servers]
    hub.endpoint, hub.cdn = f"http://127.0.0.1:{ports[0]}", f"http://localhost:{ports[1]}"  # two hosts, as in the world
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
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

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            time.sleep(hub.latency)
            path = unquote(self.path.partition("?")[0])
            status, headers, body = self.usual(path) if hub.answer is None else self.own(path)
            if not status:
                self.close_connection = True
                hub.log.append(Request(origin, self.command, path, "", "Authorization" in self.headers, 0))
                return
            size = str(len(body))
            self.send_response(status)
            for name, value in ({"Content-Length": size} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            sent = 0
            if with_body and body:
                try:
                    sent = (
                        self.wfile.write(body)
                        if not (hub.drip and origin == "cdn")
                        else _drip(self.wfile, body, hub.drip)
                    )
                except OSError:
                    sent = 0
            token = "authorization" in {name.lower() for name in self.headers}
            hub.log.append(Request(origin, self.command, path, self.headers.get("Range", ""), token, sent))

        def usual(self, path: str) -> Answer:
            return _cdn(hub, path, self.headers) if origin == "cdn" else _hub(hub, path, self.headers)

        def own(self, path: str) -> Answer:
            found = hub.answer(origin, self.command, path) if hub.answer else None
            return self.usual(path) if found is None else found

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


def _drip(file: Any, body: bytes, pause: float) -> int:
    """Sends a body byte by byte."""
    for at in range(len(body)):
        file.write(body[at : at + 1])
        file.flush()
        time.sleep(pause)
    return len(body)


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b""


def _hub(hub: Hub, path: str, headers: Any) -> Answer:
    if path.startswith("/api/models/") and hub.api_status:
        return hub.api_status, {}, b""
    if path.startswith("/api/models/"):
        return _api(hub, path.removeprefix("/api/models/"))
    if "/resolve/" not in path:
        return 404, {}, b"{}"
    repo, _, rest = path.lstrip("/").partition("/resolve/")
    revision, _, name = rest.partition("/")
    problem = _problem(hub, repo, revision)
    if problem:
        return problem
    if name not in hub.repos[repo]:
        return _error(404, "EntryNotFound")
    return _file(hub, repo, name, hub.repos[repo][name], headers)


def _problem(hub: Hub, repo: str, revision: str) -> Answer | None:
    if repo in hub.gated:
        return _error(403, "GatedRepo")
    if repo not in hub.repos:
        return _error(404, "RepoNotFound")
    return None if revision in {"main", "v1", COMMIT} else _error(404, "RevisionNotFound")


def _api(hub: Hub, rest: str) -> Answer:
    repo, _, revision = rest.partition("/revision/")
    problem = _problem(hub, repo, revision or "main")
    if problem:
        return problem
    siblings = [{"rfilename": name} for name in hub.repos[repo]]
    body = json.dumps({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False})
    return 200, {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}, body.encode()


def _file(hub: Hub, repo: str, name: str, content: bytes, headers: Any) -> Answer:
    known = f"{name} {len(content)}".encode() if name.endswith(LARGE) else content[:]  # never all of a large file
    etag = f'"{hashlib.sha256(known).hexdigest()}"'
    common = {"X-Repo-Commit": COMMIT, "ETag": etag}
    if name.endswith(LARGE):
        linked = {
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": etag,
            "Location": hub.redirect or f"{hub.cdn}/{repo}/{name}",
        }
        return 302, common | linked | {"Content-Length": "0"}, b""
    return 200, common | {"Content-Type": "text/plain"}, content[:]


def _cdn(hub: Hub, path: str, headers: Any) -> Answer:
    if hub.weight_status:
        return hub.weight_status, {}, b""
    if hub.busy:
        hub.busy -= 1
        return 503, hub.busy_headers, b""
    held = path.lstrip("/")
    repo = next(repo for repo in hub.repos if held.startswith(f"{repo}/"))
    content = hub.repos[repo][held.removeprefix(f"{repo}/")]
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
