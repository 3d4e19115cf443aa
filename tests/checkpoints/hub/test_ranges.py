"""Ranges of a file behind a URL, against servers that answer in memory: redirects, tokens, addresses that expire."""

from collections.abc import Callable, Iterator

import huggingface_hub
import pytest
from huggingface_hub.utils import httpx
from huggingface_hub.utils._http import default_client_factory

from headscope.core.checkpoints.hub.ranges import RangeBytes
from headscope.core.checkpoints.hub.requests import Deadline, HubConnection
from headscope.errors import NetworkError

CONTENT = bytes(range(256)) * 200
HUB, STORE = "https://hub.test/someone/model/resolve/main/model.safetensors", "https://store.test/blob?signature=1"
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def log() -> list[httpx.Request]:
    return []


@pytest.fixture
def serve(log: list[httpx.Request]) -> Iterator[Callable[[Answer], None]]:
    """Puts a function from requests to answers in the place of the network."""

    def install(answer: Answer) -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/api/agent-harnesses":  # the client's own, once in a new home
                return httpx.Response(404)
            log.append(request)
            return answer(request)

        huggingface_hub.set_client_factory(
            lambda: httpx.Client(transport=httpx.MockTransport(handle), follow_redirects=True)
        )

    yield install
    huggingface_hub.set_client_factory(default_client_factory)


def part(request: httpx.Request) -> httpx.Response:
    begin, _, end = request.headers["Range"].removeprefix("bytes=").partition("-")
    last = min(int(end), len(CONTENT) - 1)
    headers = {"Content-Range": f"bytes {begin}-{last}/{len(CONTENT)}"}
    return httpx.Response(206, headers=headers, content=iter([CONTENT[int(begin) : last + 1]]))


def redirect(location: str) -> httpx.Response:
    return httpx.Response(302, headers={"Location": location})


def source(deadline: float = 20) -> RangeBytes:
    return RangeBytes(HUB, "model.safetensors", HubConnection("hf_secret", Deadline(deadline)))


def test_the_store_is_asked_directly_afterwards_and_never_gets_the_token(
    serve: Callable[[Answer], None], log: list[httpx.Request]
) -> None:
    serve(lambda request: part(request) if request.url.host == "store.test" else redirect(STORE))
    opened = source()
    assert opened.read_at(20_000, 100) == CONTENT[20_000:20_100]
    assert opened.read_at(40_000, 100) == CONTENT[40_000:40_100]
    assert [request.url.host for request in log] == ["hub.test", "store.test", "store.test", "store.test"]
    tokens = {request.url.host: request.headers.get("Authorization") for request in log}
    assert tokens == {"hub.test": "Bearer hf_secret", "store.test": None}
    assert [request.headers.get("Authorization") for request in log[1:]] == [None] * 3


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_an_address_that_expired_is_asked_for_anew(
    serve: Callable[[Answer], None], log: list[httpx.Request], status: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = sum(item.url.host == "store.test" for item in log)
        if request.url.host == "hub.test":
            return redirect(f"{STORE}&try={len(log)}")
        return httpx.Response(status) if asked == 2 else part(request)

    serve(answer)
    assert source().read_at(20_000, 10) == CONTENT[20_000:20_010]
    assert [request.url.host for request in log] == [
        "hub.test", "store.test", "store.test", "hub.test", "store.test",
    ]  # fmt: skip


def test_an_address_without_encryption_is_refused(serve: Callable[[Answer], None], log: list[httpx.Request]) -> None:
    serve(lambda request: redirect("http://store.test/blob") if request.url.host == "hub.test" else part(request))
    with pytest.raises(NetworkError, match=r"without encryption \(store\.test\)"):
        source()
    assert log[-1].headers.get("Authorization") is None


@pytest.mark.parametrize("location", [HUB, "https://hub.test/elsewhere"])
def test_redirects_in_a_circle_end(serve: Callable[[Answer], None], log: list[httpx.Request], location: str) -> None:
    serve(lambda request: redirect(location))
    with pytest.raises(NetworkError, match="in a circle"):
        source(8)
    assert len(log) < 100
