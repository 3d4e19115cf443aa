"""Where an output may go: no option of a command replaces a file that a checkpoint is made of."""

import ast
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import transformers

import headscope
from headscope.commands import COMMANDS
from headscope.core.outputs import check_output
from headscope.errors import UsageError
from headscope.shell.app import main
from headscope.shell.parameters import Typed, options_of_command
from tests.editing.checkpoints import saved

READ = {
    "--baseline", "--data", "--from", "--folder", "--order-from", "--labels", "--labels-file", "--config", "--image",
    "--audio", "--python", "--cache-dir", "--subfolder", "--ca", "--card", "--scores",
}  # fmt: skip
"""Options that take a path and write nothing to it."""
PATHS = ("FILE", "DIR", "PATH", "OUT", "FOLDER")
FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "README.md",
         "modeling_own.py", "labels.json", "pytorch_model.bin", "notes.txt")  # fmt: skip


def options() -> list[tuple[str, Typed]]:
    """The options of every command as the application declares them."""
    return [(command, item) for command, entry in COMMANDS.items() for item in options_of_command(entry.run)]


def writing_options() -> list[tuple[str, str]]:
    return [(command, item.flags[0]) for command, item in options() if item.option.writes]


def test_every_option_that_takes_a_path_says_whether_it_writes_there() -> None:
    undeclared = {
        f"{command} {item.flags[0]}" for command, item in options()
        if any(word in PATHS for word in str(item.option.metavar).split("_"))
        and item.flags[0] not in READ and not item.option.writes
    }  # fmt: skip
    assert not undeclared, f"declare what it writes, or name in READ: {sorted(undeclared)}"
    assert len(writing_options()) > 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint as people have it: plain, links to it elsewhere, in the Hub's cache, and in a read-only folder."""
    root = tmp_path_factory.mktemp("outputs")
    plain = saved("BertForSequenceClassification", root / "plain")
    for name, text in {
        "tokenizer.json": '{"added_tokens": []}', "tokenizer_config.json": "{}", "vocab.txt": "[PAD]\n",
        "README.md": "# A model\n", "modeling_own.py": "class Own: pass\n", "labels.json": "[1]",
        "pytorch_model.bin": "\0\0", "notes.txt": "mine\n",
    }.items():  # fmt: skip
        (plain / name).write_text(text)
    (root / "links").mkdir()
    cache = root / "hub" / "models--owner--name"
    for part in ("blobs", "refs", "snapshots/abc"):
        (cache / part).mkdir(parents=True)
    for name in FILES:
        (root / "links" / f"to-{name}").symlink_to(plain / name)
        shutil.copy(plain / name, cache / "blobs" / f"digest-{name}")
        (cache / "snapshots" / "abc" / name).symlink_to(cache / "blobs" / f"digest-{name}")
    shutil.copytree(plain, root / "read-only")
    (root / "read-only").chmod(0o555)
    return {
        "plain": plain,
        "links": root / "links",
        "cache": cache / "snapshots" / "abc",
        "read-only": root / "read-only",
    }


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["plain", "links", "cache", "read-only"])
@pytest.mark.parametrize("option", writing_options(), ids=" ".join)
def test_no_option_writes_over_a_file_of_a_checkpoint(
    option: tuple[str, str], kind: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command, name = option
    folder, needs_model = folders[kind], command not in ("env", "heads", "cache", "explain")
    before = digests(folder)
    for path in sorted(folder.iterdir()):
        given = [str(folders["plain"])] if needs_model else ["HS102"] if command == "explain" else []
        more = ["--data", "x.csv", "--text-column", "t", "--label-column", "l"] if command == "probe" else []
        more += ["-o", "out"] if name != "-o" and command in ("scan", "edit", "repair") else []
        assert main([command, *given, *more, name, str(path)]) == 2, (path.name, capsys.readouterr())
        said = capsys.readouterr().err
        assert path.name in said and "Traceback" not in said
    assert digests(folder) == before


ENDINGS = {"--json": ".json", "mermaid": ".mmd", "dot": ".dot", "svg": ".svg", "html": ".html", "code": ".py"}
REPORTS = [
    ["inspect", "roberta-base"], ["inspect", "roberta-base", "--json"], ["inspect", "roberta-base", "-q"],
    ["inspect", "roberta-base", "--format", "markdown"], ["compare", "roberta-base", "bert-base-uncased"],
    *([command, "roberta-base", *more] for command in ("diff-weights", "forward") for more in ([], ["--json"])),
    ["compare", "roberta-base", "bert-base-uncased", "--json"], ["check", "roberta-base"],
    *(["check", "roberta-base", "--format", kind] for kind in ("json", "markdown", "sarif", "junit", "github")),
    *(["diagram", "roberta-base", "--format", kind] for kind in ("mermaid", "dot", "svg", "html")),
    ["engines", "roberta-base"], ["engines", "roberta-base", "--json"],
    ["explain", "HS102"], ["explain", "HS102", "--json"],
    ["env"], ["env", "--json"], ["heads", "roberta"], ["heads", "roberta", "--json"], ["cache"], ["cache", "--json"],
    ["code", "roberta-base"], ["snapshot", "roberta-base"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", REPORTS, ids=" ".join)
def test_a_report_is_written_beside_a_checkpoint_and_replaced_by_the_next_one(
    arguments: list[str], folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")  # what is known needs no trace, and is written alike
    folder = tmp_path / "model"
    shutil.copytree(folders["plain"], folder)
    before = digests(folder)
    target = folder / f"report{next((end for kind, end in ENDINGS.items() if kind in arguments), '.txt')}"
    assert main([*arguments, "-o", str(target)]) in (0, 3)
    first = target.read_bytes()
    target.write_bytes(first + b" ")
    assert main([*arguments, "-o", str(target)]) in (0, 3) and target.read_bytes() == first
    target.unlink()
    assert digests(folder) == before


def test_summaries_and_rows_of_a_scan_are_written_beside_a_checkpoint(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["plain"], folder)
    summaries = [
        word for suffix in ("txt", "md", "html", "json") for word in ("--summary", str(folder / f"all.{suffix}"))
    ]
    for more in ([], ["--resume"]):
        assert main(["scan", str(folder), "-o", str(folder / "rows.jsonl"), *more, *summaries, "-q"]) != 2


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md", "tokenizer.json"])
def test_a_name_that_loaders_look_for_is_not_written_into_a_checkpoint_even_where_it_is_new(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UsageError, match="checkpoints are made of"):
        check_output(tmp_path / name)
    check_output(tmp_path / "report.json")


def test_what_a_run_reads_is_not_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = tmp_path / "roberta.json"
    headscope.snapshot("roberta-base", snapshot)
    before = snapshot.read_bytes()
    (tmp_path / "link.json").symlink_to(snapshot)
    for path in (snapshot, tmp_path / "link.json"):
        assert main(["inspect", str(snapshot), "--json", "-o", str(path)]) == 2
        with pytest.raises(UsageError, match="read"):
            headscope.snapshot(snapshot, path)
    assert snapshot.read_bytes() == before
    data = tmp_path / "data.csv"
    data.write_text("text,label\na,1\n")
    assert main(["check", "roberta-base", "--data", str(data), "--label-column", "label", "-o", str(data)]) == 2
    assert data.read_text() == "text,label\na,1\n"


@pytest.mark.parametrize("content", [b"\x89HDF\r\n", b"PK\x03\x04\0\0", b"GGUF\0", b"\xe9t\xe9", b"\x80\x02}q\0."])
def test_a_file_that_is_no_text_is_never_replaced_by_a_report(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.out").write_bytes(content)
    assert main(["env", "-o", str(tmp_path / "mine.out")]) == 2
    assert (tmp_path / "mine.out").read_bytes() == content


def test_a_part_of_a_checkpoint_is_known_by_what_it_holds_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text('{"model_type": "bert"}')
    assert main(["env", "--json", "-o", str(tmp_path / "copy.json")]) == 2
    (tmp_path / "mine.json").write_text('{"mine": 1}')
    assert main(["env", "--json", "-o", str(tmp_path / "mine.json")]) == 0


def test_the_vocabularies_of_every_tokenizer_are_protected(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    names = set()
    for file in Path(transformers.__file__).parent.rglob("*tokeniz*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "VOCAB_FILES_NAMES" for target in node.targets
            ):
                try:
                    names |= set(ast.literal_eval(node.value).values())
                except ValueError:  # made of other names
                    continue
    open_names = {name for name in names if isinstance(name, str) and _is_open(tmp_path / name)}
    assert len(names) > 15 and not open_names, sorted(open_names)


def _is_open(path: Path) -> bool:
    try:
        check_output(path)
    except UsageError:
        return False
    return True


def test_the_cache_removes_its_own_entries_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headscope.core.source.storage import cache

    monkeypatch.setattr(cache, "MOST_ENTRIES", 1)
    (tmp_path / "config.json").write_text("{}")
    os.utime(tmp_path / "config.json", (0, 0))
    for at in range(3):
        cache.Cache(tmp_path).save(f"{at}" * 40, cache.StoredFile("name", "kind", at))
    assert (tmp_path / "config.json").exists() and len(list(tmp_path.glob("*-storedfile.json"))) == 1


def scan_of(folders: dict[str, Path], *more: str) -> int:
    return main(["scan", str(folders["plain"]), *more, "-q"])


def test_a_scan_leaves_folders_and_files_beside_its_tables(folders: dict[str, Path], tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    shutil.copytree(folders["plain"], beside)
    before = digests(beside)
    assert scan_of(folders, "-o", f"{beside}/") == 2 and digests(beside) == before
    (tmp_path / "rows.csv.jsonl.new").symlink_to(beside / "tokenizer.json")
    assert scan_of(folders, "-o", str(tmp_path / "rows.csv")) != 2 and digests(beside) == before
    (tmp_path / "mine.jsonl").write_text('{"reference": "my text", "label": 1}')
    assert scan_of(folders, "-o", str(tmp_path / "mine.jsonl"), "--resume") == 2
    assert (tmp_path / "mine.jsonl").read_text() == '{"reference": "my text", "label": 1}'


def test_what_a_run_reads_by_a_list_or_a_project_is_not_its_output(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, listed, baseline = tmp_path / "snap.json", tmp_path / "list.txt", tmp_path / "base.json"
    headscope.snapshot(folders["plain"], snapshot)
    listed.write_text(f"{snapshot}\n")
    before = snapshot.read_bytes()
    assert main(["scan", "--from", str(listed), "-o", str(tmp_path / "o.jsonl"), "--summary", str(snapshot)]) == 2
    assert main(["check", str(snapshot), "--write-baseline", str(baseline)]) in (0, 1, 3)
    (tmp_path / "pyproject.toml").write_text('[tool.headscope]\nbaseline = "base.json"\n')
    monkeypatch.chdir(tmp_path)
    kept = baseline.read_bytes()
    for name in ("pyproject.toml", "base.json"):
        assert main(["check", str(snapshot), "-o", name]) == 2
    assert main(["check", str(snapshot), "-o", "x.json", "--json", "--write-baseline", "x.json"]) == 2
    assert main(["check", str(snapshot), "--baseline", "base.json", "--write-baseline", "base.json"]) in (0, 1, 3)
    assert snapshot.read_bytes() == before and kept.startswith(b"{")


@pytest.mark.parametrize(
    "weights", ["tf_model.h5", "flax_model.msgpack", "last.pt", "model.onnx", "consolidated.00.pth"]
)
@pytest.mark.parametrize("name", ["params.json", "labels.txt", "args.json", "notes.csv", "own.py", "logo.svg"])
def test_texts_beside_weights_of_any_kind_stay(weights: str, name: str, tmp_path: Path) -> None:
    (tmp_path / weights).write_bytes(b"\0")
    text = '# checked with headscope 1\nreference,label\n"tool_version": 1\n'
    (tmp_path / name).write_text(text)
    assert main(["env", "-o", str(tmp_path / name)]) == 2 and (tmp_path / name).read_text() == text


def test_a_report_with_a_common_name_can_be_written_again(tmp_path: Path) -> None:
    for name in ("tokenizer-report.json", "check_config.json", "vocabulary-check.json", "LICENSES.json"):
        for _ in range(2):
            assert main(["env", "--json", "-o", str(tmp_path / name)]) == 0
