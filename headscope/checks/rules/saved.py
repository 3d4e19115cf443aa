"""Rules on a save: whether it holds the head of the live model, and whether training changed that head at all."""

from collections.abc import Sequence
from functools import partial

from headscope.checks.rules.loaded import largest_of, reasons_of, tensor_names, words_on_scores
from headscope.checks.rules.rule import Findings, Rule, rule
from headscope.core.facts import Finding, Severity
from headscope.core.facts.counting import counted, few_of, verb
from headscope.shared.loaded.facts import HeadMove, SavedModel, Standstill, TensorCheck, TensorStatus

COMMAND = "verify_save"
save_rule = partial(rule, command=COMMAND)
_SAVE_AGAIN = "Save the model again with save_pretrained, and compare again."
_STOPPED = (
    Standstill.FROZEN,
    Standstill.LEFT_OUT,
    Standstill.NO_RATE,
    Standstill.NO_GRADIENT,
    Standstill.ZERO_GRADIENT,
)


@save_rule("HS711", "saved-head-missing", "The save left the head out")
def _head_missing(this: Rule, saved: SavedModel) -> Findings:
    """A tensor of the live head has no counterpart in the save."""
    found = list(saved.of(TensorStatus.RANDOM, head=True))
    if found and not saved.is_adapter:
        yield this.find(
            Severity.ERROR,
            f"The save holds nothing for {few_of(tensor_names(found))}: the next load makes "
            f"{'it' if len(found) == 1 else 'them'} random, and what was trained is lost.",
            "Save the whole model, not only its base model: model.save_pretrained(folder) writes the head too.",
            tensor_names(found),
        )


@save_rule("HS712", "saved-head-renamed", "The save holds tensors under names that the loader does not find")
def _head_renamed(this: Rule, saved: SavedModel) -> Findings:
    """A tensor whose values are in the save, under a key that no tensor of the model is called."""
    found = list(saved.of(TensorStatus.RENAMED))
    if found:
        pairs = [f"{item.name} as {item.keys[0]}" for item in found]
        yield this.find(
            Severity.ERROR,
            f"The save holds {few_of(pairs)}: the loader does not look there and makes "
            f"{'it' if len(found) == 1 else 'them'} random.",
            "Save the model itself, not its wrapper, or rename the keys to the names of the model.",
            tensor_names(found),
        )


@save_rule("HS713", "saved-head-differs", "The save holds a different head from the live model", finds="EW|EW")
def _head_differs(this: Rule, saved: SavedModel) -> Findings:
    """A tensor of the head with other values in the save, which was made earlier, or of another model."""
    found = list(saved.of(TensorStatus.DIFFERENT, head=True))
    if found:
        yield _difference_finding(this, saved, found, few_of(tensor_names(found)))


def _difference_finding(this: Rule, saved: SavedModel, found: Sequence[TensorCheck], what: str) -> Finding:
    largest = largest_of(found)
    numbers = f"{what} {verb(len(found), 'differs', 'differ')}{reasons_of(found)}"
    if saved.steps_behind:  # a save of the Trainer in between is as it should be, but isn't the trained model
        return this.find(
            Severity.WARNING,
            f"The last save was made {counted(saved.steps_behind, 'step')} before the end of the training: "
            f"{numbers}{largest}.",
            "Save the trained model: trainer.save_model(folder).",
            tensor_names(found),
        )
    return this.find(
        Severity.ERROR,
        f"{numbers} from the live model{largest}: the save was made before the last step, or of another model.",
        _SAVE_AGAIN,
        tensor_names(found),
    )


@save_rule("HS714", "saved-adapter-without-head", "The saved adapter does not hold the head")
def _adapter_without_head(this: Rule, saved: SavedModel) -> Findings:
    """A tensor of the head was trained, or is new, and the adapter that was saved does not hold it."""
    found = list(saved.of(TensorStatus.RANDOM, head=True))
    if found and saved.is_adapter:
        named = f"modules_to_save={list(saved.modules_to_save)}" if saved.modules_to_save else "modules_to_save"
        yield this.find(
            Severity.ERROR,
            f"The adapter does not hold {few_of(tensor_names(found))}{reasons_of(found)}: a load of base model and "
            "adapter gives a different head.",
            f"Name the head in the adapter's settings before training: LoraConfig({named}), or give task_type. To keep "
            "what was trained now, save the whole model: model.merge_and_unload().save_pretrained(folder).",
            tensor_names(found),
        )


