"""`headscope verify` with real loaders, each in a separate process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import peft
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.errors import Malformed, NotFound, Unsupported, UsageError
from headscope.shell.app import main
from tests import warm
from tests.edits import edit_json
from tests.verification.tiny import TINY, adapted, with_adapter

LOADERS = """
import os, signal, sys
import torch
from transformers import AutoModel, BertForSequenceClassification

def plain(reference):
    print("a loader that prints to stdout")
    return BertForSequenceClassification.from_pretrained(reference)

def base_only(reference):
    return AutoModel.from_pretrained(reference)

def silently_random(reference):
    model = BertForSequenceClassification.from_pretrained(reference)
    model.classifier.reset_parameters()
    return model

def killed(reference):
    os.kill(os.getpid(), signal.SIGKILL)

def fails(reference):
    raise ValueError("no such head")

def no_model(reference):
    return 3

def slow(reference):
    import pathlib, time
    assert sys.stdin.read() == ""
    pathlib.Path("started").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(folder / "bert")
    (folder / "own_loaders.py").write_text(LOADERS)
    return folder


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_default_loads_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bert", "--all"]) == 0
    shown = capsys.readouterr().out
    assert ": 43 of 43 tensors, 138 kB " in " ".join(shown.split())
    assert "classifier.{weight,bias}" in shown


def test_the_head_alone_is_compared_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bert", "--head", "-q"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ": 4 of 43 tensors, 4.49 kB " in shown and shown.endswith(" not compared")
    assert main(["verify", "bert", "--head", "--json"]) == 0
    scope = json.loads(capsys.readouterr().out)["scope"]
    assert scope == {"tensors": 43, "compared": 4, "head_only": True, "adapter_only": False}
    assert main(["verify", "bert", "--head", "--all"]) == 2


