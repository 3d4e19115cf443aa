"""The rules on labeled data: faults that were made on purpose, and healthy data without a finding."""

from pathlib import Path
from typing import Any

import pytest
from labeled.trained import write_csv, write_lines, write_parquet

import headscope
from headscope.checks.rules.labeled.label_classes import fit_names
from headscope.errors import UsageError
from headscope.facts import Severity, Verdict
from headscope.shared.labeled.facts import Fit
from tests.families import FAMILIES

NAMES = ("negative", "neutral", "positive")
PLACEHOLDERS = ("LABEL_0", "LABEL_1", "LABEL_2")


def model(labels: tuple[str, ...] = NAMES, kind: str = "SequenceClassification", **settings: Any) -> Any:
    names = dict(enumerate(labels))
    settings |= {"id2label": names, "label2id": {name: at for at, name in names.items()}, "num_hidden_layers": 1}
    return FAMILIES["bert"].build(f"BertFor{kind}", **settings)


def write(folder: Path, cells: list[Any], name: str = "rows.jsonl") -> Path:
    """Rows with these labels: typed in JSON lines, as texts in csv."""
    if name == "rows.csv":
        return write_csv(folder / name, [("some text", cell) for cell in cells])
    return write_lines(folder / name, [{"text": "some text", "label": cell} for cell in cells])


def declared(folder: Path, cells: list[Any], names: tuple[str, ...]) -> Path:
    """A Parquet file with a ClassLabel."""
    features = {"label": {"names": list(names), "_type": "ClassLabel"}}
    return write_parquet(folder / "rows.parquet", {"label": cells}, features)


def checked(module: Any, data: Path, profile: Any = "training", column: Any = "label", **options: Any) -> Any:
    return headscope.check(module, profile, select="HS0", data=data, label_column=column, **options)


def found(result: Any) -> dict[str, str]:
    return {item.id: item.severity.value for item in result.findings}


MULTI = {"problem_type": "multi_label_classification"}
REGRESSION = {"problem_type": "regression"}
HEALTHY: list[tuple[str, Any, list[Any], dict[str, Any]]] = [
    ("names", model(), list(NAMES) * 4, {}),
    ("names in a csv", model(), list(NAMES) * 4, {"name": "rows.csv"}),
    ("ids", model(), [0, 1, 2] * 4, {}),
    ("ids in a csv", model(), [0, 1, 2] * 4, {"name": "rows.csv"}),
    ("ids with ignored rows", model(), [0, 1, 2, -100] * 4, {}),
    ("ids of placeholders", model(PLACEHOLDERS), [0, 1, 2] * 4, {}),
    ("names of placeholders", model(PLACEHOLDERS), list(PLACEHOLDERS) * 4, {}),
    ("names for placeholders", model(PLACEHOLDERS), list(NAMES) * 4, {}),
    ("booleans", model(("no", "yes")), [True, False] * 4, {}),
    ("lists of names", model(**MULTI), [["negative"], ["neutral", "positive"], []] * 4, {}),
    ("lists of ids", model(**MULTI), [[0], [1, 2], []] * 4, {}),
    ("lists of 0 and 1", model(**MULTI), [[0, 1, 0], [1, 0, 1]] * 4, {}),
    ("lists of 0.0 and 1.0", model(**MULTI), [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]] * 4, {}),
    ("numbers", model(("score",), **REGRESSION), [0.5, 1.25, 3.0, -7.0] * 4, {}),
    ("whole numbers for regression", model(("score",), **REGRESSION), [1, 2, 5] * 4, {}),
    ("numbers of one label", model(("score",)), [0.5, 1.25] * 4, {}),
    ("tags", model(kind="TokenClassification"), [[0, 1, 2, -100], [0]] * 4, {}),
    ("tags by name", model(kind="TokenClassification"), [["neutral", "negative"], ["positive"]] * 4, {}),
    ("an uneven but usual share", model(), [0] * 30 + [1] * 10 + [2] * 5, {}),
    ("names with signs and letters of others", model(("+", "-", "ß")), ["+", "-", "ß"] * 4, {}),
    ("stars", model(("1 star", "2 stars", "3 stars")), ["1 star", "2 stars", "3 stars"] * 4, {}),
]


@pytest.mark.parametrize("profile", ["training", "inference"])
@pytest.mark.parametrize(
    ("module", "cells", "options"), [item[1:] for item in HEALTHY], ids=[item[0] for item in HEALTHY]
)
def test_healthy_data_raise_no_alarm(
    tmp_path: Path, profile: str, module: Any, cells: list[Any], options: dict[str, Any]
) -> None:
    result = checked(module, write(tmp_path, cells, **options), profile)
    assert result.findings == ()
    assert result.not_determined == () or profile == "inference"


def test_declared_names_in_the_models_order_raise_no_alarm(tmp_path: Path) -> None:
    result = checked(model(), declared(tmp_path, [0, 1, 2, 2], NAMES))
    assert result.findings == ()
    assert "HS006" in result.asked


