"""Where the files of an examined checkpoint lie, for what is read of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.api.examination import Request
from headscope.facts import CheckpointKind, CheckpointManifest

if TYPE_CHECKING:
    from headscope.checkpoints import Sidecar


@dataclass(frozen=True, slots=True)
class Place:
    """A place with weights, the checkpoint's own or its adapter's, and the manifest of what lies there."""

    sidecar: Sidecar
    manifest: CheckpointManifest


def open_places(request: Request, manifest: CheckpointManifest) -> list[Place]:
    """Each place that holds files of the checkpoint, the adapter's first; none for a snapshot.

    Raises a HeadscopeError where one cannot be reached.
    """
    if manifest.adapter is None:
        return _opened(request, request.reference, manifest)
    adapter = _opened(request, manifest.adapter.reference, manifest.adapter)
    return [*adapter, *_opened(request, manifest.base, replace(manifest, adapter=None, kind=CheckpointKind.LOCAL))]


def _opened(request: Request, reference: str, manifest: CheckpointManifest) -> list[Place]:
    from headscope.checkpoints import open_sidecar

    if manifest.kind is CheckpointKind.SNAPSHOT:
        return []
    own = reference == request.reference
    sidecar = open_sidecar(
        reference,
        manifest.commit if own else None,
        revision=request.revision if own else None,
        subfolder=request.subfolder if own else None,
        cache_dir=request.cache_dir,
        token=request.token,
        offline=request.offline,
    )
    return [] if sidecar is None else [Place(sidecar, manifest)]
