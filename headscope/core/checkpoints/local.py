"""Checkpoints on this machine: a folder, or a weight file beside its config.json."""

from pathlib import Path
from typing import TYPE_CHECKING

from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG, holds_adapter_alone
from headscope.core.checkpoints.exports.refusal import refuse_exports
from headscope.core.checkpoints.foreign.adapter_hub import refuse_adapter_hub
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.config_file import largest_text
from headscope.core.checkpoints.manifest import manifest_of, manifest_of_file
from headscope.core.facts import CheckpointKind, CheckpointManifest
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.errors import Malformed, NotFound, Unsupported

if TYPE_CHECKING:
    from headscope.core.checkpoints.unusual import PlaceSurroundings


class Folder:
    """A folder as a storage; shards are read beside the index and nowhere else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> tuple[str, ...]:
        """Lists the entries of the folder that are not folders. Raises NotFound if it can't be listed."""
        try:
            return tuple(sorted(entry.name for entry in self._path.iterdir() if not entry.is_dir()))
        except OSError as err:
            raise NotFound(f"{self._path} cannot be listed: {err.strerror}", "check its permissions") from err

    def names_at_hand(self) -> tuple[str, ...]:
        """See `Storage`."""
        return self.names()

    def has(self, name: str) -> bool:
        """See `Storage`."""
        return name in self.names()

    def read_text(self, name: str) -> bytes:
        """See `Storage`. Raises Malformed for a file that is too large to be one."""
        return read_small_file(self.path(name), name)

    def open(self, name: str, first: int = 0) -> LocalBytes:
        """See `Storage`; on a disk nothing is read ahead."""
        return LocalBytes(self.path(name), name)

    def path(self, name: str) -> Path:
        """Gives the path that a file of that name has or would have."""
        return self._path / name


def read_small_file(path: Path, name: str) -> bytes:
    """Reads a file whole. Raises Malformed for one that is too large for its name."""
    source = LocalBytes(path, name)
    if source.size > largest_text(name):
        raise Malformed(f"{name} has {source.size} bytes, too large for such a file", "check what the file is")
    return source.read_at(0, source.size)


def read_folder(path: Path, reference: str, variant: str | None = None) -> CheckpointManifest:
    """Reads the manifest of a folder.

    If it holds no weights that `from_pretrained` reads, the manifest names its state; without a config.json the error
    does. Raises NotFound if it holds no config.json, Unsupported for a folder of another library.
    """
    folder = Folder(path)
    names = set(folder.names())
    if holds_adapter_alone(names):
        # AdapterHub writes an adapter_config.json too, but its weights are not those of PEFT.
        refuse_adapter_hub(names, folder, reference)
        return manifest_of(folder, ADAPTER_CONFIG, CheckpointKind.ADAPTER, reference)
    if CONFIG not in names:
        raise _surroundings_of(folder, reference).error_without_config()
    try:
        manifest = manifest_of(folder, CONFIG, CheckpointKind.LOCAL, reference, variant)
    except (Malformed, Unsupported) as err:
        return _surroundings_of(folder, reference).manifest_in_state(CheckpointKind.LOCAL, err)
    is_whole = bool(manifest.tensors) and not manifest.gaps
    return manifest if is_whole else _surroundings_of(folder, reference).with_state(manifest)


def read_weight_path(path: Path, reference: str) -> CheckpointManifest:
    """Reads the manifest of one weight file; its configuration is the config.json beside it.

    Raises WithoutConfig if there is none.
    """
    folder = Folder(path.parent)
    names = set(folder.names())
    refuse_exports([path.name, *({CONFIG} & names)], folder.open)
    if CONFIG not in names:
        raise _surroundings_of(folder, reference, path.name).error_without_config()
    try:
        return manifest_of_file(folder, path.name, reference)
    except Malformed as err:
        return _surroundings_of(folder, reference, path.name).manifest_in_state(CheckpointKind.LOCAL, err)


def _surroundings_of(folder: Folder, reference: str, file: str | None = None) -> "PlaceSurroundings":
    # Imported here: what tells other places apart is only needed where a checkpoint isn't a plain one.
    from headscope.core.checkpoints.states.place import StatePlace, names_below
    from headscope.core.checkpoints.unusual import PlaceSurroundings

    path = folder.path("")
    # For a single file only that file is looked at: others in its folder may belong to other models.
    place = StatePlace(str(path.resolve()), (file,) if file else names_below(path), folder.open)
    return PlaceSurroundings(folder, place, reference, file)
