"""`scan_batch` where people call it: pandas, Dask and Ray Data; and what a process keeps between two batches."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tables import small_bert

import headscope
from headscope.core.source import loading
from headscope.core.source.memory import memory
from headscope.errors import UsageError
from headscope.slices.fleet.facts import columns
from tests.headers_only import write

SNAPSHOTS = ("bert-base-uncased", "gpt2", "roberta-base")
POOLINGS = {"bert-base-uncased": "first_token", "gpt2": "last_non_pad_token", "roberta-base": "first_token"}


def test_the_rows_are_those_of_scan_in_the_order_of_the_batch() -> None:
    names = [*reversed(SNAPSHOTS), "nothing-here", SNAPSHOTS[0]]
    found = headscope.scan_batch({"reference": names}, offline=True)
    alone = {row.reference: row.to_dict() for row in headscope.scan(names, workers=0, offline=True)}
    assert list(found) == list(columns())
    assert found["reference"] == names
    for name, column in found.items():
        if name != "seconds":
            assert column == [alone[reference][name] for reference in names], name


def test_the_second_batch_of_one_structure_is_not_examined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = small_bert()
    own = base.config | {"max_position_embeddings": 77}  # a count by which no other test has examined this structure
    folders = [
        str(write(replace(base, config=own | {"_name_or_path": f"run-{number}"}), tmp_path / str(number)))
        for number in range(6)
    ]
    loads: list[object] = []
    whole = loading.load_checkpoint
    monkeypatch.setattr(loading, "load_checkpoint", lambda *given: loads.append(given) or whole(*given))
    for at in range(0, 6, 3):
        found = headscope.scan_batch({"reference": folders[at : at + 3]}, offline=True)
        assert found["class"] == ["BertForSequenceClassification"] * 3
        assert len(loads) == 1


def test_what_a_process_keeps_is_bounded_and_other_options_keep_their_own() -> None:
    counts = [
        headscope.scan_batch({"reference": ["gpt2"]}, offline=True, **options)["num_labels"]
        for options in ({"num_labels": 5}, {}, {"num_labels": 5}, {"select": ["HS1"]})
    ]
    assert counts == [[5], [2], [5], [2]]
    kept = memory.Structures()
    for number in range(1_000):
        kept.keep(str(number), object())
    assert len(kept) < 100


def test_threads_share_what_is_kept() -> None:
    kept = memory.Structures(most=2)

    def use(own: int) -> None:
        for number in range(20_000):
            kept.keep(str(number % 5), object())
            kept.get(str((number + own) % 5))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))


@pytest.mark.parametrize(
    ("batch", "options", "sentence"),
    [
        ({"model": ["gpt2"]}, {}, "the batch has no column `reference`"),
        ({"reference": ["gpt2"]}, {"workers": 2}, "no such option: workers"),
        ({"reference": ["gpt2"]}, {"offlin": True}, "offlin"),
        ({"reference": ["gpt2"]}, {"fail_on": "never"}, "never"),
    ],
)
def test_what_makes_no_sense_is_refused(batch: dict[str, list[str]], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        headscope.scan_batch(batch, **options)


def test_a_missing_name_costs_itself_alone() -> None:
    found = headscope.scan_batch({"reference": ["gpt2", None, float("nan"), "a\0b"]}, offline=True)
    assert found["verdict"][0] == "failed"
    assert found["verdict"][1:] == ["not_determined"] * 3
    assert found["not_determined"][1:] == ["usage"] * 3


@pytest.mark.parametrize(("library", "table"), [("pandas", "DataFrame"), ("pyarrow", "table")])
def test_with_a_table_of_another_library(library: str, table: str) -> None:
    made = getattr(pytest.importorskip(library), table)({"reference": list(SNAPSHOTS)})
    rows = headscope.scan_batch(made, offline=True)
    assert dict(zip(rows["reference"], rows["pooling_kind"], strict=True)) == POOLINGS


def test_with_dask() -> None:
    bag = pytest.importorskip("dask.bag")
    names = bag.from_sequence(SNAPSHOTS, npartitions=2)
    found = names.map_partitions(lambda part: [headscope.scan_batch({"reference": list(part)}, offline=True)])
    batches = found.compute(scheduler="threads", num_workers=2)
    assert {
        name: pooling
        for batch in batches
        for name, pooling in zip(batch["reference"], batch["pooling_kind"], strict=True)
    } == POOLINGS
