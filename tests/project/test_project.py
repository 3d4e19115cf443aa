"""The project as a whole: its modules, pins and version, and that the files beside the code say the same of it."""

import ast
import fnmatch
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.house import check_names, mutate
from scripts.releases import matrix
from tests.selection import read_times

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
CONDA_NAMES = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}
"""Packages that conda-forge calls otherwise."""
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root)/")


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(*extras: str) -> list[Requirement]:
    metadata = project()["project"]
    listed = [
        *metadata["dependencies"],
        *(line for extra in extras for line in metadata["optional-dependencies"][extra]),
    ]
    return [Requirement(line) for line in listed]


@cache
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints" / "tested.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in (line.partition("#")[0].strip() for line in lines) if line]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in found}


def project_files() -> list[Path]:
    """Tracked files and those about to be; all files where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("no git checkout")
    return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]


def modules() -> list[Path]:
    return sorted((ROOT / "headscope").rglob("*.py"))


def test_a_module_says_in_its_first_line_what_it_knows() -> None:
    for path in modules():
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(r'"""\S.{8,}', first), f"{path}: the first line is no docstring that says something"


def texts_of(call: ast.expr | None) -> list[str]:
    """The literal arguments of a call, with their values left out."""
    given = call.args if isinstance(call, ast.Call) else []
    parts = [item.values if isinstance(item, ast.JoinedStr) else [item] for item in given]
    return ["".join(str(part.value) for part in found if isinstance(part, ast.Constant)) for found in parts]


def test_messages_and_hints_begin_and_end_alike() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in modules())
    raised = (item.exc for tree in trees for item in ast.walk(tree) if isinstance(item, ast.Raise))
    pairs = [texts for call in raised if len(texts := texts_of(call)) == 2]
    assert len(pairs) > 300
    for message, hint in pairs:
        assert not message.endswith(".") or message.endswith("..."), message
        assert not re.match(r"[A-Z][a-z]+ |.*[^.]\.$", hint), hint


def test_every_dependency_is_pinned_to_a_version_that_it_admits() -> None:
    for requirement in requirements("dev", "docs"):
        name = canonicalize_name(requirement.name)
        assert name in pins(), f"{name} is not in constraints/tested.txt"
        assert requirement.specifier.contains(pins()[name]), f"{name} {pins()[name]} contradicts {requirement}"


def test_pins_are_exact_and_without_a_build_or_an_address() -> None:
    text = (ROOT / "constraints" / "tested.txt").read_text(encoding="utf-8")
    pinned = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ;.*| #.*)?", line) for line in pinned)


