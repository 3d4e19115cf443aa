"""The head of a GGUF file: what llama.cpp computes with the tensors named `cls.*`.

The names are those of gguf-py/gguf/constants.py, the chain that of `build_pooling` in src/llama-graph.cpp, both of
https://github.com/ggml-org/llama.cpp. A GGUF file holds no graph: the program that runs it brings the operations.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headscope.core.facts import Gap, GapTopic, PoolingKind, Shape, TensorHeader
from headscope.core.facts.counting import list_of
from headscope.core.facts.export import ExportHead, ExportStep, HeadBasis

KNOWLEDGE = "llama.cpp's build_pooling, by the names of tensors and settings; a GGUF file holds no operations"
POOLING_TYPES = {0: "NONE", 1: "MEAN", 2: "CLS", 3: "LAST", 4: "RANK"}
_RANK = 4
_KINDS = {
    0: (PoolingKind.NONE, "NONE: one vector per token"),
    1: (PoolingKind.MASKED_MEAN, "MEAN: the mean of all tokens of the text"),
    2: (PoolingKind.FIRST_TOKEN, "CLS: the first token"),
    3: (PoolingKind.LAST_NON_PAD_TOKEN, "LAST: the last token of the text"),
}
_OF_RANK = {
    PoolingKind.FIRST_TOKEN: "RANK: the first token, then the classifier",
    PoolingKind.MASKED_MEAN: "RANK: the mean of all tokens of the text, then the classifier",
    PoolingKind.LAST_NON_PAD_TOKEN: "RANK: the last token of the text, then the classifier",
}
_DENSE, _OUTPUT, _NORM = "cls", "cls.output", "cls.norm"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _RankBranch:
    """A branch of llama.cpp's RANK pooling: the token that it takes, and what follows the dense and the last layer."""

    pooling: PoolingKind = PoolingKind.FIRST_TOKEN
    activation: str = "tanh"
    last: str = ""


_RANK_BRANCHES = {
    "modern-bert": _RankBranch(PoolingKind.MASKED_MEAN, "gelu"),
    "qwen3": _RankBranch(PoolingKind.LAST_NON_PAD_TOKEN, last="softmax"),
    "qwen3vl": _RankBranch(PoolingKind.LAST_NON_PAD_TOKEN, last="softmax"),
}
"""Architectures that `build_pooling` treats apart; all others share one branch."""


def read_gguf_head(
    architecture: str, pooling_type: int | None, labels: tuple[str, ...], tensors: tuple[TensorHeader, ...]
) -> ExportHead:
    """Describes the head that llama.cpp would compute from these tensors and settings."""
    own = {item.key: item for item in tensors if item.key.startswith("cls.")}
    branch = _RANK_BRANCHES.get(architecture, _RankBranch())
    kind, rule = _pooling_and_rule(pooling_type, branch, has_classifier=bool(own))
    steps = tuple(_read_steps(own, branch))
    used = tuple(own[name] for step in steps for name in step.tensors)
    classes = _count_classes(used)
    return ExportHead(
        basis=HeadBasis.NAMES,
        pooling=kind,
        pooling_rule=rule,
        steps=steps,
        tensors=(*used, *(item for item in own.values() if item not in used)),
        classes=classes,
        labels=labels,
        knowledge=KNOWLEDGE,
        notes=tuple(_notes_on_use(architecture, own, used, pooling_type, classes=classes, labels=len(labels))),
        not_determined=tuple(_find_gaps(own, steps, pooling_type)),
    )


def _pooling_and_rule(
    pooling_type: int | None, branch: _RankBranch, *, has_classifier: bool
) -> tuple[PoolingKind | None, str]:
    """Tells which tokens are pooled; without a type in the file, those of RANK, which a classifier needs."""
    if pooling_type in _KINDS:
        return _KINDS[pooling_type]
    if pooling_type == _RANK or (pooling_type is None and has_classifier):
        return branch.pooling, _OF_RANK[branch.pooling]
    if pooling_type is None:
        return PoolingKind.NONE, "not set, so llama.cpp pools nothing: one vector per token"
    return None, f"unknown pooling type {pooling_type}"


