"""Class and configuration for a manifest and a request."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.core.facts import DecisionHead, ScoreHead, SentencePipeline, Task, TokenRow
from headscope.core.facts.counting import few_of
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES, parse_task
from headscope.core.facts.stored.checkpoint import DECISION_CLASS, architectures_in
from headscope.core.facts.stored.location import Location, is_own_code
from headscope.core.model.classes.catalog import (
    HeadClass,
    class_for,
    classes_of_family,
    gives_other_scores,
    language_model_of,
    mapped_name,
    other_classes,
    other_mappings,
    saved_class_of,
    task_of_bases,
    task_of_class,
    task_of_own_class,
)
from headscope.core.model.classes.model_config import build_checked_config, check_sizes, config_source, first_lines
from headscope.core.model.classes.module_chain import (
    base_class_of,
    class_of_chain,
    class_of_decision,
    class_of_value_head,
)
from headscope.core.model.classes.proposals import shapes_of_class
from headscope.core.model.classes.reduced_config import shallow_config
from headscope.core.model.classes.remote_code import class_of_own_code, load_remote_classes, models_in_auto_map
from headscope.core.model.classes.token_rows import class_with_answers, class_with_rows
from headscope.core.model.quiet import quiet
from headscope.core.upstream.imports import fault_of_import
from headscope.core.upstream.transformers import config_classes, text_config_of
from headscope.errors import Malformed, Unsupported, UsageError, did_you_mean, first_line


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Model that the user asked for; None and () leave a field to the checkpoint.

    `code` is where the repository's own code may be run from; None where it may not. `rows` are the tokens whose logits
    are the scores, with their texts where these are known. `keys` are the tensors of the checkpoint, which may say
    what a class that Transformers doesn't have was for. `chain` are the modules of sentence-transformers that make the
    result, `head` is the one that another library put on the model, `decision` that of a decision model.
    """

    num_labels: int | None = None
    labels: tuple[str, ...] = ()
    task: str | None = None
    model_class: str | None = None
    code: Location | None = None
    rows: tuple[TokenRow, ...] = ()
    keys: tuple[str, ...] = ()
    chain: SentencePipeline | None = None
    head: ScoreHead | None = None
    decision: DecisionHead | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Class to build, its task, and the configuration to build it with; `notes` are sentences on the choice.

    `rows` are the tokens whose logits are the scores, where the class is a language model's. Where the class is made of
    them, `chain` are the modules of sentence-transformers, and `head` is that of another library. `adapter` is the
    configuration of the adapter through which PEFT calls the model; empty without one.
    """

    cls: type[PreTrainedModel]
    task: Task
    config: Any
    notes: tuple[str, ...] = ()
    rows: tuple[TokenRow, ...] = ()
    chain: SentencePipeline | None = None
    adapter: Mapping[str, Any] = field(default_factory=dict)
    head: ScoreHead | DecisionHead | None = None

    @property
    def is_composed(self) -> bool:
        """True if headscope made the class, of a base model and what another library puts after it."""
        return self.chain is not None or self.head is not None


def choose(config: dict[str, Any], wish: ModelRequest) -> Choice:
    """Chooses class and configuration for a parsed `config.json` and a request.

    Raises UsageError for a class, task or label count that cannot be; Unsupported for a model type that the
    installed Transformers does not know; Malformed for a configuration that Transformers rejects.
    """
    _check_labels(wish)
    task = parse_task(wish.task) if wish.task is not None else None
    if wish.code is not None and isinstance(config.get("auto_map"), dict):
        cls, task, config_class = load_remote_classes(config, task, wish.code)
        return Choice(cls, task, _build_config(config_class, config, wish))
    if is_own_code(wish.model_class):
        return _choose_own_code(config, wish, task)
    model_type = _find_model_type(config, wish)
    composed = _choose_composed(config, model_type, wish)
    if composed is not None:
        return composed
    named = wish.model_class and (mapped_name(wish.model_class, model_type) or wish.model_class)
    head_class = _named_class(named, task) if named else _choose_class(config, model_type, task, wish.keys)
    cls = _import_class(head_class.name)
    _check_task_has_classes(head_class.task, wish)
    built, notes = _build_config_of(cls, model_type, config, wish)
    return Choice(cls, head_class.task, built, (*_note_contradiction(config, model_type, head_class, wish), *notes))


def _choose_composed(config: dict[str, Any], model_type: str, wish: ModelRequest) -> Choice | None:
    """Chooses where tokens, modules or a head of another kind make the scores; None for a class's own head."""
    if wish.decision is not None and _class_of_architectures(config, model_type) is None:
        return _choose_decision(config, model_type, wish.decision)
    if wish.rows:
        return _choose_tokens(config, model_type, wish)
    if wish.chain is not None:
        return _choose_chain(config, model_type, wish, wish.chain)
    is_decoder_only = getattr(config_classes()[model_type], "is_encoder_decoder", False) is not True
    if wish.head is not None and is_decoder_only and _class_of_architectures(config, model_type) is None:
        return _choose_score_head(config, model_type, wish, wish.head)
    return None


