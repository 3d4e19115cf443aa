"""Checkpoints of timm, and of Transformers' wrapper for it: the head that `config.json` and the headers describe.

timm writes `architecture`, `num_classes`, `global_pool` and `pretrained_cfg` (with the name of the classifier) into
`config.json` (`save_for_hf`, timm 1.0). The wrapper keeps `architecture` and `num_classes`, and puts `timm_model.`
before the keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headscope.core.checkpoints.foreign.values import (
    count_faults,
    is_matrix,
    labels_if_they_fit,
    linear,
    listed_labels,
    mapping,
    shape_faults,
    text,
    whole,
)
from headscope.core.facts import CheckpointManifest, Gap, GapTopic, TensorHeader
from headscope.core.facts.counting import few_of
from headscope.core.facts.export import ExportHead, HeadBasis, Setting, WeightInventory, contents_of

KNOWLEDGE = "config.json and the tensors' headers, as timm 1.0 writes them; nothing was run"
_WRAPPER = "timm_wrapper"
_PREFIX = "timm_model."


def is_of_timm(config: Mapping[str, Any]) -> bool:
    """True if `config.json` is timm's own: it names an architecture of timm, and no model type of Transformers."""
    has_own = isinstance(config.get("pretrained_cfg"), dict) or "num_classes" in config
    return isinstance(config.get("architecture"), str) and "model_type" not in config and has_own


def is_timm_wrapper(config: Mapping[str, Any]) -> bool:
    """True if the checkpoint is one of Transformers' wrapper for timm."""
    return config.get("model_type") == _WRAPPER


def timm_contents(manifest: CheckpointManifest) -> WeightInventory:
    """Lists the contents of a checkpoint of timm, or of the wrapper for it, with its head."""
    config = manifest.config
    architecture = text(config.get("architecture"), "not named")
    tag = text(mapping(config.get("pretrained_cfg")).get("tag"))
    return contents_of(
        manifest.reference,
        f"timm architecture {architecture}",
        manifest.tensors,
        format_name=manifest.format.value,
        bytes_read=manifest.bytes_read,
        settings=(Setting("architecture", architecture), *((Setting("tag", tag),) if tag else ())),
        head=read_timm_head(config, manifest.tensors),
    )


def read_timm_head(config: Mapping[str, Any], tensors: Sequence[TensorHeader]) -> ExportHead:
    """Reads the head that the configuration names, with its tensors."""
    names, is_named = _find_classifiers(config, tensors)
    # The wrapper's prefix is in the keys, but not in the names in the configuration.
    by_key = {item.key.removeprefix(_PREFIX): item for item in tensors}
    weights = [weight for name in names if (weight := by_key.get(f"{name}.weight")) is not None]
    biases = [by_key.get(f"{name}.bias") for name in names if f"{name}.weight" in by_key]
    # timm names two classifiers for distilled models; their numbers of classes must agree.
    counts = {weight.shape[0] for weight in weights if weight.shape}
    classes = counts.pop() if len(counts) == 1 else None
    stated = config.get("num_classes", config.get("num_labels"))
    is_headless = stated == 0 and not weights
    labels = listed_labels(config.get("label_names"), "label_names in config.json")
    detail = "" if len(weights) < 2 else "beside the other classifier"  # several
    rule = _pooling_in_config(config)
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=None,
        pooling_rule=rule,
        steps=tuple(linear(weight, bias, detail) for weight, bias in zip(weights, biases, strict=True)),
        tensors=(*weights, *(bias for bias in biases if bias is not None)),
        classes=0 if is_headless else classes,
        labels=labels_if_they_fit(labels, classes),
        knowledge=KNOWLEDGE,
        labels_from="config.json",
        notes=tuple(_notes_on_head(config, weights, is_headless=is_headless, is_named=is_named)),
        not_determined=(
            Gap(GapTopic.POOLING, "timm's code was not traced"),
            *_gaps_of_head(names, weights, stated, is_headless=is_headless),
            # Several classifiers stand side by side: none takes what another gives.
            *shape_faults(weights[:1]),
            *count_faults(classes, stated, "num_classes in config.json", labels),
        ),
    )


def _find_classifiers(config: Mapping[str, Any], tensors: Sequence[TensorHeader]) -> tuple[tuple[str, ...], bool]:
    """Finds the modules that make the scores, and whether the configuration names them.

    If it names none, it is the only matrix with as many rows as there are classes.
    """
    stated = mapping(config.get("pretrained_cfg")).get("classifier", config.get("classifier"))
    listed = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    named = tuple(text(item) for item in listed[:8] if text(item))
    if named:
        return named, True
    count = whole(config.get("num_classes", config.get("num_labels")))
    fitting = [
        item.key for item in tensors if item.key.endswith(".weight") and is_matrix(item) and item.shape[0] == count
    ]
    found = tuple(key.removeprefix(_PREFIX).removesuffix(".weight") for key in fitting)
    return found if len(found) == 1 else (), False


def _pooling_in_config(config: Mapping[str, Any]) -> str:
    """Quotes what the configuration says about pooling."""
    places = (config, mapping(config.get("model_args")), mapping(config.get("pretrained_cfg")))
    for place in places:
        found = place.get("global_pool")
        if isinstance(found, str):
            return f"global_pool is {text(found, 'empty')}, as config.json says"
    return "config.json names no global_pool: the architecture's own default"


def _notes_on_head(
    config: Mapping[str, Any], weights: Sequence[TensorHeader], *, is_headless: bool, is_named: bool
) -> Iterator[str]:
    if is_headless:
        yield "num_classes is 0: the model gives features, and has no classifier"
    if len(weights) > 1:
        yield f"there are {len(weights)} classifiers; how their scores are combined is in timm's code"
    if weights and not is_named:
        yield f"config.json does not name the classifier: {weights[0].key} alone has as many rows as there are classes"
    features = whole(config.get("num_features"))
    if weights and features is not None and len(weights[0].shape) > 1 and weights[0].shape[1] != features:
        yield f"num_features is {features:,}, and {weights[0].key} takes {weights[0].shape[1]:,} numbers"


def _gaps_of_head(
    names: Sequence[str], weights: Sequence[TensorHeader], stated: Any, *, is_headless: bool
) -> Iterator[Gap]:
    if is_headless or weights:
        counts = {weight.shape[:1] for weight in weights}
        if len(counts) > 1:
            yield Gap("classes", "the classifiers give different numbers of scores")
    elif names:
        yield Gap(GapTopic.HEAD, f"config.json names the classifier {few_of(names)}, and no tensor is named so")
    else:
        reason = "config.json does not name the classifier, and not one matrix alone has as many rows as classes"
        yield Gap(GapTopic.HEAD, reason)
