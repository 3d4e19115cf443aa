"""Which class and configuration a manifest and a request come to."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.errors import HeadscopeError, Malformed, Unsupported, UsageError, did_you_mean
from headscope.facts import ScoreHead, SentencePipeline, Task, TokenRow
from headscope.facts.counting import few_of
from headscope.facts.heads.tasks import WITHOUT_CLASSES, parse_task
from headscope.facts.stored.checkpoint import LABEL_MAPS, architectures_in
from headscope.facts.stored.location import Location, is_own_code
from headscope.model.classes.catalog import (
    HeadClass,
    class_for,
    classes_of_family,
    language_model_of,
    mapped_name,
    other_classes,
    other_mappings,
    saved_class_of,
    task_of_class,
    task_of_own_class,
)
from headscope.model.classes.defaults import diagnose_by_leaving_out
from headscope.model.classes.many_labels import build_config, share_labels
from headscope.model.classes.module_chain import base_class_of, class_of_chain, class_of_value_head
from headscope.model.classes.proposals import shapes_of_class
from headscope.model.classes.reduced_config import DEPTHS, shallow_config
from headscope.model.classes.remote_code import class_of_own_code, load_remote_classes, models_in_auto_map
from headscope.model.classes.token_rows import class_with_answers, class_with_rows
from headscope.model.quiet import quiet
from headscope.upstream.imports import fault_of_import
from headscope.upstream.transformers import config_classes, text_config_of

# A skeleton holds no numbers, and still a module for each layer: a configuration with a billion of them, or of labels
# with their names, would fill the memory before anything can be said of it.
_MOST_LAYERS = 2000
_MOST_LABELS = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the user asked the model to be; None and () leave it to the checkpoint.

    `code` is where the repository's own code may be run from; None where it may not. `rows` are the tokens whose logits
    are the scores, with their texts where these are known. `keys` are the tensors of the checkpoint, which may say
    what a class that Transformers doesn't have was for. `chain` are the modules of sentence-transformers that make the
    result, `head` is the one that another library put on the model.
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


@dataclass(frozen=True, slots=True)
class Choice:
    """The class to build, its task, and the configuration to build it with; `notes` are sentences on the choice.

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
    head: ScoreHead | None = None

    @property
    def is_composed(self) -> bool:
        """Whether headscope made the class, of a base model and what another library puts after it."""
        return self.chain is not None or self.head is not None


@dataclass(frozen=True, slots=True)
class _ConfigSource:
    """A configuration class, the values to make it from, and what Transformers warns of."""

    config_class: Any
    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def choose(config: dict[str, Any], wish: ModelRequest) -> Choice:
    """The class and configuration for a parsed `config.json` and a wish.

    Raises UsageError for a class, task or label count that cannot be; Unsupported for a model type that the
    installed Transformers does not know; Malformed for a configuration that Transformers rejects.
    """
    _check_labels(wish)
    task = parse_task(wish.task) if wish.task is not None else None
    if wish.code is not None and isinstance(config.get("auto_map"), dict):
        remote = load_remote_classes(config, task, wish.code)
        return Choice(remote.model_class, remote.task, _configured(remote.config_class, config, wish))
    if is_own_code(wish.model_class):
        return _by_own_code(config, wish, task)
    model_type = _model_type(config, wish)
    if wish.rows:
        return _by_tokens(config, model_type, wish)
    if wish.chain is not None:
        return _by_chain(config, model_type, wish, wish.chain)
    if wish.head is not None and _class_of_architectures(config, model_type) is None:
        return _by_score_head(config, model_type, wish, wish.head)
    named = wish.model_class and (mapped_name(wish.model_class, model_type) or wish.model_class)
    head_class = _named_class(named, task) if named else _class_of(config, model_type, task, wish.keys)
    cls = _class_object(head_class.name)
    _check_classes(head_class.task, wish)
    source = _config_source(cls, model_type, config)
    notes = (*_contradiction(config, model_type, head_class, wish), *source.notes)
    return Choice(cls, head_class.task, _configured(source.config_class, source.values, wish), notes)


