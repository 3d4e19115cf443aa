"""headscope in an installation without PyTorch and Transformers, as docs/light.md makes it."""

import json
import random
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.api.lookup.test_shipped import checkpoint_of, first_entry
from tests.headers_only import Checkpoint, write

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("accelerate", "scipy", "torch", "transformers")
GATES = ("check", "distilbert-base-uncased-finetuned-sst-2-english", "--for", "training", "--offline")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages without the heavy ones."""
    folder = tmp_path_factory.mktemp("site")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if re.split(r"[^a-z]", path.name.lower())[0] not in {*HEAVY, "functorch", "torchgen"}:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(checkpoint_of(first_entry(), 4, random.Random(1)), tmp_path / "model")


def ran(site: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(site)!r}]; from headscope.shell import main; sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={"HEADSCOPE_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "PATH": ""},
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "MODEL"), ("diff-weights", "MODEL"), ("compare", "MODEL", "MODEL"), ("diagram", "MODEL"), GATES,
        ("engines", "MODEL"), ("heads", "BertForSequenceClassification"), ("explain", "HS102"),
        ("inspect", "bert-base-uncased", "--num-labels", "3", "--offline"),
    ],
)  # fmt: skip
def test_a_known_structure_is_told(command: tuple[str, ...], site: Path, model: Path, tmp_path: Path) -> None:
    result = ran(site, tmp_path, *(str(model) if item == "MODEL" else item for item in command))
    assert result.returncode in {0, 1} and result.stdout, result.stderr
    assert "Traceback" not in result.stderr


def test_the_facts_are_those_of_another_installation(site: Path, model: Path, tmp_path: Path) -> None:
    document = json.loads(ran(site, tmp_path, "inspect", str(model), "--json").stdout)
    assert document["is_shipped"] and document["environment"]["transformers"] == "not installed"
    assert any("as of Transformers 5." in note for note in document["notes"])
    shown = " ".join(ran(site, tmp_path, "inspect", str(model), "--details").stdout.split())
    assert "when headscope was made; Transformers is not installed here" in shown


@pytest.mark.parametrize("command", ["inspect", "forward"])
def test_what_has_to_be_traced_says_what_to_install(command: str, site: Path, model: Path, tmp_path: Path) -> None:
    saved = checkpoint_of(first_entry(), 4, random.Random(1))
    write(Checkpoint("", saved.config | {"chunk_size_feed_forward": 2}, saved.tensors), model)
    result = ran(site, tmp_path, command, str(model))
    assert result.returncode == 3 and not result.stdout
    assert re.match(r"error: (torch|transformers) is not installed", result.stderr)
    assert "uvx --with torch" in result.stderr and len(result.stderr.splitlines()) <= 3


def test_the_documented_installation_is_what_the_package_needs_without_them() -> None:
    line = next(
        line for line in (ROOT / "docs" / "light.md").read_text(encoding="utf-8").splitlines() if "--no-deps" in line
    )
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[^\w-]", item)[0] for item in needed}
    assert set(line.rpartition("pip install ")[2].split()) == names - set(HEAVY)