FAULTS: list[tuple[str, Any, list[Any], dict[str, str], tuple[str, ...]]] = [
    ("an unknown name", model(), [*NAMES, "mixed", "mixed"], {"HS001": "error"}, ("'mixed' (2 rows)",)),
    ("four names for three placeholders", model(PLACEHOLDERS), [*"abcd"], {"HS001": "error"}, ("4 classes",)),
    ("a class without rows", model(), ["negative", "positive"] * 3, {"HS002": "warning"}, ("neutral", "1 class of 3")),
    ("two names for three placeholders", model(PLACEHOLDERS), ["a", "b"] * 3, {"HS002": "warning"}, ("2 classes",)),
    ("an id too high", model(), [0, 1, 2, 3], {"HS003": "error"}, ("0 to 2", "'3' (1 row)", "num_labels=4")),
    ("ids from 1", model(), [1, 2, 3] * 3, {"HS002": "warning", "HS003": "error"}, ("subtract 1",)),
    ("an id of -1", model(), [0, 1, 2, -1], {"HS003": "error"}, ("'-1' (1 row)",)),
    ("lists of four for three classes", model(**MULTI), [[0, 1, 0, 1], [1, 0, 1, 0]], {"HS003": "error", "HS002": ""},
     ("4 entries",)),
    ("fractions", model(), [0.5, 1.5, 2.0], {"HS004": "error"}, ("from 0.5 to 2",)),
    ("whole floats", model(), [0.0, 1.0, 2.0], {"HS004": "warning"}, ("1.0",)),
    ("names for regression", model(("score",), **REGRESSION), ["a", "b"], {"HS004": "error"}, ("num_labels=2",)),
    ("one label where there are several", model(**MULTI), list(NAMES), {"HS004": "error"}, ("one label for each row",)),
    ("several labels, nothing said", model(), [[0, 1], [2]], {"HS004": "warning"}, ("problem_type is not set",)),
    ("several labels for one", model(problem_type="single_label_classification"), [[0, 1], [2]], {"HS004": "error"},
     ("several labels for a row",)),
    ("labels of rows for tokens", model(kind="TokenClassification"), list(NAMES), {"HS004": "error"},
     ("scores each token",)),
    ("other case", model(), ["Negative", "NEUTRAL", "positive"], {"HS005": "warning"}, ("'Negative' is 'negative'",)),
    ("short names", model(), ["neg", "neu", "pos"], {"HS005": "warning"}, ("'pos' is 'positive'",)),
    ("spaces", model(("not spam", "spam")), ["not_spam ", "spam"], {"HS005": "warning"}, ("'not_spam ' is",)),
    ("ham", model(("not_spam", "spam")), ["ham", "spam"], {"HS005": "warning"}, ("'ham' is 'not_spam'",)),
    ("digits as names", model(PLACEHOLDERS), ["0", "1", "2"], {"HS005": "warning"}, ("'0' is 'LABEL_0'",)),
    ("numbers as other names", model(("2", "0", "1")), [0, 1, 2], {"HS006": "warning"}, ("0: '2' by id, '0' by name",)),
    ("unbalanced", model(), [0] * 200 + [1] * 10 + [2] * 10, {"HS007": "note"}, ("'0' has 200 rows, '1' 10",)),
    ("missing", model(), [0, 1, 2, None, None], {"HS008": "warning"}, ("2 of 5 rows have no label",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "cells", "rules", "words"), [item[1:] for item in FAULTS], ids=[item[0] for item in FAULTS]
)
def test_a_fault_is_found_and_nothing_else(
    tmp_path: Path, module: Any, cells: list[Any], rules: dict[str, str], words: tuple[str, ...]
) -> None:
    result = checked(module, write(tmp_path, cells))
    assert found(result) == {rule: severity for rule, severity in rules.items() if severity}
    told = " ".join(f"{item.message} {item.remedy}" for item in result.findings)
    assert all(word in told for word in words), told
    assert (result.verdict is Verdict.FAILED) == ("error" in rules.values())


@pytest.mark.parametrize(
    ("names", "moved"),
    [
        (("positive", "neutral", "negative"), ("0: 'positive' in the data, 'negative' in the model", "2: 'negative'")),
        (("neg", "pos", "neutral"), ("1: 'pos' in the data, 'neutral' in the model",)),
        (("neutral", "positive", "negative"), ("0: 'neutral' in the data", "1: 'positive'", "2: 'negative'")),
    ],
)
@pytest.mark.parametrize("profile", ["training", "inference"])
def test_a_declared_order_that_is_another_is_named(
    tmp_path: Path, names: tuple[str, ...], moved: tuple[str, ...], profile: str
) -> None:
    result = checked(model(), declared(tmp_path, [0, 1, 2] * 3, names), profile)
    assert found(result)["HS006"] == "error"
    finding = next(item for item in result.findings if item.id == "HS006")
    assert all(words in finding.message for words in moved)
    space: dict[str, Any] = {"model": model()}
    exec(finding.code, space)
    assert tuple(space["model"].config.id2label.values()) == names


def test_declared_names_that_the_model_lacks_and_that_have_rows_are_unknown(tmp_path: Path) -> None:
    result = checked(model(), declared(tmp_path, [0, 1, 2, 3], (*NAMES, "mixed")))
    assert found(result) == {"HS001": "error", "HS003": "error"}


def test_data_in_inference_weigh_less(tmp_path: Path) -> None:
    data = write(tmp_path, [*NAMES[:2], "mixed"])
    assert found(checked(model(), data, "inference")) == {"HS001": "warning", "HS002": "note"}


def test_data_of_other_classes_only_are_an_error_even_in_inference(tmp_path: Path) -> None:
    assert found(checked(model(), write(tmp_path, ["ham", "spam"]), "inference")) == {"HS001": "error"}


def test_long_names_are_shown_by_their_beginning(tmp_path: Path) -> None:
    result = checked(model(), write(tmp_path, [*NAMES, "x" * 900]))
    assert len(result.findings[0].message) < 300
    path = tmp_path / "rows.csv"
    path.write_text(",".join("y" * 10_000 for _ in range(5)) + "\n")
    with pytest.raises(UsageError) as err:
        checked(model(), path)
    assert len(err.value.message) < 600


def test_rules_without_data_are_not_asked(tmp_path: Path) -> None:
    result = headscope.check(model(), select="HS0")
    assert result.asked == ()
    assert all("(--data)" in gap.reason for gap in result.not_applicable)
    assert result.data is None


def test_what_has_no_order_is_not_asked_for_one(tmp_path: Path) -> None:
    for cells, words in ((list(NAMES), "they are names, not ids"), ([0, 1, 2], "have no names to compare")):
        result = checked(model(), write(tmp_path, cells))
        reason = next(gap.reason for gap in result.not_applicable if gap.rule == "HS006")
        assert words in reason


def test_question_answering_has_no_classes(tmp_path: Path) -> None:
    result = checked(model(("start", "end"), "QuestionAnswering"), write(tmp_path, ["a", "b"]))
    assert result.findings == ()
    assert {gap.topic[:5] for gap in result.not_applicable} == {*result.rules}


def test_columns_of_0_and_1_are_compared_by_their_names(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [("a", 1, 0), ("b", 0, 1)], "text,rude,toxic")
    fine = checked(model(("toxic", "rude"), **MULTI), path, column=["rude", "toxic"])
    assert fine.findings == ()
    fits = [(item.label, item.model_class, item.fit) for item in fine.data.classes]
    assert fits == [("rude", 1, Fit.NAME), ("toxic", 0, Fit.NAME)]
    assert found(checked(model(("toxic", "kind"), **MULTI), path, column=["rude", "toxic"]))["HS001"] == "error"


def test_counts_stand_in_the_json(tmp_path: Path) -> None:
    result = checked(model(), write(tmp_path, ["negative", "Neutral", "odd", None]))
    assert result.to_dict()["data"]["classes"] == [
        {"label": "Neutral", "rows": 1, "model_class": 1, "fit": "spelling"},
        {"label": "negative", "rows": 1, "model_class": 0, "fit": "name"},
        {"label": "odd", "rows": 1, "model_class": None, "fit": "none"},
    ]


def test_several_classes_of_one_spelling_fit_no_name() -> None:
    assert fit_names(["POS", "positive"], ["pos", "Pos", "positive"]) == ((None, Fit.NONE), (2, Fit.NAME))


def test_severity_is_part_of_the_selection(tmp_path: Path) -> None:
    data = write(tmp_path, ["Negative", "neutral", "positive"])
    result = headscope.check(model(), select="HS005", fail_on=Severity.WARNING, data=data, label_column="label")
    assert result.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_column": "label"}, "label_column was given without data"),
        ({"data": "rows.csv"}, "without the column of its labels"),
        ({"data": "rows.csv", "label_column": ["a", "a"]}, "the column 'a' was given twice"),
        ({"data": "rows.csv", "label_column": "a", "text_column": ["b", "c", "d"]}, "3 text columns"),
        ({"data": "rows.csv", "label_column": "a", "predict": 0, "text_column": "b"}, "at least 1"),
        ({"data": "rows.csv", "label_column": "a", "predict": 8}, "need the column of the texts"),
        ({"data": "rows.csv", "label_column": "a", "device": "cpu"}, "device was given without predict"),
        ({"data": 7, "label_column": "a"}, "data must be str"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        headscope.check("bert-base-uncased", offline=True, **options)


def test_a_model_in_memory_predicts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in memory"):
        checked(model(), write(tmp_path, [0, 1]), text_column="text", predict=8)