def _choose_own_code(config: dict[str, Any], wish: ModelRequest, task: Task | None) -> Choice:
    """Chooses a class by the user's own code, with its own configuration class or that of the model type."""
    cls = class_of_own_code(str(wish.model_class))
    config_class: Any = getattr(cls, "config_class", None) or config_classes()[_find_model_type(config, wish)]
    family = classes_of_family(str(config_class.model_type))
    task = task or task_of_bases(cls) or task_of_own_class(cls.__name__, wish.keys)
    task = task or next((item.task for item in family), Task.SEQUENCE_CLASSIFICATION)
    _check_task_has_classes(task, wish)
    return Choice(cls, task, _build_config(config_class, config, wish))


def _choose_tokens(config: dict[str, Any], model_type: str, wish: ModelRequest) -> Choice:
    """Chooses the language model of a family, with a few of its tokens as classes.

    Raises UsageError for a family without one, a token outside its vocabulary, and labels that are not as many.
    """
    name = language_model_of(model_type)
    if name is None:
        raise UsageError(
            f"{model_type} has no causal language model in transformers {transformers.__version__}",
            "--tokens scores texts by the logits of a causal language model; leave it out",
        )
    cls = _import_class(name)
    labels = wish.labels or tuple(row.token or f"token {row.id}" for row in wish.rows)
    if len(labels) != len(wish.rows):
        raise UsageError(
            f"{len(labels)} labels were given for {len(wish.rows)} tokens", "name one label for each token"
        )
    built, notes = _build_config_of(cls, model_type, config, replace(wish, labels=labels))
    size = getattr(text_config_of(built), "vocab_size", None)
    beyond = [row.id for row in wish.rows if not 0 <= row.id < (size or 0)]
    if beyond:
        raise UsageError(f"token {beyond[0]} is outside the vocabulary of {size or 0:,} tokens", "give ids of tokens")
    rows = class_with_rows(cls, tuple(row.id for row in wish.rows))
    return Choice(rows, Task.SEQUENCE_CLASSIFICATION, built, notes, wish.rows)


def _choose_chain(config: dict[str, Any], model_type: str, wish: ModelRequest, chain: SentencePipeline) -> Choice:
    """Chooses the base model of a family with the modules of a chain, and as many classes as it has scores."""
    # An encoder that was saved alone says false; its family still has a decoder, which the library leaves out.
    has_decoder = getattr(config_classes()[model_type], "is_encoder_decoder", False) is True
    base = base_class_of(model_type, is_encoder_decoder=has_decoder or config.get("is_encoder_decoder") is True)
    built, notes = _build_config_of(base, model_type, config, wish, count=chain.score_count)
    return Choice(class_of_chain(base, chain), Task.SEQUENCE_CLASSIFICATION, built, notes, chain=chain)


def _choose_decision(config: dict[str, Any], model_type: str, head: DecisionHead) -> Choice:
    """Chooses the class of decision models, with the rows of its head as classes. Raises Unsupported without it."""
    cls: Any = getattr(transformers, DECISION_CLASS, None)
    if cls is None:
        raise Unsupported(
            f"the installed transformers {transformers.__version__} has no decision models", "install 5.23 or later"
        )
    names = {"id2label": dict(enumerate(head.labels)), "label2id": {name: at for at, name in enumerate(head.labels)}}
    try:
        with quiet():
            is_own = model_type == cls.config_class.model_type
            given = config if is_own else {"text_config": config, **head.files}
            built = cls.config_class(**given | names)
    except Exception as err:  # whatever a configuration's class raises
        what = f"Transformers rejects the files of the decision head: {first_line(err)}"
        raise Malformed(what, "run `headscope check` for what is wrong with them, or name a class to train") from err
    check_sizes(built)
    kinds = ", ".join(f"{kind} from row {start}" for kind, start in head.offsets)
    heat = ", ".join(f"{value:g} for {kind}" for kind, value in head.temperatures)
    note = (
        f"a decision head: it reads the token before each mark of a question, where its rows are the options ({kinds})"
        + (f"; scores are divided by a temperature of {heat}" if heat else "")
    )
    return Choice(class_of_decision(cls), Task.TOKEN_CLASSIFICATION, built, (note,), head=head)


