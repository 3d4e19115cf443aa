"""Words for facts: shapes, amounts, byte sizes, losses, the places where something was read."""

from collections.abc import Sequence

from headscope.core.facts import (
    CheckpointKind,
    CheckpointManifest,
    Evidence,
    HealthVerdict,
    ModelFacts,
    Pooling,
    PoolingKind,
    Shape,
    Task,
)
from headscope.core.facts.counting import counted
from headscope.core.facts.heads.tasks import Activation, Loss
from headscope.core.words.safe import safe

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_KILO = 1000


def size_of(shape: Sequence[int | str]) -> str:
    """Writes the shape of a weight: `3x768`; a scalar is `scalar`."""
    return "x".join(str(axis) for axis in shape) or "scalar"


def axes_of(shape: Shape) -> str:
    """Writes the shape of hidden states: `[batch, sequence, 768]`."""
    return f"[{', '.join(str(axis) for axis in shape)}]"


def bytes_of(number: int) -> str:
    """Writes a byte count in human units, powers of 1000 as on the Hub: `499 MB`, `24.3 kB`."""
    value, unit = float(number), 0
    # From 999.5 on, the number would be rounded to 1000 of the smaller unit.
    while value >= _KILO - 0.5 and unit < len(_UNITS) - 1:
        value, unit = value / _KILO, unit + 1
    digits = f"{value:.0f}" if unit == 0 or value >= 100 else f"{value:.3g}"  # three digits
    return f"{digits} {'byte' if number == 1 else _UNITS[unit]}"


