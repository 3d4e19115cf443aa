"""Models of Flair: one pickle with the weights, the labels and the settings, read and never executed.

The layout is that of Flair 0.15 (`_get_state_dict` of `flair/nn/model.py` and `flair/models`): the tensors are under
`state_dict`, the class under `__cls__`, and the labels in a `flair.data.Dictionary`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headscope.checkpoints.contents.weights import FileStorage
from headscope.checkpoints.foreign.values import (
    MOST_LABELS,
    ForeignLabels,
    count_faults,
    labels_if_they_fit,
    linear,
    mapping,
    shape_faults,
    text,
)
from headscope.checkpoints.formats.pickle.values import Opaque
from headscope.checkpoints.formats.torch_file import headers_of, read_torch_value
from headscope.errors import HeadscopeError
from headscope.facts import Gap, GapTopic, PoolingKind, TensorHeader
from headscope.facts.counting import few_of
from headscope.facts.exports.export import ExportHead, ExportStep, HeadBasis, Inventoried, Setting, contents_of

KNOWLEDGE = "the names and settings in Flair's pickle, which was read and not executed"
_FILES = ("pytorch_model.bin", "final-model.pt", "best-model.pt")
_DICTIONARIES = ("label_dictionary", "tag_dictionary")
_EMBEDDINGS = ("document_embeddings", "embeddings")
_SETTINGS = (*_DICTIONARIES, *_EMBEDDINGS, "label_type", "tag_type")
_LAYERS = ("decoder", "linear")
_OWN = "flair.data.Dictionary"
_PROJECTION, _RNN = "embedding2nn", "rnn."
_CRF = "crf.transitions"
_POOLING = {
    "cls": (PoolingKind.FIRST_TOKEN, "cls_pooling is cls: the first token, or the last if the family puts it there"),
    "mean": (PoolingKind.MASKED_MEAN, "cls_pooling is mean: the mean of all tokens of the text"),
    "max": (PoolingKind.MAX, "cls_pooling is max: the maximum over all tokens of the text"),
}


def refuse_flair(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Inventoried, with the head that the file holds, for a model of Flair."""
    for name in _candidates(names):
        try:
            source = storage.open(name)
            value, imports = read_torch_value(source)
        except HeadscopeError:
            continue
        if is_of_flair(value, imports):
            tensors = headers_of(value["state_dict"], name)
            kind = text(value.get("__cls__"), "class not named")
            raise Inventoried(
                f"{reference} is a model of Flair ({kind} in {name}), not a checkpoint of Transformers",
                "load it with that library, if you trust the file (loading it runs pickled code): pip install flair; "
                f"flair.nn.Classifier.load({_path(reference, name)!r})",
                contents_of(
                    reference,
                    f"Flair {kind}",
                    tensors,
                    format_name="flair",
                    bytes_read=source.bytes_read,
                    settings=tuple(_settings(value)),
                    head=read_flair_head(value, tensors),
                ),
            )


def _path(reference: str, name: str) -> str:
    return reference if reference.endswith(name) else f"{reference.rstrip('/')}/{name}"


def _candidates(names: Collection[str]) -> tuple[str, ...]:
    """The usual names, or the only PyTorch file that is there."""
    usual = tuple(name for name in _FILES if name in names)
    others = sorted(name for name in names if name.endswith((".pt", ".bin")) and "/" not in name)
    return usual or (tuple(others) if len(others) == 1 else ())


def is_of_flair(value: Any, imports: Collection[str] = ()) -> bool:
    """Whether the value of a pickle is a model of Flair: tensors under `state_dict`, and Flair's settings beside."""
    if not isinstance(value, dict) or not isinstance(value.get("state_dict"), dict):
        return False
    of_flair = any(name.startswith("flair.") for name in imports)
    return any(name in value for name in _SETTINGS) and (of_flair or "__cls__" in value)