def _choose_score_head(config: dict[str, Any], model_type: str, wish: ModelRequest, head: ScoreHead) -> Choice:
    """Chooses a family's model with a head of another library: values for each token, or the rows of a few answers."""
    rows_of = language_model_of(model_type) if head.name == "lm_head" else None
    if rows_of is not None:
        cls = class_with_answers(_import_class(rows_of), head)
        note = (
            f"{head.name} has {head.scores} rows, those of as many answers: it scores each token, and the answer to a "
            "text is read at its last"
        )
    else:
        cls = class_of_value_head(base_class_of(model_type, is_encoder_decoder=False), head)
        note = (
            f"the scores are those of {head.name}, one for each token; its library decides which of them is the reward "
            "(TRL, LlamaFactory and OpenRLHF take that of the last token that is not padding)"
        )
    built, notes = _build_config_of(cls, model_type, config, wish, count=head.scores)
    return Choice(cls, Task.TOKEN_CLASSIFICATION, built, (note, *notes), head=head)


def _build_config_of(
    cls: type[PreTrainedModel], model_type: str, config: dict[str, Any], wish: ModelRequest, *, count: int = 0
) -> tuple[Any, tuple[str, ...]]:
    """Builds the configuration that a class reads of `config.json`; also gives what Transformers warns of.

    It has `count` classes, unless names for that many are given; 0 leaves their number to the request.
    """
    config_class, values, notes = config_source(cls, model_type, config)
    names = values.get("id2label")
    is_named = wish.labels or (isinstance(names, dict) and len(names) == count)
    if count and not is_named:
        wish = replace(wish, num_labels=count)
    return _build_config(config_class, values, wish), notes


def _build_config(config_class: Any, values: dict[str, Any], wish: ModelRequest) -> Any:
    return build_checked_config(config_class, values, wish.num_labels, wish.labels)


def _check_labels(wish: ModelRequest) -> None:
    if wish.num_labels is not None and wish.num_labels < 1:
        raise UsageError(
            f"a classifier needs at least one label, not {wish.num_labels}",
            "give --num-labels 1 or more (1 means regression)",
        )
    if wish.labels and wish.num_labels is not None and len(wish.labels) != wish.num_labels:
        raise UsageError(
            f"{len(wish.labels)} label names don't match --num-labels {wish.num_labels}",
            "leave out --num-labels, or give that many names",
        )
    if len(set(wish.labels)) != len(wish.labels):
        raise UsageError("the same label name was given twice", "name every label once")


def _check_task_has_classes(task: Task, wish: ModelRequest) -> None:
    if task in WITHOUT_CLASSES and (wish.labels or wish.num_labels is not None):
        raise UsageError(
            f"{task.value} has no classes to count or name: {WITHOUT_CLASSES[task]}",
            "leave out --num-labels and --labels, or name another --task",
        )


def _find_model_type(config: dict[str, Any], wish: ModelRequest) -> str:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in config_classes():
        return model_type
    if wish.model_class is not None and not is_own_code(wish.model_class):
        own = getattr(getattr(_import_class(wish.model_class), "config_class", None), "model_type", None)
        if isinstance(own, str):
            return own
    if config.get("auto_map"):
        raise Unsupported(
            f"config.json names {models_in_auto_map(config) or 'classes'} in auto_map: the repository's own code",
            "pass --trust-remote-code after reading that code, or name a class of Transformers with --model-class",
        )
    if not isinstance(model_type, str):
        raise Malformed(
            "config.json has no model_type, so headscope can't determine the model's class",
            "name the class with --model-class, for example --model-class BertForSequenceClassification",
        )
    close = difflib.get_close_matches(model_type, list(config_classes().keys()), n=1)
    raise Unsupported(
        f"the installed transformers {transformers.__version__} does not know the model type {model_type!r}"
        + (f" (nearest: {close[0]})" if close else ""),
        "upgrade transformers, name a class with --model-class, or load the model yourself and call "
        "headscope.inspect(module)",
    )


def _named_class(name: str, task: Task | None) -> HeadClass:
    mapped = task_of_class(name)
    if task is not None and mapped is not None and task is not mapped:
        raise UsageError(
            f"{name} is a class for {mapped.value}, not for {task.value}", "leave out --task or --model-class"
        )
    if mapped is None and task is None:
        _import_class(name)
        raise UsageError(
            f"{name} is not mapped to a classification task",
            "name a classification class such as BertForSequenceClassification, or say with --task what its scores "
            "mean",
        )
    return HeadClass(name, mapped or task or Task.SEQUENCE_CLASSIFICATION)


