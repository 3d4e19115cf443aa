"""From a user's reference to a manifest: one reader for each kind of place."""

import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from headscope.checkpoints.adapter import base_of, is_adapter, joined, without_base
from headscope.checkpoints.bytes import LocalBytes
from headscope.checkpoints.local import WEIGHT_SUFFIXES, read_folder, read_weight_path
from headscope.checkpoints.reference import HubReference, parse_reference
from headscope.checkpoints.snapshot import LARGEST_SNAPSHOT, read_snapshot
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError
from headscope.facts import CheckpointManifest


def read_manifest(
    reference: str,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
    offline: bool = False,
    timeout: float | None = None,
    adapter: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> CheckpointManifest:
    """The manifest of a Hub id, `id@revision`, Hub URL, folder, weight file, snapshot file, or PEFT adapter.

    An adapter's base model is read from where its configuration says; `adapter` names one to put on `reference`.
    `variant` names other weights beside the usual ones (`fp16` for `model.fp16.safetensors`). `timeout` is how many
    seconds reading from the Hub may take in all. `progress` is told each step in a short sentence.
    Raises a `HeadscopeError`.
    """
    tell = progress or (lambda sentence: None)
    place = _Place(revision, subfolder, variant, cache_dir, token, offline, timeout, tell)
    manifest = _read(reference, place)
    if adapter is not None:
        return _on_base(_read(adapter, replace(place, revision=None, subfolder=None, variant=None)), manifest)
    if not is_adapter(manifest):
        return manifest
    if variant is not None:
        raise UsageError(
            f"--variant {variant} was given with {reference}, an adapter, whose files have none",
            "give the base model with --variant, and the adapter with --adapter",
        )
    base, base_revision = base_of(manifest)
    place.progress(f"reading the base model {base}")
    try:
        return joined(manifest, _read(base, replace(place, revision=base_revision, subfolder=None, variant=None)))
    except HeadscopeError as err:
        raise without_base(manifest, base, err) from err


@dataclass(frozen=True, slots=True)
class _Place:
    """How to reach a reference; see `read_manifest`."""

    revision: str | None
    subfolder: str | None
    variant: str | None
    cache_dir: str | None
    token: str | None = field(repr=False)
    offline: bool
    timeout: float | None
    progress: Callable[[str], None]


def _on_base(adapter: CheckpointManifest, base: CheckpointManifest) -> CheckpointManifest:
    if not is_adapter(adapter):
        raise UsageError(
            f"--adapter {adapter.reference} is no PEFT adapter: it holds no adapter_config.json",
            "give the folder or Hub id of an adapter, or leave out --adapter",
        )
    return joined(adapter, base)


def _read(reference: str, place: _Place) -> CheckpointManifest:
    found = parse_reference(reference)
    revision = place.revision
    if isinstance(found, HubReference):
        from headscope.checkpoints.hub import HubAccess, read_hub
        from headscope.checkpoints.ranges import DEADLINE_SECONDS, Deadline

        if revision and found.revision and revision != found.revision:
            raise UsageError(
                f"{reference} names the revision {found.revision}, and {revision} was asked for", "name one of them"
            )
        wanted = HubReference(found.repo, found.revision or revision)
        deadline = Deadline(place.timeout or DEADLINE_SECONDS)
        access = HubAccess(place.cache_dir, place.token, place.offline, place.subfolder, place.variant, deadline)
        return read_hub(wanted, reference, access, place.progress)
    return _read_path(found / place.subfolder if place.subfolder else found, reference, place.variant)


def _read_path(path: Path, reference: str, variant: str | None) -> CheckpointManifest:
    try:
        mode = path.stat().st_mode
    except OSError as err:
        raise NotFound(f"{reference} cannot be read: {err.strerror}", "check the path and its permissions") from err
    if stat.S_ISDIR(mode):
        return read_folder(path, reference, variant)
    if variant is not None:
        raise UsageError(
            f"--variant {variant} was given with {reference}, which is a file", "give the folder, or leave it out"
        )
    if not stat.S_ISREG(mode):
        raise Malformed(f"{reference} is no regular file", "give a folder, a weight file or a snapshot")
    if path.suffix in WEIGHT_SUFFIXES:
        return read_weight_path(path, reference)
    if path.suffix == ".json":
        return _read_json(path, reference)
    raise Unsupported(
        f"{reference} is no weight file and no snapshot", f"weight files end in {', '.join(WEIGHT_SUFFIXES)}"
    )


def _read_json(path: Path, reference: str) -> CheckpointManifest:
    if path.name == "config.json":
        raise UsageError(f"{reference} is a configuration without weights", "give the folder that holds it")
    source = LocalBytes(path, reference)
    if source.size > LARGEST_SNAPSHOT:
        raise Malformed(f"{reference} is too large for a snapshot", "give a file written by headscope snapshot")
    return read_snapshot(source.read_at(0, source.size), reference)
