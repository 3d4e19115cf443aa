"""Rules on which weights the checkpoint gives."""

from collections.abc import Sequence

from headscope.checks.rule import Findings, Rule, at, classifier_of, for_profile, head_of, live_of, named, rule
from headscope.facts import (
    AdapterFault,
    AdapterFaultKind,
    CheckpointFacts,
    HeadParameter,
    ParameterStatus,
    Severity,
    TensorKind,
    WeightDiff,
    WeightsFormat,
)
from headscope.facts.adapter import describe_fault
from headscope.facts.check import Subject
from headscope.facts.missing import find_missing

_NEW = (ParameterStatus.NEW, ParameterStatus.IGNORED)
_LOST = (*_NEW, ParameterStatus.MISMATCHED)
_MANY = 0.5


@rule("HS101", "base-weights-missing", "Weights of the base model are new", needs=("checkpoint",))
def base_weights_missing(this: Rule, subject: Subject) -> Findings:
    """Parameters outside the head that the scores depend on and that the checkpoint does not give."""
    head_of(subject)
    empty = set(_placeholders(subject))
    missing = tuple(name for name in find_missing(subject.report).elsewhere if name not in empty)
    if not missing:
        return
    weights = subject.report.weights
    base = sum(1 for item in weights.parameters if item.in_base and not item.is_buffer)
    message = f"{len(missing):,} tensors outside the head are newly initialised: {named(missing)}."
    remedy = "Give the checkpoint that holds them, or the class that it was saved from (--model-class)."
    if weights.unused and len(missing) >= _MANY * max(base, 1):
        message += (
            f" At the same time {len(weights.unused):,} checkpoint tensors find no place, the first is "
            f"{weights.unused[0]}: the names do not match, as with a wrong prefix or another class."
        )
        remedy = "Load it into the class it was saved from (--model-class), or rename its keys."
        prefix = _wrapper_prefix(weights, missing)
        if prefix:
            message += f" Every one of them begins with {prefix!r}, which a wrapper put before the names."
            remedy = _without_prefix(prefix, subject.report.checkpoint)
    yield this.find(Severity.ERROR, message, remedy, missing)


def _wrapper_prefix(weights: WeightDiff, missing: Sequence[str]) -> str:
    """What stands before the names of all unused keys, if most missing tensors are found without it; else ""."""
    bases = {item.name.partition(".")[0] for item in weights.parameters if item.in_base}
    first, prefix = weights.unused[0], ""
    for part in first.split(".")[:-1]:
        prefix += f"{part}."
        if not all(key.startswith(prefix) for key in weights.unused):
            return ""
        names = {key.removeprefix(prefix) for key in weights.unused}
        names |= {f"{base}.{name}" for base in bases for name in names}
        if sum(name in names for name in missing) > _MANY * len(missing):
            return prefix
    return ""


def _without_prefix(prefix: str, checkpoint: CheckpointFacts) -> str:
    """The remedy for a wrapper's prefix, as code."""
    file = checkpoint.files[0] if checkpoint.files else "model.safetensors"
    renamed = f"{{key.removeprefix({prefix!r}): value for key, value in state.items()}}"
    if checkpoint.format is WeightsFormat.TORCH:
        code = f"import torch; state = torch.load({file!r}, weights_only=True); torch.save({renamed}, {file!r})"
    else:
        code = (
            f"from safetensors.torch import load_file, save_file; state = load_file({file!r}); "
            f"save_file({renamed}, {file!r}, metadata={{'format': 'pt'}})"
        )
    several = " Do the same for each shard and for the keys of the index." if len(checkpoint.files) > 1 else ""
    return f"Drop the prefix {prefix!r}: `{code}`.{several}"


def _placeholders(subject: Subject) -> list[str]:
    """The parameters that the checkpoint stores without any element."""
    mismatched = subject.report.weights.mismatched
    return [item.parameter for item in mismatched if 0 in item.checkpoint_shape and 0 not in item.model_shape]


@rule("HS801", "empty-placeholders", "Weights are empty placeholders", needs=("checkpoint",))
def empty_placeholders(this: Rule, subject: Subject) -> Findings:
    """Tensors without elements, as DeepSpeed ZeRO-3 leaves them where weights are not gathered before saving."""
    adapter = subject.report.adapter
    of_adapter = [item.name for item in adapter.faults if item.found == "0"] if adapter is not None else []
    empty = [*_placeholders(subject), *of_adapter]
    if empty:
        yield this.find(
            Severity.ERROR,
            f"{len(empty):,} tensors are stored without any element: {named(empty)}. DeepSpeed ZeRO-3 leaves such "
            "placeholders when the weights are not gathered before saving: the file holds none of their values.",
            "Rebuild the weights from the training checkpoint with DeepSpeed's script (python zero_to_fp32.py "
            "CHECKPOINT_DIR OUTPUT_DIR), and set stage3_gather_16bit_weights_on_model_save to true for the next run.",
            empty,
        )