def _by_own_code(config: dict[str, Any], wish: ModelRequest, task: Task | None) -> Choice:
    """A class by its code, with its own configuration class or that of the model type."""
    cls = class_of_own_code(str(wish.model_class))
    _check_classes(task or Task.SEQUENCE_CLASSIFICATION, wish)
    config_class: Any = getattr(cls, "config_class", None) or config_classes()[_model_type(config, wish)]
    family = classes_of_family(str(config_class.model_type))
    task = task or task_of_own_class(cls.__name__, wish.keys) or next((item.task for item in family), None)
    return Choice(cls, task or Task.SEQUENCE_CLASSIFICATION, _configured(config_class, config, wish))


def _by_tokens(config: dict[str, Any], model_type: str, wish: ModelRequest) -> Choice:
    """The language model of a family with a few of its tokens as classes.

    Raises UsageError for a family without one, a token outside its vocabulary, and labels that are not as many.
    """
    name = language_model_of(model_type)
    if name is None:
        raise UsageError(
            f"{model_type} has no causal language model in transformers {transformers.__version__}",
            "--tokens scores texts by the logits of a causal language model; leave it out",
        )
    cls = _class_object(name)
    labels = wish.labels or tuple(row.token or f"token {row.id}" for row in wish.rows)
    if len(labels) != len(wish.rows):
        raise UsageError(
            f"{len(labels)} labels were given for {len(wish.rows)} tokens", "name one label for each token"
        )
    source = _config_source(cls, model_type, config)
    built = _configured(source.config_class, source.values, replace(wish, labels=labels))
    size = getattr(text_config_of(built), "vocab_size", None)
    beyond = [row.id for row in wish.rows if not 0 <= row.id < (size or 0)]
    if beyond:
        raise UsageError(f"token {beyond[0]} is outside the vocabulary of {size or 0:,} tokens", "give ids of tokens")
    rows = class_with_rows(cls, tuple(row.id for row in wish.rows))
    return Choice(rows, Task.SEQUENCE_CLASSIFICATION, built, source.notes, wish.rows)


def _by_chain(config: dict[str, Any], model_type: str, wish: ModelRequest, chain: SentencePipeline) -> Choice:
    """The base model of a family with the modules of a chain, and as many classes as it has scores."""
    # An encoder that was saved alone says false; its family still has a decoder, which the library leaves out.
    has_decoder = getattr(config_classes()[model_type], "is_encoder_decoder", False) is True
    base = base_class_of(model_type, is_encoder_decoder=has_decoder or config.get("is_encoder_decoder") is True)
    source = _config_source(base, model_type, config)
    names, count = source.values.get("id2label"), chain.score_count
    is_named = wish.labels or (isinstance(names, dict) and len(names) == count)
    own = wish if is_named or not count else replace(wish, num_labels=count)
    built = _configured(source.config_class, source.values, own)
    return Choice(class_of_chain(base, chain), Task.SEQUENCE_CLASSIFICATION, built, source.notes, chain=chain)


def _by_score_head(config: dict[str, Any], model_type: str, wish: ModelRequest, head: ScoreHead) -> Choice:
    """A family's model with a head of another library: values for each token, or the rows of a few answers."""
    rows_of = language_model_of(model_type) if head.name in ("lm_head", "embed_out") else None
    if rows_of is not None:
        cls = class_with_answers(_class_object(rows_of), head)
        note = (
            f"{head.name} has {head.scores} rows, those of as many answers: it scores each token, and the answer to a "
            "text is read at its last"
        )
    else:
        cls = class_of_value_head(base_class_of(model_type, is_encoder_decoder=False), head)
        note = (
            f"the scores are those of {head.name}, one for each token; a reward is the score of the last token that is "
            "not padding"
        )
    source = _config_source(cls, model_type, config)
    names = source.values.get("id2label")
    is_named = wish.labels or (isinstance(names, dict) and len(names) == head.scores)
    built = _configured(source.config_class, source.values, wish if is_named else replace(wish, num_labels=head.scores))
    return Choice(cls, Task.TOKEN_CLASSIFICATION, built, (note, *source.notes), head=head)


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


def _check_classes(task: Task, wish: ModelRequest) -> None:
    if task in WITHOUT_CLASSES and (wish.labels or wish.num_labels is not None):
        raise UsageError(
            f"{task.value} has no classes to count or name: {WITHOUT_CLASSES[task]}",
            "leave out --num-labels and --labels, or name another --task",
        )


