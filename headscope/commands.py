"""The one list of commands, by names: a command's module is imported when the command is run, or all are shown."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

EXPERIMENTAL = "Experimental: a minor version may change it."
_CHECKPOINT = "Look at a checkpoint"
_PIPELINE = "Guard a pipeline"
_MANY = "Many checkpoints, many texts"
_LOOK_UP = "Look something up"
_ITSELF = "Files, versions, cache"


class CommandEntry(NamedTuple):
    """Entry of a command: its module and function, the group that lists it with its purpose, examples.

    A minor version may change one that is experimental.

    Options in `beside` are main ones of other commands; here, only `--help-all` shows them.
    """

    module: str
    group: str
    purpose: str
    examples: tuple[str, ...]
    is_experimental: bool = False
    beside: tuple[str, ...] = ()

    @property
    def run(self) -> Callable[..., int]:
        """The function of the command, whose module is imported for it."""
        module, _, name = self.module.partition(":")
        function: Callable[..., int] = getattr(import_module(f"headscope.{module}"), name)
        return function

    @property
    def epilog(self) -> str:
        """The text with its help: an example on each line, and a note if it may change."""
        lines = [f"Example{'s' if len(self.examples) > 1 else ''}:", *(f"  {line}" for line in self.examples)]
        return "\n".join([*lines, *([EXPERIMENTAL] if self.is_experimental else [])])


COMMANDS: dict[str, CommandEntry] = {
    "inspect": CommandEntry(
        "slices.inspect.command:inspect_command",
        _CHECKPOINT,
        "Show the head: operations, shapes, weights, pooling, labels.",
        ("headscope inspect roberta-base --num-labels 3", "headscope inspect ./my-checkpoint --details"),
    ),
    "diff-weights": CommandEntry(
        "slices.inspect.diff_weights_command:diff_weights_command",
        _CHECKPOINT,
        "Compare the weights with the checkpoint: new, unused, tied.",
        ("headscope diff-weights bert-base-uncased --num-labels 3", "headscope diff-weights ./my-checkpoint --all"),
    ),
    "forward": CommandEntry(
        "slices.forward.command:forward_command",
        _CHECKPOINT,
        "Run a forward pass: shapes at each stage, scores by label.",
        ("headscope forward roberta-base", 'headscope forward ./my-checkpoint --text "a fine day"'),
    ),
    "compare": CommandEntry(
        "slices.compare.command:compare_command",
        _CHECKPOINT,
        "Compare heads side by side, and their values.",
        ("headscope compare bert-base-uncased roberta-base", "headscope compare ./step-1000 ./step-2000 --values"),
    ),
    "diagram": CommandEntry(
        "slices.diagram.command:diagram_command",
        _CHECKPOINT,
        "Draw the head: terminal, Mermaid, DOT, SVG, HTML.",
        ("headscope diagram roberta-base", "headscope diagram roberta-base -o head.svg"),
    ),
    "check": CommandEntry(
        "checks.command:check_command",
        _PIPELINE,
        "Gate a pipeline: findings, cures, an exit code.",
        (
            "headscope check ./my-checkpoint --for inference",
            "headscope check ./my-checkpoint --data test.csv --label-column label",
        ),
        beside=("task", "text_column"),
    ),
    "engines": CommandEntry(
        "slices.engines.command:engines_command",
        _PIPELINE,
        "Compare what inference engines compute with Transformers.",
        ("headscope engines ./my-checkpoint", "headscope engines ./my-checkpoint --engine vllm"),
        is_experimental=True,
    ),
    "verify": CommandEntry(
        "slices.loaded.command:verify_command",
        _PIPELINE,
        "Load a model for real, or ask a server, and compare.",
        (
            "headscope verify ./my-checkpoint",
            "headscope verify ./my-checkpoint --url http://localhost:8000",
            "headscope verify ./my-checkpoint --write-card card.json",
            "headscope verify --card card.json --url http://localhost:8000",
        ),
        beside=("num_labels", "text_column"),
    ),
    "edit": CommandEntry(
        "slices.edit.command:edit_command",
        _PIPELINE,
        "Write a copy with other classes, thresholds or settings.",
        (
            "headscope edit ./my-checkpoint -o ./with-neutral --add neutral=mean",
            "headscope edit ./my-checkpoint -o ./stricter --threshold toxic=0.8",
        ),
        is_experimental=True,
        beside=("data", "label_column", "text_column"),
    ),
    "repair": CommandEntry(
        "slices.repair.command:repair_command",
        _PIPELINE,
        "Write a copy that from_pretrained loads whole.",
        (
            "headscope repair ./runs/last -o ./repaired",
            "headscope repair ./lora-state-dict -o ./merged --set lora_alpha=16",
        ),
        is_experimental=True,
    ),
    "scan": CommandEntry(
        "slices.fleet.command:scan_command",
        _MANY,
        "Examine many checkpoints: a table with one row for each.",
        ("headscope scan --folder runs -o heads.jsonl", "headscope scan --from models.txt -o heads.csv --resume"),
        beside=("num_labels", "task"),
    ),
    "probe": CommandEntry(
        "slices.probe.command:probe_command",
        _MANY,
        "Score every vector a classifier could read, on your texts.",
        ("headscope probe ./model --data a.csv --text-column text --label-column label",),
        is_experimental=True,
    ),
    "code": CommandEntry(
        "slices.probe.command:code_command",
        _MANY,
        "Write Python code of a classifier that loads and trains.",
        ("headscope code roberta-base --num-labels 3 --pooling mean -o classifier.py",),
    ),
    "heads": CommandEntry(
        "slices.atlas.command:heads_command",
        _LOOK_UP,
        "List every classification class of Transformers.",
        ("headscope heads roberta", "headscope heads --pooling masked_mean"),
    ),
    "explain": CommandEntry(
        "slices.lookup.explain_command:explain_command",
        _LOOK_UP,
        "Explain a rule, a class, or a word on the screens.",
        ("headscope explain HS102", "headscope explain logits"),
    ),
    "snapshot": CommandEntry(
        "slices.lookup.snapshot_command:snapshot_command",
        _ITSELF,
        "Save config and tensor headers in one small file.",
        ("headscope snapshot roberta-base -o roberta.json",),
    ),
    "env": CommandEntry(
        "slices.lookup.env_command:env_command",
        _ITSELF,
        "Show versions and settings for a bug report.",
        ("headscope env --json",),
    ),
    "cache": CommandEntry(
        "slices.lookup.cache_command:cache_command",
        _ITSELF,
        "Show what headscope keeps on disk, or remove it.",
        ("headscope cache", "headscope cache --clear"),
    ),
}


SCREENS = {
    "CheckResult": "checks.screen",
    "CheckpointManifest": "slices.lookup.snapshot_screen",
    "Comparison": "slices.compare.screen",
    "EditReport": "slices.edit.screen",
    "EnginesReport": "slices.engines.screen",
    "Explained": "slices.lookup.explained_screen",
    "ForwardReport": "slices.forward.screen",
    "Heads": "slices.atlas.screen",
    "ProbeResult": "slices.probe.screen.screen",
    "RepairReport": "slices.repair.screen",
    "Report": "slices.inspect.screen",
    "ServedReport": "slices.loaded.served_screen",
    "VerifyResult": "slices.loaded.screen",
}
"""For each kind of result, the module with its `shown_screen` and `shown_line`."""
