"""Rules on which weights the checkpoint gives."""

from collections.abc import Mapping, Sequence

from headscope.checks.facts import Subject
from headscope.checks.rules.cures import renaming_code
from headscope.checks.rules.rule import (
    HOW_TO_GIVE_CODE,
    Findings,
    NotKnown,
    Rule,
    classifier_of,
    for_profile,
    head_of,
    is_live_subject,
    live_of,
    live_parameters,
    reshaped_classes,
    rule,
    severity_at,
    unknown_outside,
    unless_repaired,
)
from headscope.core.facts import HeadParameter, ParameterStatus, Profile, Severity, TensorKind
from headscope.core.facts.counting import counted, few_of, verb
from headscope.core.facts.report import find_missing, find_without_place, holds_other_head, names_mismatch
from headscope.core.facts.stored.unplaced import describe_unplaced, parametrized_among

_NEW = (ParameterStatus.NEW, ParameterStatus.IGNORED)
_LOST = (*_NEW, ParameterStatus.MISMATCHED)


@rule("HS101", "base-weights-missing", "Weights of the base model are new", needs=("checkpoint",), finds="EN|E")
def base_weights_missing(this: Rule, subject: Subject) -> Findings:
    """Parameters outside the head that the scores depend on and that the checkpoint does not give."""
    head_of(subject)
    empty = set(_empty_parameters(subject))
    missing = tuple(name for name in find_missing(subject.report).elsewhere if name not in empty)
    yield from _find_missing_outside(this, subject, missing)
    unknown = unknown_outside(subject)
    if not unknown:
        return
    resized = subject.live.resized if subject.live else ()
    if subject.profile is Profile.INFERENCE or any(name not in resized for name in unknown):
        raise NotKnown(f"whether the checkpoint gives {few_of(unknown)} is not known")
    yield this.find(
        Severity.NOTE,
        f"{few_of(unknown)} has more or fewer rows than in the checkpoint; added rows start at random.",
        "Train the added tokens, or load a checkpoint that was saved after resize_token_embeddings.",
        unknown,
    )


def _find_missing_outside(this: Rule, subject: Subject, missing: tuple[str, ...]) -> Findings:
    if not missing:
        return
    weights = subject.report.weights
    outside = f"{counted(len(missing), 'tensor')} outside the head"
    message = f"{outside} {verb(len(missing))} newly initialized: {few_of(missing)}."
    if is_live_subject(subject):
        was = verb(len(missing), "was", "were")
        message = f"{outside} {was} not loaded from the checkpoint: {few_of(missing)}."
    remedy = "Use the checkpoint that holds them, or the class it was saved from (--model-class)."
    reshaped = {item.parameter: item for item in weights.mismatched}
    if not is_live_subject(subject) and reshaped.keys() >= set(missing):
        shown = {
            name: (reshaped[name].checkpoint_shape, reshaped[name].model_shape) for name in missing[:_LISTED_SHAPES]
        }
        more = f" and {len(missing) - len(shown):,} more" if len(missing) > len(shown) else ""
        message = (
            f"{outside} {verb(len(missing), 'has', 'have')} another shape in the model than in the checkpoint, so "
            f"from_pretrained raises: {_describe_shapes(shown)}{more}."
        )
        remedy = "Use the config.json that the checkpoint was saved with: its sizes are those of the tensors."
    if weights.unused and names_mismatch(subject.report):
        message += (
            f" At the same time {len(weights.unused):,} checkpoint tensors find no place, the first is "
            f"{weights.unused[0]}: the names don't match, often because of a wrong prefix or another class."
        )
        remedy = "Load it into the class it was saved from (--model-class), or rename its keys."
    yield this.find(Severity.ERROR, message, unless_repaired(subject, missing, remedy), missing)


_LISTED_SHAPES = 3


def _empty_parameters(subject: Subject) -> list[str]:
    """Gives the parameters that the checkpoint stores without any element."""
    mismatched = subject.report.weights.mismatched
    return [item.parameter for item in mismatched if 0 in item.checkpoint_shape and 0 not in item.model_shape]


