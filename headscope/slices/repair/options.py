"""Options of `repair`."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from headscope.shell.options.checkpoint import AnyPath, CopyOptions
from headscope.shell.options.option import Names, Option

_lacking = partial(Option, panel="What the checkpoint doesn't hold", is_main=True)


class RepairOptions(CopyOptions, total=False):
    """Options of `repair`: what the checkpoint lacks, and how it is read and written."""

    config: Annotated[
        AnyPath | None,
        _lacking(
            "The config.json that it lacks: a folder, a file or a Hub ID; or a folder with PEFT's adapter_config.json.",
            metavar="FOLDER_OR_ID",
        ),
    ]
    settings: Annotated[
        Mapping[str, Any] | None,
        _lacking(
            "Settings of the training that no shape tells, such as `lora_alpha`, or fields of a configuration.",
            metavar="NAME=VALUE",
            flags="--set",
            is_repeatable=True,
        ),
    ]
    defaults: Annotated[bool, _lacking("Take the class's defaults for settings that no shape tells.")]
    take: Annotated[
        Names | None,
        _lacking(
            "The model that is meant where several may be: a prefix of keys, a place in a file, a file or a folder.",
            in_python="Several names choose one after the other.",
            metavar="NAME",
            is_repeatable=True,
        ),
    ]
    labels: Annotated[Names | None, _lacking("Class names, for a configuration that is written.", metavar="A,B,C")]
