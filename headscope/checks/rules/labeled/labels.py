"""Rules on the classes: how many, what they are called, and what loss they come to."""

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from operator import itemgetter

from headscope.checks.facts import Subject
from headscope.checks.rules.cures import config_code
from headscope.checks.rules.rule import (
    Findings,
    NotKnown,
    Rule,
    for_profile,
    is_live_subject,
    reshaped_classes,
    rule,
    severity_at,
)
from headscope.core.facts import ModelFacts, Profile, Severity, Task
from headscope.core.facts.built import ConfigFacts
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES, Loss
from headscope.core.facts.report import find_missing
from headscope.core.model.classes.labels import are_placeholders, placeholders
from headscope.core.words.plain_words import class_matrix

_LOSS_OF = {
    "regression": Loss.SQUARED_ERROR,
    "single_label_classification": Loss.CROSS_ENTROPY,
    "multi_label_classification": Loss.BINARY_CROSS_ENTROPY,
}
"""The problem types of Transformers, and the loss that each of them means."""
_NO_LOSS = "headscope could not determine which loss the forward computes"
_CLASSIFIED_WHOLE = (Task.SEQUENCE_CLASSIFICATION, Task.IMAGE_CLASSIFICATION, Task.AUDIO_CLASSIFICATION)


@rule("HS201", "class-count", "The class counts differ", finds="EWN|EW")
def class_count(this: Rule, subject: Subject) -> Findings:
    """Numbers of classes that differ between the stored classifier, the configuration and the request."""
    if subject.report.model.task in WITHOUT_CLASSES:
        return
    configured = len(subject.config.id2label) or subject.config.num_labels
    yield from _find_count_contradiction(this, subject)
    stored = next(iter(reshaped_classes(subject).values()), None)  # they agree on one
    wanted = subject.wanted_num_labels or len(subject.wanted_labels) or None
    model = subject.report.model.num_labels
    if stored is not None and stored != model:
        lost = _names_in_config(subject)
        sentence = f" The checkpoint's labels would be lost: {few_of(lost)}." if lost and wanted else ""
        live = is_live_subject(subject)  # whether it was trained since, HS102 and HS103 ask
        effect = (
            ", so it was not loaded."
            if live
            else f": from_pretrained raises, or with ignore_mismatched_sizes=True makes a new classifier.{sentence}"
        )
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.WARNING if live else Severity.ERROR),
            f"The checkpoint's classifier has {counted(stored, 'class', 'classes')} and the model {model}{effect}",
            f"Use num_labels={stored} to keep the classifier; any other number makes a new one."
            + _resizing_sentence(subject, stored),
            code="" if wanted or len(subject.config.id2label) not in (0, stored) else _count_code(subject, stored),
        )
    elif wanted is not None and configured is not None and wanted != configured and subject.config.id2label:
        yield this.find(
            severity_at(subject, training=Severity.NOTE, inference=Severity.ERROR),
            f"The configuration has {configured} classes, but {wanted} were requested, so its labels would be lost: "
            f"{few_of(_names_in_config(subject))}.",
            f"Leave out --num-labels to keep the {configured} labels.",
        )


def _find_count_contradiction(this: Rule, subject: Subject) -> Findings:
    """Finds a num_labels that isn't the number of names in id2label of the same configuration."""
    config, where = subject.config, _config_name(subject)
    if config.num_labels is not None and config.id2label and len(config.id2label) != config.num_labels:
        yield this.find(
            Severity.ERROR,
            f"{where} sets num_labels={config.num_labels}, but its id2label has {len(config.id2label)} names.",
            f"Correct {where}: Transformers makes {subject.report.model.num_labels} classes of it.",
            code=_count_code(subject, len(config.id2label)),
        )


def _count_code(subject: Subject, number: int) -> str:
    """Gives code that sets the number of classes; "" unless it is that of the stored classifier."""
    matrix = class_matrix(subject.report.head, subject.report.model) if subject.report.head is not None else None
    stored = next(iter(reshaped_classes(subject).values()), matrix.shape[0] if matrix is not None else None)
    return config_code(subject, num_labels=number) if number == stored else ""


