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
from tests import warm

MOST_MEGABYTES = 600
_STATUS = Path("/proc/self/status")
_RUN = """
import sys
import transformers, torch, accelerate
from transformers import PreTrainedModel
sys.path.insert(0, {tests!r})
from headscope.shell import main
from hostile.measure import measured

with measured() as taken:
    code = main(sys.argv[1:])
sys.stderr.write(f"\\nCODE {{code}} MEGABYTES {{taken.megabytes}}")
"""

_GIVEN_BACK = """
from hostile.measure import measured

with measured() as taken:
    bytearray(b"x") * 100_000_000
print(taken.megabytes)
"""

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
"""Published sizes: one layer of the largest held 4.7 GB in real values."""


def run(*arguments: str) -> tuple[int, float]:
    """The exit code of a command in a process that has imported the libraries, and its peak beyond them in MB."""
    surroundings = os.environ | {"HF_HUB_OFFLINE": "1"}
    code = _RUN.format(tests=str(Path(__file__).parents[1]))
    ran = subprocess.run(
        [*warm.python(environment=surroundings), "-c", code, *arguments],
        capture_output=True, text=True, check=True, timeout=300, env=surroundings,
    )  # fmt: skip
    _, code, _, megabytes = ran.stderr.splitlines()[-1].split()
    return int(code), float(megabytes)


@pytest.mark.skipif(not _STATUS.exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", SIZES)
def test_check_of_a_large_configuration_stays_small(name: str, tmp_path: Path) -> None:
    getattr(transformers, name)(**SIZES[name]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors(ONE_TENSOR))
    code, taken = run(
        "check", str(tmp_path), "--for", "training", "--no-cache", "-o", str(tmp_path / "out.json"), "--json"
    )
    print(f"{name}: {taken:.0f} MB beyond import")
    assert code == 1
    assert 0 < taken < MOST_MEGABYTES
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["verdict"] == "failed"


@pytest.mark.skipif(not _STATUS.exists(), reason="the peak is read from /proc")
def test_what_a_process_takes_and_gives_back_counts() -> None:
    alone = subprocess.run(
        [sys.executable, "-c", _GIVEN_BACK], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )  # in a worker of the tests, threads of others take and give back too
    assert 90 < float(alone.stdout) < 130
