"""Reports whose heads are drawn: branched, hostile, without a head."""

from collections.abc import Callable
from dataclasses import replace

from reports import REPORTS, a_head, bert, hostile, roberta, with_head, with_model

from headscope.facts import Gap, ParameterStatus, Positions, Report, Tie, UnusedModule, Where

EVIL = (
    '"];click n0 "javascript:alert(1)"',
    "<img src=x onerror=alert(1)>",
    "`code` **b** ]]> --> </style></svg>",
    "1. list",
    "- item $$x^2$$$ fa:fa-car",
    "#quot; &lt; &amp; \\N \\l %%{init: {}}%% end",
    "日本語ラベル\N{PARTY POPPER}",
    "W" * 300,
    "\x1b[2J\u202e\ud800\ufffe\n",
)


def evil() -> Report:
    """A report in which every name is an attack."""
    report = hostile()
    head = a_head(report)
    stages = tuple(replace(stage, module=name, detail=name) for stage, name in zip(head.stages, EVIL, strict=False))
    beside = tuple(UnusedModule(name, name, False) for name in EVIL)
    changed = with_head(report, stages=stages, unused_modules=beside, formula=" ".join(EVIL))
    return with_model(changed, labels=EVIL, num_labels=len(EVIL))


def branched() -> Report:
    """The first token and its image under `dense`, added, then beside the token itself: a residual and a cat."""
    report = bert()
    select, dense, tanh, dropout, linear = a_head(report).stages
    vector = select.output_shape
    stages = (
        select,
        dense,
        replace(tanh, operation="add", input_shapes=(vector, vector), inputs=(0, 1)),
        replace(dropout, operation="cat", input_shapes=(vector, vector, vector), inputs=(0, 0, 2)),
        linear,
    )
    return with_head(report, stages=stages)


def without_head() -> Report:
    return replace(bert(), head=None, not_determined=(Gap("head path", "the forward failed: <b>why</b>"),))


def with_tie() -> Report:
    report = bert()
    tied, *others = a_head(report).parameters
    unused = replace(others[0], live=False)
    parameters = (replace(tied, status=ParameterStatus.TIED), unused, *others[1:])
    weights = replace(report.weights, tied=(Tie(tied.name, "embeddings.weight"),))
    return replace(with_head(report, parameters=parameters), weights=weights)


def many_labels() -> Report:
    labels = tuple(f"class {index}" for index in range(1000))
    return with_model(roberta(), labels=labels, num_labels=1000, labels_are_placeholders=False)


PICTURES: dict[str, Callable[[], Report]] = {
    **REPORTS,
    "evil": evil,
    "branched": branched,
    "without-head": without_head,
    "tied": with_tie,
    "many-labels": many_labels,
}


def at(index: int, token: str = "") -> Positions:
    return Positions(Where.INDEX, index, token=token)
