"""Rules on the state of a checkpoint: what wrote it, where that is not `save_pretrained`, and what repairs it."""

from headscope.checks.rule import Findings, Rule, rule
from headscope.facts import Severity, StateKind
from headscope.facts.results.check import Subject
from headscope.facts.stored.states import RULES

_TITLES = {
    StateKind.WRAPPED_KEYS: ("wrapped-keys", "The keys carry the names of a wrapper"),
    StateKind.PEFT_KEYS: ("peft-keys", "The file is the state dict of a PEFT model"),
    StateKind.DEEPSPEED: ("deepspeed-checkpoint", "The weights are a training checkpoint of DeepSpeed"),
    StateKind.DISTRIBUTED: ("distributed-checkpoint", "The weights are a distributed checkpoint"),
    StateKind.MEGATRON: ("megatron-ranks", "The weights are a checkpoint of Megatron"),
    StateKind.LIGHTNING: ("training-file", "The weights are inside a file of a training run"),
    StateKind.TRAINER_OUTPUT: ("trainer-output", "The folder is the output of a Trainer"),
    StateKind.NO_CONFIG: ("no-config", "The weights have no config.json"),
    StateKind.OTHER_FORMAT: ("other-format", "The weights are in the format of another framework"),
    StateKind.POINTER: ("lfs-pointer", "The weights are Git LFS pointers"),
    StateKind.HALF_DOWNLOAD: ("half-download", "The checkpoint is not complete"),
}


def _judge(this: Rule, subject: Subject) -> Findings:
    """The states of this rule, each with its repair."""
    for state in subject.report.checkpoint.states:
        if state.rule != this.id:
            continue
        message = f"{state.sentence} {state.seen()}".strip()
        repair = state.repair
        yield this.find(Severity.ERROR, message, repair.sentence if repair else "", code=repair.code if repair else "")


for kind, (name, title) in _TITLES.items():
    rule(RULES[kind], name, title)(_judge)