@rule("HS102", "head-new", "The head is newly initialised", needs=("checkpoint",))
def head_new(this: Rule, subject: Subject) -> Findings:
    """Every weight of the head that the scores depend on is new."""
    live = live_of(subject)
    lost = [item for item in live if item.status in _NEW]
    if not live or len(lost) < len(live) or subject.report.adapter is not None:
        return
    count = sum(item.count for item in lost if item.kind is TensorKind.PARAMETER)
    yield this.find(
        at(subject, training=Severity.NOTE, inference=Severity.ERROR),
        f"Random at every load: {_all(len(lost))} of the head, {count:,} parameters: {_names(lost)}.",
        for_profile(
            subject,
            training="This is what training starts from.",
            inference="Train it first.",
        ),
        [item.name for item in lost],
    )


@rule("HS103", "head-partly-new", "A part of the head is newly initialised", needs=("checkpoint",))
def head_partly_new(this: Rule, subject: Subject) -> Findings:
    """Some weights of the head are the checkpoint's and some are new."""
    live = live_of(subject)
    lost = [item for item in live if item.status in _NEW]
    if not lost or len(lost) == len(live) or subject.report.adapter is not None:
        return
    last = classifier_of(subject)
    if all(item.kind is TensorKind.BUFFER for item in lost):
        severity = at(subject, training=Severity.WARNING, inference=Severity.ERROR)
        what = "The checkpoint lacks buffers that the scores depend on, and they start at their default values"
        remedy = "Look for a checkpoint that holds them, or save the trained model again: state_dict() includes them."
    elif last is not None and last.status not in _LOST:
        severity = at(subject, training=Severity.WARNING, inference=Severity.ERROR)
        what = f"The classifier {last.name} is the checkpoint's, and reads through weights that are random"
        remedy = "Look for a checkpoint that holds them too: a classifier was trained on what stands before it."
    else:
        severity = at(subject, training=Severity.NOTE, inference=Severity.ERROR)
        what = "Weights in front of the classifier are the checkpoint's, the rest is random at every load"
        remedy = for_profile(subject, training="This is what training starts from.", inference="Train it first.")
    yield this.find(severity, f"{what}: {_names(lost)}.", remedy, [item.name for item in lost])


@rule("HS104", "head-mismatched", "Weights of the head have another shape in the checkpoint", needs=("checkpoint",))
def head_mismatched(this: Rule, subject: Subject) -> Findings:
    """Tensors of the head that the checkpoint holds in another shape, for another reason than the class count."""
    empty = set(_placeholders(subject))
    lost = (item for item in live_of(subject) if item.status is ParameterStatus.MISMATCHED)
    reshaped = [item for item in lost if item.name not in empty]
    other = [item for item in reshaped if not _is_reshaped_classifier(item, subject)]
    if not other:
        return
    shapes = ", ".join(f"{item.name} {list(item.checkpoint_shape or ())} -> {list(item.shape)}" for item in other)
    yield this.find(
        Severity.ERROR,
        f"from_pretrained raises, or with ignore_mismatched_sizes=True throws the checkpoint's weights away: {shapes}.",
        "Use the configuration that the checkpoint was saved with.",
        [item.name for item in other],
    )


@rule(
    "HS105",
    "unused-weights-new",
    "New weights that the scores do not depend on",
    worst=Severity.NOTE,
    needs=("checkpoint",),
)
def unused_weights_new(this: Rule, subject: Subject) -> Findings:
    """New parameters with no path to the scores: harmless."""
    beside = set(head_of(subject).not_live)
    idle = [name for name in subject.report.weights.new if name in beside]
    if idle:
        yield this.find(
            Severity.NOTE,
            f"{named(idle)}: newly initialised, and without effect on the scores.",
            "Nothing to do.",
            idle,
        )