def _model_type(config: dict[str, Any], wish: ModelRequest) -> str:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in config_classes():
        return model_type
    if wish.model_class is not None and not is_own_code(wish.model_class):
        own = getattr(getattr(_class_object(wish.model_class), "config_class", None), "model_type", None)
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
        _class_object(name)
        raise UsageError(
            f"{name} is not mapped to a classification task",
            "name a classification class such as BertForSequenceClassification, or say with --task what its scores "
            "mean",
        )
    return HeadClass(name, mapped or task or Task.SEQUENCE_CLASSIFICATION)


def _class_of(config: dict[str, Any], model_type: str, task: Task | None, keys: tuple[str, ...] = ()) -> HeadClass:
    own = _class_of_architectures(config, model_type)
    if own is not None and task in (None, own.task):
        return own if _is_of(own, model_type) else class_for(model_type, own.task) or own
    if task is not None:
        mapped = class_for(model_type, task)
        if mapped is None:
            raise UsageError(
                f"{model_type} has no class for {task.value} in transformers {transformers.__version__}",
                _family_hint(model_type),
            )
        return mapped
    family = classes_of_family(model_type)
    if not family:
        others = few_of(other_classes(model_type))
        unknown = f"; it has {others}, for a task that headscope doesn't know" if others else ""
        raise Unsupported(
            f"{model_type} has no class for a task that headscope knows in transformers {transformers.__version__}"
            + unknown,
            "name a class with --model-class if one fits",
        )
    _refuse_other_scores(config, model_type)
    name, is_own = saved_class_of(config, "")
    meant = task_of_own_class(name, keys) if name is not None and is_own else None
    return next((item for item in family if item.task is meant), family[0])


def _refuse_other_scores(config: dict[str, Any], model_type: str) -> None:
    """Raises Unsupported where a checkpoint names a class with scores that headscope has no task for.

    The head of another class of the family would be new, and nobody's. Its tensors depend on the class count, unlike
    those of a class for pretraining.
    """
    name, _ = saved_class_of(config, "")
    auto = other_mappings(model_type).get(name or "")
    if name is not None and auto is not None and _has_own_classes(_class_object(name), model_type, config):
        raise Unsupported(
            f"{name} ({auto}) scores classes for a task that headscope doesn't know",
            f"to examine its base model with another head, add --task: {_family_hint(model_type)}",
        )


def _has_own_classes(cls: type[PreTrainedModel], model_type: str, config: dict[str, Any]) -> bool:
    source = _config_source(cls, model_type, config)
    built = [_configured(source.config_class, source.values, ModelRequest(count)) for count in (5, 7)]
    few, more = (shapes_of_class(cls, shallow_config(item)) or shapes_of_class(cls, item) for item in built)
    return few is not None and few != more


def _class_of_architectures(config: dict[str, Any], model_type: str) -> HeadClass | None:
    for given in architectures_in(config):
        name = mapped_name(given, model_type) or given
        task = task_of_class(name)
        if task is not None and hasattr(transformers, name):
            return HeadClass(name, task)
    return None


def _is_of(own: HeadClass, model_type: str) -> bool:
    """Whether a class takes the configuration that `model_type` stands for.

    AutoModel goes by the model type alone; `architectures` decides only between classes of that family.
    """
    wanted: Any = getattr(_class_object(own.name), "config_class", None)
    return wanted is None or issubclass(config_classes()[model_type], wanted)


def _contradiction(config: dict[str, Any], model_type: str, taken: HeadClass, wish: ModelRequest) -> tuple[str, ...]:
    own = _class_of_architectures(config, model_type)
    if wish.model_class or own is None or own.task is not taken.task or own.name == taken.name:
        return ()
    if _is_of(own, model_type):
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
    """The class of Transformers of a name, or that of the user's code; see `choose` for what it raises."""
    return class_of_own_code(name) if is_own_code(name) else _class_object(name)


def _class_object(name: str) -> type[PreTrainedModel]:
    try:
        cls = getattr(transformers, name)
    except AttributeError as err:
        hint = did_you_mean(name, dir(transformers), "name a class such as BertForSequenceClassification")
        raise UsageError(f"transformers {transformers.__version__} has no class {name}", hint) from err
    except ImportError as err:
        unknown = Unsupported(f"{name} cannot be imported: {_first_line(err)}", "install what it needs")
        raise fault_of_import(err) or unknown from err
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise UsageError(
            f"{name} is not a model class of Transformers", "name a class such as BertForSequenceClassification"
        )
    return cls