def _config_name(subject: Subject) -> str:
    return "model.config" if is_live_subject(subject) else "config.json"


def _names_in_config(subject: Subject) -> list[str]:
    return [name for _, name in subject.config.id2label]


@rule("HS202", "placeholder-labels", "The classes have no names", finds="N|W")
def placeholder_labels(this: Rule, subject: Subject) -> Findings:
    """Labels like LABEL_0, which tell nobody what a score means."""
    model = subject.report.model
    if model.task in WITHOUT_CLASSES or not model.labels_are_placeholders or model.num_labels == 1:
        return  # one score is a number, such as a reward, and needs no name
    command = _naming_command(subject)
    yield this.find(
        severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING),
        f"The {model.num_labels} classes are called {few_of(model.labels)}.",
        for_profile(
            subject,
            training="Set id2label and label2id in the configuration before training: they are saved with the model.",
            inference=f"{command[0].upper()}{command[1:]}, or set id2label and label2id in the configuration."
            if command
            else "Set id2label and label2id in the configuration that the model is served with.",
        ),
    )


def _resizing_sentence(subject: Subject, stored: int) -> str:
    """Names the command that gives the stored rows the number of classes asked for; "" for what it can't edit."""
    number = subject.report.model.num_labels
    configured = len(subject.config.id2label) or subject.config.num_labels or 2  # the default of Transformers
    is_asked = subject.wanted_num_labels or subject.wanted_labels
    if (
        1 in (stored, number)
        or configured != stored
        or not (is_asked and _is_editable(subject, reshaped_classes(subject)))
    ):
        return ""
    if number < stored:
        names = _names_by_row(subject.config.id2label, stored) or placeholders(stored)
        return (
            f" To keep some of its rows: `headscope edit MODEL -o DIR --keep {shlex.quote(','.join(names[:number]))}`."
        )
    added = " ".join(f"--add {name}" for name in "ABCD"[: number - stored])
    more = " ..." if number - stored > 4 else ""
    return f" To add classes to its rows: `headscope edit MODEL -o DIR {added}{more}`."


def _is_editable(subject: Subject, lacking: Collection[str] = ()) -> bool:
    """True if `edit` takes the checkpoint, which gives all but `lacking`: not a live model, nor an adapter."""
    report, missing = subject.report, find_missing(subject.report)
    is_whole = report.adapter is None and not report.needs_repair and not report.shows_chain
    return is_whole and not is_live_subject(subject) and {*missing.head, *missing.elsewhere} == {*lacking}


def _naming_command(subject: Subject) -> str:
    """Gives the command that names the classes; "" for what `edit` doesn't take."""
    report = subject.report
    if not _is_editable(subject):
        return ""
    entries = subject.config.id2label
    if report.model.labels_are_placeholders:  # training code may have named the classes in the other map alone
        entries = tuple((str(number), name) for name, number in subject.config.label2id)
    known = _names_by_row(entries, report.model.num_labels)
    names = shlex.quote(",".join(known)) if known else ",".join("ABCD"[: report.model.num_labels])
    more = "" if known or report.model.num_labels <= 4 else ",..."
    return f"name the classes in the order of their scores: `headscope edit MODEL -o DIR --labels {names}{more}`"


def _names_by_row(entries: Sequence[tuple[str, str]], rows: int) -> tuple[str, ...]:
    """Gives a name for each row of the classifier as `--labels` takes them; none unless the ids name all of them."""
    by_row = {_number_of(key): name for key, name in entries}
    if by_row.keys() != {*range(rows)} or len({*by_row.values()}) != len(entries):
        return ()
    names = tuple(by_row[row] for row in range(rows))
    # A comma would make two names of one, and spaces around a name would be lost.
    is_usable = all(name and "," not in name and name == name.strip() for name in names)
    return names if is_usable and not are_placeholders(names) else ()


