"""The reader of a repository of the Hub: configuration, index and header ranges; never the weights."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.core.checkpoints.hub.access import HubAccess
from headscope.core.checkpoints.hub.offline import bundled, cached, why_offline, without_network
from headscope.core.checkpoints.hub.requests import translated
from headscope.core.facts import CheckpointKind, CheckpointManifest
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.errors import Malformed, NetworkError, Unsupported

if TYPE_CHECKING:
    from headscope.core.checkpoints.hub.repository import Repository


def read_hub(access: HubAccess, progress: Callable[[str], None]) -> CheckpointManifest:
    """Reads the manifest of a repository of the Hub.

    If the Hub is out of reach, the cache is read, then a bundled snapshot of a known checkpoint, which a notice says.
    Raises NotFound, Gated, Offline or NetworkError.
    """
    barred = why_offline(access)
    if barred is not None:
        return without_network(access, barred)
    try:
        return _read_with_network(access, progress)
    except NetworkError as err:
        barred = NetworkError(f"the Hub was not reached ({err.message})")
        stored = cached(access, barred)
        # A cache with gaps may only hold a part of the files, so the bundled snapshot wins over it.
        whole = stored if stored is not None and stored.tensors and not stored.gaps else None
        known = whole or bundled(access, barred)
        if known is None:
            raise
        return known


def _read_with_network(access: HubAccess, progress: Callable[[str], None]) -> CheckpointManifest:
    from headscope.core.checkpoints.hub.repository import Repository, config_name  # for the network only

    progress(f"reading the configuration of {access.repo}")
    with translated(access.repo, access.revision), ThreadPoolExecutor(1) as pool:
        storage = Repository(access)
        config = config_name(access, storage, pool)
        progress(f"reading the headers of {access.repo}")
        manifest = _read_manifest_or_state(access, storage, config)
    return replace(
        manifest,
        reference=access.location.reference,
        revision=access.revision,
        commit=storage.commit,
        requests=len(access.connection.made),
    )


def _read_manifest_or_state(access: HubAccess, storage: "Repository", config: str) -> CheckpointManifest:
    """Reads the manifest; if the weights cannot be read, or are not there, with the state that the repository is in."""
    from headscope.core.checkpoints.hub.repository import surroundings_of
    from headscope.core.checkpoints.manifest import manifest_of

    try:
        manifest = manifest_of(storage, config, CheckpointKind.HUB, variant=access.location.variant)
    except (Malformed, Unsupported) as err:
        if config != CONFIG:
            raise
        return surroundings_of(access, storage).manifest_in_state(CheckpointKind.HUB, err)
    is_whole = bool(manifest.tensors) and not manifest.gaps
    return manifest if is_whole or config != CONFIG else surroundings_of(access, storage).with_state(manifest)


@contextmanager
def reaching(access: HubAccess, asked: list[int]) -> Iterator[None]:
    """Turns the client's errors into ours, for readings beside the manifest; `asked` gets the number of requests."""
    before = len(access.connection.made)
    with translated(access.repo, access.revision):
        yield
        asked.append(len(access.connection.made) - before)
