"""The readers of checkpoints, one for each kind of place that a user's reference can name."""

import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from headscope.core.checkpoints.contents.adapter import base_of, is_adapter, joined_manifest, without_base
from headscope.core.checkpoints.formats.bytes import LocalBytes, refusing_once
from headscope.core.checkpoints.reference import HubReference, parse_reference
from headscope.core.checkpoints.snapshot import LARGEST_SNAPSHOT, read_snapshot
from headscope.core.facts import CheckpointManifest
from headscope.core.facts.stored.checkpoint import TOKENIZER_CONFIG, WEIGHT_SUFFIXES
from headscope.core.facts.stored.location import Location
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError


def read_manifest(
    location: Location, *, adapter: str | None = None, progress: Callable[[str], None] | None = None
) -> CheckpointManifest:
    """Reads the manifest of a Hub ID, `id@revision`, Hub URL, folder, weight file, snapshot file, or PEFT adapter.

    An adapter's base model is read from where its configuration says; `adapter` names one to put on `location`. A
    variant names other weights beside the usual ones (`fp16` for `model.fp16.safetensors`). `progress` gets each step
    in a short sentence. Raises a `HeadscopeError`.
    """
    tell = progress or (lambda sentence: None)
    read = partial(_read_place, progress=tell)
    manifest = read(location)
    if adapter is not None:
        return _join_named_adapter(read(Location(adapter, hub=location.hub)), manifest)
    if not is_adapter(manifest):
        return manifest
    if location.variant is not None:
        raise UsageError(
            f"--variant {location.variant} doesn't apply to the adapter {location.reference}",
            "give the base model with --variant, and the adapter with --adapter",
        )
    base, base_revision = base_of(manifest)
    tell(f"reading the base model {base}")
    try:
        return joined_manifest(manifest, read(Location(base, base_revision, hub=location.hub)))
    except HeadscopeError as err:
        raise without_base(manifest, base, err) from err


def _join_named_adapter(adapter: CheckpointManifest, base: CheckpointManifest) -> CheckpointManifest:
    if not is_adapter(adapter):
        raise UsageError(
            f"--adapter {adapter.reference} is not a PEFT adapter: it holds no adapter_config.json",
            "give the folder or Hub ID of an adapter, or leave out --adapter",
        )
    return joined_manifest(adapter, base)


@refusing_once()
def _read_place(location: Location, progress: Callable[[str], None]) -> CheckpointManifest:
    found = parse_reference(location.reference)
    if isinstance(found, HubReference):
        # Imported here: local checkpoints need neither the Hub's client nor the time that its import takes.
        from headscope.core.checkpoints.hub.access import access_to
        from headscope.core.checkpoints.hub.reading import read_hub

        if location.revision and found.revision and location.revision != found.revision:
            raise UsageError(
                f"{location.reference} names the revision {found.revision}, and the requested revision is "
                f"{location.revision}",
                "name one of them",
            )
        return read_hub(access_to(found, location), progress)
    path = found / location.subfolder if location.subfolder else found
    manifest = _read_path(path, location.reference, location.variant)
    # An adapter without a tokenizer uses that of its base model.
    is_without = is_adapter(manifest) and path.is_dir() and not (path / TOKENIZER_CONFIG).is_file()
    return replace(manifest, lacks_tokenizer=True) if is_without else manifest


def _read_path(path: Path, reference: str, variant: str | None) -> CheckpointManifest:
    from headscope.core.checkpoints.local import read_folder, read_weight_path  # not for the Hub

    try:
        mode = path.stat().st_mode
    except OSError as err:
        raise NotFound(f"{reference} cannot be read: {err.strerror}", "check the path and its permissions") from err
    if stat.S_ISDIR(mode):
        return read_folder(path, reference, variant)
    if variant is not None:
        raise UsageError(
            f"--variant {variant} doesn't apply to a file such as {reference}", "pass the folder, or leave it out"
        )
    # Reading a FIFO or a device could hang.
    if not stat.S_ISREG(mode):
        raise Malformed(f"{reference} is not a regular file", "give a folder, a weight file or a snapshot")
    if path.suffix in WEIGHT_SUFFIXES:
        return read_weight_path(path, reference)
    if path.suffix == ".json":
        return _read_json(path, reference)
    raise Unsupported(
        f"{reference} is neither a weight file nor a snapshot", f"weight files end in {', '.join(WEIGHT_SUFFIXES)}"
    )


def _read_json(path: Path, reference: str) -> CheckpointManifest:
    if path.name == "config.json":
        raise UsageError(f"{reference} is a configuration without weights", "give the folder that holds it")
    source = LocalBytes(path, reference)
    if source.size > LARGEST_SNAPSHOT:
        raise Malformed(f"{reference} is too large for a snapshot", "give a file written by headscope snapshot")
    return read_snapshot(source.read_at(0, source.size), reference)
