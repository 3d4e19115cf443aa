"""Files that stand where weights should: Git LFS pointers, half downloads, formats of other frameworks."""

import hashlib
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from states.table.entry import Made, entry
from states.table.small import classifier, configured
from states.table.wrapped import BIN, SAFE


def _pointed(path: Path) -> None:
    """The pointer that Git leaves in place of a file: of the specification of Git LFS."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n")


def _pointers(family: str, save: Any, shown: str, pattern: str) -> None:
    code = f"git clone without git-lfs: pointers in place of {shown}"

    @entry(f"{family} cloned without Git LFS, {shown}", "HS811", code, tool="git clone without Git LFS")
    def make(folder: Path) -> Made:
        save(classifier(family), folder)
        for path in folder.glob(pattern):
            _pointed(path)
        return Made()


def _whole(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def _shards(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="20KB")


def _torch_file(model: Any, folder: Path) -> None:
    save_torch_state_dict(
        model.state_dict(),
        configured(model, folder),
        filename_pattern="pytorch_model{suffix}.bin",
        safe_serialization=False,
    )


_pointers("bert", _whole, SAFE, "*.safetensors")
_pointers("gpt2", _shards, "shards", "*.safetensors")
_pointers("vit", _torch_file, BIN, "*.bin")


def _half(title: str, code: str, save: Any, cut: Any, **rest: Any) -> None:
    """A save of the family that the title begins with, of which a part is missing."""

    @entry(title, "HS812", code, needs=("torch", "huggingface_hub"), **rest)
    def make(folder: Path) -> Made:
        save(classifier(title.partition(",")[0]), folder)
        cut(folder)
        return Made()


def _cut(pattern: str) -> Any:
    def cut(folder: Path) -> None:
        path = next(folder.glob(pattern))
        path.write_bytes(path.read_bytes()[:-900])

    return cut


def _incomplete(folder: Path) -> None:
    """What the client leaves in `--local-dir` when it is stopped: its own name for the file, by its own functions."""
    from huggingface_hub._local_folder import get_local_download_paths

    path = folder / SAFE
    paths = get_local_download_paths(folder, SAFE)
    part = paths.incomplete_path(hashlib.sha256(path.read_bytes()).hexdigest())
    part.write_bytes(path.read_bytes()[:2000])
    path.unlink()


_half(
    "electra, the last shard missing",
    "save_pretrained(max_shard_size='20KB'), a copy of all but one shard",
    _shards,
    lambda folder: max(folder.glob("model-*")).unlink(),
    exits=(3, 1),
)
_CUT = "900 bytes missing at the end"
_half("roberta, model.safetensors cut", f"save_pretrained(), {_CUT}", _whole, _cut("*.safetensors"))
_half("vit, pytorch_model.bin cut", f"torch.save(state_dict), {_CUT}", _torch_file, _cut("*.bin"))
_half(
    "bert, stopped in hf download",
    "hf download --local-dir, stopped: .cache/huggingface/download/*.incomplete",
    _whole,
    _incomplete,
    exits=(3, 1),
    tool="the Hub's client",
)

_KERAS = "h5py, the layout of save_weights of Keras"


@entry("bert in tf_model.h5", "HS810", _KERAS, needs=("h5py",), tool="TensorFlow")
def _keras(folder: Path) -> Made:
    import h5py

    model = classifier("bert")
    with h5py.File(configured(model, folder) / "tf_model.h5", "w") as file:
        file.attrs["layer_names"], file.attrs["backend"] = ["bert", "classifier"], "tensorflow"
        for key, value in model.state_dict().items():
            file.create_dataset(key.replace(".", "/"), data=value.numpy())
    return Made()


def _flax(family: str, *, configured_too: bool) -> None:
    @entry(
        f"{family} in flax_model.msgpack{'' if configured_too else ', no config.json'}",
        "HS810",
        "msgpack, the layout of flax.serialization.to_bytes",
        needs=("msgpack",),
        tool="Flax",
    )
    def make(folder: Path) -> Made:
        import msgpack

        model = classifier(family)
        if configured_too:
            configured(model, folder)
        held = {
            key: [list(value.shape), "float32", value.numpy().tobytes()] for key, value in model.state_dict().items()
        }
        (folder / "flax_model.msgpack").write_bytes(msgpack.packb(held))
        return Made()


_flax("roberta", configured_too=True)
_flax("gpt2", configured_too=False)
