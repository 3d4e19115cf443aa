"""The files that a request names: the manifest first, and what is read afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import WithoutConfig
from headscope.examination.request import Progress, Request
from headscope.facts import (
    Carried,
    CheckpointKind,
    CheckpointManifest,
    HeadParameter,
    ParameterOrigin,
    ParameterStatus,
    TensorHeader,
    WeightsFormat,
)
from headscope.facts.location import Location

if TYPE_CHECKING:
    from headscope.checkpoints import FileReader
    from headscope.checkpoints.tokenizer_file import FirstToken


def read_checkpoint(request: Request, progress: Progress | None) -> CheckpointManifest:
    """The manifest of the checkpoint that a request names."""
    from headscope.checkpoints import read_manifest

    try:
        manifest = read_manifest(request.location, adapter=request.adapter, progress=progress)
    except WithoutConfig as err:
        from headscope.examination.without_config import with_proposals

        raise with_proposals(err) from err
    return _with_extra_files(request, manifest)


def _with_extra_files(request: Request, manifest: CheckpointManifest) -> CheckpointManifest:
    """The manifest with the tensors of the files that the configuration's class names beside the weights.

    A folder without other safetensors files is not looked at, so Transformers is imported for the few that have some.
    """
    from headscope.checkpoints import open_sidecar, with_weight_file
    from headscope.upstream.extra_files import extra_files_of, has_extra_files

    model_type, is_hub = manifest.config.get("model_type"), manifest.kind is CheckpointKind.HUB
    is_folder = manifest.kind is CheckpointKind.LOCAL and not Path(request.reference).is_file()
    if manifest.format is not WeightsFormat.SAFETENSORS or manifest.adapter is not None or not (is_hub or is_folder):
        return manifest
    if not isinstance(model_type, str) or (is_hub and not has_extra_files(model_type)):  # a listing costs a request
        return manifest
    sidecar = open_sidecar(replace(request.location, revision=manifest.revision, commit=manifest.commit))
    known = {file.name for file in manifest.files}
    others = {name for name in sidecar.names() if name.endswith(".safetensors")} - known if sidecar is not None else ()
    for name in extra_files_of(model_type, request.model_class) if others else ():
        if sidecar is not None and name in others:
            with sidecar.reaching():
                manifest = with_weight_file(manifest, sidecar.storage, name)
    return manifest


def trusted_code(request: Request, manifest: CheckpointManifest) -> Location | None:
    """Where the repository's own code may be run from, if the user trusts it and it is at hand."""
    if not request.trust_remote_code or manifest.kind not in (CheckpointKind.LOCAL, CheckpointKind.HUB):
        return None
    return loadable(request, manifest)


def loadable(request: Request, manifest: CheckpointManifest) -> Location:
    """What a request names as `from_pretrained` takes it: a folder or a Hub ID, at the commit that was examined."""
    from headscope.checkpoints.reference import HubReference, parse_reference

    found = parse_reference(request.reference)
    at_commit = replace(request.location, revision=manifest.revision, commit=manifest.commit)
    if manifest.kind is CheckpointKind.HUB and isinstance(found, HubReference):
        return replace(at_commit, reference=found.repo)
    path = Path(request.reference)
    return replace(at_commit, reference=str(path if path.is_dir() else path.parent))


def own_first_token(request: Request, manifest: CheckpointManifest) -> FirstToken | None:
    """What the checkpoint's own tokenizer puts first; read where that costs no request, so not from the Hub."""
    from headscope.checkpoints.tokenizer_file import read_first_token

    if manifest.kind is not CheckpointKind.LOCAL or request.adapter is not None:
        return None
    place = loadable(request, manifest)
    return read_first_token(Path(place.reference, place.subfolder or ""))


WITHOUT_WEIGHTS = {
    CheckpointKind.ADAPTER: "a PEFT adapter, which headscope does not load into its base model",
    CheckpointKind.SNAPSHOT: "a snapshot, which holds no weights",
}
"""The kinds of checkpoints whose weights are not run, and why."""


@dataclass(frozen=True)
class StoredFiles:
    """A place with weights, the checkpoint's own or its adapter's, and the manifest of what is there."""

    sidecar: FileReader
    manifest: CheckpointManifest

    def header_of(self, item: HeadParameter | ParameterOrigin) -> TensorHeader | None:
        """The one stored tensor that fills a parameter, where it is in this place: the adapter's or the base's."""
        if item.status is not ParameterStatus.LOADED or len(item.checkpoint_keys) != 1:
            return None
        is_of_adapter = self.manifest.kind is CheckpointKind.ADAPTER
        return self._headers.get(item.checkpoint_keys[0]) if (item.adapter is Carried.SAVED) == is_of_adapter else None

    @cached_property
    def _headers(self) -> dict[str, TensorHeader]:
        return {tensor.key: tensor for tensor in self.manifest.tensors}


def open_stored_files(request: Request, manifest: CheckpointManifest) -> list[StoredFiles]:
    """Each place that holds files of the checkpoint, the adapter's first; none for a snapshot.

    Each is opened at its own commit: an adapter and its base model seldom are in one repository.
    Raises a HeadscopeError where one cannot be reached.
    """
    if manifest.kind is CheckpointKind.SNAPSHOT:
        return []
    if manifest.adapter is None:
        return _opened(replace(request.location, revision=manifest.revision, commit=manifest.commit), manifest)
    subfolder, hub = request.location.subfolder, request.location.hub
    folder_of_adapter, folder_of_base = (None, subfolder) if request.adapter else (subfolder, None)
    adapter = manifest.adapter
    base = replace(
        manifest,
        adapter=None,
        kind=CheckpointKind.LOCAL,
        revision=manifest.base_revision,
        commit=manifest.base_commit,
    )
    return [
        *_opened(Location(adapter.reference, adapter.revision, adapter.commit, folder_of_adapter, hub=hub), adapter),
        *_opened(Location(manifest.base, base.revision, base.commit, folder_of_base, hub=hub), base),
    ]


def _opened(location: Location, manifest: CheckpointManifest) -> list[StoredFiles]:
    from headscope.checkpoints import open_sidecar

    sidecar = open_sidecar(location)
    return [] if sidecar is None else [StoredFiles(sidecar, manifest)]
