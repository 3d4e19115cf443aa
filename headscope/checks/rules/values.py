"""Rules on the numbers in the head, which is read whole."""

from headscope.checks.facts import Subject
from headscope.checks.rules.rule import Findings, NotApplicable, NotKnown, Rule, classifier_of, rule, severity_at
from headscope.core.facts import HealthBasis, HealthVerdict, ParameterStatus, Severity
from headscope.core.facts.counting import few_of, verb
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.facts.trial import HeadTrial
from headscope.core.source.health.judging import DECISIVE

_STORED = (ParameterStatus.LOADED, ParameterStatus.TIED)


@rule("HS501", "values-broken", "Weights of the head are broken", needs=("values",), finds="EW|EW")
def values_broken(this: Rule, subject: Subject) -> Findings:
    """Values of the head with which it can't answer: read whole, as the loader gives them, and tried."""
    if subject.values is None:  # for the type checker: the rule needs them
        return
    values, trial = subject.values, subject.trial or HeadTrial("the head path is not known")
    grave = severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR)
    lost = [item.name for item in values if item.nan or item.inf]
    if lost:
        yield this.find(
            Severity.ERROR,
            f"NaN or infinity in {few_of(lost)}, as the loader gives them: the scores are not finite.",
            "The training diverged, or the numbers exceed the model's dtype: use an earlier checkpoint.",
            lost,
        )
    whole = [item for item in values if item.whole]
    if whole:
        yield this.find(
            grave,
            f"{few_of([item.name for item in whole])} is stored as {whole[0].whole} without a quantization config: the "
            f"loader takes the whole numbers as weights, without their scale.",
            "Save the weights as floats, or with the quantization config that scales them.",
            [item.name for item in whole],
        )
    told = "" if lost else _constant_winner(trial, subject) or what_fails(trial)
    last = classifier_of(subject) if trial.why_not and not (lost or told) else None
    if last is not None and any(item.name == last.name and item.zeros == item.count for item in values):
        told = f"{last.name} holds zeros only"
    if told:
        yield this.find(
            Severity.ERROR if trial.fails or not trial.finite else grave,
            f"Tried on random hidden states with its stored values, {told}.",
            "The weights were never trained, or damaged on the way to this file: compare it with the model that was "
            "trained (headscope.verify_save), or train again."
            if trial.winner is None
            else "Look at the class counts of the training data and at its learning rate: imbalance, or a rate that is "
            "too high, leaves such a head. Train again, or use an earlier checkpoint.",
            [item.name for item in values],
        )
    elif trial.stuck and not lost:
        classes = few_of([str(item) for item in trial.stuck])
        yield this.find(
            Severity.WARNING,
            f"Tried on random hidden states, no input changes the score of class {classes}.",
            "Check that those classes occur in the training data.",
            [item.name for item in values],
        )
    gap = trial.why_not or "; ".join(trial.unread[:1])
    if gap and not (lost or told):
        raise NotKnown(f"the head's values were read, but not tried: {gap}" if trial.why_not else gap)


def _constant_winner(trial: HeadTrial, subject: Subject) -> str:
    """Says which class wins whatever the input, with its name and its bias; "" for none."""
    if trial.winner is None or trial.fails or not trial.finite or not trial.moves:
        return ""
    labels = subject.report.model.labels
    name = f" ({labels[trial.winner]})" if trial.winner < len(labels) else ""
    bias = f", with a bias of {trial.bias:.2g}, {trial.ahead:.2g} above the next" if trial.bias is not None else ""
    return f"the head gives class {trial.winner}{name} the highest score for every input{bias}"


def what_fails(trial: HeadTrial) -> str:
    """Says why a head that was tried can't answer; "" where it can."""
    if trial.fails:
        return f"the head fails: {trial.fails}"
    if not trial.finite:
        return "the head gives scores that are not finite, or beyond 1e30"
    if not trial.moves:
        return "the head gives all inputs the same answer: no input changes how the scores compare"
    if trial.winner is not None:
        return f"the head gives class {trial.winner} the highest score for every input"
    return ""