def _settings(value: Mapping[str, Any]) -> Iterator[Setting]:
    for name in ("label_type", "tag_type", "tag_format"):
        if text(value.get(name)):
            yield Setting(name, text(value.get(name)))
    for name in _EMBEDDINGS:
        model = text(mapping(value.get(name)).get("model"))
        if model:
            yield Setting("model", model)


def read_flair_head(value: Mapping[str, Any], tensors: tuple[TensorHeader, ...]) -> ExportHead:
    """The last layer, its labels, and what the settings say about pooling."""
    by_key = {item.key: item for item in tensors}
    layer = next((name for name in _LAYERS if f"{name}.weight" in by_key), None)
    weight = by_key[f"{layer}.weight"] if layer is not None else None
    bias = by_key.get(f"{layer}.bias") if layer is not None else None
    crf = by_key.get(_CRF)
    classes = weight.shape[0] if weight is not None and weight.shape else None
    labels = _labels(value)
    pooling, rule = _pooling(value)
    before, of_before = _before(value, by_key)
    steps = [*before, linear(weight, bias)] if weight is not None else []
    steps += [ExportStep("crf", (_CRF,), "the best path through the tags")] if crf is not None else []
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=pooling,
        pooling_rule=rule,
        steps=tuple(steps),
        tensors=tuple(item for item in (*of_before, weight, bias, crf) if item is not None),
        classes=classes,
        labels=labels_if_they_fit(labels, classes),
        knowledge=KNOWLEDGE,
        notes=("multi_label is true: each class has its own sigmoid",) if value.get("multi_label") is True else (),
        not_determined=tuple(_gaps(weight, classes, labels, pooling)),
    )


def _before(
    value: Mapping[str, Any], by_key: Mapping[str, TensorHeader]
) -> tuple[list[ExportStep], tuple[TensorHeader, ...]]:
    """The layers between the embeddings and the last layer of a tagger, with their tensors."""
    weight, bias = by_key.get(f"{_PROJECTION}.weight"), by_key.get(f"{_PROJECTION}.bias")
    of_rnn = tuple(item for key, item in by_key.items() if key.startswith(_RNN))
    steps = [linear(weight, bias)] if weight is not None else []
    if of_rnn:
        steps.append(ExportStep(text(value.get("rnn_type"), "rnn").lower(), tuple(item.key for item in of_rnn)))
    projection = tuple(item for item in (weight, bias) if item is not None)
    return steps, (*projection, *of_rnn)


def _labels(value: Mapping[str, Any]) -> ForeignLabels:
    """The items of Flair's dictionary, which are bytes."""
    found = next((value[name] for name in _DICTIONARIES if name in value), None)
    if found is None:
        return ForeignLabels()
    state = found.state if isinstance(found, Opaque) and found.made_by == _OWN else None
    items = state.get("idx2item") if isinstance(state, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, bytes | str) for item in items):
        return ForeignLabels(reason="the dictionary of labels is not one of Flair's")
    if len(items) > MOST_LABELS:
        return ForeignLabels(reason=f"the dictionary lists {len(items):,} labels, over the limit of {MOST_LABELS:,}")
    return ForeignLabels(tuple(item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in items))


def _pooling(value: Mapping[str, Any]) -> tuple[PoolingKind | None, str]:
    if "tag_dictionary" in value:
        return PoolingKind.NONE, "one row of scores for each word"
    settings = next((mapping(value[name]) for name in _EMBEDDINGS if name in value), {})
    kind = text(settings.get("cls_pooling"))
    if kind in _POOLING:
        return _POOLING[kind]
    return None, f"the embeddings are {text(settings.get('__cls__'), 'of a class that is not named')}"


def _gaps(
    weight: TensorHeader | None, classes: int | None, labels: ForeignLabels, pooling: PoolingKind | None
) -> Iterator[Gap]:
    if weight is None:
        yield Gap(GapTopic.HEAD, f"the file holds no tensor named {few_of(f'{name}.weight' for name in _LAYERS)}")
    else:
        yield from shape_faults([weight])
    if pooling is None:
        yield Gap(GapTopic.POOLING, "the settings of the embeddings name none")
    yield from count_faults(classes, None, "", labels)
