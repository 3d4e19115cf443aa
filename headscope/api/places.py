"""Where the files of an examined checkpoint lie, for what is read of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.api.examination import Request
from headscope.facts import CheckpointKind, CheckpointManifest

if TYPE_CHECKING:
    from headscope.checkpoints import FileReader


@dataclass(frozen=True, slots=True)
class Place:
    """A place with weights, the checkpoint's own or its adapter's, and the manifest of what lies there."""

    sidecar: FileReader
    manifest: CheckpointManifest


def open_places(request: Request, manifest: CheckpointManifest) -> list[Place]:
    """Each place that holds files of the checkpoint, the adapter's first; none for a snapshot.

    Each is opened at its own commit: an adapter and its base model seldom lie in one repository.
    Raises a HeadscopeError where one cannot be reached.
    """
    if manifest.kind is CheckpointKind.SNAPSHOT:
        return []
    if manifest.adapter is None:
        return _opened(request, request.reference, manifest, request.subfolder)
    folder_of_adapter, folder_of_base = (None, request.subfolder) if request.adapter else (request.subfolder, None)
    base = replace(
        manifest,
        adapter=None,
        kind=CheckpointKind.LOCAL,
        revision=manifest.base_revision,
        commit=manifest.base_commit,
    )
    return [
        *_opened(request, manifest.adapter.reference, manifest.adapter, folder_of_adapter),
        *_opened(request, manifest.base, base, folder_of_base),
    ]


def _opened(request: Request, reference: str, manifest: CheckpointManifest, subfolder: str | None) -> list[Place]:
    from headscope.checkpoints import open_sidecar

    sidecar = open_sidecar(
        reference,
        manifest.commit,
        revision=manifest.revision,
        subfolder=subfolder,
        cache_dir=request.cache_dir,
        token=request.token,
        offline=request.offline,
    )
    return [] if sidecar is None else [Place(sidecar, manifest)]