def share_of(part: int, whole: int) -> str:
    """Writes `part` of `whole` as a percentage with two significant digits: `0.48%`."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"  # two digits


def share_of_one(part: float) -> str:
    """Writes a probability as a percentage that never rounds up to certainty: `97%`, `99.9%`."""
    return f"{part:.0%}" if part < 0.985 else f"{min(part, 0.999):.1%}"  # from here a digit more


def place_words(evidence: Evidence) -> str:
    """Names an operation and its source, if known: `select at transformers/models/bert/modeling_bert.py:460`."""
    return f"{evidence.operation} at {evidence.file}:{evidence.line}" if evidence.file else evidence.operation


HEALTH = {
    HealthVerdict.FRESH: "Fresh, never trained",
    HealthVerdict.BRIEFLY_TRAINED: "Trained, at least briefly",
    HealthVerdict.TRAINED: "Trained",
    HealthVerdict.COLLAPSED: "Collapsed",
    HealthVerdict.NOT_DETERMINED: "Not determined",
}

POOLING = {
    PoolingKind.FIRST_TOKEN: "first token",
    PoolingKind.LAST_TOKEN: "last token",
    PoolingKind.LAST_NON_PAD_TOKEN: "last non-pad token",
    PoolingKind.EOS_TOKEN: "<eos> token",
    PoolingKind.TOKEN_AT: "one token",
    PoolingKind.MEAN: "mean over all positions",
    PoolingKind.MASKED_MEAN: "mean over the positions that are not padding",
    PoolingKind.MAX: "maximum over the positions",
    PoolingKind.WEIGHTED: "weighted sum over the positions",
    PoolingKind.SPATIAL_MEAN: "mean over the image",
    PoolingKind.CONCAT: "several, concatenated",
    PoolingKind.FLATTEN: "all positions, flattened",
    PoolingKind.TOKEN_PAIR: "one position, scored by rows of the language-model head",
    PoolingKind.NONE: "none",
    PoolingKind.OTHER: "other",
}

_RULE_OMITS_KIND = {PoolingKind.OTHER, PoolingKind.CONCAT, PoolingKind.TOKEN_PAIR, PoolingKind.WEIGHTED}
"""Poolings whose rule does not say what kind they are."""


def brief_rule(pooling: Pooling) -> str:
    """Writes the rule of a pooling, shorter for a token: `first token (index 0), even if it is padding`."""
    kind = POOLING[pooling.kind]
    one = pooling.parts[0] if len(pooling.parts) == 1 else None
    # Equal rules, however they are worded, say that nothing was added to the part's: a layer, rows, a summary.
    if one is not None and one.positions.token and one.positions.is_first and one.rule == pooling.rule:
        return f"{kind} (index 0), even if it is padding"
    if pooling.rule and pooling.kind not in _RULE_OMITS_KIND:
        return pooling.rule
    return f"{kind}: {pooling.rule}" if pooling.rule else kind


def reads_decoder(pooling: Pooling) -> bool:
    """True if all hidden states that the head reads were made inside a module named `decoder`: those of T5, BART."""
    modules = [source.module.split(".") for part in pooling.parts for source in part.sources]
    return bool(modules) and all("decoder" in path for path in modules)


SENTENCE_POOLING = {
    "cls": "first token",
    "max": "maximum over the tokens that are not padding",
    "mean": "mean over the tokens that are not padding",
    "mean_sqrt_len_tokens": "sum over the tokens that are not padding, by the square root of their number",
    "weightedmean": "mean over the tokens that are not padding, weighted by position",
    "lasttoken": "last token that is not padding",
}
"""The pooling modes of sentence-transformers."""

SOURCE = {
    CheckpointKind.HUB: "from the Hub",
    CheckpointKind.LOCAL: "local",
    CheckpointKind.SNAPSHOT: "snapshot (header only, no weights)",
    CheckpointKind.ADAPTER: "adapter",
    CheckpointKind.MEMORY: "model in memory",
    CheckpointKind.CLASS: "a class of Transformers, no checkpoint",
}


_CHOICE = {
    Task.TOKEN_CLASSIFICATION: "{classes} for each token",
    Task.AUDIO_FRAME_CLASSIFICATION: "{classes} for each frame",
    Task.MULTIPLE_CHOICE: "one of the choices, each scored separately",
    Task.QUESTION_ANSWERING: "one start and one end among the positions",
}

_LOSS: dict[tuple[str, str], str] = {
    (Loss.CROSS_ENTROPY, Activation.SOFTMAX): "CrossEntropyLoss over softmax: {choice}",
    (Loss.BINARY_CROSS_ENTROPY, Activation.SIGMOID): "BCEWithLogitsLoss over sigmoid: multi-label, {sigmoids}",
    (Loss.SQUARED_ERROR, Activation.NONE): "MSELoss, no activation: {numbers} (regression)",
}


def sigmoids_of(number: int) -> str:
    """Names the functions of a multi-label head: `3 sigmoids (one-vs-rest)`."""
    return "one sigmoid" if number == 1 else f"{number:,} sigmoids (one-vs-rest)"


def gives_embedding(model: ModelFacts) -> bool:
    """True if what the head gives is a vector of the input: it has no classes, no loss and no activation."""
    return not model.num_labels and model.loss == Loss.NONE and model.activation == Activation.NONE


def result_of(model: ModelFacts) -> str:
    """Names what the head gives."""
    return "embedding" if gives_embedding(model) else "logits"


def loss_of(model: ModelFacts) -> str:
    """Says in one phrase how the logits become a loss."""
    number = model.num_labels
    classes = "one class, always with probability 1" if number == 1 else f"one of {number:,} classes"
    choice = _CHOICE.get(model.task, "{classes}").format(classes=classes)
    phrase = _LOSS.get((model.loss, model.activation))
    if model.loss == Loss.NONE:
        is_known = model.activation not in {Activation.NONE, Activation.NOT_DETERMINED}
        applied = f"; activation: {model.activation}" if is_known else ""
        return f"none in forward: the code that trains it decides{applied}"
    if phrase is None:
        return model.loss if model.loss == Loss.NOT_DETERMINED else f"{model.loss}, activation: {model.activation}"
    return phrase.format(choice=choice, sigmoids=sigmoids_of(number), numbers=counted(number, "number"))


def snapshot_sentence(manifest: CheckpointManifest, output: str) -> str:
    """Says what `snapshot` wrote, and where; the next lines say what could not be read."""
    return "\n".join(snapshot_lines(manifest, output))


def snapshot_lines(manifest: CheckpointManifest, output: str) -> tuple[str, ...]:
    """Lists what `snapshot` wrote and where, then what could not be read."""
    size = f"{bytes_of(manifest.bytes_read)} read of {bytes_of(manifest.bytes_total)}"
    gaps = (f"not determined: {safe(gap.topic)}: {safe(gap.reason)}" for gap in manifest.gaps)
    held = f"{counted(len(manifest.tensors), 'tensor')} of {safe(manifest.reference)}, {size}"
    return (f"wrote {safe(output)}: {held}", *gaps)
