"""The files that a request names: the manifest first, and what is read afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.examination.request import Progress, Request
from headscope.facts import (
    CheckpointKind,
    CheckpointManifest,
)

if TYPE_CHECKING:
    from headscope.checkpoints.tokenizer_file import FirstToken
    from headscope.model.remote_code import CodeSource

if TYPE_CHECKING:
    from headscope.checkpoints import FileReader


def read_checkpoint(request: Request, progress: Progress | None) -> CheckpointManifest:
    """The manifest of the checkpoint that a request names."""
    from headscope.checkpoints import read_manifest

    return read_manifest(
        request.reference,
        revision=request.revision,
        subfolder=request.subfolder,
        variant=request.variant,
        cache_dir=request.cache_dir,
        token=request.token,
        offline=request.offline,
        adapter=request.adapter,
        timeout=request.timeout,
        progress=progress,
    )


def code_source(request: Request, manifest: CheckpointManifest) -> CodeSource | None:
    """Where the repository's own code may be run from, if the user trusts it and it is at hand."""
    from headscope.model.remote_code import CodeSource

    if not request.trust_remote_code or manifest.kind not in (CheckpointKind.LOCAL, CheckpointKind.HUB):
        return None
    return CodeSource(
        place_of(request, manifest),
        manifest.commit or manifest.revision,
        request.cache_dir,
        request.token,
        request.offline,
    )


def place_of(request: Request, manifest: CheckpointManifest) -> str:
    """The folder or Hub id that a request names, as `from_pretrained` takes it."""
    from headscope.checkpoints.reference import HubReference, parse_reference

    found = parse_reference(request.reference)
    if manifest.kind is CheckpointKind.HUB and isinstance(found, HubReference):
        return found.repo
    path = Path(request.reference)
    return str(path if path.is_dir() else path.parent)


def own_first_token(request: Request, manifest: CheckpointManifest) -> FirstToken | None:
    """What the checkpoint's own tokenizer puts first; read where that costs no request, so not from the Hub."""
    from headscope.checkpoints.tokenizer_file import read_first_token

    if manifest.kind is not CheckpointKind.LOCAL or request.adapter is not None:
        return None
    folder = Path(place_of(request, manifest))
    return read_first_token(folder / request.subfolder if request.subfolder else folder)


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """A place with weights, the checkpoint's own or its adapter's, and the manifest of what lies there."""

    sidecar: FileReader
    manifest: CheckpointManifest


def open_stored_files(request: Request, manifest: CheckpointManifest) -> list[StoredFiles]:
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


def _opened(request: Request, reference: str, manifest: CheckpointManifest, subfolder: str | None) -> list[StoredFiles]:
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
    return [] if sidecar is None else [StoredFiles(sidecar, manifest)]
