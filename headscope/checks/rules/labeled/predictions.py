"""Rules on predictions for labeled data: whether they fit the model's order of the classes, or another."""

from headscope.checks.facts import Subject
from headscope.checks.rules.labeled.data import given_data
from headscope.checks.rules.labeled.label_classes import LISTED
from headscope.checks.rules.rule import Findings, NotApplicable, NotKnown, Rule, rule, severity_at
from headscope.core.facts import Severity
from headscope.core.facts.counting import counted, list_of
from headscope.shared.labeled.facts import Order, Predictions

_PREDICTED = ("data", "predictions")
_PERMUTED = (
    "The labels of the training data were in another order than id2label: correct id2label, or the ids of the data."
)


@rule("HS009", "predictions-permuted", "The predictions fit another order of the classes", needs=_PREDICTED)
def predictions_permuted(this: Rule, subject: Subject) -> Findings:
    """A model whose scores are right under another order than the data's."""
    found = _given_predictions(subject)
    if found.order is Order.NOT_DETERMINED:
        raise NotKnown(found.reason)
    if found.order is Order.PERMUTED:
        moved = [pair for pair in found.pairs if pair.fits != pair.expected]  # the others keep their place
        named = list_of((f"{pair.label!r} in the data is predicted as {pair.fits!r}" for pair in moved), LISTED)
        yield this.find(Severity.ERROR, f"{named}. {_accuracy_sentence(subject, found.rows)}", _PERMUTED)


@rule("HS010", "predictions-chance", "The predictions are no better than chance",
      needs=_PREDICTED, finds="N|W")  # fmt: skip
def predictions_chance(this: Rule, subject: Subject) -> Findings:
    """Scores that fit no order of the classes."""
    found = _given_predictions(subject)
    if found.order is Order.NEITHER:
        share = f" {found.given.value:.0%} are right." if found.given else ""
        yield this.find(
            severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING),
            f"On {counted(found.rows, 'row')} the scores fit no order of the classes better than chance.{share} That "
            "points to the model or to the data, not to their order.",
            "Check that the model was trained for these labels, and that the columns are the right ones.",
        )


@rule("HS011", "predictions-name-classes", "Predictions show which class is which",
      needs=_PREDICTED, finds="N|N")  # fmt: skip
def predictions_name_classes(this: Rule, subject: Subject) -> Findings:
    """Classes without names, each predicted for one label of the data."""
    found = _given_predictions(subject)
    if found.order is Order.FOUND:
        named = list_of((f"{pair.fits} is {pair.label!r}" for pair in found.pairs), LISTED)
        yield this.find(
            Severity.NOTE,
            f"By {counted(found.rows, 'prediction')}, {named}.",
            "Check it, then set id2label and label2id in the configuration.",
        )


def _given_predictions(subject: Subject) -> Predictions:
    """Gives the predictions. Raises NotApplicable for numbers."""
    found = given_data(subject).predictions
    assert found is not None  # `needs` holds it
    if found.order is Order.NONE:
        raise NotApplicable("the model computes numbers, which have no classes (regression)")
    return found


def _accuracy_sentence(subject: Subject, rows: int) -> str:
    assert subject.data is not None and subject.data.predictions is not None
    given, best = subject.data.predictions.given, subject.data.predictions.best
    if given is None or best is None:
        return f"Measured on {counted(rows, 'row')}."
    return f"On {counted(rows, 'row')} {given.value:.0%} are right as given, and {best.value:.0%} in this order."