def _read_steps(own: Mapping[str, TensorHeader], branch: _RankBranch) -> Iterator[ExportStep]:
    """Gives the chain after the pooling, as far as its tensors are there."""
    if f"{_DENSE}.weight" in own:
        yield _linear_step(own, _DENSE)
        yield ExportStep(branch.activation)
        if f"{_NORM}.weight" in own:
            yield ExportStep("layer_norm", (f"{_NORM}.weight",))
    if f"{_OUTPUT}.weight" in own:
        yield _linear_step(own, _OUTPUT)
    if branch.last and own:
        yield ExportStep(branch.last)


def _linear_step(own: Mapping[str, TensorHeader], name: str) -> ExportStep:
    weight, bias = f"{name}.weight", f"{name}.bias"
    shape = own[weight].shape
    output: Shape = ("batch", shape[0]) if len(shape) == 2 else ()
    return ExportStep("linear", (weight, bias) if bias in own else (weight,), output_shape=output)


def _count_classes(used: tuple[TensorHeader, ...]) -> int | None:
    """Counts the rows of the last layer; None if there is none, or if it is not a matrix."""
    matrices = [item for item in used if item.key in {f"{_DENSE}.weight", f"{_OUTPUT}.weight"}]
    last = matrices[-1] if matrices else None
    if last is None:
        return None
    # Converters may squeeze the matrix of one class to a vector.
    return last.shape[0] if len(last.shape) == 2 else (1 if len(last.shape) == 1 else None)


def _notes_on_use(
    architecture: str,
    own: Mapping[str, TensorHeader],
    used: tuple[TensorHeader, ...],
    pooling_type: int | None,
    *,
    classes: int | None,
    labels: int,
) -> Iterator[str]:
    """Notes what llama.cpp does with these tensors that a reader of the chain would not expect."""
    if not own:
        yield (
            "the file holds no tensor named cls.*: no classifier. llama.cpp's converter drops BERT's pooler, and the "
            "classifier of architectures that it has no name for"
        )
        return
    if pooling_type is None:
        yield "the file sets no pooling_type: llama.cpp computes this head only with `--pooling rank`"
    elif pooling_type in _KINDS:
        name = POOLING_TYPES[pooling_type]
        yield f"the file sets pooling_type {name}: llama.cpp computes this head only with `--pooling rank`"
    if classes is not None and (labels or f"{_OUTPUT}.weight" in own) and classes != max(labels, 1):
        yield f"the last layer gives {classes:,} scores, and llama.cpp expects {max(labels, 1):,} from the labels"
    if f"{_OUTPUT}.weight" not in own and f"{_DENSE}.weight" in own and architecture not in _RANK_BRANCHES:
        yield "the only layer is cls, which llama.cpp passes through tanh: the scores lie between -1 and 1"
    beside = sorted(name for name in own if own[name] not in used)
    if beside:
        yield f"no step of llama.cpp uses {list_of(beside, _MOST_NAMED)}"


def _find_gaps(
    own: Mapping[str, TensorHeader], steps: tuple[ExportStep, ...], pooling_type: int | None
) -> Iterator[Gap]:
    if pooling_type is not None and pooling_type not in POOLING_TYPES:
        yield Gap(GapTopic.POOLING, f"the file sets pooling_type {pooling_type}, which has no known meaning")
    if not own:
        yield Gap(GapTopic.HEAD, "the file holds no tensor named cls.*")
    elif not any(step.tensors for step in steps):
        yield Gap(GapTopic.HEAD, "the file holds neither cls.weight nor cls.output.weight")
    width = None
    for step in steps:
        shape = own[step.tensors[0]].shape if step.operation == "linear" else ()
        if step.operation == "linear" and len(shape) not in (1, 2):
            yield Gap(GapTopic.HEAD, f"{step.tensors[0]} has {len(shape)} axes, and a linear layer needs 2")
            return
        if len(shape) == 2 and width not in (None, shape[1]):
            yield Gap(
                GapTopic.HEAD, f"{step.tensors[0]} takes {shape[1]:,} numbers, and the step before gives {width:,}"
            )
        width = shape[0] if len(shape) == 2 else width
