"""The references that users give as MODEL: something on this machine, or a repository of the Hub at a revision."""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headscope.errors import NotFound, Unsupported, UsageError

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?P<id>{_NAME}(?:/{_NAME})?)(?:@(?P<revision>[^@\s]+))?")
_PATH_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".gguf", ".onnx")
_REVISION_WORDS = {"tree", "blob", "resolve", "raw", "commit", "edit"}
_PUBLIC_HOSTS = {"huggingface.co", "www.huggingface.co", "hf.co"}


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository of the Hub and the requested revision, if any."""

    repo: str
    revision: str | None = None


Reference = Path | HubReference


def parse_reference(text: str) -> Reference:
    """Resolves `text` to a path or a Hub reference; what exists on this machine comes first, as in Transformers.

    Raises UsageError for what can be neither, NotFound for a path that does not exist.
    """
    if not text or len(text) > 4096 or "\0" in text:
        raise UsageError("MODEL is empty or not a usable name", "give a Hub ID, a folder or a file")
    # The order decides: a folder named like a Hub ID is the folder, and only what can't be a path is looked up on the
    # Hub.
    for parse in (_parse_url, _find_existing_path, _refuse_missing_path):
        found = parse(text)
        if found is not None:
            return found
    match = _HUB_ID.fullmatch(text)
    if match:
        return HubReference(match["id"], match["revision"])
    raise NotFound(
        f"{text} is neither a local path nor a Hub ID",
        "a Hub ID is `name` or `owner/name`, with `@revision` if needed",
    )


def _parse_url(text: str) -> HubReference | None:
    if text.startswith("hf://"):
        return _from_path(text.removeprefix("hf://"), text)
    if not text.lower().startswith(("http://", "https://")):
        return None
    try:
        parts = urlsplit(text)
    except ValueError as err:
        raise UsageError(f"{text} is not a URL: {err}", "give a Hub URL, a Hub ID, a folder or a file") from err
    # A mirror or a private Hub has other pages.
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    if parts.hostname not in _PUBLIC_HOSTS | ({endpoint.hostname} if endpoint.hostname else set()):
        raise UsageError(f"{text} is not a page of the Hub", "give a Hub URL, a Hub ID, a folder or a file")
    return _from_path(parts.path, text)


def _from_path(path: str, text: str) -> HubReference:
    """Parses the path of a page of the Hub, such as `owner/name/tree/main`."""
    parts = [unquote(part) for part in path.split("/") if part]
    if parts and parts[0] in {"datasets", "spaces"}:
        raise Unsupported(f"{text} is one of the Hub's {parts[0]}, not a model", "give the page of a model")
    parts = parts[1:] if parts and parts[0] == "models" else parts
    cut = next((at for at, part in enumerate(parts) if part in _REVISION_WORDS), len(parts))
    match = _HUB_ID.fullmatch("/".join(parts[:cut]))
    if match is None:
        raise UsageError(f"{text} names no model", "a model's page is `owner/name`")
    revision = parts[cut + 1] if cut + 1 < len(parts) else match["revision"]
    return HubReference(match["id"], revision)


def _find_existing_path(text: str) -> Path | None:
    try:
        path = Path(text).expanduser() if text.startswith("~") else Path(text)
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a home directory that is not known
        return None


def _refuse_missing_path(text: str) -> None:
    """Raises NotFound for a text that only a path can have: the Hub would give a confusing error for it."""
    is_path = text.startswith((".", "/", "~", "\\")) or text.count("/") > 1 or "\\" in text
    if is_path or text.lower().endswith(_PATH_SUFFIXES):
        near = near_path(text)
        hint = f"did you mean {near}?" if near else "check the path; a Hub ID is `name` or `owner/name`"
        raise NotFound(f"{text} does not exist", hint)


def near_path(text: str) -> str:
    """Gives the path beside a missing one whose name is nearest to its name; "" without one."""
    place, slash, name = text.rstrip("/").rpartition("/")
    try:
        near = get_close_matches(name, [item.name for item in Path(f"{place}{slash}").iterdir()], n=1)
    except OSError:
        return ""
    return f"{place}{slash}{near[0]}" if near else ""