@rule("HS203", "label-maps", "The label maps contradict each other", finds="W|EW")
def label_maps(this: Rule, subject: Subject) -> Findings:
    """id2label has gaps or repeated names, or label2id is not its inverse; SetFit's names are in another order."""
    pipeline = subject.report.checkpoint.sentence_transformers
    if pipeline is not None and pipeline.head is not None and pipeline.head.fault:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"In this SetFit model, {pipeline.head.fault}.",
            "Name the scores by model.model_head.classes_, and set model.labels to that order before you save it.",
        )
    if subject.config.ids_as_text:
        ids = {name: _number_of(str(value)) for name, value in subject.config.label2id}
        yield this.find(
            Severity.WARNING,
            f"In {_config_name(subject)} label2id gives {few_of(subject.config.ids_as_text)} a text as id, where "
            "training code needs a number.",
            "Write the ids in label2id as numbers.",
            code="" if None in ids.values() else config_code(subject, label2id=ids),
        )
    faults = faults_of_label_maps(subject.config)
    if faults and subject.report.model.task not in WITHOUT_CLASSES:
        naming = _naming_command(subject)
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"In {_config_name(subject)} {'; '.join(faults)}.",
            f"{LABEL_MAPS_REMEDY}{', or ' if naming else ''}{naming}.",
        )


LABEL_MAPS_REMEDY = "Write label2id as the inverse of id2label, and id2label as {0: ..., 1: ...} without gaps"


def faults_of_label_maps(config: ConfigFacts) -> list[str]:
    """Lists how the label maps of a configuration contradict themselves or each other, in sentences without periods."""
    return [*_faults_of_ids(config), *_faults_of_inverse(config)]


def _faults_of_ids(config: ConfigFacts) -> list[str]:
    entries = config.id2label
    faults = []
    keys, expected = [key for key, _ in entries], range(len(entries))
    ids = Counter(map(_number_of, keys))
    lacking = [str(number) for number in expected if number not in ids]
    if lacking:  # as many ids are outside, or there twice
        strange = [key for key in keys if (number := _number_of(key)) not in expected or ids[number] > 1]
        faults.append(
            f"id2label has {counted(len(entries), 'entry', 'entries')} with the ids {few_of(strange)} and without "
            f"{few_of(lacking)}"
        )
    names = [name for _, name in entries]
    repeated = [name for name, count in Counter(names).items() if count > 1] if len(set(names)) < len(names) else []
    if repeated:
        faults.append(f"id2label gives the name {few_of(repeated)} to several ids")
    return faults


def _number_of(key: str) -> int | None:
    """Reads an id as Transformers does, with int(); None for what isn't a whole number."""
    try:
        return int(key)
    except ValueError:
        return None


def _faults_of_inverse(config: ConfigFacts) -> list[str]:
    forward, back = [(str(_number_of(key)), name) for key, name in config.id2label], dict(config.label2id)
    if not forward or not back:
        return []
    if back == dict(map(itemgetter(1, 0), forward)):
        return []
    names = {name for _, name in forward}
    wrong = [name for key, name in forward if back.get(name) != key]
    spare = [name for name in back if name not in names]
    faults = [f"label2id does not map {few_of(wrong)} back to the same id"] if wrong else []
    return [*faults, f"label2id names {few_of(spare)}, which id2label does not have"] if spare else faults


@rule("HS204", "problem-type", "The problem type does not fit the class count", finds="EW|EW")
def problem_type(this: Rule, subject: Subject) -> Findings:
    """A loss that cannot learn anything, or an unknown word."""
    model, configured = subject.report.model, subject.config.problem_type
    if configured is not None and configured not in _LOSS_OF and model.reads_problem_type is not False:
        yield this.find(
            severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING),
            f"problem_type is {configured!r}, which is not a problem type of Transformers.",
            f"Set it to one of {', '.join(_LOSS_OF)}, or leave it out: then the labels choose.",
            code=config_code(subject, problem_type=None),
        )
    yield from _softmax_over_one(this, subject)
    if _sets_problem_type(model, "regression") and model.num_labels > 1 and not model.labels_are_placeholders:
        yield this.find(
            Severity.WARNING,
            f"problem_type is regression, and there are {model.num_labels} named classes: the loss is MSELoss over all "
            "of them.",
            "Set problem_type to single_label_classification if the names are classes.",
        )
    is_open = model.loss == Loss.NOT_DETERMINED and model.task not in WITHOUT_CLASSES
    if is_open and model.num_labels > 1 and subject.profile is Profile.TRAINING:
        raise NotKnown(_NO_LOSS)