@save_rule("HS715", "saved-labels-missing", "The save lost the names of the classes", finds="EN|EN")
def _labels_missing(this: Rule, saved: SavedModel) -> Findings:
    """Class names of the live configuration that the saved config.json lacks, or that are others there."""
    if not saved.labels or saved.is_adapter or saved.saved_labels == saved.labels:
        return
    live = few_of(saved.labels)
    if saved.saved_labels is None:
        yield this.find(
            Severity.NOTE,
            f"The live model names its classes ({live}), and the save has no config.json: its names are not saved.",
            "Save the configuration beside the weights: model.config.save_pretrained(folder).",
        )
        return
    stored = f"names {few_of(saved.saved_labels)}" if saved.saved_labels else "names none"
    yield this.find(
        Severity.ERROR,
        f"The live model names its classes {live}, and the saved config.json {stored}: the saved model will return "
        "other names.",
        "Set id2label and label2id on model.config before the save, and save again.",
    )


@save_rule("HS716", "saved-head-dtype", "The save holds another dtype", finds="W|W")
def _other_dtype(this: Rule, saved: SavedModel) -> Findings:
    """A tensor is stored in another dtype than the live model has it in."""
    found = list(saved.of(TensorStatus.CAST))
    if found:
        reasons = "; ".join(dict.fromkeys(f"{item.dtype} in memory, {item.reason}" for item in found))
        errors = [item.max_error for item in found if item.max_error]
        lost = f"; rounding changed a number by up to {max(errors):.3g}" if errors else ""
        yield this.find(
            Severity.WARNING,
            f"{few_of(tensor_names(found))}: {reasons}{lost}.",
            "Save in the dtype that you will use the model in.",
            tensor_names(found),
        )


@save_rule("HS717", "saved-shards-incomplete", "The save is incomplete")
def _save_incomplete(this: Rule, saved: SavedModel) -> Findings:
    """A shard that the index names is not there, or a stored tensor has no elements."""
    if saved.missing_shards:
        yield this.find(
            Severity.ERROR,
            f"The index names {counted(len(saved.missing_shards), 'shard')} that {verb(len(saved.missing_shards))} "
            f"not there: {few_of(saved.missing_shards)}.",
            "Save the model again: every process must finish its save before you use the folder.",
        )
    if saved.hollow:
        yield this.find(
            Severity.ERROR,
            f"The save holds {few_of(saved.hollow)} without elements, as ZeRO-3 leaves a weight that is not gathered.",
            "Set stage3_gather_16bit_weights_on_model_save, or gather the weights before the save.",
            [item.name for item in saved.of(TensorStatus.PLACEHOLDER) if not set(item.keys).isdisjoint(saved.hollow)],
        )


@save_rule("HS719", "saved-base-differs", "The save does not hold the model outside the head", finds="EW|EW")
def _base_differs(this: Rule, saved: SavedModel) -> Findings:
    """A tensor outside the head is not in the save, or has other values there."""
    lost = list(saved.of(TensorStatus.RANDOM, head=False))
    if lost:
        reasons = reasons_of(lost) if saved.is_adapter else ""
        yield this.find(
            Severity.ERROR,
            f"The save lacks {counted(len(lost), 'tensor')} outside the head: {few_of(tensor_names(lost))}"
            f"{reasons}: the next load gives another model.",
            "Save the whole adapter again." if saved.is_adapter else _SAVE_AGAIN,
            tensor_names(lost),
        )
    found = list(saved.of(TensorStatus.DIFFERENT, head=False))
    if found:
        yield _difference_finding(
            this, saved, found, f"{counted(len(found), 'tensor')} outside the head ({few_of(tensor_names(found))})"
        )


@save_rule("HS720", "saved-not-finite", "The save holds NaN or infinite values")
def _not_finite(this: Rule, saved: SavedModel) -> Findings:
    """A stored tensor holds NaN or an infinite number, and so does the live model or not."""
    found = [item for item in saved.of(TensorStatus.PLACEHOLDER) if set(item.keys).isdisjoint(saved.hollow)]
    if found:
        yield this.find(
            Severity.ERROR,
            f"{few_of(tensor_names(found))} {verb(len(found), 'has', 'have')} no usable numbers{reasons_of(found)}.",
            "Go back to the last checkpoint with finite values, and lower the learning rate or clip the gradients.",
            tensor_names(found),
        )


