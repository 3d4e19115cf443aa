"""A small file of the Hub whole, by one request, and the commit that it is of."""

from dataclasses import dataclass

from headscope.checkpoints.hub.ranges import (
    Deadline,
    asked,
    commit_of,
    is_missing,
    patiently,
    pause_asked_for,
    repository_of,
)
from headscope.errors import NetworkError


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The content of a file, the commit that its server names, if it does, and the id under which the Hub keeps it."""

    content: bytes
    commit: str | None
    repo: str


def read_whole(url: str, name: str, token: str | None, deadline: Deadline) -> WholeFile:
    """The file behind a URL, as long as the bounds of `bounded_answers` allow.

    Raises EntryNotFoundError of the Hub's client where there is none, NetworkError where it cannot be read.
    """
    return patiently(lambda: _ask(url, name, token, deadline), deadline, name)


def _ask(url: str, name: str, token: str | None, deadline: Deadline) -> WholeFile:
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # exported lazily

    with asked(url, url, name, token, deadline) as response:
        pause = pause_asked_for(response)
        if pause is not None:
            raise pause
        if is_missing(response, url):
            raise EntryNotFoundError(f"{name} is not there")
        if not response.is_success:
            response.read()
            hf_raise_for_status(response)
            raise NetworkError(f"the server answered {response.status_code} for {name}", "try again later")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise NetworkError(
                f"the server sent {name} in an encoding that headscope didn't request", "try again later"
            )
        content = b"".join(response.iter_raw())
        return WholeFile(content, commit_of(response), repository_of(response, url))