@rule("HS801", "empty-placeholders", "Weights are empty placeholders", needs=("checkpoint",))
def empty_placeholders(this: Rule, subject: Subject) -> Findings:
    """Tensors without elements, as DeepSpeed ZeRO-3 leaves them where weights are not gathered before saving."""
    adapter = subject.report.adapter
    of_adapter = [item.name for item in adapter.faults if item.is_empty] if adapter is not None else []
    empty = [*_empty_parameters(subject), *of_adapter]
    if empty:
        yield this.find(
            Severity.ERROR,
            f"{counted(len(empty), 'tensor')} {verb(len(empty))} stored without any element: {few_of(empty)}. "
            "DeepSpeed ZeRO-3 leaves such "
            "placeholders when the weights are not gathered before saving: the file holds none of their values.",
            "Rebuild the weights from the training checkpoint with DeepSpeed's script (python zero_to_fp32.py "
            "CHECKPOINT_DIR OUTPUT_DIR), and set stage3_gather_16bit_weights_on_model_save to true for the next run.",
            empty,
        )


@rule("HS102", "head-new", "The head is newly initialized", needs=("origin",), finds="WN|EW")
def head_new(this: Rule, subject: Subject) -> Findings:
    """Every weight of the head that the scores depend on is new."""
    live = live_of(subject)
    lost = [item for item in live if item.status in (_LOST if is_live_subject(subject) else _NEW)]
    if not live or len(lost) < len(live) or subject.report.adapter is not None:
        return
    if is_live_subject(subject):
        yield from _find_new_in_memory(this, subject, lost)
        return
    names = [item.name for item in lost]
    yield this.find(
        severity_at(subject, training=_severity_before_training(subject), inference=Severity.ERROR),
        f"{_random_at_every_load(lost)}{_lost_classifier_sentence(subject)}",
        unless_repaired(subject, names, _remedy_of_new_head(subject)),
        names,
    )


def _remedy_of_new_head(subject: Subject) -> str:
    """Gives the remedy for a new head: nothing to do before a training, if no classifier was lost."""
    if _lost_classifier_sentence(subject):
        return _first_step(subject)
    return for_profile(subject, training="This is what training starts from.", inference=_first_step(subject))


def _severity_before_training(subject: Subject) -> Severity:
    """Gives the severity of a new head before a training: a warning if a classifier was saved, and is lost."""
    return Severity.WARNING if _lost_classifier_sentence(subject) else Severity.NOTE


def _lost_classifier_sentence(subject: Subject) -> str:
    """Says that the classifier that config.json names was lost; "" where config.json names another class."""
    name = subject.report.model.class_name
    is_named = name in subject.report.checkpoint.architectures and not is_live_subject(subject)
    return f" config.json says that a {name} was saved, so its classifier was lost." if is_named else ""


def _first_step(subject: Subject) -> str:
    """Gives the first step towards a trained head: the checkpoint may have been trained with another one."""
    if subject.report.shows_chain:
        return "Restore the files of these modules: sentence-transformers loads the chain only with them."
    if holds_other_head(subject.report):
        return "Load the checkpoint with the library or the code that saved its own head."
    if _lost_classifier_sentence(subject):
        return "Use the save that holds it, or train it again."
    return "Train it first."


def _random_at_every_load(lost: list[HeadParameter]) -> str:
    """Lists the parameters, which are drawn at random, and then the buffers, which start at fixed values."""
    weights, buffers = _split_by_kind(lost)
    count = sum(item.count for item in weights)
    all_of_head = "The only head tensor is" if len(weights) == 1 else f"All {len(weights)} head tensors are"
    sentence = (
        f"{all_of_head} randomly initialized on every load ({counted(count, 'parameter')}): {_few_names(weights)}."
    )
    return sentence + (f" At their default values: {_few_names(buffers)} (buffers)." if buffers else "")


def _split_by_kind(items: list[HeadParameter]) -> tuple[list[HeadParameter], list[HeadParameter]]:
    """Splits tensors into parameters and buffers."""
    buffers = [item for item in items if item.kind is TensorKind.BUFFER]
    return [item for item in items if item.kind is TensorKind.PARAMETER], buffers


