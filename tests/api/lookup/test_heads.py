"""Every classification class of the installed Transformers is traced, and its gradients agree.

The kept atlas stands for all of them: each of its classes is traced again by a case of its own.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

import pytest

from headscope import api
from headscope.core.facts.heads.atlas import HeadEntry
from headscope.core.facts.plain import to_dict
from headscope.core.model.classes.catalog import all_classes_of_task
from headscope.core.trace.slice.stages import function_operations, module_operations
from headscope.errors import UsageError
from headscope.facts import PoolingKind, Task
from scripts.pages.atlas_page import atlas_page

ROOT = Path(__file__).resolve().parents[3]
MISSING_DEPENDENCY = "an optional dependency is missing"
NOT_AT_DEFAULTS = (
    "PerceiverForImageClassificationConvProcessing",  # its channels do not divide by the default number of heads
    "PerceiverForImageClassificationFourier",  # likewise
)
"""Classes that Transformers itself does not run at their default configuration."""


VERSION = metadata.version("transformers")
KEPT = import_module("scripts.pages.write_atlas").read_atlas()


def _without_padding(entry: HeadEntry) -> HeadEntry:
    """The effect of padding is measured for the page alone."""
    head = entry.head
    if head is None or head.verification is None:
        return entry
    return replace(entry, head=replace(head, verification=replace(head.verification, padding=())))


ENTRIES: dict[str, list[HeadEntry]] = defaultdict(list)
for kept_entry in KEPT.entries:
    ENTRIES[kept_entry.class_name].append(_without_padding(kept_entry))


@pytest.fixture(scope="module")
def atlas(request: pytest.FixtureRequest) -> tuple[HeadEntry, ...]:
    if KEPT.transformers == VERSION and not request.config.getoption("--update-golden"):
        return tuple(map(_without_padding, KEPT.entries))
    return api.heads(workers=2)


of_this_version = pytest.mark.skipif(
    KEPT.transformers != VERSION, reason=f"the page shows another Transformers than {VERSION}"
)


@of_this_version
@pytest.mark.parametrize("name", ENTRIES)
def test_the_kept_atlas_is_what_the_code_makes(name: str) -> None:
    assert list(api.heads(f"{name[:-1]}?", workers=1)) == ENTRIES[name]


@of_this_version
def test_many_classes_are_traced_in_processes() -> None:
    found = api.heads("luke", workers=2)
    assert len(found) > 6 and all(entry in ENTRIES[entry.class_name] for entry in found)


def test_the_atlas_has_every_class(atlas: tuple[HeadEntry, ...]) -> None:
    expected = [(name, kind, task) for task in Task for kind, name in all_classes_of_task(task)]
    assert sorted((entry.class_name, entry.model_type, entry.task) for entry in atlas) == sorted(expected)
    padding_sides = import_module("scripts.pages.write_atlas").padding_sides
    assert KEPT.transformers != VERSION or padding_sides(atlas) == KEPT.padding_sides


def test_every_class_is_traced_or_says_what_is_missing(atlas: tuple[HeadEntry, ...]) -> None:
    untraced = [entry for entry in atlas if not entry.traced]
    assert {entry.task for entry in atlas} == set(Task)
    assert all(entry.reason for entry in untraced)
    if VERSION >= "5.23":
        others = [entry.class_name for entry in untraced if not entry.reason.startswith(MISSING_DEPENDENCY)]
        assert sorted(others) == sorted(NOT_AT_DEFAULTS)


def test_no_gradient_contradicts_a_traced_pooling(atlas: tuple[HeadEntry, ...]) -> None:
    verdicts = {entry: entry.head.verification for entry in atlas if entry.head}
    wrong = [entry.class_name for entry, verdict in verdicts.items() if verdict and verdict.agrees is False]
    no_claim = {PoolingKind.CONCAT, PoolingKind.WEIGHTED, PoolingKind.OTHER}  # their weights are theirs to choose
    open_ones = [
        entry.class_name
        for entry, verdict in verdicts.items()
        if (verdict is None or verdict.agrees is None) and entry.head and entry.head.pooling.kind not in no_claim
        if verdict is None or "too many to be run again" not in verdict.told  # a whole vocabulary
    ]
    assert wrong == []
    assert open_ones == []


def test_every_head_reaches_the_logits_through_live_parameters(atlas: tuple[HeadEntry, ...]) -> None:
    for entry in atlas:
        if entry.head:
            assert entry.head.stages, entry.class_name
            own = entry.head.parameters  # ShieldGemma2 reads two scores of its language model and owns none
            assert any(item.live for item in own) or not own, entry.class_name


def test_the_page_of_the_atlas_is_what_the_code_makes(
    atlas: tuple[HeadEntry, ...], request: pytest.FixtureRequest
) -> None:
    page = ROOT / "docs" / "atlas.md"
    if f"Transformers {VERSION} " not in page.read_text(encoding="utf-8"):
        pytest.skip(f"the page shows another Transformers than {VERSION}")
    fresh = atlas_page(atlas, VERSION)
    if request.config.getoption("--update-golden"):
        page.write_text(fresh, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == fresh


def test_the_data_kept_of_this_version_is_what_the_code_makes(
    atlas: tuple[HeadEntry, ...], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The page of changes between versions is made of it."""
    matrix = import_module("scripts.releases.matrix")
    kept = matrix.KEPT / f"{VERSION}.json"
    if not kept.is_file():
        pytest.skip(f"no data is kept of Transformers {VERSION}")
    if not request.config.getoption("--update-golden"):
        monkeypatch.setattr(matrix, "KEPT", tmp_path)
    matrix.write_heads([to_dict(entry) for entry in atlas], VERSION)
    fresh = json.loads((matrix.KEPT / f"{VERSION}.json").read_text(encoding="utf-8"))
    present = json.loads(kept.read_text(encoding="utf-8"))
    assert [name for name in fresh if fresh[name] != present.get(name)] == []
    assert fresh.keys() == present.keys()


