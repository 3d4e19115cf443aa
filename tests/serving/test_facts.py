"""The facts on inference engines: every row says where it was read, has the form expected, and can be reached."""

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from headscope.shared.serving.cited import cited_code, facts_on

FOLDER = Path(__file__).resolve().parents[2] / "headscope" / "shared" / "serving" / "facts"
FILES = sorted(FOLDER.glob("*.toml"))

ENGINE = {
    "engine": str,
    "title": str,
    "package": str,
    "versions": str,
    "read_at": str,
    "repository": str,
    "read_on": str,
    "dtype": dict,
    "logits": str,
    "not_looked_at": list,
    "heads": list,
    "scores": list,
}
HEAD = {"architectures": list, "runs": bool, "file": str, "line": int}
HEAD_MORE = {
    "code": str,
    "when": dict,
    "same_head": bool,
    "formula": str,
    "positions": str,
    "drops": list,
    "reason": str,
    "reads_padding": bool,
}
SCORE = {"activation": str, "reads_problem_type": bool, "file": str, "line": int}
SCORE_MORE = {"code": str, "architectures": list, "when": dict}
NOTE = {"about": str, "says": str, "file": str, "line": int}
NOTE_MORE = {"code": str}
TOPICS = {"truncation", "segment_ids", "labels", "padding", "precision", "other"}
SPECIAL = {
    "@chain", "@files", "@num_labels", "@cross_encoder_activation", "@modules", "@library", "@pooling", "@tokenizer",
}  # fmt: skip
CONDITION = {"is": list, "not": list, "min": int, "max": int, "absent": bool}

REMOTE_CODE = "written by the code in the repositories of Alibaba-NLP/new-impl, and known to the engine by this name"
NOT_IN_TRANSFORMERS = {
    "NewForSequenceClassification": REMOTE_CODE,
    "NewForTokenClassification": REMOTE_CODE,
    "GteNewForSequenceClassification": "vLLM's name for NewForSequenceClassification, given with --hf-overrides",
}

Row = Mapping[str, Any]


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def misfits(table: Row, needed: Mapping[str, type], more: Mapping[str, type]) -> list[str]:
    """What is missing, unknown or of the wrong type in a table."""
    allowed = {**needed, **more}
    is_free = "@chain" in table.get("when", {})  # a chain of modules has no architecture
    wrong = [f"{key} is missing" for key in needed if key not in table and not (is_free and key == "architectures")]
    wrong += [f"{key} is unknown" for key in table if key not in allowed]
    return wrong + [
        f"{key} is not {kind.__name__}" for key, kind in allowed.items() if type(table.get(key, kind())) is not kind
    ]


def ill_formed(when: Row) -> list[str]:
    """Conditions that no configuration could be held against."""
    wrong = []
    for name, condition in when.items():
        allowed = {"has": list} if name == "@files" else CONDITION
        if not condition or misfits(condition, {}, allowed):
            wrong.append(name)
        if any(condition.get(key) == [] for key in ("is", "not", "has")) or condition.get("absent") is False:
            wrong.append(name)
        if name.startswith("@") and name not in SPECIAL:
            wrong.append(name)
    return wrong


def citations(facts: Row) -> Iterator[Row]:
    yield facts["dtype"]
    for kind in ("heads", "scores", "notes"):
        yield from facts.get(kind, [])


def implies(narrow: Row, wide: Row) -> bool:
    """Whether every configuration that meets one condition meets the other."""
    if "absent" in wide and not narrow.get("absent"):
        return False
    if "is" in wide and not ("is" in narrow and set(narrow["is"]) <= set(wide["is"])):
        return False
    apart = "is" in narrow and not set(narrow["is"]) & set(wide.get("not", []))
    if "not" in wide and not (apart or set(wide["not"]) <= set(narrow.get("not", []))):
        return False
    if "min" in wide and narrow.get("min", float("-inf")) < wide["min"]:
        return False
    if "max" in wide and narrow.get("max", float("inf")) > wide["max"]:
        return False
    return set(wide.get("has", [])) <= set(narrow.get("has", []))


