"""Options of `edit`."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Literal, TypedDict

from headscope.checks.options import DataOptions
from headscope.shell.options.checkpoint import AnyPath, CopyOptions
from headscope.shell.options.option import DeviceName, Names, Option

FitName = Literal["temperature", "thresholds"]
"""Names of the fits to labeled texts."""

_classes = partial(Option, panel="Classes", is_main=True)
_scores = partial(Option, panel="Scores")
_config = partial(Option, panel="Configuration")
_result = partial(Option, panel="Output")


class LabelEdits(TypedDict, total=False):
    """Changes of the classes, applied in this order; each names classes as those before it left them."""

    labels: Annotated[
        Names | None,
        _classes(
            "Names of all classes, in the order of the scores.",
            in_python="They also say what is meant where those of the configuration contradict themselves.",
            metavar="A,B,C",
        ),
    ]
    rename: Annotated[
        Mapping[str, str] | None, _classes("New names of classes.", metavar="OLD=NEW", is_repeatable=True)
    ]
    drop: Annotated[Names | None, _classes("Classes to leave out.", metavar="NAME", is_repeatable=True)]
    keep: Annotated[Names | None, _classes("The only classes to keep.", metavar="A,B,C")]
    merge: Annotated[
        Mapping[str, Iterable[str]] | None,
        _classes("Classes to merge into one: the mean of their rows.", metavar="A+B=C", is_repeatable=True),
    ]
    add: Annotated[
        Names | Mapping[str, str] | None,
        _classes(
            "Classes to add, with rows of `zero` (default), `mean`, `random` or `copy:NAME`.",
            metavar="NAME[=INIT]",
            is_repeatable=True,
        ),
    ]
    order: Annotated[Names | None, _classes("All classes in their new order.", metavar="A,B,C")]
    order_from: Annotated[
        AnyPath | None,
        _classes(
            "Labeled data whose order of the classes is taken, with the column of the labels.",
            in_python="As a `ClassLabel` declares them, otherwise sorted.",
            metavar="FILE",
            is_main=False,
        ),
    ]
    labels_file: Annotated[
        AnyPath | None, _classes("A JSON file with these changes; a list is the order.", metavar="FILE", is_main=False)
    ]


class ScoreEdits(TypedDict, total=False):
    """Changes of the scores, folded into weight and bias of the last layer."""

    bias: Annotated[
        Mapping[str, float] | None,
        _scores("What to add to the logits of classes.", metavar="NAME=X", is_repeatable=True),
    ]
    threshold: Annotated[
        Mapping[str, float] | None,
        _scores("The probability from which a class is chosen.", metavar="NAME=P", is_repeatable=True, is_main=True),
    ]
    temperature: Annotated[float, _scores("What to divide all logits by.", 1.0, metavar="T")]
    seed: Annotated[int, _scores("Seed of random rows, and of a fit.", 0, metavar="N")]


class FitEdits(DataOptions, total=False):
    """A temperature or thresholds that are fitted to labeled texts, and then folded in."""

    fit: Annotated[
        FitName | None,
        _scores(
            "Fit `temperature` or `thresholds` to labeled texts, and fold it in.",
            in_python="For the smallest negative log likelihood or the largest F1 on one half of the texts; the report "
            "has figures of the other half.",
            metavar="NAME",
        ),
    ]
    limit: Annotated[
        int,
        Option("Largest number of texts to run; of more, a seeded sample.", 2000, metavar="N", panel="Data"),
    ]
    device: Annotated[
        DeviceName,
        Option(
            "Where the texts run: `cpu`, `cuda`, `cuda:0` or `mps`.",
            "cpu",
            metavar="DEVICE",
            panel="Data",
            typed=str,
        ),
    ]


class ConfigEdits(TypedDict, total=False):
    """Changes of config.json."""

    pad_token_id: Annotated[
        int | None, _config("The token that pads texts, also for a tokenizer that has none.", metavar="ID")
    ]
    dtype: Annotated[
        str | None, _config("Number format of the last layer: `float32`, `bfloat16` or `float16`.", metavar="TYPE")
    ]
    architecture: Annotated[
        str | None,
        _config(
            "The class that config.json names.",
            in_python="One that finds every weight of the checkpoint, and no others.",
            metavar="CLASS",
        ),
    ]
    problem_type: Annotated[
        str | None,
        _config("`single_label_classification`, `multi_label_classification` or `regression`.", metavar="TYPE"),
    ]


class FoldEdits(TypedDict, total=False):
    """A head that is folded into a class of Transformers before the other changes."""

    as_class: Annotated[
        str | None,
        _result(
            "Fold the head into a class, `auto` or `chain`.",
            in_python="Of Transformers, with the same arithmetic; `chain` makes modules of sentence-transformers.",
            metavar="CLASS",
            flags="--as",
            is_main=True,
        ),
    ]
    tokens: Annotated[
        str | Iterable[str] | None,
        _result(
            "Tokens whose logits are the scores: `no,yes`.",
            in_python="Of a language model.",
            metavar="NO,YES",
            is_main=True,
        ),
    ]
    scores: Annotated[
        int | None, _result("Scores of two tokens: 1 is yes minus no, 2 is one for each (default: 1).", metavar="N")
    ]


class AdapterEdits(TypedDict, total=False):
    """Changes of an adapter."""

    merge_adapter: Annotated[
        bool,
        _result(
            "Merge the adapter into its base model first.", in_python="With PEFT; the base model is on this machine."
        ),
    ]
    adapter_head: Annotated[
        AnyPath | None,
        _result(
            "A checkpoint whose trained head is written into the adapter, without another change.", metavar="CHECKPOINT"
        ),
    ]


class ProofOptions(TypedDict, total=False):
    """Options for the proof of an edit, and its place."""

    texts: Annotated[
        Names | None,
        _result("Texts that the proof runs through both models.", metavar="TEXT", flags="--text", is_repeatable=True),
    ]
    in_place: Annotated[
        bool, _result("Put the result in the place of the checkpoint, which is kept as `NAME.before-edit`.")
    ]


class EditOptions(
    FoldEdits, AdapterEdits, LabelEdits, ScoreEdits, FitEdits, ConfigEdits, ProofOptions, CopyOptions, total=False
):
    """Options of `edit`."""
