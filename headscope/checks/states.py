"""Rules on the state of a checkpoint: what wrote it, where that is not `save_pretrained`, and what repairs it."""

from headscope.checks.rule import Findings, Rule, rule
from headscope.facts import Severity, StateKind
from headscope.facts.check import Subject
from headscope.facts.states import RULES

_TITLES = {
    StateKind.WRAPPED_KEYS: ("wrapped-keys", "The keys carry the names of a wrapper"),
}


def _judge(this: Rule, subject: Subject) -> Findings:
    """The states of this rule, each with its repair."""
    for state in subject.report.checkpoint.states:
        if state.rule != this.id:
            continue
        seen = "; ".join(state.evidence)
        message = f"{state.sentence} {seen[:1].upper()}{seen[1:]}." if seen else state.sentence
        repair = state.repair
        yield this.find(Severity.ERROR, message, repair.sentence if repair else "", code=repair.code if repair else "")


for kind, (name, title) in _TITLES.items():
    rule(RULES[kind], name, title)(_judge)