def _find_new_in_memory(this: Rule, subject: Subject, lost: list[HeadParameter]) -> Findings:
    """Finds tensors of a model in memory that no load gave.

    They may have been trained since, which their values seldom show: only a bias that is still zero tells.
    """
    values = {item.name: item for item in subject.values or ()}
    weights, _ = _split_by_kind(lost)
    noun, verb = ("weights", "trained") if weights else ("buffers", "filled")
    biases = [values[item.name] for item in weights if item.name.endswith(".bias") and item.name in values]
    # Transformers initializes a bias with zeros, and a training step moves it.
    untouched = bool(biases) and all(item.zeros == item.count for item in biases)
    yield this.find(
        severity_at(subject, training=Severity.NOTE, inference=Severity.ERROR if untouched else Severity.WARNING),
        f"Not loaded from the checkpoint: {_few_names(lost)}. "
        + (
            "Biases are still exactly zero, as the initialization leaves them: not trained since the load."
            if untouched
            else f"headscope cannot see whether they were {verb} since the load."
        ),
        for_profile(
            subject,
            training="This is what training starts from.",
            inference="Train it first."
            if untouched
            else f"If they were {verb}, save the model and check that folder, or pass it as loaded_from.",
        ),
        [item.name for item in lost],
    )
    if subject.profile is Profile.INFERENCE and not untouched:
        raise NotKnown(
            f"headscope could not determine whether the {noun} were {verb} since the load: {_few_names(lost)}"
        )


@rule("HS103", "head-partly-new", "A part of the head is newly initialized", needs=("checkpoint",), finds="WN|EW")
def head_partly_new(this: Rule, subject: Subject) -> Findings:
    """Some weights of the head are the checkpoint's and some are new."""
    live = live_of(subject)
    lost = [item for item in live if item.status in (_LOST if is_live_subject(subject) else _NEW)]
    if not lost or len(lost) == len(live) or subject.report.adapter is not None:
        return
    last, lost_one = classifier_of(subject), ""
    weights, buffers = _split_by_kind(lost)
    # A training also fills buffers, such as those of a batch norm.
    if is_live_subject(subject) and (weights or subject.profile is Profile.INFERENCE):
        yield from _find_new_in_memory(this, subject, lost)
        return
    if not weights:
        severity = severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR)
        what = "The checkpoint lacks buffers that the scores depend on, and they start at their default values"
        remedy = "Look for a checkpoint that holds them, or save the trained model again: state_dict() includes them."
    elif last is not None and last.status not in _LOST:
        severity = severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR)
        stages = subject.report.head.stages if subject.report.head is not None else ()
        own = next((place for place, stage in enumerate(stages) if last.name in stage.parameters), len(stages))
        # The classifier's input doesn't pass through the parameters from its stage on, such as its bias.
        after = {name for stage in stages[own:] for name in stage.parameters}
        is_beside = any(item.name in after for item in weights)
        how = "its scores also depend on" if is_beside else "its input passes through"
        what = f"The checkpoint gives the classifier {last.name}, but {how} newly initialized weights"
        remedy = "Use a checkpoint that also holds them: a classifier only works with the layers it was trained on."
    else:
        severity = severity_at(subject, training=_severity_before_training(subject), inference=Severity.ERROR)
        lost_one = _lost_classifier_sentence(subject)
        what = "The checkpoint gives the weights before the classifier; the others are newly initialized at every load"
        remedy = _remedy_of_new_head(subject)
    beside = f" At their default values: {_few_names(buffers)} (buffers)." if weights and buffers else ""
    names = [item.name for item in lost]
    remedy = unless_repaired(subject, names, remedy)
    yield this.find(severity, f"{what}: {_few_names(weights or buffers)}.{beside}{lost_one}", remedy, names)


