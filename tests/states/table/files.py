"""Files that stand where weights should: Git LFS pointers, half downloads, formats of other frameworks."""

import hashlib
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from states.table.entry import Made, entry
from states.table.small import classifier, configured
from states.table.wrapped import BIN, SAFE

_NO_LFS = "needs git-lfs and the remote"


def _pointed(path: Path) -> None:
    """The pointer that Git leaves in place of a file: of the specification of Git LFS."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n")


def _pointers(family: str, save: Any, shown: str, pattern: str) -> None:
    @entry(
        f"{family} cloned without Git LFS, {shown}",
        "HS811",
        f"git clone without git-lfs: pointers in place of {shown}",
        exits=(3, 3),
        tool="git clone without Git LFS",
        repaired=_NO_LFS,
    )
    def make(folder: Path) -> Made:
        save(classifier(family), folder)
        for path in folder.glob(pattern):
            _pointed(path)
        return Made()


def _shards(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="20KB")


def _torch_file(model: Any, folder: Path) -> None:
    save_torch_state_dict(
        model.state_dict(),
        configured(model, folder),
        filename_pattern="pytorch_model{suffix}.bin",
        safe_serialization=False,
    )


_pointers("bert", lambda model, folder: model.save_pretrained(folder), SAFE, "*.safetensors")
_pointers("gpt2", _shards, "shards", "*.safetensors")
_pointers("vit", _torch_file, BIN, "*.bin")

_NO_HUB = "`hf download` needs the Hub"


def _half(  # noqa: PLR0917 - a row of a table
    title: str, code: str, family: str, save: Any, cut: Any, exits: tuple[int, int], tool: str = ""
) -> None:
    @entry(title, "HS812", code, needs=("torch", "huggingface_hub"), exits=exits, tool=tool, repaired=_NO_HUB)
    def make(folder: Path) -> Made:
        save(classifier(family), folder)
        cut(folder)
        return Made()


def _lose_last(folder: Path) -> None:
    sorted(folder.glob("model-*"))[-1].unlink()


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
    "electra",
    _shards,
    _lose_last,
    (3, 1),
)
_half(
    "roberta, model.safetensors cut",
    "save_pretrained(), 900 bytes missing at the end",
    "roberta",
    lambda model, folder: model.save_pretrained(folder),
    _cut("*.safetensors"),
    (3, 3),
)
_half(
    "vit, pytorch_model.bin cut",
    "torch.save(state_dict), 900 bytes missing at the end",
    "vit",
    _torch_file,
    _cut("*.bin"),
    (3, 3),
)
_half(
    "bert, stopped in hf download",
    "hf download --local-dir, stopped: .cache/huggingface/download/*.incomplete",
    "bert",
    lambda model, folder: model.save_pretrained(folder),
    _incomplete,
    (3, 1),
    "the Hub's client",
)

_NO_FOUR = "needs transformers<5"


@entry(
    "bert in tf_model.h5",
    "HS810",
    "h5py, the layout of save_weights of Keras",
    needs=("h5py",),
    exits=(3, 3),
    tool="TensorFlow",
    repaired=_NO_FOUR,
)
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
        exits=(3, 3),
        tool="Flax",
        repaired=_NO_FOUR,
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
