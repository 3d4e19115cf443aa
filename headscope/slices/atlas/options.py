"""The options of `heads`: which classes of Transformers are traced."""

from typing import Annotated, TypedDict

from headscope.shell.options.option import Option


class HeadsOptions(TypedDict, total=False):
    """Options of `heads`."""

    task: Annotated[
        str | None,
        Option(
            "Only heads for this task, such as `token-classification` or `ner`.",
            metavar="TASK",
            is_main=True,
            completes="task",
            reads="core.facts.heads.tasks:parse_task",
        ),
    ]
    pooling: Annotated[
        str | None,
        Option(
            "Only heads with this pooling, such as `masked_mean`.",
            metavar="KIND",
            is_main=True,
            completes="pooling",
            reads="core.facts.heads.head:parse_pooling",
        ),
    ]
    operation: Annotated[
        str | None, Option("Only heads that run this operation, such as `tanh`.", metavar="NAME", is_main=True)
    ]
    workers: Annotated[int | None, Option("Number of processes (default: one per core).", metavar="N", least=1)]
    cache: Annotated[
        bool,
        Option(
            "Take what headscope ships of the classes whose sources are the installed ones, and trace the others.",
            negated="Trace every class, even those that headscope ships facts of.",
        ),
    ]