@rule("HS104", "head-mismatched", "Weights have another shape in the checkpoint", needs=("checkpoint",), finds="EN|EN")
def weights_mismatched(this: Rule, subject: Subject) -> Findings:
    """Every tensor that the checkpoint holds in another shape, except those that another rule reports."""
    shapes = {item.parameter: (item.checkpoint_shape, item.model_shape) for item in subject.report.weights.mismatched}
    head = subject.report.head
    tensors = head.tensors if head is not None else ()
    own = [item for item in tensors if item.live and item.status is ParameterStatus.MISMATCHED]
    shapes |= {item.name: (item.checkpoint_shape or (), item.shape) for item in own}
    # One fault, one finding: each of these tensors is in the finding of another rule.
    known = {*_empty_parameters(subject), *find_missing(subject.report).elsewhere}
    known |= reshaped_classes(subject).keys()
    live = {item.name for item in own}
    other = {name: both for name, both in shapes.items() if name not in known}
    used = {name: both for name, both in other.items() if name in live or not is_live_subject(subject)}
    beside = {name: both for name, both in other.items() if name not in used}
    if used:
        effect = "from_pretrained raises an error, or discards these weights with ignore_mismatched_sizes=True"
        if is_live_subject(subject):  # its load got past the mismatch
            effect = "Not loaded, because the shape in the checkpoint differs"
        yield this.find(
            Severity.ERROR,
            f"{effect}: {_describe_shapes(used)}.",
            "Use the configuration that the checkpoint was saved with.",
            used,
        )
    if beside:
        yield this.find(
            Severity.NOTE,
            f"Not loaded, because the checkpoint holds another shape, and without effect on the scores: "
            f"{_describe_shapes(beside)}.",
            "Nothing to do.",
            beside,
        )
    live_of(subject)  # raises NotKnown: a parameter of unknown status may have another shape too


