"""Folders of the library adapters (AdapterHub): an adapter and a prediction head, in formats that are not PEFT's.

The layout is that of adapters 1.3.0 (`adapters/loading.py`, `adapters/heads/base.py`), which older versions share:
`adapter_config.json` with `pytorch_adapter.bin` or `adapter.safetensors`, and `head_config.json` with
`pytorch_model_head.bin` or `model_head.safetensors`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headscope.core.checkpoints.contents.weights import FileStorage, read_weight_file
from headscope.core.checkpoints.foreign.values import (
    ForeignLabels,
    count_faults,
    labels_if_they_fit,
    linear,
    mapping,
    numbered_labels,
    shape_faults,
    text,
    whole,
)
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts import Gap, GapTopic, PoolingKind, TensorHeader
from headscope.core.facts.counting import counted
from headscope.core.facts.export import ExportHead, ExportStep, HeadBasis, Inventoried, Setting, contents_of

KNOWLEDGE = "head_config.json and the tensors' headers, as adapters 1.3.0 builds heads from them; nothing was run"
_CONFIG, _HEAD_CONFIG = "adapter_config.json", "head_config.json"
_ADAPTERS = ("pytorch_adapter.bin", "adapter.safetensors")
_HEADS = ("pytorch_model_head.bin", "model_head.safetensors")
_OF_PEFT = ("adapter_model.safetensors", "adapter_model.bin")
_LAYER = re.compile(r".+\.(?P<at>[0-9]{1,4})\.weight")
_OWN_TOKEN = frozenset({
    "bart", "beit", "gpt2", "gptj", "llama", "mbart", "mistral", "mt5", "plbart", "t5", "whisper",
})  # fmt: skip
"""Model types whose adapter model picks the vector for the head itself (`cls_output`, or the `<eos>` token)."""
_PER_TOKEN = {"tagging": "one row of scores for each token", "question_answering": "two scores for each token"}
_OF_TEXTS = ("classification", "multilabel_classification", "multiple_choice", "image_classification")
CLASSIFIERS = (*_OF_TEXTS, *_PER_TOKEN)
"""The head types whose result are scores of classes, choices or positions; others predict words or trees."""


def is_of_adapter_hub(names: Collection[str], storage: FileStorage) -> bool:
    """True if adapters wrote a folder, and not PEFT: by its file names, then by its adapter_config.json."""
    own = {*_ADAPTERS, *_HEADS, _HEAD_CONFIG}.intersection(names)
    if not own and _CONFIG not in names:
        return False
    if _CONFIG not in names:
        return bool(own.intersection(_HEADS)) and _HEAD_CONFIG in names
    # PEFT's own file names decide; the settings are read only if the names leave it open.
    if not own and set(_OF_PEFT).intersection(names):
        return False
    config = parse_object(storage.read_text(_CONFIG), _CONFIG)
    is_theirs = isinstance(config.get("config"), dict) and "model_class" in config
    return "peft_type" not in config and (bool(own) or is_theirs)


def refuse_adapter_hub(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Inventoried, with the head that the folder holds, for a folder of adapters."""
    if not is_of_adapter_hub(names, storage):
        return
    settings = parse_object(storage.read_text(_HEAD_CONFIG), _HEAD_CONFIG) if _HEAD_CONFIG in names else {}
    adapter = parse_object(storage.read_text(_CONFIG), _CONFIG) if _CONFIG in names else {}
    tensors, bytes_read = _read_first(storage, names, _ADAPTERS)
    of_head, of_head_bytes = _read_first(storage, names, _HEADS)
    head = read_hub_head(settings, of_head) if of_head or settings else None
    either = settings or adapter
    base = text(either.get("model_name"), "BASE")
    kind = text(mapping(settings.get("config")).get("head_type"))
    named_head = f"a prediction head ({kind})" if kind else "a prediction head"
    held = [*(["an adapter"] if _CONFIG in names else []), *([named_head] if head is not None else [])]
    more = "" if head is not None else "; it holds no prediction head"
    call = "load_adapter" if _CONFIG in names else "load_head"
    raise Inventoried(
        f"{reference} holds {' and '.join(held)} of the library adapters (AdapterHub), which is neither a checkpoint "
        f"nor a PEFT adapter{more}",
        "load it with that library: pip install adapters; adapters.AutoAdapterModel.from_pretrained("
        f"{base!r}).{call}({reference!r})",
        contents_of(
            reference,
            f"{text(either.get('model_class'), 'class not named')} of {base}",
            (*tensors, *of_head),
            format_name="adapters",
            bytes_read=bytes_read + of_head_bytes,
            settings=tuple(_origin_settings(either, adapter)),
            head=head,
        ),
    )


def _read_first(
    storage: FileStorage, names: Collection[str], files: Sequence[str]
) -> tuple[tuple[TensorHeader, ...], int]:
    """Reads the tensors of the first of the files that is there, and counts the bytes read."""
    name = next((name for name in files if name in names), None)
    weights = read_weight_file(storage, name) if name is not None else None
    return (weights.tensors, weights.bytes_read) if weights is not None else ((), 0)


def _origin_settings(either: Mapping[str, Any], adapter: Mapping[str, Any]) -> Iterator[Setting]:
    """Gives the settings that say where the head and the adapter come from."""
    for name in ("version", "name", "model_type"):
        if text(either.get(name)):
            yield Setting(name, text(either.get(name)))
    kind = mapping(adapter.get("config")).get("architecture")
    if text(kind):
        yield Setting("adapter", text(kind))