def test_a_silent_loss_is_caught_and_its_json_is_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from scripts.pages.write_schema import build_schema

    assert main(["verify", "bert", "--with", "own_loaders:silently_random", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, build_schema())
    assert document["loader"] == "own_loaders:silently_random"
    assert [finding["id"] for finding in document["findings"]] == ["HS701"]
    by_name = {item["name"]: item["status"] for item in document["tensors"]}
    assert by_name["classifier.weight"] == "different"
    assert by_name["bert.pooler.dense.weight"] == "equal"


@pytest.mark.parametrize(
    ("loader", "code", "rule"), [("own_loaders:plain", 0, ""), ("own_loaders:base_only", 1, "HS703")]
)
def test_a_function_loads_what_it_likes(loader: str, code: int, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bert", "--with", loader, "--format", "github"]) == code
    shown = capsys.readouterr().out
    assert "to stdout" not in shown
    assert rule in shown


@pytest.mark.usefixtures("cold_children")
def test_no_code_of_the_current_folder_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder may hold a file with the name of a library."""
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path)
    for name in ("typing_extensions", "json", "torch"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit('ran')")
    shutil.copy(folder / "own_loaders.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    script = Path(sys.executable).with_name("headscope")
    ended = subprocess.run([str(script), "verify", "."], capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
    assert main(["verify", ".", "--with", "own_loaders:plain"]) == 0
    assert not (tmp_path / "ran").exists()


FAILURES = [
    ("own_loaders:fails", Unsupported, "ValueError: no such head"),
    ("own_loaders:no_model", Unsupported, "int"),
    ("own_loaders:nothing", UsageError, "cannot be imported"),
    ("nowhere:plain", UsageError, "cannot be imported"),
    ("pickle", UsageError, "no such loader: pickle"),
    ("sentence-transformers", Unsupported, "could not be imported"),
]
if sys.platform != "win32":
    FAILURES.append(("own_loaders:killed", Unsupported, f"killed by signal {signal.SIGKILL.value}"))


@pytest.mark.parametrize(("loader", "kind", "words"), FAILURES, ids=lambda item: str(item)[:30])
def test_a_loader_that_fails_is_a_sentence(loader: str, kind: type[Exception], words: str) -> None:
    if loader == "sentence-transformers" and find_spec("sentence_transformers"):
        pytest.skip("sentence-transformers is installed")
    with pytest.raises(kind, match=words):
        headscope.verify("bert", loader=loader)


def test_what_the_process_did_not_find_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The kinds of errors, which scripts read, are those of the same call in one process."""
    Path("broken").mkdir()
    shutil.copy("bert/config.json", "broken")
    Path("broken/model.safetensors").write_bytes(bytes(100))
    for name, kind, code in (("./nowhere", NotFound, "not_found"), ("broken", Malformed, "malformed")):
        with pytest.raises(kind) as raised:
            headscope.verify("bert", name, offline=True)
        assert type(raised.value) is kind
        assert main(["verify", "bert", "--against", name, "--offline", "--json"]) == 3
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_parent_that_is_killed_leaves_no_process(sent: signal.Signals) -> None:
    started = Path("started")
    started.unlink(missing_ok=True)
    code = "import os, sys; from headscope.shell import main; open('pid', 'w').write(str(os.getpid())); "
    command = [*warm.python(), "-c", f"{code}main(sys.argv[1:])", "verify", "bert", "--with", "own_loaders:slow"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert _comes(lambda: started.is_file() and bool(started.read_text())), "the loader never started"
    child = int(started.read_text())
    assert _runs(child)
    os.kill(int(Path("pid").read_text()), sent)
    parent.wait()
    assert _comes(lambda: not _runs(child)), "the child still runs"


def _comes(condition: Callable[[], bool], seconds: int = 90) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.1)
    return condition()


def _runs(process: int) -> bool:
    """Whether a process runs; one that ended may wait for its parent a while."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, check=False, text=True)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


@pytest.mark.parametrize("count", [1, 3, 7])
def test_an_adapter_is_loaded_with_the_classes_of_its_head(count: int, folder: Path) -> None:
    base = BertForSequenceClassification.from_pretrained(folder / "bert").bert
    base.save_pretrained(folder / "base")
    model = BertForSequenceClassification.from_pretrained(folder / "base", num_labels=count)
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], modules_to_save=["classifier", "pooler"])
    peft.get_peft_model(model, settings).save_pretrained(folder / "adapter")
    assert headscope.verify(folder / "adapter", loader="peft").verdict is Verdict.PASSED
    found = headscope.verify(folder / "adapter", num_labels=count)
    assert (found.verdict, found.loader) == (Verdict.PASSED, "peft")
    with pytest.raises(Unsupported, match="size mismatch"):
        headscope.verify(folder / "adapter", loader="peft", num_labels=count + 1)
    assert main(["verify", "adapter", "--with", "peft", "--num-labels", str(count)]) == 0
    assert main(["verify", "adapter", "--with", "peft", "--num-labels", "0"]) == 2
    with pytest.raises(UsageError, match=r"^num_labels "):
        headscope.verify(model, folder / "base", num_labels=3)  # type: ignore[call-overload]


def test_an_adapter_and_what_was_merged_of_it(folder: Path) -> None:
    where = adapted(folder / "adapter", folder / "bert", target_modules=["query"])
    edit_json(where / "adapter_config.json", {"base_model_name_or_path": "bert"})
    assert headscope.verify(where).verdict is Verdict.PASSED
    found = headscope.verify("bert", adapter=where)
    assert (found.verdict, found.loader) == (Verdict.PASSED, "peft")
    assert headscope.verify("bert", adapter=where, loader="transformers").verdict is Verdict.PASSED
    with_adapter(Path("bert"), where).merge_and_unload().save_pretrained("merged")
    result = headscope.verify("merged", "bert", adapter=where)
    assert result.verdict is Verdict.PASSED
    assert {item.status.value for item in result.tensors} == {"equal", "merged", "computed"}
    BertForSequenceClassification.from_pretrained("bert").save_pretrained("unmerged")
    assert main(["verify", "unmerged", "--against", "bert", "--adapter", "adapter"]) == 1


def test_options_that_make_no_sense_together(folder: Path) -> None:
    model = BertForSequenceClassification.from_pretrained("bert")
    with pytest.raises(UsageError, match=r"^loader "):
        headscope.verify(model, "bert", loader="peft")  # type: ignore[call-overload]
    assert main(["verify", "bert", "--select", "HS101"]) == 2
    assert main(["check", "bert", "--select", "HS701"]) == 2
    assert main(["verify", "nowhere-at-all", "--offline"]) == 3


def test_options_that_a_loader_cannot_take(folder: Path) -> None:
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained("outer/inner")
    assert headscope.verify("outer", loader="own_loaders:plain", subfolder="inner").verdict is Verdict.PASSED
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained("both", variant="fp16")
    assert headscope.verify("both", variant="fp16").verdict is Verdict.PASSED
    with pytest.raises(UsageError, match=" variant "):
        headscope.verify("both", loader="own_loaders:plain", variant="fp16")


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from headscope.shell.app import main; main(['verify', '--help']); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_a_random_head_of_a_language_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The class that the checkpoint names has no head for classes; with a function, the user's own load is compared."""
    BertForMaskedLM(BertConfig(**TINY)).save_pretrained("mlm")
    assert main(["verify", "mlm", "--with", "own_loaders:plain", "-q"]) == 1
    assert "4 random" in capsys.readouterr().out


def test_results_show_themselves(folder: Path) -> None:
    model = BertForSequenceClassification.from_pretrained("bert")
    with torch.no_grad():
        model.classifier.weight += 1
    result = headscope.verify(model, "bert")
    assert repr(result).startswith("<headscope verify of bert: ")
    assert "HS701" in str(result)
    assert "largest error 1" in str(result)
