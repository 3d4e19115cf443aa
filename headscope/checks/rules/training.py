"""Rules on a model in memory that is about to be trained."""

from headscope.checks.facts import Subject
from headscope.checks.rules.rule import Findings, Rule, classifier_of, live_parameters, rule
from headscope.core.facts import Profile, Severity
from headscope.core.facts.counting import counted, few_of, verb
from headscope.core.facts.stored.weights import NEW_AT_LOAD


@rule("HS601", "head-frozen", "Weights of the head are frozen", finds="EN|")
def head_frozen(this: Rule, subject: Subject) -> Findings:
    """requires_grad is off for weights that the scores depend on."""
    live, last = subject.live, classifier_of(subject)
    if live is None or not live.frozen or subject.profile is not Profile.TRAINING:
        return
    live_of_head = live_parameters(subject)
    fresh = {item.name for item in live_of_head if item.status in NEW_AT_LOAD}
    lost = sum(item.count for item in live_of_head if item.name in live.frozen)
    total = sum(item.count for item in live_of_head)
    grave = (last is not None and last.name in live.frozen) or bool(fresh & set(live.frozen))
    yield this.find(
        Severity.ERROR if grave else Severity.NOTE,
        f"{few_of(live.frozen)} {'has' if len(live.frozen) == 1 else 'have'} requires_grad=False and will not be "
        f"trained: {total - lost:,} of {counted(total, 'parameter')} of the head are left to train.",
        f"Train the head with modules_to_save={list(live.modules_to_save)} in the PEFT configuration."
        if live.modules_to_save
        else "Set requires_grad_(True) on the head after freezing the base model.",
        live.frozen,
        code=""
        if live.modules_to_save
        else f"for name in {list(live.frozen)!r}:\n    model.get_parameter(name).requires_grad_(True)",
    )


@rule("HS602", "head-not-optimized", "Weights of the head are not in the optimizer", finds="E|")
def head_not_optimized(this: Rule, subject: Subject) -> Findings:
    """Trainable weights of the head that no parameter group of the optimizer holds."""
    live = subject.live
    if live is not None and live.not_optimized and subject.profile is Profile.TRAINING:
        yield this.find(
            Severity.ERROR,
            f"The optimizer does not hold {few_of(live.not_optimized)}, so training doesn't change "
            f"{verb(len(live.not_optimized), 'it', 'them')}.",
            "Create the optimizer from model.parameters() after you replace the head, or add the weights to it before "
            "you create the scheduler.",
            live.not_optimized,
            code="optimizer.add_param_group({'params': [model.get_parameter(name) for name in "
            f"{list(live.not_optimized)!r}]}})",
        )