def _describe_shapes(shapes: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> str:
    return ", ".join(f"{name} {list(stored)} -> {list(shape)}" for name, (stored, shape) in shapes.items())


@rule("HS105", "unused-weights-new", "New weights that the scores do not depend on", needs=("checkpoint",), finds="N|N")
def unused_weights_new(this: Rule, subject: Subject) -> Findings:
    """New parameters with no path to the scores: harmless."""
    beside = set(head_of(subject).not_live)
    idle = [name for name in subject.report.weights.new if name in beside]
    if idle:
        yield this.find(
            Severity.NOTE,
            f"{few_of(idle)}: newly initialized, but the scores don't depend on {'it' if len(idle) == 1 else 'them'}.",
            "Nothing to do.",
            idle,
        )


@rule(
    "HS106",
    "classifier-unused",
    "A trained classifier in the checkpoint is not loaded",
    needs=("checkpoint",),
    finds="W|W",
)
def classifier_unused(this: Rule, subject: Subject) -> Findings:
    """A new classifier while an unused tensor of no known other head has its shape, or shards beside the file read."""
    shards, read = subject.report.checkpoint.unread, subject.report.checkpoint.files[:1]
    if shards:
        yield this.find(
            Severity.WARNING,
            f"from_pretrained reads {few_of(read)} and not the {counted(len(shards), 'shard')} beside it "
            f"({few_of(shards)}): save_pretrained leaves an older single file there.",
            f"If the shards are the later save, delete {few_of(read)}; if not, delete the shards and their index.",
            shards,
        )
    last = classifier_of(subject)
    same = _unused_of_classifier_shape(subject)
    if last is not None and same:
        beside = _layers_beside(subject, same)  # without them, the scores would be others
        if not set(same).isdisjoint(parametrized_among(subject.report.weights.unused)):
            rename = ". Don't rename the tensor: the weight is computed from it, and has other values"
        elif beside:
            rename = f": {few_of(beside)} would be left out if you rename the tensor"
        else:
            rename = ", or rename the tensor"
        yield this.find(
            Severity.WARNING,
            f"{last.name} is new, but the checkpoint holds {few_of(same)} of the same shape, which is not loaded.",
            f"If that is the classifier, load the class it was saved from{rename}.",
            same,
            code=renaming_code(subject, _renamed_keys(subject, last, same)),
        )


def _renamed_keys(subject: Subject, last: HeadParameter, same: list[str]) -> dict[str, str]:
    """Gives the new name of each tensor if the classifier lacks nothing else, and only its module's name differs.

    None for another class or number of classes than the checkpoint's own: the file is right for these.
    """
    is_own = subject.report.model.class_name in subject.report.checkpoint.architectures
    if not is_own or subject.wanted_num_labels or subject.wanted_labels or subject.report.weights.mismatched:
        return {}
    lost = {item.name: item.shape for item in live_of(subject) if item.status in _LOST}
    stored = {item.key: item.shape for item in subject.report.weights.unused_tensors}
    old, new = (name.rpartition(".")[0] for name in (same[0], last.name))
    found = {f"{old}.{name.removeprefix(f'{new}.')}": name for name in lost}
    fits = all(stored.get(key) == lost[name] for key, name in found.items())
    return found if len(same) == 1 and fits and not _layers_beside(subject, same) else {}


def _layers_beside(subject: Subject, same: list[str]) -> list[str]:
    """Lists other layers in the modules of these tensors."""
    modules = {key.split(".")[0] for key in same}
    matrices = [item.key for item in subject.report.weights.unused_tensors if len(item.shape) > 1]
    return [key for key in matrices if key not in same and key.split(".")[0] in modules]


def _unused_of_classifier_shape(subject: Subject) -> list[str]:
    """Gives the unused tensors of no known other head that have the shape of a classifier that is new."""
    last = classifier_of(subject)
    if last is None or len(last.shape) < 2 or last.status not in _LOST or unless_repaired(subject, [last.name], ""):
        return []
    weights = subject.report.weights
    of_others = {key for group in weights.unused_groups if group.description for key in group.keys}
    # A tensor named and shaped like another parameter of the model belongs there, and is not the classifier.
    others = {(_layer_and_tensor(item.name), item.shape) for item in weights.parameters if item.name != last.name}
    return [
        item.key
        for item in weights.unused_tensors
        if item.shape == last.shape
        and item.key not in of_others
        and (_layer_and_tensor(item.key), item.shape) not in others
    ]


def _layer_and_tensor(name: str) -> str:
    """Gives the last two parts of a name: the layer and its tensor."""
    return ".".join(name.split(".")[-2:])


@rule("HS110", "head-changed", "Weights differ from the checkpoint", needs=("checkpoint",), finds="N|N")
def weights_changed(this: Rule, subject: Subject) -> Findings:
    """Parameters of a model in memory that hold other values than the load gave them."""
    head = {item.name for item in live_parameters(subject)}
    changed = [item.name for item in subject.report.weights.parameters if item.status is ParameterStatus.CHANGED]
    own = [name for name in changed if name in head]
    if changed:
        yield this.find(
            Severity.NOTE,
            f"Values differ from the checkpoint's: {few_of(own or changed)}"
            + (
                f" in the head, and {counted(len(changed) - len(own), 'other tensor')}"
                if len(changed) > len(own) > 0
                else ""
            )
            + ". They were trained, replaced or filled by an adapter since the load.",
            "If they were trained, save the model and check that folder; if not, load the model again.",
            own or changed,
        )


@rule("HS111", "base-dropped", "The model leaves out weights of the checkpoint", finds="W|E")
def base_dropped(this: Rule, subject: Subject) -> Findings:
    """Tensors inside the base model that the checkpoint holds and the configured class has no place for."""
    for group in subject.report.weights.dropped:
        count = len(group.keys)
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"The model has no place for {counted(count, 'tensor')} that the checkpoint holds inside it: "
            f"{few_of(group.keys)}. The scores differ from those of the model that was saved.",
            f"Correct {group.setting} in config.json."
            if group.setting
            else "Use the config.json that the checkpoint was saved with: its number of layers (often "
            "num_hidden_layers), its biases, its parts.",
            group.keys,
        )


@rule("HS112", "unplaced-weights", "Weights of the checkpoint find no place", finds="W|E")
def unplaced_weights(this: Rule, subject: Subject) -> Findings:
    """Tensors that no class of the family takes: neither a buffer nor a state of a training."""
    report = subject.report
    elsewhere = set(_unused_of_classifier_shape(subject) if report.head is not None else ())
    found = [item for item in find_without_place(report) if elsewhere.isdisjoint(item.tensors)]
    keys = [key for item in found for key in item.tensors]
    if keys:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"{counted(len(keys), 'tensor')} of the checkpoint {verb(len(keys), 'finds', 'find')} no place in "
            f"{report.model.class_name}: {describe_unplaced(found)}. No class of the family has them, so the model "
            "that was saved may have computed with them, and its scores would be others.",
            HOW_TO_GIVE_CODE,
            keys,
        )


def _few_names(items: list[HeadParameter]) -> str:
    return few_of([item.name for item in items])