def test_the_changelog_has_an_entry_for_the_version() -> None:
    version = project()["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_module_of_the_floors_is_named_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    levels = [level for item in project()["tool"]["importlinter"]["contracts"][:3] for level in item["layers"]]
    for name in (name for level in levels for name in re.split(r"\s*[|:]\s*", level)):
        room = name.removeprefix("headscope.").replace(".", "/")
        assert re.search(rf"`(headscope|slices|core)?/?{room}[`/.]", text), f"{name} has no line in the table of floors"


def test_every_command_is_in_the_readme() -> None:
    app = importlib.import_module("headscope.commands")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in app.COMMANDS:
        assert f"`headscope {name}" in text or f"`{name}`" in text, f"README doesn't name {name}"


def test_files_of_the_package_that_the_documentation_names_are_there() -> None:
    rooms = (ROOT, ROOT / "headscope", ROOT / "headscope" / "core" / "trace")
    for page in (
        *sorted((ROOT / "docs" / "adr").glob("*.md")),
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs/architecture.md",
    ):
        named = re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))
        real = [name for name in named if not re.search(r"\b[A-Z]+\b", name)]  # DIR/NAME.py stands for any
        gone = [name for name in real if not any((room / name).exists() for room in rooms)]
        assert gone == [], f"{page.name} names files that aren't there"


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (path for path in project_files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_no_file_names_the_machine_it_was_written_on() -> None:
    for path in project_files():
        if path.suffix in SUFFIXES and path != Path(__file__):
            text = path.read_text(encoding="utf-8", errors="replace")
            found = MACHINE_PATHS.search(text)
            assert not found, f"{path.relative_to(ROOT)} says {found and found.group()!r}"


def test_each_mutant_is_another_program() -> None:
    mutants = mutate.mutants_of("headscope/core/trace/proof/gradients.py")
    source = (ROOT / "headscope/core/trace/proof/gradients.py").read_text(encoding="utf-8")
    programs = {ast.dump(ast.parse(item.source)) for item in mutants}
    assert len(programs) == len(mutants) > 50
    assert ast.dump(ast.parse(source)) not in programs


def test_the_slow_tests_are_there() -> None:
    gone = [name for name in read_times() if not _is_there(*name.partition("::")[::2])]
    assert gone == []


def _is_there(file: str, test: str) -> bool:
    path = ROOT / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text(encoding="utf-8"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and arguments, lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", read("packaging/Dockerfile"), flags=re.MULTILINE))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied() -> list[str]:
    """What the image's first stage takes from the checkout."""
    plain = (rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from"))
    return [name.removeprefix("./") for names in plain for name in names]


# ---- the image


def test_the_image_runs_as_a_user_who_is_not_root() -> None:
    [user] = [rest for name, rest in instructions() if name == "USER"]
    assert user.split(":")[0].isdecimal()
    assert user.split(":")[0] != "0"
    after = [name for name, _ in instructions()][[name for name, _ in instructions()].index("USER") :]
    assert "RUN" not in after


def test_the_image_has_a_python_that_is_supported_and_takes_the_tested_versions() -> None:
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    [version] = {match[1] for match in (re.fullmatch(r"python:(3\.\d+)-slim", base) for base in bases) if match}
    assert f"Programming Language :: Python :: {version}" in project()["project"]["classifiers"]
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert installs
    assert all("-c constraints/tested.txt" in rest and "--no-cache-dir" in rest for rest in installs)


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    lines = [
        line for line in read("packaging/Dockerfile.dockerignore").splitlines() if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied())
    assert any(fnmatch.fnmatch("headscope/__pycache__", line) for line in lines[1:])
    assert all((ROOT / name).exists() for name in copied())


def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        place = ROOT / name
        shutil.copytree(place, source / name) if place.is_dir() else shutil.copy(place, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(list(tmp_path.glob("headscope-*.whl"))) == 1


def test_the_image_s_recipe_passes_its_linter() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint is not installed")
    ran = subprocess.run(
        [str(linter), str(ROOT / "packaging" / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout


# ---- conda


def test_the_conda_recipe_needs_what_the_project_needs() -> None:
    recipe = yaml.safe_load(read("packaging/recipe/recipe.yaml"))
    wanted = set()
    for line in project()["project"]["dependencies"]:
        name, specifier = Requirement(line).name, line.removeprefix(Requirement(line).name)
        wanted.add(f"{CONDA_NAMES.get(name, name)} {specifier}")
    assert set(recipe["requirements"]["run"]) == wanted | {"python >=${{ python_min }}"}
    backend = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert {line.replace(" ", "") for line in recipe["requirements"]["host"]} >= set(backend)


def test_the_conda_recipe_says_what_pyproject_says() -> None:
    recipe = yaml.safe_load(read("packaging/recipe/recipe.yaml"))
    assert recipe["context"]["version"] == project()["project"]["version"]
    assert f">={recipe['context']['python_min']}" == project()["project"]["requires-python"]
    assert recipe["about"]["license"] == project()["project"]["license"]
    assert recipe["about"]["summary"] == project()["project"]["description"]
    scripts = [f"{name} = {target}" for name, target in project()["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


# ---- what people and services read


def test_the_citation_says_what_pyproject_says() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "authors", "title"} <= set(cited)
    assert cited["title"] == project()["project"]["name"]
    assert cited["version"] == project()["project"]["version"]
    assert cited["license"] == project()["project"]["license"]
    assert [item["name"] for item in cited["authors"]] == [item["name"] for item in project()["project"]["authors"]]
    assert cited["keywords"] == project()["project"]["keywords"]


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.name != "config.yml"], ids=lambda path: path.stem)
def test_a_template_is_a_form_with_unique_fields(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert len({item["id"] for item in fields}) == len(fields) > 0
    assert all(item["attributes"]["label"] for item in fields)
    assert any(item.get("validations", {}).get("required") for item in fields)


@pytest.mark.parametrize("name", ["bug", "wrong_head"])
def test_a_report_of_a_fault_brings_the_output_of_env(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    [field] = [item for item in form["body"] if item.get("id") == "env"]
    assert "`headscope env`" in field["attributes"]["label"]
    assert field["validations"]["required"] is True


def test_templates_and_policies_name_commands_and_options_that_exist() -> None:

    from headscope.shell.app import build_application

    commands = build_application().commands  # type: ignore[attr-defined]
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*TEMPLATES, ROOT / ".github" / "SECURITY.md", ROOT / "packaging" / "Dockerfile")
    ]
    seen = re.findall(r"headscope ([a-z][a-z-]+)((?: --[a-z-]+| [A-Z]+| \S+/\S*)*)", "\n".join(texts))
    named = [(name, rest) for name, rest in seen if name in commands]
    assert {name for name, _ in named} >= {"env", "inspect", "snapshot", "check"}
    for name, rest in named:
        options = {option for item in commands[name].params for option in item.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options


def test_the_checklist_names_every_file_that_holds_the_version() -> None:
    page = read("docs/releasing.md")
    for name in (
        "pyproject.toml",
        "CITATION.cff",
        "packaging/recipe/recipe.yaml",
        "packaging/hf-extension/pyproject.toml",
        "CHANGELOG.md",
    ):
        assert f"`{name}`" in page
        assert project()["project"]["version"] in read(name)


def test_no_function_outside_the_command_line_has_more_than_seven_parameters():
    """Those of `**options` are a typed group with one meaning each, written once."""
    found = []
    for path in sorted((ROOT / "headscope").rglob("*.py")):
        if path.name.endswith("command.py"):
            continue
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [part.arg for part in (*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs)]
                if len([name for name in names if name not in ("self", "cls")]) > 7:
                    found.append(f"{path.relative_to(ROOT)}: {item.name}")
    assert found == []


def test_no_folder_of_the_package_has_more_than_fourteen_files_and_no_file_more_than_450_lines():
    files = sorted((ROOT / "headscope").rglob("*.py"))
    sizes = Counter(path.parent for path in files)
    assert [str(folder.relative_to(ROOT)) for folder, size in sizes.items() if size > 14] == []
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in files}
    assert [str(path.relative_to(ROOT)) for path, count in lines.items() if count > 450] == []


def test_a_private_function_of_one_word_and_a_text_behind_no_field_are_found(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        "class A:\n    def _told(self): ...\n    def _tell_name(self): ...\n    size: int = 2\n    'its size'\n"
        "def _seen(): ...\nrun()\n'about nothing'\n", encoding="utf-8",
    )  # fmt: skip
    assert check_names.one_word_functions(tmp_path) == {"one.py:_told", "one.py:_seen"}
    assert check_names.orphan_texts(tmp_path) == {"one.py:8"}


def test_every_public_name_of_the_package_has_one_meaning(tmp_path: Path):
    """`scripts/house/check_names.py` finds classes, functions, types and constants that two modules define."""
    for number, name in enumerate(("one", "two")):
        text = (
            f"SIZE = LONG, WIDE = {number}, 1\nShape = tuple[int, ...]\nLEAST: int = 2\n_SIZE = 3\ndef {name}(): ...\n"
        )
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    twice = [name for name, homes in check_names.names_with_homes(tmp_path).items() if len(homes) > 1]
    assert sorted(twice) == ["LEAST", "LONG", "SIZE", "Shape", "WIDE"]
    assert check_names.main() == 0


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_pinned_actions_with_no_more_rights_than_it_needs(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    assert all("permissions" in job and "timeout-minutes" in job for job in workflow["jobs"].values())
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", name) for name in used)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert all(re.search(r"# v\d+(\.\d+)*$", line) for line in lines)
    checkouts = [step for step in steps_of(workflow) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_workflows_run_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    asked = {
        name
        for path in WORKFLOWS
        for step in steps_of(yaml.safe_load(path.read_text(encoding="utf-8")))
        for name in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))
    }
    assert asked
    assert asked <= targets


def test_no_job_that_publishes_runs_code_of_the_repository() -> None:
    release = yaml.safe_load(read(".github/workflows/release.yml"))
    writing = [job for job in release["jobs"].values() if "write" in job["permissions"].values()]
    assert len(writing) == 3
    assert not [step for job in writing for step in job["steps"] if "checkout" in step.get("uses", "")]


def test_a_row_of_the_matrix_keeps_its_day_until_it_is_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "versions.md"
    page.write_text(f"above\n\n{matrix._OPENING}\n", encoding="utf-8")
    monkeypatch.setattr(matrix, "PAGE", page)
    versions = dict.fromkeys((*matrix._COLUMNS, "python"), "1")
    first, second = (item.name for item in matrix.COMBINATIONS[:2])
    matrix._write_table({first: matrix.Row(versions, "7 passed", passed=True)})
    matrix._write_table({second: matrix.Row(versions, "1 failed", passed=False)})
    unknown = matrix.Row(versions, "not run: no Python", passed=True, was_run=False)
    matrix._write_table({first: unknown, matrix.COMBINATIONS[2].name: unknown})
    above, table = page.read_text(encoding="utf-8").split(matrix._OPENING)
    lines = table.splitlines()[4:]
    assert above == "above\n\n" and len(lines) == len(matrix.COMBINATIONS)
    told = [line.split(" | ")[-2] for line in lines[:4]]
    assert told == ["7 passed", "1 failed", "not run: no Python", "not run: not asked for"]
    assert [bool(re.search(r"\| \d{4}-\d\d-\d\d \|$", line)) for line in lines[:4]] == [True, True, False, False]
