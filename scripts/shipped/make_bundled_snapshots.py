"""Writes the bundled snapshots from a folder of reconstructed header facts: `make_bundled_snapshots.py FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.snapshot import write_snapshot
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightFile, WeightsFormat

TARGET = Path(__file__).resolve().parents[2] / "headscope" / "core" / "checkpoints" / "bundled"
SHARED = {"xlnet-base-cased": (("transformer.word_embedding.weight", "lm_loss.weight"),)}


def manifest_of(facts: dict[str, Any]) -> CheckpointManifest:
    """The manifest that the facts of one checkpoint describe."""
    return CheckpointManifest(
        reference=facts["reference"],
        kind=CheckpointKind.HUB,
        format=WeightsFormat(facts["format"]),
        config=facts["config"],
        tensors=tuple(
            TensorHeader(item["key"], SAFETENSORS[item["dtype"]][0], tuple(item["shape"]), facts["file"])
            for item in facts["tensors"]
        ),
        files=(WeightFile(facts["file"], facts["file_size"]),),
        commit=facts["commit"],
        shared=SHARED.get(facts["reference"], ()),
    )


def main(folder: str) -> None:
    """Writes one snapshot for each JSON file of `folder`."""
    for path in sorted(Path(folder).glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        evidence = facts["evidence"].removeprefix("reconstructed; ")
        write_snapshot(manifest_of(facts), TARGET / path.name, f"reconstructed from published facts: {evidence}")


if __name__ == "__main__":
    main(sys.argv[1])
