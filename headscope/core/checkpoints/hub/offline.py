"""Reports without the Hub: the reason for no request, and what the cache and the bundled snapshots hold instead."""

import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
from headscope.core.checkpoints.hub.access import HubAccess
from headscope.core.checkpoints.reference import near_path
from headscope.core.checkpoints.snapshot import nearest_known, read_bundled
from headscope.core.facts import CheckpointKind, CheckpointManifest
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.core.upstream.hub import cached_file, commit_in_cache
from headscope.errors import HeadscopeError, NetworkError, Offline

_PROBE_SECONDS = 3.0


def why_offline(access: HubAccess) -> Offline | NetworkError | None:
    """Gives the reason to make no request, as the error that is raised if nothing helps; None if the Hub answers."""
    from huggingface_hub import constants

    if access.location.hub.offline:
        return Offline("offline mode")
    if constants.HF_HUB_OFFLINE:
        return Offline("HF_HUB_OFFLINE is set")
    if _hub_answers(constants.ENDPOINT):
        return None
    host = urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT
    return NetworkError(f"{host} is unreachable")


def _hub_answers(endpoint: str) -> bool:
    """True if the Hub's host takes a connection, or the proxy in front of it.

    The client retries an unreachable host for many seconds, so one short look comes first.
    """
    try:
        parts = urlsplit(_first_hop(endpoint))
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except (OSError, ValueError):  # ValueError: a setting that is not a URL
        return False


def _first_hop(endpoint: str) -> str:
    """Gives the URL that a request to the Hub connects to first."""
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme) or getproxies().get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return endpoint
    return proxy if "://" in proxy else f"http://{proxy}"


def without_network(access: HubAccess, barred: Offline | NetworkError) -> CheckpointManifest:
    """Reads the cache if it holds weights, then a bundled snapshot, then whatever the cache holds.

    Raises Offline or NetworkError, the reason in `barred`, if there is none.
    """
    stored = cached(access, barred)
    if stored is not None and stored.tensors:
        return stored
    found = bundled(access, barred) or stored
    if found is None:
        raise _offline_error(access, barred)
    return found


def cached(access: HubAccess, barred: HeadscopeError) -> CheckpointManifest | None:
    """Reads the manifest of what the Hub's cache holds of the checkpoint; None if it holds no configuration."""
    path = _cached_config(access, access.revision)
    if path is None:
        return None
    from headscope.core.checkpoints.local import Folder
    from headscope.core.checkpoints.manifest import manifest_of

    manifest = manifest_of(Folder(path.parent), path.name, CheckpointKind.HUB, variant=access.location.variant)
    notice = f"{barred.message}: read from the local cache"
    return replace(
        manifest,
        reference=access.location.reference,
        revision=access.revision,
        commit=commit_in_cache(path),
        notices=(notice, *manifest.notices),
    )


def cached_folder(access: HubAccess) -> Path | None:
    """Finds the folder of the Hub's cache that holds the configuration of a checkpoint; None if none does."""
    found = _cached_config(access, access.location.commit or access.revision)
    return None if found is None else found.parent


def _cached_config(access: HubAccess, revision: str | None) -> Path | None:
    """Finds the cached config.json at a revision, or the adapter_config.json of an adapter."""
    found = (
        cached_file(access.repo, access.inside(name), revision, access.location.hub.cache_dir)
        for name in (CONFIG, ADAPTER_CONFIG)
    )
    return next((path for path in found if path is not None), None)


def bundled(access: HubAccess, barred: HeadscopeError) -> CheckpointManifest | None:
    """Reads the bundled snapshot, which is of the main revision and has no subfolders or variants."""
    if access.revision is not None or access.location.subfolder or access.location.variant:
        return None
    # A location may be a URL: the report names what the user gave.
    known = read_bundled(access.repo, barred.message)
    return None if known is None else replace(known, reference=access.location.reference)


def _offline_error(access: HubAccess, barred: Offline | NetworkError) -> HeadscopeError:
    if access.revision is not None and read_bundled(access.repo, barred.message) is not None:
        return type(barred)(
            f"revision {access.revision} of {access.repo} is not in the local cache ({barred.message})",
            "leave out the revision to use the bundled snapshot, or give a local folder or a snapshot written by "
            "`headscope snapshot`",
        )
    # Only an ID without a revision or host could also have been meant as a path.
    named = access.location.reference == access.repo
    near = nearest_known(access.repo, access.location.hub.cache_dir) or (near_path(access.repo) if named else "")
    where = "is neither a file or folder here nor" if named else "is not"
    hint = f"did you mean {near}? " if near else ""
    hint += f"{'W' if near else 'w'}ithout the Hub, give a local folder or a snapshot written by `headscope snapshot`"
    return type(barred)(f"{access.repo} {where} in the local cache ({barred.message})", hint)