@save_rule("HS710", "saved-adapter-settings", "The saved settings of the adapter differ from the live ones")
def _other_settings(this: Rule, saved: SavedModel) -> Findings:
    """A setting in adapter_config.json, such as lora_alpha, is another than that of the live adapter."""
    if saved.settings:
        yield this.find(
            Severity.ERROR,
            f"{'; '.join(saved.settings[:6])}: a load of the adapter computes something else.",
            "Save the adapter again with save_pretrained, and leave adapter_config.json as it is.",
        )


@save_rule("HS721", "saved-scores-differ", "Loaded again, the save gives other scores")
def _scores_differ(this: Rule, saved: SavedModel) -> Findings:
    """A fresh process loads the save, and its scores are not those of the live model."""
    found = saved.scores
    if found is None or found.reason or saved.steps_behind:
        return  # the weights of an earlier step give other scores, which isn't a fault of the save
    what = words_on_scores(found, "a fresh load of the save")
    if what:
        yield this.find(
            Severity.ERROR,
            what,
            "Compare config.json and the files in the folder with the live model: a save beside an adapter's files, a "
            "changed setting or a hook gives another model. Save into an empty folder.",
        )


@save_rule("HS722", "saved-config-differs", "The saved configuration is another one than the live model's")
def _config_differs(this: Rule, saved: SavedModel) -> Findings:
    """A field of the saved config.json has another value than in the live model."""
    if saved.fields:
        yield this.find(
            Severity.ERROR,
            f"{'; '.join(saved.fields[:_FIELDS])}"
            f"{f' and {len(saved.fields) - _FIELDS} more' if len(saved.fields) > _FIELDS else ''}.",
            "Save the configuration of the live model: model.config.save_pretrained(folder).",
        )


_FIELDS = 4
"""How many fields a finding names."""


@save_rule("HS723", "saved-load-random", "A load of the save makes weights random")
def _load_random(this: Rule, saved: SavedModel) -> Findings:
    """Parameters that the class builds from the saved configuration and that the live model doesn't have."""
    if saved.unfilled:
        count = counted(len(saved.unfilled), "tensor")
        yield this.find(
            Severity.ERROR,
            f"From the saved configuration a load builds {count} that the live model lacks, and makes "
            f"{'it' if len(saved.unfilled) == 1 else 'them'} random: {few_of(saved.unfilled)}.",
            "Set on model.config what was changed in the model, such as num_hidden_layers for layers that were cut, "
            "and save again.",
            saved.unfilled,
        )


@save_rule("HS718", "head-did-not-train", "Training left the head as it was", finds="EW|EW")
def _did_not_move(this: Rule, saved: SavedModel) -> Findings:
    """A tensor of the head has the numbers that it had when training started.

    It is not a fault if something else of the head was trained, and this was frozen with the values of the checkpoint.
    """
    still = [item for item in saved.moves if item.still is not None]
    moved = len(still) < len(saved.moves)
    found = [item for item in still if not (moved and _is_intended_standstill(item))]
    random = [item for item in found if item.is_new and item.still in _STOPPED]
    if random:
        yield _standstill_finding(
            this,
            Severity.ERROR,
            random,
            ("still holds its random values", "still hold their random values"),
            moved=moved,
        )
    others = [item for item in found if item not in random]
    if others:
        yield _standstill_finding(
            this, Severity.WARNING, others, ("has not changed", "have not changed"), moved=moved or bool(random)
        )


def _is_intended_standstill(item: HeadMove) -> bool:
    """True if a tensor may have stayed as it was while others of the head were trained.

    A loss on differences of scores, such as that of a reward model, gives their bias no gradient.
    """
    if item.still is Standstill.FROZEN:
        return not item.is_new
    return not item.is_matrix and item.still in (Standstill.ZERO_GRADIENT, Standstill.TOO_SMALL)


def _standstill_finding(
    this: Rule, severity: Severity, items: Sequence[HeadMove], what: tuple[str, str], *, moved: bool
) -> Finding:
    by_reason: dict[str, list[str]] = {}
    for item in items:
        by_reason.setdefault(str(item.still and item.still.value), []).append(item.name)
    listed = "; ".join(f"{few_of(names)}: {reason}" for reason, names in by_reason.items())
    whole = "" if moved else "No tensor of the head was trained. "
    return this.find(
        severity,
        f"{whole}{counted(len(items), 'tensor')} of the head {verb(len(items), *what)} ({listed}).",
        "Set requires_grad, give the optimizer the parameters of the head, and check that the loss depends on them.",
        [item.name for item in items],
    )
