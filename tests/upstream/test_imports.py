"""Packages that cannot be imported: named, with what they don't fit and the command that mends it."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from headscope.core.upstream.imports import fault_of_import
from headscope.core.upstream.python import fault_of_process
from headscope.errors import Unsupported

NMS = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def install(folder: Path, name: str, code: str, *requires: str) -> None:
    """Puts a package with its metadata into a folder, as pip does."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    about = folder / f"{name}-0.24.1.dist-info"
    about.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        "Version: 0.24.1",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (about / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fault_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Unsupported]:
    """Installs a package, imports it, and returns what is said of the failure."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def importing(name: str, code: str, *requires: str) -> Unsupported:
        install(tmp_path, name, code, *requires)
        importlib.invalidate_caches()
        with pytest.raises(Exception) as caught:
            importlib.import_module(name)
        found = fault_of_import(caught.value)
        assert isinstance(found, Unsupported)
        return found

    return importing


def test_what_a_package_was_built_for_is_compared_with_what_is_installed(fault_of: Callable[..., Unsupported]) -> None:
    found = fault_of("fakevision", NMS, "numpy", "torch==2.0.1", 'safetensors==0.0.1; extra == "all"')
    assert "fakevision 0.24.1" in found.message
    assert "torch 2.0.1" in found.message and metadata.version("torch") in found.message
    assert f"pip install torch=={metadata.version('torch').partition('+')[0]} fakevision" in found.hint
    assert "pip uninstall fakevision" in found.hint
    assert "safetensors" not in found.message


def test_without_a_pin_that_is_broken_it_is_installed_again(fault_of: Callable[..., Unsupported]) -> None:
    fits = f"torch=={metadata.version('torch').partition('+')[0]}"
    found = fault_of("fakeaudio", "import fakeaudio.missing\n", fits)
    assert "fakeaudio 0.24.1" in found.message
    assert "--force-reinstall fakeaudio" in found.hint


def test_the_innermost_package_is_the_broken_one(tmp_path: Path, fault_of: Callable[..., Unsupported]) -> None:
    install(tmp_path, "fakeinner", NMS, "torch==2.0.1")
    wrapped = (
        "try:\n    import fakeinner\nexcept Exception as err:\n    raise ImportError('Could not import') from err\n"
    )
    assert "fakeinner" in fault_of("fakeouter", wrapped).message


def test_a_package_that_is_missing_is_to_be_installed() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("nowhere_to_be_found")
    found = fault_of_import(caught.value)
    assert found is not None and "pip install nowhere_to_be_found" in found.hint


@pytest.mark.parametrize("err", [ValueError("ours"), RuntimeError("operator torchvision::nms does not exist")])
def test_a_bug_stays_a_bug(err: Exception) -> None:
    try:
        raise err
    except Exception as raised:
        assert fault_of_process(raised) is None


def test_a_torchvision_of_another_torch_is_named_by_every_command(tmp_path: Path) -> None:
    install(tmp_path, "torchvision", NMS, "torch==2.0.1")
    models = ("inspect gpt2 --offline", "check gpt2 --offline", "heads gpt2", "inspect GPT2ForSequenceClassification")
    commands = [words.split() for words in models]
    code = (
        f"from headscope.shell import main; codes = [main(words) for words in {commands!r}];"
        "main(['env', '--json']); assert codes == [3] * 4, codes"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["packages"]["torchvision"] == "0.24.1"
    told = [line for line in ended.stderr.splitlines() if not line.startswith("hint")]
    assert len(told) == len(commands)
    assert all("torchvision 0.24.1 " in line for line in told)
    assert "bug" not in ended.stderr
