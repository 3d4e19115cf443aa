"""Address of a server, and what of its words may be shown."""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headscope.errors import UsageError

_MOST_SHOWN = 200
_SCHEMES = {"http": 80, "https": 443}
_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?(/infer)?$")
_ENDPOINTS = re.compile(
    r"(/v1/models|/v1/classify|/v1/rerank|/v1/score|/v2/rerank|/v2/models|/v2/health/(live|ready)"
    r"|/classify|/predict|/rerank|/score|/pooling|/embed|/embeddings|/info|/models|/version|/health|/props|/docs|/v1|/v2)$"
)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server, and the limits of requests to it.

    `timeout` is in seconds, for all requests of one call together. `retries` is how often a request is repeated after a
    fault that may pass. `model` is the name of the model to ask, "" for the first that gives scores. `token` is sent to
    the origin of `url` only. `ca` is a file of certificates to trust, None for those of the client. Raises UsageError
    for a URL that cannot be asked.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    batch_size: int = 16
    retries: int = 3
    model: str = ""
    ca: str | None = None

    def __post_init__(self) -> None:
        hint = "give the address of the server, such as http://localhost:8000"
        try:
            parts = urlsplit(self.url)
            name, _ = parts.hostname, parts.port
        except ValueError as err:
            raise UsageError(f"{one_line(self.url, self.token)} is not a valid URL", hint) from err
        if "@" in parts.netloc:  # not shown: it may hold a password
            raise UsageError("the URL holds a user name or a password", "leave it out, and pass a token instead")
        if parts.scheme not in _SCHEMES or not name or not self.url.isprintable() or " " in self.url:
            raise UsageError(f"{one_line(self.url, self.token)} is not an http or https URL", hint)
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UsageError("the token is empty or holds characters that can't be sent", "pass it without line breaks")
        if not self.timeout > 0 or self.batch_size < 1 or self.retries < 0:
            raise UsageError("timeout and batch size must be positive, and retries not negative", "")

    @property
    def exact(self) -> str:
        """URL as given, without a fragment."""
        return self.url.partition("#")[0]

    @property
    def shown(self) -> str:
        """URL for messages and reports: without its query, which may hold a key."""
        return one_line(self.exact.partition("?")[0], self.token)

    @property
    def base(self) -> str:
        """URL without the endpoint that it may name: the paths of the server's endpoints are appended to it."""
        plain = self.exact.partition("?")[0].rstrip("/")
        return _ENDPOINTS.sub("", _MODEL_PATH.sub("", plain)).rstrip("/")

    @property
    def endpoint(self) -> str:
        """Path of the endpoint that the URL names, "" where it names none."""
        return self.exact.partition("?")[0].rstrip("/")[len(self.base) :]

    @property
    def named_model(self) -> str:
        """Model that was named, or that the URL names in the form of KServe; "" for none."""
        found = _MODEL_PATH.search(self.exact.partition("?")[0].rstrip("/"))
        return self.model or (unquote(found[1]) if found else "")


def server_origin(url: str) -> tuple[str, str, int]:
    """Gives scheme, host and port of a URL. Raises ValueError for an invalid one."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _SCHEMES.get(parts.scheme, 0)


def one_line(text: str, token: str | None = None) -> str:
    """Makes a server's words fit for a message: one bounded line of visible characters, without the token."""
    # Cut first, so that a huge answer isn't cleaned whole; the factor leaves room for characters that go.
    bounded = text[: 20 * _MOST_SHOWN]
    if token:
        bounded = bounded.replace(token, "***")
    visible = "".join(char if char.isprintable() else " " for char in bounded)
    line = " ".join(visible.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."