def takes(earlier: Row, later: Row, pattern: str) -> bool:
    """Whether an earlier row takes every checkpoint of one architecture of a later one."""
    if not any(fnmatchcase(pattern, wide) for wide in earlier.get("architectures", ["*"])):
        return False
    narrow = later.get("when", {})
    return all(name in narrow and implies(narrow[name], wide) for name, wide in earlier.get("when", {}).items())


def unreachable(rows: list[Row]) -> list[str]:
    """The architectures that a row names in vain, because earlier rows take all of their checkpoints."""
    return [
        f"row {number}: {pattern}"
        for number, row in enumerate(rows)
        for pattern in row.get("architectures", ["*"])
        if any(takes(earlier, row, pattern) for earlier in rows[:number])
    ]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def facts(path: Path) -> dict[str, Any]:
    return read(path)


def test_there_are_facts_on_eleven_engines() -> None:
    assert len(FILES) == 11


def test_every_field_is_there_and_has_its_type(facts: dict[str, Any]) -> None:
    assert misfits(facts, ENGINE, {"notes": list, "unread": list}) == []
    assert misfits(facts["dtype"], {"rule": str, "file": str, "line": int}, {"float32": str, "float32_not": list}) == []
    assert [wrong for row in facts["heads"] if (wrong := misfits(row, HEAD, HEAD_MORE))] == []
    assert [wrong for row in facts["scores"] if (wrong := misfits(row, SCORE, SCORE_MORE))] == []
    assert [wrong for row in facts.get("notes", []) if (wrong := misfits(row, NOTE, NOTE_MORE))] == []


def test_lists_hold_texts(facts: dict[str, Any]) -> None:
    lists = [facts["not_looked_at"]]
    lists += [row[key] for row in facts["heads"] + facts["scores"] for key in ("architectures", "drops") if key in row]
    assert all(isinstance(entry, str) and entry for texts in lists for entry in texts)


def test_the_engine_is_named_after_its_file(path: Path, facts: dict[str, Any]) -> None:
    assert facts["engine"] == path.stem.replace("_", "-")


def test_the_range_of_versions_is_valid_and_narrow_and_holds_the_one_that_was_read(facts: dict[str, Any]) -> None:
    versions = SpecifierSet(facts["versions"])
    assert {one.operator for one in versions} == {">=", "<"}
    (first,), (end,) = ([Version(one.version) for one in versions if one.operator == sign] for sign in (">=", "<"))
    assert first.major == end.major, "a minor series at most"
    try:
        assert Version(facts["read_at"]) in versions
    except InvalidVersion:
        assert len(facts["read_at"]) == 40, "a version, or a whole commit"


def test_every_row_cites_a_file_of_the_engine(facts: dict[str, Any]) -> None:
    for row in citations(facts):
        assert not row["file"].startswith("/")
        assert ".." not in row["file"].split("/")
        assert row["line"] >= 1


def test_every_condition_can_be_held_against_a_configuration(facts: dict[str, Any]) -> None:
    assert [wrong for row in facts["heads"] + facts["scores"] if (wrong := ill_formed(row.get("when", {})))] == []


def test_a_difference_is_described_and_what_is_the_same_is_not(facts: dict[str, Any]) -> None:
    for row in facts["heads"]:
        if not row["runs"]:
            assert row["reason"]
            assert "same_head" not in row
        elif row.get("same_head") is False:
            assert row["reason"]
            assert row["formula"]
        elif row.get("same_head") is True:
            assert row["formula"] == ""
        else:
            assert row.get("reason") or row.get("formula"), "what couldn't be told"


def test_activations_and_topics_are_known(facts: dict[str, Any]) -> None:
    assert {row["activation"] for row in facts["scores"]} <= {"softmax", "sigmoid", "none", "tanh", "other"}
    assert {row["about"] for row in facts.get("notes", [])} <= TOPICS


def test_no_row_is_unreachable(facts: dict[str, Any]) -> None:
    assert unreachable(facts["heads"]) == []
    assert unreachable(facts["scores"]) == []


def test_the_last_row_on_scores_takes_what_is_left(facts: dict[str, Any]) -> None:
    assert all("when" not in row and "architectures" not in row for row in facts["scores"][-1:])


