"""Rules on the numbers in the head: read from the file, a few kilobytes of each tensor."""

from headscope.checks.health import DECISIVE
from headscope.checks.rule import Findings, NotApplicable, NotKnown, Rule, at, classifier_of, rule
from headscope.facts import HealthBasis, HealthVerdict, ParameterStatus, Severity
from headscope.facts.check import Subject, TensorValues
from headscope.facts.counting import few_of
from headscope.facts.health import HeadHealth

_STORED = (ParameterStatus.LOADED, ParameterStatus.TIED)


@rule("HS501", "values-broken", "Weights of the head are broken", needs=("values",))
def values_broken(this: Rule, subject: Subject) -> Findings:
    """NaN, infinity, a matrix of zeros, or classes whose weights are all the same number."""
    values = subject.values or ()
    lost = [item.name for item in values if item.nan or item.inf]
    if lost:
        yield this.find(
            Severity.ERROR,
            f"NaN or infinity in {few_of(lost)}: every score is NaN.",
            "The training diverged: use an earlier checkpoint.",
            lost,
        )
    matrices = [item for item in values if item.constant_rows or _is_matrix(item, subject)]
    empty = [item.name for item in matrices if item.zeros == item.sampled]
    if empty:
        yield this.find(
            at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"{few_of(empty)} holds zeros only: all classes get the same score for every input.",
            "The weights were never trained or never saved: save the checkpoint again.",
            empty,
        )
    flat = [item.name for item in matrices if item.constant_rows and item.name not in empty and item.name not in lost]
    if flat:
        yield this.find(
            Severity.WARNING,
            f"{few_of(flat)} has rows whose elements are all the same, so the scores of those classes hardly depend on "
            f"the input.",
            "Check that those classes occur in the training data.",
            flat,
        )


def _is_matrix(item: TensorValues, subject: Subject) -> bool:
    head = subject.report.head
    shapes = {parameter.name: parameter.shape for parameter in head.parameters} if head else {}
    return len(shapes.get(item.name, ())) > 1


@rule("HS502", "looks-untrained", "The classifier looks as if it was never trained", needs=("values",))
def looks_untrained(this: Rule, subject: Subject) -> Findings:
    """A classifier that the checkpoint gives, and whose numbers are those of a fresh initialization."""
    health = subject.health
    if health is None:  # without values, which the rule needs
        return
    if health.verdict is HealthVerdict.NOT_DETERMINED:
        because = "; ".join(health.reasons[:1])
        if health.basis is HealthBasis.NONE:
            raise NotApplicable(because)
        raise NotKnown(because, at(subject, training=Severity.NOTE, inference=Severity.WARNING))
    if health.verdict is not HealthVerdict.FRESH or health.basis is HealthBasis.STATUS:
        return
    last = classifier_of(subject)
    stored = last is not None and last.status in _STORED
    sure = f" ({health.confidence:.0%} confidence)" if health.basis is HealthBasis.STATISTICS else ""
    yield this.find(
        at(subject, training=Severity.NOTE, inference=Severity.ERROR if _is_decisive(health) else Severity.WARNING),
        f"{health.classifier}{' is in the checkpoint, but it' if stored else ''} looks untrained{sure}: "
        f"{'; '.join(health.reasons[:2])}.",
        "If it was trained, little has changed; compare it with the base checkpoint."
        if stored
        else "If it was trained, little has changed since the initialization.",
        (health.classifier,),
    )


def _is_decisive(health: HeadHealth) -> bool:
    """Whether a trained classifier would look so in at most one case of a thousand; docs/health.md has the rate."""
    return health.basis is HealthBasis.DRAW or (health.confidence or 0.0) >= DECISIVE
