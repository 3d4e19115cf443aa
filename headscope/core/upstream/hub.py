"""huggingface_hub: its HTTP session, whose library it does not promise, and the layout of its cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from headscope.errors import moved

_MODELS = "models--"


def session() -> Any:
    """Gives the client's HTTP session of this thread."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # exported lazily

    return get_session()


def http_library() -> Any:
    """Gives the HTTP library of the client, httpx or httpx2 with the same names."""
    return sys.modules[type(session()).__module__.partition(".")[0]]


def transport_error() -> type[Exception]:
    """Gives the base of the errors of the client's HTTP library. Raises Unsupported if it has none."""
    found = getattr(http_library(), "HTTPError", None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise moved("huggingface_hub", "its HTTP library has no HTTPError")
    return found


def cached_file(repo: str, name: str, revision: str | None, cache_dir: str | None) -> Path | None:
    """Finds a file in the client's cache; None where it is not there, or known not to exist."""
    from huggingface_hub import constants

    if not Path(cache_dir or constants.HF_HUB_CACHE, _MODELS + repo.replace("/", "--")).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache  # which imports the HTTP library

    found = try_to_load_from_cache(repo, name, cache_dir=cache_dir, revision=revision)
    return Path(found) if isinstance(found, str) else None


def commit_in_cache(path: Path) -> str | None:
    """Reads the commit in the path of a cached file: `.../models--OWNER--NAME/snapshots/<commit>/...`."""
    parts = path.parts
    repository = next((at for at, part in enumerate(parts) if part.startswith(_MODELS)), None)
    inside = parts[repository + 1 :] if repository is not None else ()
    return inside[1] if len(inside) > 1 and inside[0] == "snapshots" else None


def cached_repositories(cache_dir: str | None) -> tuple[str, ...]:
    """Lists the IDs of the models in the client's cache."""
    from huggingface_hub import constants

    return repositories_in(Path(cache_dir or constants.HF_HUB_CACHE))


def repositories_in(folder: Path) -> tuple[str, ...]:
    """Lists the IDs of the models in a cache: `models--OWNER--NAME` is the folder of one."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ()
    return tuple(name.removeprefix(_MODELS).replace("--", "/") for name in names if name.startswith(_MODELS))


def client_cache(cache_dir: str | None) -> Path:
    """Finds the client's cache without importing the client: a shell waits for a completion."""
    home = _path_in("HF_HOME") or Path(os.getenv("XDG_CACHE_HOME", "~/.cache"), "huggingface").expanduser()
    return Path(cache_dir) if cache_dir else _path_in("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or home / "hub"


def _path_in(*variables: str) -> Path | None:
    """Gives the path in the first of these environment variables that is set."""
    found = next((os.environ[name] for name in variables if name in os.environ), None)
    return None if found is None else Path(os.path.expandvars(found)).expanduser()