def test_no_architecture_is_named_twice_in_a_row(facts: dict[str, Any]) -> None:
    for row in facts["heads"] + facts["scores"]:
        assert len(set(row.get("architectures", []))) == len(row.get("architectures", []))


def test_every_architecture_is_a_class_of_transformers_or_listed_here_with_its_reason(facts: dict[str, Any]) -> None:
    known = {*dir(transformers), *NOT_IN_TRANSFORMERS}
    patterns = {one for row in facts["heads"] + facts["scores"] for one in row.get("architectures", [])}
    assert [one for one in sorted(patterns) if not any(fnmatchcase(name, one) for name in known)] == []


def test_every_listed_exception_is_needed() -> None:
    named = {one for path in FILES for row in read(path)["heads"] for one in row.get("architectures", ())}
    assert set(NOT_IN_TRANSFORMERS) <= named
    assert not set(NOT_IN_TRANSFORMERS) & set(dir(transformers))


BERT, ANY = {"architectures": ["BertForX"]}, {"architectures": ["*ForX"]}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([ANY, BERT], 1),
        ([BERT, ANY], 0),
        ([BERT, BERT], 1),
        ([{}, BERT], 1),
        ([ANY, {"architectures": ["*BertForX"]}], 1),
        ([{**ANY, "when": {"a": {"is": [1, 2]}}}, {**BERT, "when": {"a": {"is": [2]}}}], 1),
        ([{**ANY, "when": {"a": {"is": [1]}}}, {**BERT, "when": {"a": {"is": [1, 2]}}}], 0),
        ([{**ANY, "when": {"a": {"not": [1]}}}, {**BERT, "when": {"a": {"is": [2]}}}], 1),
        ([{**ANY, "when": {"a": {"not": [1]}}}, {**BERT, "when": {"a": {"not": [2]}}}], 0),
        ([{**ANY, "when": {"a": {"absent": True}}}, {**BERT, "when": {"a": {"absent": True}}}], 1),
        ([{**ANY, "when": {"a": {"absent": True}}}, BERT], 0),
        ([{**ANY, "when": {"a": {"max": 2}}}, {**BERT, "when": {"a": {"max": 1}}}], 1),
        ([{**ANY, "when": {"a": {"min": 2}}}, {**BERT, "when": {"a": {"min": 1}}}], 0),
        ([{**ANY, "when": {"@files": {"has": ["a"]}}}, {**BERT, "when": {"@files": {"has": ["a", "b"]}}}], 1),
        ([{**ANY, "when": {"@files": {"has": ["a", "b"]}}}, {**BERT, "when": {"@files": {"has": ["a"]}}}], 0),
    ],
)
def test_a_row_behind_a_wider_one_is_found(rows: list[Row], found: int) -> None:
    assert len(unreachable(rows)) == found


def test_a_missing_an_unknown_and_a_wrong_field_are_found() -> None:
    row = {"architectures": "BertForX", "runs": True, "file": "a.py", "color": 1}
    assert misfits(row, HEAD, HEAD_MORE) == ["line is missing", "color is unknown", "architectures is not list"]


@pytest.mark.parametrize(
    "when",
    [
        {"a": {}},
        {"a": {"is": []}},
        {"a": {"equals": 1}},
        {"a": {"absent": False}},
        {"@files": {"is": ["a"]}},
        {"@labels": {"min": 1}},
    ],
)
def test_a_condition_that_says_nothing_is_found(when: Row) -> None:
    assert ill_formed(when)


def test_rows_on_installed_engines_cite_the_code_that_is_there() -> None:
    """In the version read; for a later one, `python -m scripts.engines.check_rows` lists what to read again."""
    known = {path: facts_on(read(path)["engine"]) for path in FILES}
    rows = [
        row for path in FILES if known[path].installed_version() == known[path].read_at for row in citations(read(path))
    ]
    if not rows:
        pytest.skip("no engine is installed in the version that was read")
    folder = Path(transformers.__file__).parents[1]
    followed = [row for row in rows if "code" in row]
    assert followed and [row for row in followed if cited_code(folder, row["file"], row["line"]) != row["code"]] == []