@rule(
    "HS106",
    "classifier-unused",
    "A trained classifier in the checkpoint is not loaded",
    worst=Severity.WARNING,
    needs=("checkpoint",),
)
def classifier_unused(this: Rule, subject: Subject) -> Findings:
    """The classifier is new while an unused checkpoint tensor of no known other head has just its shape."""
    last = classifier_of(subject)
    if last is None or last.status not in _LOST:
        return
    weights = subject.report.weights
    of_others = {key for group in weights.unused_groups if group.description for key in group.keys}
    others = {(_tail(item.name), item.shape) for item in weights.parameters if item.name != last.name}
    same = [
        item.key
        for item in weights.unused_tensors
        if item.shape == last.shape and item.key not in of_others and (_tail(item.key), item.shape) not in others
    ]
    if same and len(last.shape) > 1:
        yield this.find(
            Severity.WARNING,
            f"{last.name} is new, and the checkpoint holds {named(same)} of the same shape, which nothing loads.",
            "If that is the classifier, load the class it was saved from, or rename the tensor.",
            same,
        )


def _tail(name: str) -> str:
    """The last two parts of a name: the layer and its tensor."""
    return ".".join(name.split(".")[-2:])


@rule("HS107", "adapter-without-head", "The adapter does not carry the head")
def adapter_without_head(this: Rule, subject: Subject) -> Findings:
    """Weights of the head that neither the base model nor the adapter gives."""
    adapter = subject.report.adapter
    if adapter is None:
        return
    if adapter.promised:
        yield this.find(
            Severity.ERROR,
            f"PEFT looks for {named(adapter.promised)} in the adapter's file and raises a KeyError: it is not there.",
            "Save the adapter anew with PeftModel.save_pretrained, which writes the modules to save.",
            adapter.promised,
        )
    if adapter.not_carried:
        setting = f"modules_to_save={list(adapter.modules_to_save)}"
        yield this.find(
            Severity.ERROR,
            f"Neither the base model nor the adapter gives {named(adapter.not_carried)}: random at every load.",
            f"Train again with {setting} in the LoraConfig.",
            adapter.not_carried,
        )


_GRAVE = (
    AdapterFaultKind.CONFIGURATION,
    AdapterFaultKind.SHAPE,
    AdapterFaultKind.SCALING,
    AdapterFaultKind.MISSING,
)
_LISTED = 3


@rule("HS109", "adapter-misfit", "The adapter does not fit")
def adapter_misfit(this: Rule, subject: Subject) -> Findings:
    """Settings or tensors of an adapter that contradict its configuration or the base model."""
    adapter = subject.report.adapter
    faults = adapter.faults if adapter is not None else ()
    grave = [item for item in faults if item.kind in _GRAVE]
    ignored = [item for item in faults if item.kind not in _GRAVE]
    if grave:
        refused = any(item.kind in _GRAVE[:2] for item in grave)
        what = "PeftModel.from_pretrained fails" if refused else "The loaded adapter is not the one that was trained"
        yield this.find(
            Severity.ERROR,
            f"{what}: {_described(grave)}.",
            "Use the adapter_config.json and the base model that the adapter was trained with, or save it again with "
            "PeftModel.save_pretrained.",
            [item.name for item in grave],
        )
    if ignored:
        yield this.find(
            Severity.WARNING,
            f"PEFT loads only a part of the adapter: {_described(ignored)}.",
            "Use the adapter_config.json that was saved with these weights.",
            [item.name for item in ignored],
        )


def _described(faults: list[AdapterFault]) -> str:
    shown = "; ".join(describe_fault(item) for item in faults[:_LISTED])
    return shown if len(faults) <= _LISTED else f"{shown}; and {len(faults) - _LISTED:,} more"


@rule("HS108", "pickled-weights", "The weights are a pickle", worst=Severity.WARNING)
def pickled_weights(this: Rule, subject: Subject) -> Findings:
    """Weights in PyTorch's own format, which is a program."""
    if subject.report.checkpoint.format is WeightsFormat.TORCH:
        yield this.find(
            Severity.WARNING,
            "The weights are stored as a pickle, which loaders other than PyTorch's weights_only run as a program.",
            "Save them with save_pretrained, which writes safetensors.",
            subject.report.checkpoint.files,
        )


def _is_reshaped_classifier(item: HeadParameter, subject: Subject) -> bool:
    """Whether a tensor differs from the checkpoint's in the axis of the classes only: the class count's own rule."""
    stored = item.checkpoint_shape
    if item.status is not ParameterStatus.MISMATCHED or not stored or len(stored) != len(item.shape):
        return False
    differing = [axis for axis, size in enumerate(item.shape) if size != stored[axis]]
    return len(differing) == 1 and item.shape[differing[0]] == subject.report.model.num_labels


def _all(count: int) -> str:
    return "the one tensor" if count == 1 else f"all {count} tensors"


def _names(items: list[HeadParameter]) -> str:
    return named([item.name for item in items])
