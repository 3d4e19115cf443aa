"""Checkpoints on this machine: a folder, or a weight file beside its config.json."""

from pathlib import Path
from traceback import clear_frames

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.config_file import LARGEST_JSON
from headscope.checkpoints.formats.bytes import LocalBytes
from headscope.checkpoints.formats.exports import refuse_exports
from headscope.checkpoints.manifest import CONFIG, bare_manifest, in_state, manifest_of, manifest_of_file
from headscope.checkpoints.states.place import Place, names_below
from headscope.checkpoints.states.recognise import as_error, recognise, recognise_bad_file
from headscope.checkpoints.weights import read_weight_file, read_weights
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, WithoutConfig
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, Unavailable

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx")


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
    """The manifest of a folder.

    Where it holds no weights that `from_pretrained` reads, the manifest names its state, or without a config.json the
    error does. Raises NotFound where it holds no config.json.
    """
    folder = Folder(path)
    names = set(folder.names())
    if ADAPTER_CONFIG in names and not any(name.startswith(("model.", "pytorch_model.")) for name in names):
        return manifest_of(folder, ADAPTER_CONFIG, CheckpointKind.ADAPTER, reference)
    if CONFIG not in names:
        refuse_exports(names, folder.open)
        raise _without_config(folder, reference)
    try:
        manifest = manifest_of(folder, CONFIG, CheckpointKind.LOCAL, reference, variant)
    except (Malformed, Unsupported) as err:
        return _in_a_state(folder, reference, err)
    return _with_state(manifest, folder) if not manifest.tensors or manifest.gaps else manifest


def read_weight_path(path: Path, reference: str) -> CheckpointManifest:
    """The manifest of one weight file; its configuration is the config.json beside it."""
    folder = Folder(path.parent)
    refuse_exports([path.name], folder.open)
    if CONFIG not in set(folder.names()):
        raise _without_config(folder, reference, path.name)
    try:
        return manifest_of_file(folder, path.name, reference)
    except Malformed as err:
        return _in_a_state(folder, reference, err, path.name)


def _place(folder: Folder, file: str | None = None) -> Place:
    path = folder.path("")
    return Place(str(path.resolve()), (file,) if file else names_below(path), folder.open)


def _without_config(folder: Folder, reference: str, file: str | None = None) -> HeadscopeError:
    """The error for a place without a config.json: what it is instead."""
    found = recognise(_place(folder, file))
    if found is not None:
        return as_error(reference, found.state)
    tensors = _tensors_in(folder, file)
    if tensors:
        return WithoutConfig(f"{reference}: the weights have no {CONFIG} beside them.", _NO_CONFIG, tensors)
    if file:
        return NotFound(f"{reference} has no {CONFIG} beside it", "put the config.json of its model there")
    return NotFound(f"{reference} is no checkpoint: it holds no {CONFIG}", "give a folder written by save_pretrained")


_NO_CONFIG = "put the config.json of the model there"


def _tensors_in(folder: Folder, file: str | None) -> tuple[TensorHeader, ...]:
    """The headers of the weight file, or of the folder's weights; () where they cannot be read."""
    try:
        if file is not None:
            return read_weight_file(folder, file).tensors
        usual = read_weights(folder, {}).tensors
        names = [name for name in folder.names() if name.endswith((".safetensors", ".bin", ".pt", ".pth", ".ckpt"))]
        return usual or (read_weight_file(folder, names[0]).tensors if len(names) == 1 else ())
    except HeadscopeError:
        return ()


def _in_a_state(folder: Folder, reference: str, err: HeadscopeError, file: str | None = None) -> CheckpointManifest:
    """The manifest of a checkpoint whose weights could not be read, where its state tells what they would be.

    Raises an error of the same kind that names the state, or the error itself.
    """
    place = _place(folder, file)
    clear_frames(err.__traceback__)  # they hold what was read so far, and the file may be read again
    found = recognise_bad_file(place) if isinstance(err, Malformed) else recognise(place)
    if found is None:
        raise err
    if found.tensors is None:
        raise as_error(reference, found.state, type(err)) from err
    reason = f"from_pretrained cannot load them, as {found.state.rule} reports"
    return in_state(bare_manifest(folder, reference, Unavailable("weights", reason)), found)


def _with_state(manifest: CheckpointManifest, folder: Folder) -> CheckpointManifest:
    """The manifest of a checkpoint without weights, or with some that are missing, with its state."""
    found = recognise(_place(folder))
    return manifest if found is None else in_state(manifest, found)
