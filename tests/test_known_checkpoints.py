"""Well-known checkpoints from their bundled snapshots: what everybody should read about their heads."""

from dataclasses import dataclass

import pytest

import headscope
from headscope.facts import ParameterStatus, PoolingKind

SST2 = "distilbert-base-uncased-finetuned-sst-2-english"


@dataclass(frozen=True)
class Known:
    """What is true of one checkpoint, from its published files and the modeling source."""

    reference: str
    num_labels: int | None
    new: tuple[str, ...]
    mismatched: tuple[str, ...]
    unused: int
    unused_prefix: str
    kind: PoolingKind
    operations: tuple[str, ...]


def pair(path: str) -> tuple[str, str]:
    return f"{path}.bias", f"{path}.weight"


KNOWN = (
    Known(
        "bert-base-uncased",
        3,
        pair("classifier"),
        (),
        7,
        "cls.",
        PoolingKind.FIRST_TOKEN,
        ("select", "linear", "tanh", "dropout", "linear"),
    ),
    Known(
        "roberta-base",
        3,
        (*pair("classifier.dense"), *pair("classifier.out_proj")),
        (),
        5,
        "lm_head.",
        PoolingKind.FIRST_TOKEN,
        ("select", "dropout", "linear", "tanh", "dropout", "linear"),
    ),
    Known(
        "distilbert-base-uncased",
        3,
        (*pair("classifier"), *pair("pre_classifier")),
        (),
        5,
        "vocab_",
        PoolingKind.FIRST_TOKEN,
        ("select", "linear", "relu", "dropout", "linear"),
    ),
    Known(SST2, None, (), (), 0, "", PoolingKind.FIRST_TOKEN, ("select", "linear", "relu", "dropout", "linear")),
    Known(
        SST2,
        3,
        (),
        pair("classifier"),
        0,
        "",
        PoolingKind.FIRST_TOKEN,
        ("select", "linear", "relu", "dropout", "linear"),
    ),
    Known(
        "xlnet-base-cased",
        3,
        (*pair("logits_proj"), *pair("sequence_summary.summary")),
        (),
        2,
        "lm_loss.",
        PoolingKind.LAST_TOKEN,
        ("select", "linear", "tanh", "dropout", "linear"),
    ),
    Known("gpt2", 3, ("score.weight",), (), 0, "", PoolingKind.LAST_NON_PAD_TOKEN, ("linear", "index")),
)


@pytest.mark.parametrize("known", KNOWN, ids=lambda item: f"{item.reference}-{item.num_labels}")
def test_a_known_checkpoint_shows_its_head(known: Known) -> None:
    report = headscope.inspect(known.reference, num_labels=known.num_labels, offline=True)
    assert report.weights.new == known.new
    assert tuple(item.parameter for item in report.weights.mismatched) == known.mismatched
    buffers = ("position_ids", "attn.bias")  # early Transformers 5 counts these old buffers as unexpected
    ours = [key for key in report.weights.unused if not key.endswith(buffers)]
    assert len(ours) == known.unused
    assert all(key.startswith(known.unused_prefix) for key in ours)
    assert report.head.pooling.kind is known.kind
    assert tuple(stage.operation for stage in report.head.stages) == known.operations
    assert report.not_determined == ()
    assert "bundled snapshot" in report.checkpoint.notices[0]


def test_berts_pooler_is_loaded_and_live_while_its_classifier_is_new() -> None:
    report = headscope.inspect("bert-base-uncased", num_labels=3, offline=True)
    statuses = {item.name: (item.status, item.live, item.shape) for item in report.head.parameters}
    assert statuses["bert.pooler.dense.weight"] == (ParameterStatus.LOADED, True, (768, 768))
    assert statuses["classifier.weight"] == (ParameterStatus.NEW, True, (3, 768))


def test_the_parameter_counts_add_up() -> None:
    counts = headscope.inspect("roberta-base", num_labels=3, offline=True).model.parameters
    assert counts.head == 768 * 768 + 768 + 3 * 768 + 3
    assert counts.total == counts.base + counts.head
    assert counts.live_head == counts.head


def test_a_fine_tuned_checkpoint_keeps_its_labels() -> None:
    model = headscope.inspect(SST2, offline=True).model
    assert (model.labels, model.labels_are_placeholders) == (("NEGATIVE", "POSITIVE"), False)


def test_gpt2_says_that_it_has_no_pad_token() -> None:
    report = headscope.inspect("gpt2", num_labels=3, offline=True)
    assert "no pad token is set: a batch of more than one text fails" in report.notes[0]


def test_given_labels_are_shown_in_their_order() -> None:
    model = headscope.inspect("roberta-base", labels=["bad", "so-so", "good"], offline=True).model
    assert model.labels == ("bad", "so-so", "good")


def test_one_label_is_a_regression() -> None:
    model = headscope.inspect("roberta-base", num_labels=1, offline=True).model
    assert (model.problem_type, model.loss, model.activation) == ("regression", "MSELoss", "none")


@pytest.mark.parametrize(
    ("task", "kind", "class_name"),
    [
        ("token-classification", PoolingKind.NONE, "RobertaForTokenClassification"),
        ("question-answering", PoolingKind.NONE, "RobertaForQuestionAnswering"),
        ("multiple-choice", PoolingKind.FIRST_TOKEN, "RobertaForMultipleChoice"),
    ],
)
def test_another_task_has_another_head(task: str, kind: PoolingKind, class_name: str) -> None:
    report = headscope.inspect("roberta-base", task=task, offline=True)
    assert report.model.class_name == class_name
    assert report.head.pooling.kind is kind


def test_weights_can_be_diffed_without_a_trace() -> None:
    report = headscope.diff_weights("roberta-base", num_labels=3, offline=True)
    assert report.head is None
    assert len(report.weights.new) == 4
    assert {item.key for item in report.weights.unused_tensors} == set(report.weights.unused)
