"""The one list of commands, by names: a command's module is imported when the command is run, or all are shown."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

EXPERIMENTAL = "Experimental: a minor version may change it."
_CHECKPOINT = "Look at a checkpoint"
_PIPELINE = "Guard a pipeline"
_MANY = "Many checkpoints, many texts"
_LOOK_UP = "Look something up"


class CommandEntry(NamedTuple):
    """Entry of a command: its module, the group that lists it, examples, and if a minor version may change it.

    Options in `beside` are main ones of other commands; here, only `--help-all` shows them.
    """

    module: str
    group: str
    examples: tuple[str, ...]
    is_experimental: bool = False
    beside: tuple[str, ...] = ()

    @property
    def run(self) -> Callable[..., int]:
        """The function of the command, whose module is imported for it."""
        module = import_module(f"headscope.cli.commands.{self.module}")
        function: Callable[..., int] = getattr(module, f"{self.module.rpartition('.')[2]}_command")
        return function

    @property
    def epilog(self) -> str:
        """The text with its help: an example on each line, and a note if it may change."""
        lines = [f"Example{'s' if len(self.examples) > 1 else ''}:", *(f"  {line}" for line in self.examples)]
        return "\n".join([*lines, *([EXPERIMENTAL] if self.is_experimental else [])])


COMMANDS: dict[str, CommandEntry] = {
    "inspect": CommandEntry(
        "inspect",
        _CHECKPOINT,
        ("headscope inspect roberta-base --num-labels 3", "headscope inspect ./my-checkpoint --details"),
    ),
    "diff-weights": CommandEntry(
        "diff_weights",
        _CHECKPOINT,
        ("headscope diff-weights bert-base-uncased --num-labels 3", "headscope diff-weights ./my-checkpoint --all"),
    ),
    "forward": CommandEntry(
        "forward",
        _CHECKPOINT,
        ("headscope forward roberta-base", 'headscope forward ./my-checkpoint --text "a fine day"'),
    ),
    "compare": CommandEntry(
        "compare",
        _CHECKPOINT,
        ("headscope compare bert-base-uncased roberta-base", "headscope compare ./step-1000 ./step-2000 --values"),
    ),
    "diagram": CommandEntry(
        "diagram", _CHECKPOINT, ("headscope diagram roberta-base", "headscope diagram roberta-base -o head.svg")
    ),
    "check": CommandEntry(
        "check",
        _PIPELINE,
        (
            "headscope check ./my-checkpoint --for inference",
            "headscope check ./my-checkpoint --data test.csv --label-column label",
        ),
        beside=("task", "text_column"),
    ),
    "engines": CommandEntry(
        "engines",
        _PIPELINE,
        ("headscope engines ./my-checkpoint", "headscope engines ./my-checkpoint --engine vllm"),
        is_experimental=True,
    ),
    "verify": CommandEntry(
        "verify",
        _PIPELINE,
        ("headscope verify ./my-checkpoint", "headscope verify ./my-checkpoint --url http://localhost:8000"),
        beside=("num_labels", "text_column"),
    ),
    "edit": CommandEntry(
        "edit",
        _PIPELINE,
        (
            "headscope edit ./my-checkpoint -o ./with-neutral --add neutral=mean",
            "headscope edit ./my-checkpoint -o ./stricter --threshold toxic=0.8",
        ),
        is_experimental=True,
        beside=("data", "label_column", "text_column"),
    ),
    "repair": CommandEntry(
        "repair",
        _PIPELINE,
        (
            "headscope repair ./runs/last -o ./repaired",
            "headscope repair ./lora-state-dict -o ./merged --set lora_alpha=16",
        ),
        is_experimental=True,
    ),
    "scan": CommandEntry(
        "scan",
        _MANY,
        ("headscope scan --folder runs -o heads.jsonl", "headscope scan --from models.txt -o heads.csv --resume"),
        beside=("num_labels", "task"),
    ),
    "probe": CommandEntry(
        "probe",
        _MANY,
        ("headscope probe roberta-base --data train.csv --text-column text --label-column label",),
        is_experimental=True,
    ),
    "code": CommandEntry(
        "code", _MANY, ("headscope code roberta-base --num-labels 3 --pooling mean -o classifier.py",)
    ),
    "heads": CommandEntry(
        "lookup.heads", _LOOK_UP, ("headscope heads roberta", "headscope heads --pooling masked_mean")
    ),
    "explain": CommandEntry("lookup.explain", _LOOK_UP, ("headscope explain HS102", "headscope explain logits")),
    "snapshot": CommandEntry("lookup.snapshot", _LOOK_UP, ("headscope snapshot roberta-base -o roberta.json",)),
    "env": CommandEntry("lookup.env", _LOOK_UP, ("headscope env --json",)),
    "cache": CommandEntry("lookup.cache", _LOOK_UP, ("headscope cache", "headscope cache --clear")),
}
