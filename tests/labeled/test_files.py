"""Every kind of file of labeled rows, whole, odd and broken: what is counted, and what is said."""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labeled.trained import write_csv, write_lines, write_parquet

from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError
from headscope.shared.labeled.facts import DataFacts, LabelKind
from headscope.shared.labeled.opening import open_data
from headscope.shared.labeled.sample import sample_rows
from headscope.shared.labeled.tally import tally_labels

ROWS = [('a fine, "old" film', "positive"), ("two\nlines", "negative"), ("ünïcode \u2028 too", "positive")] * 3
COLUMNS = dict(zip(("text", "label"), zip(*ROWS, strict=True), strict=True))


def read(path: Path, column: str = "label", split: str | None = None) -> DataFacts:
    return tally_labels(open_data(str(path), split), (column,), ())


def counts(data: DataFacts) -> dict[str, int]:
    return {item.label: item.rows for item in data.classes}


def with_csv(folder: Path, **options: Any) -> Path:
    path = folder / "rows.csv"
    with path.open("w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        writer = csv.writer(file, **options)
        writer.writerows([("text", "label"), *ROWS])
    return path


def saved_dataset(folder: Path, table: dict[str, Any], features: dict[str, Any]) -> Path:
    """What `Dataset.save_to_disk` of datasets 3 and 4 writes."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    made = pyarrow.table(table)
    with pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink, \
            pyarrow.ipc.new_stream(sink, made.schema) as writer:  # fmt: skip
        writer.write_table(made)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "csv": with_csv,
    "tsv": lambda folder: with_csv(folder, delimiter="\t").rename(folder / "rows.tsv"),
    "JSON lines": lambda folder: write_lines(folder / "rows.jsonl", [{"text": a, "label": b} for a, b in ROWS]),
    "Parquet": lambda folder: write_parquet(folder / "rows.parquet", COLUMNS),
    "a saved dataset": lambda folder: saved_dataset(folder / "saved", COLUMNS, {}),
    "a byte order mark": lambda folder: with_csv(folder, encoding="utf-8-sig"),
    "semicolons": lambda folder: with_csv(folder, delimiter=";"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    data = read(path)
    assert counts(data) == {"negative": 3, "positive": 6} == Counter(label for _, label in ROWS)
    assert (data.kind, data.rows, data.missing) == (LabelKind.TEXTS, 9, 0)
    source = open_data(str(path))
    sampled = sample_rows(source, tally_labels(source, ("label",), ("text",)), 100)
    assert sorted((item.texts[0].replace("\r\n", "\n"), item.label) for item in sampled) == sorted(ROWS)


def test_quotes_that_quote_nothing_do_not_swallow_lines_of_a_tsv(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text('label\ttext\nham\t"Nah I don\'t think so\nspam\tFree "entry" now\nham\t"whole"\n')
    assert counts(read(path)) == {"ham": 2, "spam": 1}


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["0", "1", "1"], LabelKind.INTEGERS, {"0": 1, "1": 2}),
        (["10", "9", "-100"], LabelKind.INTEGERS, {"9": 1, "10": 1}),
        (["0.5", "1", "2e3"], LabelKind.NUMBERS, {"0.5": 1, "1": 1, "2000": 1}),
        (["1.0", "", "0.0"], LabelKind.NUMBERS, {"0": 1, "1": 1}),
        (["1", "unknown", "1"], LabelKind.TEXTS, {"1": 2, "unknown": 1}),
        (['"[0, 2]"', '"[1]"', "[]"], LabelKind.LISTS, {"0": 1, "1": 1, "2": 1}),
        (["\"['a', 'b']\"", "['a']", "['b']"], LabelKind.LISTS, {"a": 2, "b": 2}),
    ],
)
def test_cells_of_a_csv_are_read_as_what_they_spell(
    tmp_path: Path, cells: list[str], kind: LabelKind, expected: dict[str, int]
) -> None:
    data = read(write_csv(tmp_path / "rows.csv", [("t", cell) for cell in cells]))
    assert (data.kind, counts(data)) == (kind, expected)
    assert data.missing == cells.count("")
    assert data.ignored == cells.count("-100")


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([True, False], LabelKind.BOOLEANS),
        (["1", "0"], LabelKind.TEXTS),
        ([1, 0.5], LabelKind.NUMBERS),
        ([[1, 0], [0, 1]], LabelKind.LISTS),
        ([None, 1], LabelKind.INTEGERS),
    ],
)
def test_json_lines_keep_the_kind_that_they_write(tmp_path: Path, labels: list[Any], kind: LabelKind) -> None:
    assert read(write_lines(tmp_path / "rows.jsonl", [{"label": label} for label in labels])).kind is kind


def test_lists_of_0_and_1_are_counted_by_position(tmp_path: Path) -> None:
    rows = [{"label": row} for row in ([1, 0, 1], [0, 0, 1], [1, 0, 0])]
    data = read(write_lines(tmp_path / "rows.jsonl", rows))
    assert (data.hot, data.list_length) == ((2, 0, 2), 3)


def test_several_columns_are_classes(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [("a", 1, 0), ("b", 1, 1), ("c", 0, 0)], "text,toxic,rude")
    data = tally_labels(open_data(str(path)), ("toxic", "rude"), ())
    assert (data.kind, counts(data)) == (LabelKind.COLUMNS, {"toxic": 2, "rude": 1})


FEATURES = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "text": {"dtype": "string", "_type": "Value"}}
TAGS = {"tags": {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "List"}}
OLD_TAGS = {"tags": [{"num_classes": 2, "names": ["O", "B"], "id": None, "_type": "ClassLabel"}]}


@pytest.mark.parametrize(
    ("features", "column", "cells", "names"),
    [
        (FEATURES, "label", [0, 1, 1], ("neg", "pos")),
        (TAGS, "tags", [[0, 1], [0], []], ("O", "B")),
        (OLD_TAGS, "tags", [[0, 1], [0], []], ("O", "B")),
    ],
)
def test_a_saved_dataset_declares_its_class_names(
    tmp_path: Path, features: dict[str, Any], column: str, cells: list[Any], names: tuple[str, ...]
) -> None:
    saved_dataset(tmp_path / "saved", {column: cells}, features)
    assert read(tmp_path / "saved", column).names == names


def test_parquet_declares_the_names_that_datasets_wrote(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", {"label": [0, 1]}, FEATURES)
    assert read(path).names == ("neg", "pos")


def test_a_split_is_chosen_by_name(tmp_path: Path) -> None:
    for split, cells in (("train", [0, 0]), ("test", [1])):
        saved_dataset(tmp_path / "saved" / split, {"label": cells}, FEATURES)
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    data = read(tmp_path / "saved", split="test")
    assert (data.split, counts(data)) == ("test", {"1": 1})
    with pytest.raises(UsageError, match="2 splits"):
        read(tmp_path / "saved")
    with pytest.raises(UsageError) as err:
        read(tmp_path / "saved", split="tset")
    assert err.value.hint.endswith(" test?")


def test_without_pyarrow_parquet_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1" + b"\0" * 20)
    with pytest.raises(Unsupported, match="pyarrow"):
        read(tmp_path / "rows.parquet")


BROKEN: list[tuple[str, bytes, type[HeadscopeError], str]] = [
    ("empty.csv", b"", Malformed, "is empty"),
    ("blank.csv", b"\n\n", Malformed, "is empty"),
    ("header.csv", b"text,label\n", Malformed, "has no rows"),
    ("ragged.csv", b"text,label\na,b\nc,d,e\n", Malformed, "3 cells in line 3"),
    ("latin.csv", b"text,label\ncaf\xe9,a\n", Malformed, "is not UTF-8"),
    ("wide.csv", "text,label\na,b\n".encode("utf-16"), Malformed, "UTF-16"),
    ("nul.csv", b"text,label\na\0b,c\n", Malformed, "NUL byte"),
    ("quote.csv", b'text,label\n"open,b\n', Malformed, "not a valid csv"),
    ("twice.csv", b"label,label\na,b\n", UsageError, "several columns"),
    ("other.csv", b"text,lable\na,b\n", UsageError, "has no column 'label'"),
    ("unlabeled.csv", b"text,label\na,\nb,\n", UsageError, "all 2 cells are empty"),
    ("packed.csv", b"\x1f\x8b\x08\0\0", Unsupported, "gzip"),
    ("sheet.csv", b"PK\x03\x04rest", Unsupported, "zip"),
    ("pickle.jsonl", b"\x80\x04\x95\0", Unsupported, "pickle"),
    ("garbage.csv", bytes(range(128, 256)), Malformed, "is not UTF-8"),
    ("garbage.jsonl", b"\x01\x02{", Malformed, "not JSON lines"),
    ("notes.txt", b"text\n", UsageError, "doesn't end in csv"),
    ("list.json", b'[{"label": 1}]', Malformed, "one JSON list"),
    ("pretty.json", b'[\n{"label": 1}]', Malformed, "one JSON list"),
    ("number.jsonl", b"7\n", Malformed, "line 1 is not an object"),
    ("deep.jsonl", b"[" * 100_000 + b"\n", Malformed, "one JSON list"),
    ("digits.jsonl", b'{"label": ' + b"9" * 5000 + b"}\n", Malformed, "not JSON lines"),
    ("mixed.jsonl", b'{"label": 1}\n{"label": "a"}\n', Malformed, "mixes integers (first in row 1) and texts"),
    ("dicts.jsonl", b'{"label": {"a": 1}}\n', UsageError, "an object (dict)"),
    ("nested.jsonl", b'{"label": [[1], [2]]}\n', UsageError, "holds lists"),
    ("missing.jsonl", b'{"text": "a"}\n', UsageError, "has no column 'label'"),
    ("cut.parquet", b"PAR1" + b"\0" * 20, Malformed, "not a valid Parquet"),
    ("text.parquet", b"hello", Malformed, "not PAR1"),
]


@pytest.mark.parametrize(("name", "content", "kind", "words"), BROKEN, ids=lambda value: str(value)[:20])
def test_what_cannot_be_read_is_said_in_a_sentence(
    tmp_path: Path, name: str, content: bytes, kind: type[HeadscopeError], words: str
) -> None:
    if name == "cut.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HeadscopeError) as err:
        read(tmp_path / name)
    assert isinstance(err.value, kind)
    assert words in err.value.message
    assert err.value.hint
    assert "\n" not in err.value.message


def test_places_that_hold_no_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="doesn't exist"):
        read(tmp_path / "none.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(Unsupported, match="not a regular file"):
        read(tmp_path / "pipe.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unsupported, match="not a folder that `datasets` saved"):
        read(tmp_path / "folder")


@pytest.mark.parametrize("name", ["../rows.arrow", "/etc/passwd", "a/b.arrow", "..", "", 7])
def test_a_saved_dataset_names_no_file_elsewhere(tmp_path: Path, name: Any) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(Malformed, match="same folder"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a\n1", "b\x1b[2J,"])
def test_a_column_with_a_hostile_name_is_escaped_in_the_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    with pytest.raises(UsageError) as err:
        read(tmp_path / "rows.csv", name)
    assert repr(name) in err.value.message


def test_texts_are_no_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [(f"text {number}", number % 3) for number in range(200)])
    with pytest.raises(UsageError, match=r"'text' .*: .* 200 .* 200 "):
        read(path, "text")


def test_a_hundred_thousand_names_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("label\n" + "".join(f"x{number}\n" for number in range(100_000)) * 2)
    with pytest.raises(UsageError, match="over 20,000 different values"):
        read(path, "label")


def test_an_endless_line_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("wb") as file:
        file.write(b"text,label\n")
        file.truncate(1 << 33)  # 8 GB of NUL bytes that take no place on the disk
    with pytest.raises(Malformed, match="line 2"):
        read(path)


def test_the_csv_modules_limit_is_put_back_while_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + f"{'x' * 1_000_000},a\n" * 3)
    before = csv.field_size_limit()
    rows = open_data(str(tmp_path / "rows.csv")).read(("text",))
    assert len(next(iter(rows))[0]) == 1_000_000
    assert csv.field_size_limit() == before
    assert read(tmp_path / "rows.csv").rows == 3


@pytest.mark.parametrize("count", [8, 64, 1000])
def test_a_sample_is_even_over_the_classes_and_the_same_every_time(tmp_path: Path, count: int) -> None:
    labels = ["a"] * 500 + ["b"] * 20 + ["c"] * 3
    path = write_csv(tmp_path / "rows.csv", [(f"t{number}", label) for number, label in enumerate(labels)])
    source = open_data(str(path))
    data = tally_labels(source, ("label",), ("text",))
    first, again = sample_rows(source, data, count), sample_rows(source, data, count)
    assert first == again
    found = Counter(item.label for item in first)
    assert sum(found.values()) == min(count, len(labels))
    assert found["c"] >= min(3, count // 3)
    assert found["b"] >= min(20, count // 3)
    assert all(labels[int(item.texts[0][1:])] == item.label for item in first)


def test_what_datasets_itself_saves_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names, tags = ["neg", "neu", "pos"], ["O", "B-PER"]
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=names),
            "tags": datasets.Sequence(datasets.ClassLabel(names=tags)),
        }
    )
    rows = {"text": ["a", "b", "c", "d"], "label": [0, 2, 2, 1], "tags": [[0, 1], [0], [], [1]]}
    pyarrow = pytest.importorskip("pyarrow")
    made = datasets.Dataset(  # with a fingerprint: making one fails with some versions of pyarrow
        datasets.table.InMemoryTable(pyarrow.table(rows, schema=features.arrow_schema)),
        info=datasets.DatasetInfo(features=features),
        fingerprint="0",
    )
    made.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": made, "test": made.select([1, 2])}).save_to_disk(str(tmp_path / "splits"))
    made.to_parquet(str(tmp_path / "rows.parquet"))
    made.remove_columns("tags").to_csv(str(tmp_path / "rows.csv"), index=False)
    made.to_json(str(tmp_path / "rows.jsonl"))
    expected = {"0": 1, "1": 1, "2": 2}
    for place in ("saved", "rows.parquet", "rows.csv", "rows.jsonl"):
        assert counts(read(tmp_path / place)) == expected
    assert counts(read(tmp_path / "splits", split="test")) == {"2": 2}
    for place in ("saved", "rows.parquet"):
        assert read(tmp_path / place).names == tuple(names)
        assert read(tmp_path / place, "tags").names == tuple(tags)
    made.shuffle(seed=0).save_to_disk(str(tmp_path / "shuffled"))
    assert counts(read(tmp_path / "shuffled")) == expected
