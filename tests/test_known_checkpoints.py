"""Well-known checkpoints from their bundled snapshots: what everybody should read about their heads."""

from dataclasses import dataclass

import pytest

import headscope
from headscope.facts import ParameterStatus, PoolingKind

SST2 = "distilbert-base-uncased-finetuned-sst-2-english"


DISTILBERT = ("select", "linear", "relu", "dropout", "linear")


@dataclass(frozen=True)
class Known:
    """What is true of one checkpoint, from its published files and the modeling source."""

    reference: str
    new: tuple[str, ...]
    operations: tuple[str, ...]
    unused: int = 0
    unused_prefix: str = ""
    mismatched: tuple[str, ...] = ()
    num_labels: int | None = 3
    kind: PoolingKind = PoolingKind.FIRST_TOKEN


def pairs(*paths: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for path in paths for name in ("bias", "weight"))


KNOWN = (
    Known("bert-base-uncased", pairs("classifier"), ("select", "linear", "tanh", "dropout", "linear"), 7, "cls."),
    Known(
        "roberta-base", pairs("classifier.dense", "classifier.out_proj"),
        ("select", "dropout", "linear", "tanh", "dropout", "linear"), 5, "lm_head.",
    ),
    Known("distilbert-base-uncased", pairs("classifier", "pre_classifier"), DISTILBERT, 5, "vocab_"),
    Known(SST2, (), DISTILBERT, num_labels=None),
    Known(SST2, (), DISTILBERT, mismatched=pairs("classifier")),
    Known(
        "xlnet-base-cased", pairs("logits_proj", "sequence_summary.summary"),
        ("select", "linear", "tanh", "dropout", "linear"), 2, "lm_loss.", kind=PoolingKind.LAST_TOKEN,
    ),
    Known("gpt2", ("score.weight",), ("linear", "index"), kind=PoolingKind.LAST_NON_PAD_TOKEN),
)  # fmt: skip


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
