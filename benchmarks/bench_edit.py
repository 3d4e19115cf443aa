"""A class more in a classifier of 14 GB: written and proven, over a plain copy of its files.

The source is sparse but for its last layer and the norm before it, so that reading it costs little; what is written are
real bytes. `--link` writes one shard only. The proof reads both sides.
"""

import json
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.checkpoints import LLAMA_7B, LlamaShape, Tensor, sparse_llama
from benchmarks.goals import Goal, Ratio, print_results, ratio_of_rounds, slowdown
from benchmarks.timing import WORK, Sample, measure, python

ROUNDS = 1
_COPY = """
import os, shutil, sys
source, out = sys.argv[1:]
shutil.rmtree(out, ignore_errors=True)
os.mkdir(out)
for name in sorted(os.listdir(source)):
    shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    number = os.open(os.path.join(out, name), os.O_RDONLY)
    os.fsync(number)
    os.close(number)
"""
_EDIT = """
import shutil, sys
from headscope.shell.app import main
source, out, *options = sys.argv[1:]
shutil.rmtree(out, ignore_errors=True)
sys.exit(main(["edit", source, "-o", out, "--add", "new=mean", "-q", *options]))
"""


@dataclass(frozen=True, slots=True)
class ClassifierShape(LlamaShape):
    """The same with a last layer of three classes instead of the vocabulary."""

    def config(self) -> dict[str, object]:
        """The `config.json` of a classifier."""
        labels = {"0": "a", "1": "b", "2": "c"}
        ids = {name: int(at) for at, name in labels.items()}
        own = {"architectures": ["LlamaForSequenceClassification"], "id2label": labels, "label2id": ids}
        return LlamaShape.config(self) | own | {"pad_token_id": 0}

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the checkpoint, in the model's order."""
        yield from (item for item in LlamaShape.tensors(self) if item[0] != "lm_head.weight")
        yield "score.weight", (3, self.hidden)


def classifier() -> Path:
    """The folder of the classifier, whose last layer and last norm hold numbers."""
    folder = WORK / "llama-7b-classifier"
    if not folder.exists():
        shape = ClassifierShape(**{name: getattr(LLAMA_7B, name) for name in LlamaShape.__slots__})
        made = sparse_llama(replace(shape, name=folder.name))
        _fill(made, ("score.weight", "model.norm.weight"))
    return folder


def _fill(folder: Path, keys: tuple[str, ...]) -> None:
    """Writes bfloat16 numbers around 1 into the holes of some tensors."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    draw = random.Random(0)
    for key in keys:
        with (folder / index[key]).open("r+b") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            begin, end = json.loads(file.read(size))[key]["data_offsets"]
            file.seek(8 + size + begin)
            file.write(b"".join(struct.pack("<H", 0x3F80 + draw.randrange(128)) for _ in range((end - begin) // 2)))


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals; the folders are removed again."""
    source, out = classifier(), WORK / "edited"
    given = str(source), str(out)
    commands = (
        python("plain copy", _COPY, *given),
        python("edit", _EDIT, *given),
        python("edit --link", _EDIT, *given, "--link"),
    )
    try:
        copied, edited, linked = measure(commands, rounds, warm=False)
    finally:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(source, ignore_errors=True)
    goals = [
        Goal("edit of a classifier of 13 GB and its proof, over a plain copy", slowdown(edited, copied)),
        Goal("... with --link", slowdown(linked, copied)),
        Goal("peak memory of edit, over the size of a shard", _share(edited)),
    ]
    print_results("One class more in a Llama of 7B, 13 GB in three shards", (copied, edited, linked), goals)
    return goals


def _share(sample: Sample) -> Ratio | None:
    """The peak memory over 4.9 GB: a shard is never in memory."""
    shares = [run.peak / 4.9e9 for run in sample.runs]
    return ratio_of_rounds(shares) if shares else None
