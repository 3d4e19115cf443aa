"""A small file or a page of the Hub whole, by one request, and the commit that it is of."""

from dataclasses import dataclass

from headscope.checkpoints.hub.requests import HubConnection, is_missing, raise_passing, repository_of
from headscope.errors import NetworkError


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The content of a file, the commit that its server names, if it does, and the id under which the Hub keeps it.

    `next` is the address of the page that follows, for a listing.
    """

    content: bytes
    commit: str | None
    repo: str
    next: str | None = None


def read_whole(connection: HubConnection, url: str, name: str, limit: int, *, store: str = "") -> WholeFile:
    """The content behind a URL (or `store`, a further page of it), of at most `limit` bytes.

    Raises EntryNotFoundError of the Hub's client where there is none, NetworkError where it cannot be read.
    """
    return connection.patiently(lambda: _ask(connection, url, name, limit, store or url), name)


def _ask(connection: HubConnection, url: str, name: str, limit: int, store: str) -> WholeFile:
    from huggingface_hub.errors import EntryNotFoundError

    with connection.asked(url, store, name) as response:
        raise_passing(response)
        if is_missing(response, url):
            raise EntryNotFoundError(f"{name} is not there")
        if not response.last.is_success:
            response.raise_refusal()
            raise NetworkError(f"the server answered {response.status} for {name}", "try again later")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise NetworkError(
                f"the server sent {name} in an encoding that headscope didn't request", "try again later"
            )
        size = response.headers.get("Content-Length", "")
        if size.isascii() and size.isdigit() and int(size[:20]) > limit:
            raise NetworkError(
                f"the server wants to send {int(size[:20]):,} bytes of {name}, over the limit of {limit:,}",
                "don't trust this endpoint; check HF_ENDPOINT",
            )
        content = response.body(limit, name, connection.deadline)
        following = response.last.links.get("next", {}).get("url")
        return WholeFile(content, response.commit, repository_of(response, url), following)