def _choose_class(config: dict[str, Any], model_type: str, task: Task | None, keys: tuple[str, ...]) -> HeadClass:
    own = _class_of_architectures(config, model_type)
    if own is not None and task in (None, own.task):
        return own if _takes_config_of(own, model_type) else class_for(model_type, own.task) or own
    if task is not None:
        mapped = class_for(model_type, task)
        if mapped is None:
            raise UsageError(
                f"{model_type} has no class for {task.value} in transformers {transformers.__version__}",
                _family_hint(model_type),
            )
        return mapped
    family = classes_of_family(model_type)
    name, is_own = saved_class_of(config, "")
    if name is not None and gives_other_scores(name):
        raise Unsupported(*describe_other_scores(name))
    if not family:
        others = few_of(other_classes(model_type))
        unknown = f"; it has {others}, for a task that headscope doesn't know" if others else ""
        raise Unsupported(
            f"{model_type} has no class for a task that headscope knows in transformers {transformers.__version__}"
            + unknown,
            "name a class with --model-class if one fits",
        )
    _refuse_other_head(name, config, model_type)
    meant = task_of_own_class(name, keys) if name is not None and is_own else None
    return next((item for item in family if item.task is meant), family[0])


def _refuse_other_head(name: str | None, config: dict[str, Any], model_type: str) -> None:
    """Raises Unsupported where the class that a checkpoint names has scores that headscope has no task for.

    The head of another class of the family would be new, and nobody's. Its tensors depend on the class count, unlike
    those of a class for pretraining.
    """
    auto = other_mappings(model_type).get(name or "")
    if name is not None and auto is not None and _depends_on_class_count(_import_class(name), model_type, config):
        raise Unsupported(
            f"{name} ({auto}) scores classes for a task that headscope doesn't know",
            f"to examine its base model with another head, add --task: {_family_hint(model_type)}",
        )


def describe_other_scores(name: str) -> tuple[str, str]:
    """Writes the message and the hint on a class for which `gives_other_scores`."""
    return (
        f"{name} gives scores for a task that headscope doesn't know",
        f"add --model-class {name} and, with --task, the task that is nearest to it",
    )


def _depends_on_class_count(cls: type[PreTrainedModel], model_type: str, config: dict[str, Any]) -> bool:
    # Two counts that no other size is likely to equal: a head of classes has other shapes with each.
    built = [_build_config_of(cls, model_type, config, ModelRequest(count))[0] for count in (5, 7)]
    few, more = (shapes_of_class(cls, shallow_config(item)) or shapes_of_class(cls, item) for item in built)
    return few is not None and few != more


def _class_of_architectures(config: dict[str, Any], model_type: str) -> HeadClass | None:
    for given in architectures_in(config):
        name = mapped_name(given, model_type) or given
        task = task_of_class(name)
        if task is not None and hasattr(transformers, name):
            return HeadClass(name, task)
    return None


def _takes_config_of(own: HeadClass, model_type: str) -> bool:
    """True if a class takes the configuration that `model_type` stands for."""
    # AutoModel goes by the model type alone; `architectures` decides only between classes of that family.
    wanted: Any = getattr(_import_class(own.name), "config_class", None)
    return wanted is None or issubclass(config_classes()[model_type], wanted)


def _note_contradiction(
    config: dict[str, Any], model_type: str, taken: HeadClass, wish: ModelRequest
) -> tuple[str, ...]:
    own = _class_of_architectures(config, model_type)
    if wish.model_class or own is None or own.task is not taken.task or own.name == taken.name:
        return ()
    if _takes_config_of(own, model_type):
        return ()
    return (
        f"config.json contradicts itself: architectures names {own.name}, and model_type is {model_type}, for which "
        f"AutoModel loads {taken.name}; name the class with --model-class to examine it as another",
    )


def _family_hint(model_type: str) -> str:
    family = classes_of_family(model_type)
    if not family:
        return "its family has no class for another task that headscope knows; name a class with --model-class"
    return "it has " + ", ".join(f"{head.task.value} ({head.name})" for head in family)


def class_by_name(name: str) -> type[PreTrainedModel]:
    """Imports the class of Transformers of a name, or that of the user's code; see `choose` for what it raises."""
    return class_of_own_code(name) if is_own_code(name) else _import_class(name)


def _import_class(name: str) -> type[PreTrainedModel]:
    try:
        cls = getattr(transformers, name)
    except AttributeError as err:
        hint = did_you_mean(name, dir(transformers), "name a class such as BertForSequenceClassification")
        raise UsageError(f"transformers {transformers.__version__} has no class {name}", hint) from err
    except ImportError as err:
        unknown = Unsupported(f"{name} cannot be imported: {first_lines(err)}", "install what it needs")
        raise fault_of_import(err) or unknown from err
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise UsageError(
            f"{name} is not a model class of Transformers", "name a class such as BertForSequenceClassification"
        )
    return cls
