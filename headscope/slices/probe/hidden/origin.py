"""Origin of a run's vectors, all that they depend on: the checkpoint's bytes, the texts, the options, the versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from headscope.core.facts import CheckpointKind, CheckpointManifest
from headscope.core.source.reading.reading import loadable
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import versions_key
from headscope.slices.probe.hidden.store import Origin, digest_of_file

_LARGEST_BESIDE = 64 * 2**20
"""Bytes of a file beside the weights that is read: a tokenizer's are smaller."""


def origin_of_vectors(
    request: Request,
    manifest: CheckpointManifest,
    texts: Sequence[tuple[str, ...]],
    options: dict[str, str],
    *,
    are_files: bool = False,
) -> Origin:
    """Gives the origin of the vectors of these texts or files; `options` names what else they depend on."""
    if manifest.kind is CheckpointKind.HUB and not manifest.commit:
        return Origin(unknown="the commit of the checkpoint is not known")
    try:
        checkpoint = manifest.commit or _digest_of_folder(request, manifest)
        given = [(digest_of_file(Path(path)),) for (path,) in texts] if are_files else texts
    except OSError as err:
        return Origin(unknown=f"the files of the checkpoint or of the data cannot be read: {err.strerror}")
    digest = hashlib.blake2b(digest_size=20)
    for text in given:
        digest.update(repr(text).encode("utf-8", "backslashreplace") + b"\n")
    parts = {
        "checkpoint": f"{checkpoint} {request.location.subfolder or ''} {request.location.variant or ''}",
        "texts": digest.hexdigest(),
        "versions": hashlib.sha256(repr(versions_key(manifest.config)).encode()).hexdigest()[:40],
    }
    return Origin(parts | options)


def _digest_of_folder(request: Request, manifest: CheckpointManifest) -> str:
    """Digests the weights and all files beside them that a model or a tokenizer may read. Raises OSError."""
    place = loadable(request, manifest)
    folder = Path(place.reference, place.subfolder or "")
    found = hashlib.blake2b(digest_size=20)
    # Sorted, because the order of a folder's entries depends on the file system.
    beside = (path for path in folder.iterdir() if path.is_file() and path.stat().st_size <= _LARGEST_BESIDE)
    for path in sorted({*(folder / file.name for file in manifest.files), *beside}):
        found.update(f"{path.name} {digest_of_file(path)}\n".encode("utf-8", "backslashreplace"))
    return found.hexdigest()
