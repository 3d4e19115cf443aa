"""The options on a checkpoint, or on a model in memory: where it is, which class and labels it has, what is examined.

Annotations are evaluated here, as declarations are read from them; the name of a type that is slow to import is text.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, TypedDict

from headscope.shell.options.option import Option

AnyPath = str | PathLike[str]
"""A path, as people give it."""

_what = partial(Option, panel="What to examine")
_where = partial(Option, panel="Where it comes from")


class OfflineOption(TypedDict, total=False):
    """Option for working without the network."""

    offline: Annotated[
        bool, _where("Make no network requests: use local files, the Hub's cache and the bundled snapshots.")
    ]


class CacheOptions(OfflineOption, total=False):
    """Options for reaching the Hub."""

    cache_dir: Annotated[AnyPath | None, _where("The Hub's cache folder (default: `$HF_HUB_CACHE`).", metavar="PATH")]
    token: Annotated[
        str | None,
        _where("Hub token for gated repositories (default: `$HF_TOKEN`, or the stored login).", metavar="TOKEN"),
    ]
    timeout: Annotated[
        float | None,
        _where("Total time limit for Hub requests, in seconds (default: 120).", metavar="SECONDS", reads="seconds"),
    ]


class RevisionOption(TypedDict, total=False):
    """Option for the state of a repository."""

    revision: Annotated[str | None, _where("Branch, tag or commit on the Hub (default: `main`).", metavar="REV")]


class PlaceOptions(RevisionOption, CacheOptions, total=False):
    """Options for the files of a repository or folder."""

    subfolder: Annotated[str | None, _where("Folder inside the repository or the local folder.", metavar="PATH")]
    variant: Annotated[
        str | None, _where("Variant of the weight files: `fp16` means `model.fp16.safetensors`.", metavar="NAME")
    ]


class AdapterOption(TypedDict, total=False):
    """Option for an adapter on a checkpoint."""

    adapter: Annotated[
        AnyPath | None, _where("A PEFT adapter to put on the checkpoint: a Hub ID or a folder.", metavar="ADAPTER")
    ]


class CountOption(TypedDict, total=False):
    """Option for the number of classes."""

    num_labels: Annotated[
        int | None,
        _what(
            "Number of classes (default: from the config).",
            in_python="1 means regression.",
            metavar="N",
            is_main=True,
        ),
    ]


class TaskOption(TypedDict, total=False):
    """Option for the task of a model."""

    task: Annotated[
        str | None,
        _what(
            "A task such as `token-classification` or `ner` (default: from the checkpoint).",
            metavar="TASK",
            is_main=True,
            completes="task",
            reads="core.facts.heads.tasks:parse_task",
        ),
    ]


class LabelOptions(TaskOption, total=False):
    """Options for the task and the names of its classes."""

    labels: Annotated[
        str | Iterable[str] | None,
        _what(
            "Class names, in order.",
            in_python='Several, or one text `"A,B,C"`.',
            metavar="A,B,C",
            is_main=True,
            reads="labels",
        ),
    ]


class ModelClassOption(TypedDict, total=False):
    """Option for the model class."""

    model_class: Annotated[
        str | None,
        _what(
            "A class of Transformers (default: from the task), or your own, whose code runs: `FILE.py:CLASS` or "
            "`MODULE:CLASS`.",
            metavar="CLASS",
            completes="class",
        ),
    ]


class ClassOptions(ModelClassOption, total=False):
    """Options for the model class and its code."""

    trust_remote_code: Annotated[bool, _what("Run model code that comes with the checkpoint.")]


class CheckpointOptions(CountOption, LabelOptions, ClassOptions, PlaceOptions, AdapterOption, total=False):
    """Options for the class, the labels and the files of a checkpoint."""

    tokens: Annotated[
        str | Iterable[str] | None,
        _what(
            'Tokens of a causal language model whose logits are the scores, such as `"no,yes"`; `id:9693` names one '
            "by its ID.",
            metavar="NO,YES",
        ),
    ]


class ReportCacheOption(TypedDict, total=False):
    """Option for the report cache."""

    cache: Annotated[bool, _where("Read and write the report cache.", negated="Ignore the report cache.")]


class CachedOptions(CheckpointOptions, ReportCacheOption, total=False):
    """Options for a checkpoint whose result is cached."""


class LoadedFromOption(TypedDict, total=False):
    """Option for the checkpoint of a model in memory."""

    loaded_from: Annotated[
        AnyPath | None,
        Option("The checkpoint that the module was loaded from, if its config doesn't name it. For a module only."),
    ]


class LoadedOptions(LabelOptions, OfflineOption, LoadedFromOption, total=False):
    """Facts on a model in memory that it does not carry itself."""

    loading_info: Annotated[
        Mapping[str, Any] | None,
        Option(
            "What `from_pretrained(..., output_loading_info=True)` returned: replaces reading the checkpoint. For a "
            "module only."
        ),
    ]


class RunOptions(TypedDict, total=False):
    """Options for running a model in memory."""

    example_inputs: Annotated[
        Any,
        Option(
            "What the module's `forward` takes: a mapping of arguments, a tensor, or several in order, with a batch "
            "axis of at least 1. Models of Transformers don't need it. For a module only."
        ),
    ]
    output: Annotated[
        str | None, Option("Name of the scores to examine if `forward` returns several. For a module only.")
    ]


class ModuleOptions(LoadedOptions, RunOptions, total=False):
    """Options for a model in memory that is run."""


class ProveOption(TypedDict, total=False):
    """Option for a proof of the pooling."""

    prove: Annotated[
        bool, Option("Check the pooling with gradients, and show what padding does to the scores.", is_main=True)
    ]


VectorName = Literal[
    "head", "first_token", "masked_mean", "last_non_pad_token", "max", "mean_and_max", "first_last_mean",
    "last_four_concat", "last_four_average",
]  # fmt: skip
"""The vectors that a module can be written for without data; the others need a token or a module to be there."""


_output = partial(Option, panel="Output")


class CopyOptions(ClassOptions, total=False):
    """Options for reading a checkpoint and writing its copy."""

    link: Annotated[bool, _output("Hard-link weight files that don't change, instead of copying them.")]
    dry_run: Annotated[bool, _output("Show the change, and write nothing.", is_main=True)]
