"""Memory of whole commands on configurations as large as people's, beside a weight file of one tensor."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from hostile.corpus.case import ONE_TENSOR, safetensors

MOST_MEGABYTES = 600
_STATUS = Path("/proc/self/status")
_IMPORTS = "import transformers, torch, accelerate; from transformers import PreTrainedModel"
_PEAK = (
    "import re, sys\n{run}\npeak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)\n"
    "sys.stderr.write(f'\\nPEAK {{peak}}\\n')"
)
_RUN = "from headscope.cli import main\ncode = main(sys.argv[1:])\nsys.stderr.write(f'\\nCODE {code}')"

SIZES: dict[str, dict[str, Any]] = {
    "MixtralConfig": {"vocab_size": 32002, "eos_token_id": 32000, "pad_token_id": 0},
    "MistralConfig": {
        "vocab_size": 131_072, "hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40,
        "head_dim": 128, "pad_token_id": 11, "max_position_embeddings": 131_072,
    },
    "GemmaConfig": {"vocab_size": 257_216, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 18},
    "Phi3Config": {"vocab_size": 32_064, "pad_token_id": 32_000, "eos_token_id": 32_000},
    "XLMRobertaConfig": {"vocab_size": 250_002, "hidden_size": 1024, "num_attention_heads": 16},
}  # fmt: skip
"""Published sizes: one layer of the largest held 4.7 GB in real numbers."""


def peak(code: str, *arguments: str) -> tuple[float, str]:
    """The peak of a process in MB, and what it wrote to stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", _PEAK.format(run=code), *arguments],
        capture_output=True, text=True, check=True, timeout=300, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return float(ran.stderr.rpartition("PEAK")[2]) / 1000, ran.stderr


@pytest.fixture(scope="module")
def imports() -> float:
    """What importing the libraries takes."""
    return peak(_IMPORTS)[0]


@pytest.mark.skipif(not _STATUS.exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", SIZES)
def test_check_of_a_large_configuration_stays_small(name: str, imports: float, tmp_path: Path) -> None:
    getattr(transformers, name)(**SIZES[name]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors(ONE_TENSOR))
    taken, sentence = peak(
        _RUN, "check", str(tmp_path), "--for", "training", "--no-cache", "-o", str(tmp_path / "out.json"), "--json"
    )
    print(f"{name}: {taken - imports:.0f} MB beyond import")
    assert "CODE 1" in sentence
    assert taken - imports < MOST_MEGABYTES
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["verdict"] == "failed"