def _config_source(cls: type[PreTrainedModel], model_type: str, values: dict[str, Any]) -> _ConfigSource:
    """The configuration class that `cls.from_pretrained` would use, with the part of `config.json` that it would read.

    A class of another family takes its own configuration class and warns (`PreTrainedConfig.from_pretrained`).
    """
    config_class: Any = config_classes()[model_type]
    own_class: Any = getattr(cls, "config_class", None)
    if own_class is None or issubclass(config_class, own_class):
        declared = values.get("model_type")
        other = isinstance(declared, str) and declared != model_type
        return _ConfigSource(config_class, values, (_published_warning(str(declared), model_type),) if other else ())
    part = values.get(getattr(own_class, "base_config_key", "") or "")
    read = part if isinstance(part, dict) else values
    if "model_type" not in read or read["model_type"] == own_class.model_type:
        return _ConfigSource(own_class, read)
    nested = [
        item for item in read.values() if isinstance(item, dict) and item.get("model_type") == own_class.model_type
    ]
    if nested:
        return _ConfigSource(own_class, nested[-1])
    return _ConfigSource(own_class, read, (_published_warning(str(read["model_type"]), own_class.model_type),))


def _published_warning(found: str, wanted: str) -> str:
    """What `from_pretrained` warns of: source transformers/configuration_utils.py."""
    return (
        f"from_pretrained warns: You are using a model of type `{found}` to instantiate a model of type `{wanted}`. "
        "This may be expected if the checkpoint shares a part of the architecture, but it is not supported otherwise"
    )


def _configured(config_class: Any, values: dict[str, Any], wish: ModelRequest) -> Any:
    if wish.labels:  # whatever the maps are, they give no names and no count
        values = {name: value for name, value in values.items() if name not in {*LABEL_MAPS, "num_labels"}}
    elif wish.num_labels is None:
        _check_own_labels(values)
    try:
        with quiet():
            config = build_config(config_class, values)
            _set_labels(config, wish)
            share_labels(config)
    except HeadscopeError:
        raise
    except Exception as err:
        more = diagnose_by_leaving_out(config_class, values)
        raise Malformed(
            f"config.json doesn't describe a valid {config_class.__name__}: {_first_line(err)}{more}",
            "correct config.json",
        ) from err
    _check_sizes(config)
    return config


def _check_own_labels(values: dict[str, Any]) -> None:
    """Labels that Transformers would take for something else: `true` for one class, an object for a name."""
    count, names = values.get("num_labels"), values.get("id2label")
    if count is not None and (type(count) is not int or count < 0):
        raise Malformed(
            f"num_labels in config.json is {str(count)[:80]!r}, not a number",
            "correct num_labels, or give --num-labels",
        )
    listed = len(names) if isinstance(names, dict) else 0
    if max(count or 0, listed) > _MOST_LABELS:
        raise Malformed(
            f"config.json describes {max(count or 0, listed):,} labels, over the limit of {_MOST_LABELS:,}",
            "correct config.json, or give --num-labels",
        )
    if isinstance(names, dict) and not {str, int, float, bool}.issuperset(map(type, names.values())):
        raise Malformed(
            "id2label in config.json holds a name that is not a string", "correct id2label, or give --labels"
        )


def _check_sizes(config: Any) -> None:
    """Sizes that no model has: they would take minutes to build and mean a broken file."""
    labels = config.num_labels
    if labels is not None and labels < 1:
        raise Malformed(f"config.json describes {labels} labels", "correct id2label, or give --num-labels")
    for name in DEPTHS:
        depth = getattr(config, name, None)
        if isinstance(depth, int) and depth > _MOST_LAYERS:
            raise Malformed(f"config.json asks for {depth:,} layers ({name})", f"correct {name}")


def _set_labels(config: Any, wish: ModelRequest) -> None:
    if wish.labels:
        config.id2label = dict(enumerate(wish.labels))
        config.label2id = {name: index for index, name in enumerate(wish.labels)}
    elif wish.num_labels is not None:
        config.num_labels = wish.num_labels


def _first_line(err: BaseException) -> str:
    lines = [line.strip() for line in str(err).strip().splitlines()]
    if not lines:
        return type(err).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
