"""What stands where a weight file should: nothing, pages, pointers, pipes, links, other formats."""

import os
from collections.abc import Callable
from pathlib import Path

from hostile.corpus.case import Build, Case, checkpoint, snapshot_of, with_files

_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n"
_TAR = b"\0" * 257 + b"ustar" + b"\0" * 300
_PAGE = b"<!DOCTYPE html><html><body>Sign in</body></html>"
_STAND_INS = {
    "empty": (b"", "is empty"),
    "pointer": (_POINTER, "Git LFS pointer"),
    "page": (_PAGE, "HTML page"),
    "page, lower case": (b"\n\n <html>\n", "HTML page"),
    "one byte": (b"x", " is not a "),
    "zeros": (b"\0" * 64, " is not a "),
    "JSON": (b'{"error": "not found"}', " is not a "),
    "text": (b"Not Found\n", " is not a "),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 40, " is not a "),
}
_OTHERS = {
    "tf_model.h5": "TensorFlow",
    "flax_model.msgpack": "Flax",
    "model.onnx": "ONNX",
    "model-q4.gguf": "GGUF",
    "model.ckpt.index": "TensorFlow",
}


def _with(make: Callable[[Path], object], name: str = "model.safetensors") -> Build:
    """A checkpoint with something else in the place of a file."""

    def build(folder: Path) -> list[str]:
        made = checkpoint(folder, {})
        (made / name).unlink(missing_ok=True)
        make(made / name)
        return snapshot_of(made)

    return build


def _fifo_itself(folder: Path) -> list[str]:
    os.mkfifo(folder / "pipe")
    return snapshot_of(folder / "pipe")


def _folder_as_weights(folder: Path) -> list[str]:
    made = checkpoint(folder, {})
    (made / "model.safetensors").mkdir()
    return ["inspect", str(made)]


def _device(folder: Path) -> list[str]:
    return ["snapshot", "/dev/zero", "-o", str(folder / "out.json")]


CASES = (
    *(
        Case(f"{name} as {file}", with_files(files={file: content}), words=(word, "hint:"))
        for name, (content, word) in _STAND_INS.items()
        for file in ("model.safetensors", "pytorch_model.bin")
    ),
    *(Case(f"only {name}", with_files(files={name: b"0"}), words=(kind, name)) for name, kind in _OTHERS.items()),
    Case("pipe as weights", _with(os.mkfifo), words=("not a regular file",)),
    Case("pipe as configuration", _with(os.mkfifo, "config.json"), words=("not a regular file",)),
    Case("pipe as model", _fifo_itself, words=("not a regular file",)),
    Case("device as model", _device, words=("not a regular file",)),
    Case("device as weights", _with(lambda path: path.symlink_to("/dev/zero")), words=("not a regular file",)),
    Case("link to itself", _with(lambda path: path.symlink_to("model.safetensors")), words=("cannot be read",)),
    Case("link to nothing", _with(lambda path: path.symlink_to("/no/such/file")), words=("cannot be read",)),
    Case("folder as weights", _folder_as_weights, words=("no weight file",)),
    Case("tar format from before 2017", with_files(files={"pytorch_model.bin": _TAR}), words=("tar format",)),
)