@rule("HS504", "base-values-broken", "Weights of the base model are broken", needs=("base values",), finds="EW|E")
def base_values_broken(this: Rule, subject: Subject) -> Findings:
    """NaN or infinity outside the head, or tensors of zeros through which no input reaches the scores."""
    numbers = subject.numbers
    if numbers is None:  # for the type checker: the rule needs them
        return
    run, silence = subject.run, ""
    if numbers.broken:
        effect = (
            "the scores are not finite where they are read"
            if run is None or run.not_finite or run.always_fails
            else f"no {run.noun} that was tried reaches them, and others may, with scores that are not finite"
        )
        yield this.find(
            Severity.ERROR,
            f"NaN or infinity in {few_of(numbers.broken)}, as the loader gives them: {effect}.",
            "The training diverged, or the numbers exceed the model's dtype: use an earlier checkpoint.",
            numbers.broken,
        )
    # The fault isn't a tensor of zeros but its effect on the scores, which only a run shows.
    if numbers.zeros and run is not None and run.all_alike:
        silence = "the loaded model gives all inputs the same answer"
    elif numbers.zeros and run is not None and run.ignores_middle:
        silence = "the scores of the loaded model ignore most of the text"
    names = [name for name, _ in numbers.whole if not silence or name not in numbers.zeros]
    if names:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"{few_of(names)} {verb(len(names), 'is', 'are')} stored as {numbers.whole[0][1]} without a quantization "
            "config: the loader takes the whole numbers as weights, without their scale.",
            "Save the weights as floats, or with the quantization config that scales them.",
            names,
        )
    if silence:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"{few_of(numbers.zeros)} {verb(len(numbers.zeros), 'holds', 'hold')} only zeros, and {silence}.",
            "The weights were never trained, or damaged when they were saved: save the checkpoint again.",
            numbers.zeros,
        )
    elif numbers.zeros and run is None:
        held = f"{few_of(numbers.zeros)} {verb(len(numbers.zeros), 'holds', 'hold')} only zeros"
        raise NotKnown(f"{held}, and the model was not run to see what it answers")


@rule("HS502", "looks-untrained", "The classifier looks as if it was never trained", needs=("values",), finds="N|EW")
def looks_untrained(this: Rule, subject: Subject) -> Findings:
    """A classifier that the checkpoint gives, and whose values are those of a fresh initialization."""
    health = subject.health
    if health is None:  # for the type checker: the rule needs values, and they come with it
        return
    last = classifier_of(subject)
    if last is not None and last.status in NEW_AT_LOAD:
        raise NotApplicable(f"{last.name} is new: every load makes it random")
    if health.verdict is HealthVerdict.NOT_DETERMINED:
        because = "; ".join(health.reasons[:1])
        if health.basis is HealthBasis.NONE:
            raise NotApplicable(because)
        raise NotKnown(because, severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING))
    if health.verdict is not HealthVerdict.FRESH or health.basis is HealthBasis.STATUS:
        return
    stored = last is not None and last.status in _STORED
    sure = f" ({health.confidence:.0%} confidence)" if health.basis is HealthBasis.STATISTICS else ""
    # At most one trained classifier of a thousand looks like this; docs/health.md has the rate.
    is_decisive = health.basis is HealthBasis.DRAW or (health.confidence or 0.0) >= DECISIVE
    yield this.find(
        severity_at(subject, training=Severity.NOTE, inference=Severity.ERROR if is_decisive else Severity.WARNING),
        f"{health.classifier}{' is in the checkpoint, but it' if stored else ''} looks untrained{sure}: "
        f"{'; '.join(health.reasons[:2])}.",
        "If it was trained, little has changed; compare it with the base checkpoint."
        if stored
        else "If it was trained, little has changed since the initialization.",
        (health.classifier,),
    )