def _sets_problem_type(model: ModelFacts, problem: str) -> bool:
    """True if the configuration sets this problem type and the forward isn't known to ignore it."""
    return model.problem_type == problem and model.reads_problem_type is not False


def _softmax_over_one(this: Rule, subject: Subject) -> Findings:
    """Finds CrossEntropyLoss over a single score."""
    model = subject.report.model
    chosen = _sets_problem_type(model, "single_label_classification")
    if model.num_labels != 1 or model.task in WITHOUT_CLASSES:
        return
    if chosen:
        yield this.find(
            Severity.ERROR,
            "With one class and problem_type single_label_classification, softmax over the one score is always 1 and "
            "the loss is 0.",
            "Use num_labels=2, or problem_type regression or multi_label_classification.",
        )
    elif model.loss == Loss.NOT_DETERMINED:
        raise NotKnown(_NO_LOSS)
    elif model.loss == Loss.CROSS_ENTROPY:
        yield this.find(
            severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING),
            f"num_labels is 1, and the loss of {model.class_name} is CrossEntropyLoss: softmax over one score is "
            "always 1, the loss 0.",
            "For a yes-or-no question use num_labels=2; for a number, compute the loss from the scores in the training "
            "code.",
        )


@rule("HS205", "one-label", "One label means regression", finds="W|N")
def one_label(this: Rule, subject: Subject) -> Findings:
    """num_labels is 1, problem_type is not set, and the forward computes MSELoss."""
    model = subject.report.model
    if model.num_labels != 1 or model.task not in _CLASSIFIED_WHOLE or subject.config.problem_type is not None:
        return
    if model.loss == Loss.NOT_DETERMINED:
        raise NotKnown(_NO_LOSS)
    if model.loss != Loss.SQUARED_ERROR:
        return
    chooses = model.reads_problem_type is not False
    yield this.find(
        severity_at(subject, training=Severity.WARNING, inference=Severity.NOTE),
        f"num_labels is 1{' and problem_type is not set' if chooses else ''}: the loss is MSELoss, and softmax over "
        "the one score is always 1.",
        "For a yes-or-no question use num_labels=2"
        + (
            "; for a number, or a reward, set problem_type to regression (then no pipeline applies a sigmoid)"
            if chooses
            else ""
        )
        + ".",
        code=config_code(subject, problem_type="regression") if chooses and subject.profile is Profile.TRAINING else "",
    )


@rule("HS206", "problem-type-unread", "The forward does not read problem_type", finds="W|N")
def problem_type_unread(this: Rule, subject: Subject) -> Findings:
    """problem_type asks for another loss than the one that the forward computes whatever is set."""
    model, configured = subject.report.model, subject.config.problem_type
    if configured is None or model.task in WITHOUT_CLASSES or model.loss == Loss.NONE or model.reads_problem_type:
        return
    if model.reads_problem_type is None:
        raise NotKnown(_NO_LOSS)
    if _LOSS_OF.get(configured) != model.loss:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.NOTE),
            f"problem_type is {configured!r}, but the forward of {model.class_name} does not read it: the loss is "
            f"{model.loss}.",
            "Compute the loss from the scores in the training code, or remove problem_type: pipelines read it, and "
            "apply the function of the loss without it.",
            code=config_code(subject, problem_type=None) if subject.profile is Profile.TRAINING else "",
        )
