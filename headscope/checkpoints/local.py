"""Checkpoints on this machine: a folder, or a weight file beside its config.json."""

from pathlib import Path

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.config_file import LARGEST_JSON
from headscope.checkpoints.formats.bytes import LocalBytes
from headscope.checkpoints.formats.exports import refuse_exports
from headscope.checkpoints.manifest import CONFIG, manifest_of, manifest_of_file
from headscope.errors import Malformed, NotFound
from headscope.facts import CheckpointKind, CheckpointManifest

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx")


class Folder:
    """A folder as a storage; shards are read beside the index and nowhere else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> tuple[str, ...]:
        """The names of the entries of the folder, but for folders."""
        try:
            return tuple(sorted(entry.name for entry in self._path.iterdir() if not entry.is_dir()))
        except OSError as err:
            raise NotFound(f"{self._path} cannot be listed: {err.strerror}", "check its permissions") from err

    def read_text(self, name: str) -> bytes:
        """See `Storage`."""
        source = self.open(name)
        if source.size > LARGEST_JSON:
            raise Malformed(f"{name} has {source.size} bytes, too many for what it should be", "check what the file is")
        return source.read_at(0, source.size)

    def open(self, name: str, first: int = 0) -> LocalBytes:
        """See `Storage`; on a disk nothing is read ahead."""
        return LocalBytes(self.path(name), name)

    def path(self, name: str) -> Path:
        """Where a file of that name lies or would lie."""
        return self._path / name


def read_folder(path: Path, reference: str, variant: str | None = None) -> CheckpointManifest:
    """The manifest of a folder. Raises NotFound where it holds no config.json."""
    folder = Folder(path)
    names = set(folder.names())
    if ADAPTER_CONFIG in names and not any(name.startswith(("model.", "pytorch_model.")) for name in names):
        return manifest_of(folder, ADAPTER_CONFIG, CheckpointKind.ADAPTER, reference)
    if CONFIG not in names:
        refuse_exports(names, folder.open)
        hint = "give a folder written by save_pretrained"
        raise NotFound(f"{reference} is no checkpoint: it holds no {CONFIG}", hint)
    return manifest_of(folder, CONFIG, CheckpointKind.LOCAL, reference, variant)


def read_weight_path(path: Path, reference: str) -> CheckpointManifest:
    """The manifest of one weight file; its configuration is the config.json beside it."""
    folder = Folder(path.parent)
    refuse_exports([path.name], folder.open)
    if CONFIG not in set(folder.names()):
        raise NotFound(f"{reference} has no {CONFIG} beside it", "put the config.json of its model there")
    return manifest_of_file(folder, path.name, reference)