def _steps_of_layers(
    weights: Sequence[TensorHeader], tensors: Iterable[TensorHeader], dropout: str, activation: str
) -> Iterator[ExportStep]:
    """Gives the chain: dropout before each layer, the activation after all but the last."""
    by_key = {item.key: item for item in tensors}
    for at, weight in enumerate(weights):
        yield ExportStep("dropout", detail=dropout)
        yield linear(weight, by_key.get(weight.key.removesuffix(".weight") + ".bias"))
        if activation and at < len(weights) - 1:
            yield ExportStep(activation)


def read_hub_head(settings: Mapping[str, Any], tensors: tuple[TensorHeader, ...]) -> ExportHead:
    """Reads the prediction head that these settings and tensors make."""
    config = mapping(settings.get("config"))
    kind = text(config.get("head_type"))
    if not kind:
        return _head_of_transformers(settings, tensors)
    is_chain = kind in CLASSIFIERS
    # `heads.NAME.1.weight`, `heads.NAME.4.weight`: the numbers are places in a torch.nn.Sequential, whose other places
    # have no tensors.
    numbered = sorted((int(match["at"]), item) for item in tensors if (match := _LAYER.fullmatch(item.key)))
    weights = [item for _, item in numbered]
    last = weights[-1] if weights else None
    classes = last.shape[0] if last is not None and last.shape and is_chain else None
    of_choices = kind == "multiple_choice"
    labels = ForeignLabels() if of_choices else numbered_labels(config.get("label2id"), f"label2id in {_HEAD_CONFIG}")
    stated = None if of_choices or not is_chain else config.get("num_labels")
    dropout = config.get("dropout_prob")
    said = f"p={dropout}" if type(dropout) in (int, float) else "p of the base model"
    activation = text(config.get("activation_function"))
    steps = tuple(_steps_of_layers(weights, tensors, said, activation)) if is_chain else ()
    pooling, rule = _pooling_of_head(kind, config, text(settings.get("model_type")))
    notes: tuple[str, ...] = () if is_chain else (f"a {kind} head predicts no classes",)
    if of_choices:
        notes = ("the head gives one score for each choice",)
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=pooling,
        pooling_rule=rule,
        steps=steps,
        tensors=tensors,
        classes=classes,
        labels=labels_if_they_fit(labels, classes),
        knowledge=KNOWLEDGE,
        notes=notes,
        not_determined=(
            *_gaps_of_head(kind, config.get("layers"), weights),
            *([Gap(GapTopic.POOLING, rule)] if pooling is None else []),
            *count_faults(classes, stated, f"num_labels in {_HEAD_CONFIG}", labels),
        ),
        labels_from=_HEAD_CONFIG,
    )


def _head_of_transformers(settings: Mapping[str, Any], tensors: tuple[TensorHeader, ...]) -> ExportHead:
    """Reads the head of a class of Transformers that adapters saved: its layer if it has only one."""
    whose = text(settings.get("model_class"), "a class that is not named")
    matrices = [item for item in tensors if item.key.endswith(".weight") and len(item.shape) > 1]
    weight = matrices[0] if len(matrices) == 1 else None
    biases = {item.key: item for item in tensors}
    steps = [linear(weight, biases.get(weight.key.removesuffix(".weight") + ".bias"))] if weight is not None else []
    classes = weight.shape[0] if weight is not None else None
    gaps = [Gap(GapTopic.POOLING, f"it is that of {whose}")]
    if weight is None:
        gaps.append(Gap(GapTopic.HEAD, f"the operations between its {len(tensors):,} tensors are those of {whose}"))
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=None,
        pooling_rule=f"that of {whose}",
        steps=tuple(steps),
        tensors=tensors,
        classes=classes,
        labels=(),
        knowledge=KNOWLEDGE,
        notes=(f"the head is that of {whose}, not one that adapters makes",),
        not_determined=(
            *gaps,
            *count_faults(classes, settings.get("num_labels"), f"num_labels in {_HEAD_CONFIG}", ForeignLabels()),
        ),
    )


def _pooling_of_head(kind: str, config: Mapping[str, Any], model: str) -> tuple[PoolingKind | None, str]:
    """Tells which vector an adapter model of that type gives to the head, and by which rule."""
    if kind in _PER_TOKEN:
        return PoolingKind.NONE, _PER_TOKEN[kind]
    if kind not in _OF_TEXTS:
        return None, "the settings do not say"
    if config.get("use_pooler") is True:
        return None, "use_pooler is true: the base model's own pooled output"
    if model in _OWN_TOKEN:
        return None, f"the adapter model of {model} picks the vector itself"
    return PoolingKind.FIRST_TOKEN, "use_pooler is false: the first token of the last hidden states, outputs[0][:, 0]"


def _gaps_of_head(kind: str, stated: Any, weights: Sequence[TensorHeader]) -> Iterator[Gap]:
    """Finds what the file of the head lacks, or says differently than the settings."""
    if kind not in CLASSIFIERS:
        yield Gap(GapTopic.HEAD, f"the layers of a {kind} head are not read")
        return
    if not weights:
        yield Gap(GapTopic.HEAD, "the file of the head holds no layer, or is not there")
        return
    if stated is not None and whole(stated) != len(weights):
        held = counted(len(weights), "layer")
        yield Gap("layers", f"{_HEAD_CONFIG} says {str(stated)[:40]}, and the file holds {held}")
    yield from shape_faults(weights)


def heads_in_config(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the prediction heads that make scores in the `config.json` of a whole model of adapters."""
    heads = mapping(config.get("prediction_heads"))
    found = [name for name, head in heads.items() if mapping(head).get("head_type") in CLASSIFIERS]
    return tuple(found[:50])