READINGS = {  # from the modeling source of each class
    "EuroBertForSequenceClassification": PoolingKind.MASKED_MEAN,
    "BeitForImageClassification": PoolingKind.MEAN,
    "ConvNextForImageClassification": PoolingKind.SPATIAL_MEAN,
    "SwinForImageClassification": PoolingKind.MEAN,
    "ResNetForImageClassification": PoolingKind.SPATIAL_MEAN,
    "Wav2Vec2ForSequenceClassification": PoolingKind.MASKED_MEAN,
    "Wav2Vec2ForXVector": PoolingKind.CONCAT,
    "Dinov2ForImageClassification": PoolingKind.CONCAT,
    "CLIPForImageClassification": PoolingKind.MEAN,
    "VideoMAEForVideoClassification": PoolingKind.MEAN,
    "PerceiverForSequenceClassification": PoolingKind.WEIGHTED,
    "XLMForSequenceClassification": PoolingKind.FIRST_TOKEN,
    "BertForMultipleChoice": PoolingKind.FIRST_TOKEN,
    "BertForNextSentencePrediction": PoolingKind.FIRST_TOKEN,
    "BertForQuestionAnswering": PoolingKind.NONE,
    "SplinterForQuestionAnswering": PoolingKind.OTHER,
    "Wav2Vec2ForAudioFrameClassification": PoolingKind.NONE,
}


@pytest.mark.parametrize("name", READINGS)
def test_the_pooling_is_the_one_in_the_source(name: str, atlas: tuple[HeadEntry, ...]) -> None:
    entry = next((item for item in atlas if item.class_name == name and item.head), None)
    if entry is None or entry.head is None:
        pytest.skip(f"{name} is not in this Transformers")
    assert entry.head.pooling.kind is READINGS[name], entry.head.pooling


def test_a_pooler_that_is_not_used_is_beside_the_head(atlas: tuple[HeadEntry, ...]) -> None:
    entry = next(item for item in atlas if item.class_name == "BigBirdForSequenceClassification")
    assert "bert.pooler" in [module.path for module in entry.head.unused_modules]


def test_what_pretraining_brings_is_told(atlas: tuple[HeadEntry, ...]) -> None:
    by_name = {entry.class_name: entry for entry in atlas}
    assert by_name["BertForSequenceClassification"].new_from_pretraining == ("classifier.weight", "classifier.bias")
    assert len(by_name["RobertaForSequenceClassification"].new_from_pretraining) == 4


def test_the_fields_that_the_head_reads_are_told(atlas: tuple[HeadEntry, ...]) -> None:
    fields = {entry.class_name: entry.depends_on for entry in atlas}
    assert "classifier_pooling" in fields["ModernBertForSequenceClassification"]
    assert "summary_type" in fields["XLNetForSequenceClassification"]
    assert "use_mean_pooling" in fields["BeitForImageClassification"]


def test_filters_keep_what_they_name() -> None:
    found = api.heads("roberta", task="sequence-classification", operation="tanh", pooling="first_token", workers=1)
    assert "RobertaForSequenceClassification" in [entry.class_name for entry in found]
    with pytest.raises(UsageError):
        api.heads(pooling="magic")
    with pytest.raises(UsageError):
        api.heads(task="magic")


@pytest.mark.parametrize(("unknown", "hint"), [("xqzxqz", "PyTorch's names"), ("layernorm", "mean layer_norm")])
def test_an_unknown_operation_is_refused_before_any_head_is_traced(
    unknown: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.slices.atlas.run._trace_all", lambda *given: pytest.fail("heads were traced"))
    with pytest.raises(UsageError, match=unknown) as failure:
        api.heads(operation=unknown, workers=1)
    assert hint in failure.value.hint


def test_every_operation_of_a_traced_head_is_a_known_one(atlas: tuple[HeadEntry, ...]) -> None:
    stages = [stage for entry in atlas if entry.head for stage in entry.head.stages]
    ran = {stage.operation for stage in stages}
    assert {"tanh", "select", "linear"} <= ran
    assert ran <= function_operations() | module_operations()


def test_the_command_prints_a_line_for_each_class(show: Callable[..., str]) -> None:
    shown = show("heads", "xlnet", "--task", "sequence-classification")
    assert "XLNetForSequenceClassification" in shown
    assert "1 head: 1 traced, 1 confirmed" in shown


def test_quiet_names_each_class_once(show: Callable[..., str]) -> None:
    names = show("heads", "distilbert", "-q").split()
    assert names == sorted(set(names), key=names.index)
    assert "DistilBertForSequenceClassification" in names
    assert all(name.startswith("DistilBert") for name in names)


@pytest.mark.parametrize(
    ("pattern", "classes"),
    [
        ("LukeForEntity*", {"LukeForEntityClassification", "LukeForEntityPairClassification",
                            "LukeForEntitySpanClassification"}),
        ("lukeforENTITY?air*", {"LukeForEntityPairClassification"}),
        ("distilbert*", {"DistilBertForSequenceClassification", "DistilBertForTokenClassification",
                         "DistilBertForMultipleChoice", "DistilBertForQuestionAnswering"}),
    ],
)  # fmt: skip
def test_a_pattern_with_wildcards_fits_a_whole_name(pattern: str, classes: set[str]) -> None:
    assert {entry.class_name for entry in api.heads(pattern, workers=1)} == classes


def test_a_pattern_with_wildcards_that_fits_nothing_has_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        api.heads("LukeForEntitee*")
    assert "LukeFor" in caught.value.hint
