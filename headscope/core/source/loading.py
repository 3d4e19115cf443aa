"""From a manifest to a class, a skeleton of it, the comparison of the two, and the report on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headscope.core.facts import (
    AdapterFault,
    AdapterFaultKind,
    CheckpointKind,
    CheckpointManifest,
    ParameterStatus,
    Report,
)
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.export import Inventoried, WeightInventory, contents_of
from headscope.core.facts.heads.head import classifier_weight
from headscope.core.facts.health import InitialSpread
from headscope.core.facts.stored.checkpoint import own_config
from headscope.core.source.reading.assembly import assemble, checkpoint_facts
from headscope.core.source.reading.configuration import built_facts, with_purpose, with_tables
from headscope.core.source.reading.diagnosis import diagnose
from headscope.core.source.reading.reading import chain_of, decision_of, score_head_of, trusted_code
from headscope.core.source.reading.token_rows import tokens_of
from headscope.core.source.reading.tracing import Traced
from headscope.core.source.reading.unseen_settings import without_idle_tensors
from headscope.core.source.request import Progress, Request
from headscope.core.source.structure import ExaminationOutcome
from headscope.errors import HeadscopeError, Unsupported, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.loading.loader import Loaded

Tracer = Callable[["PreTrainedModel", "Choice"], Traced]


def examine_manifest(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> ExaminationOutcome:
    """Examines a checkpoint that was read; leaves the head out if there is no `tracer`."""
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = load_checkpoint(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded.model, choice) if tracer else Traced(None)
    report = assemble(command, manifest, choice, loaded, traced, diagnose(choice, manifest, loaded.diff, request.take))
    built = with_purpose(built_facts(choice.config), manifest, is_reranker=bool(choice.rows))
    built = with_tables(replace(built, initial=_spread_of_fresh_classifier(loaded.model, report, built)), loaded.model)
    return ExaminationOutcome(report, built, lambda: traced.program, choice=choice, skeleton=loaded.model)


def _spread_of_fresh_classifier(skeleton: PreTrainedModel, report: Report, built: BuiltFacts) -> InitialSpread | None:
    """Measures the numbers that the class puts into a fresh classifier."""
    from headscope.core.model.tensors.initialization import initial_spread

    weight = classifier_weight(report.head) if report.head else None
    return None if weight is None else initial_spread(skeleton, weight.name, built.initializer_range)


def load_checkpoint(request: Request, manifest: CheckpointManifest, tell: Progress) -> tuple[Choice, Loaded]:
    """Builds the skeleton of the chosen class and compares it with the checkpoint's keys.

    An adapter's head gives the number of classes, if the request doesn't, and its table of word embeddings the number
    of tokens.
    """
    from headscope.core.model.classes.reduced_config import with_vocabulary
    from headscope.core.model.loading.loader import load_skeleton
    from headscope.core.upstream.transformers import word_table

    choice = choose_class(request, manifest)
    tell(f"building {choice.cls.__name__} and diffing {len(manifest.tensors)} checkpoint keys")
    with _with_inventory_in_errors(manifest):
        loaded = without_idle_tensors(load_skeleton(choice, manifest), choice)
    if manifest.adapter is None:
        return choice, loaded
    words = _words_in_adapter(manifest.adapter, loaded.model)
    # PEFT's AutoModel gives the base model the adapter's words where a tokenizer is beside the adapter.
    if words is not None and manifest.adapter.lacks_tokenizer:
        table = word_table(loaded.model)
        rows = "" if table is None else str(table.weight.shape[0])
        fault = AdapterFault(AdapterFaultKind.WORD_ROWS, "the word embeddings", str(words), rows)
        loaded = replace(loaded, faults=(fault,))
    elif words is not None:
        choice = replace(choice, config=with_vocabulary(choice.config, words))
        loaded = without_idle_tensors(load_skeleton(choice, manifest), choice)
        note = (
            f"the adapter holds word embeddings of {words:,} tokens, and its base model has another number: call "
            f"resize_token_embeddings({words}) before PeftModel.from_pretrained (AutoPeftModel adds tokens where the "
            "tokenizer is beside the adapter)"
        )
        loaded = replace(loaded, notes=(*loaded.notes, note), word_rows=words)
    return _with_adapter(request, manifest, tell, choice, loaded)


def _with_adapter(
    request: Request, manifest: CheckpointManifest, tell: Progress, choice: Choice, loaded: Loaded
) -> tuple[Choice, Loaded]:
    """Puts the adapter on the skeleton of its base model; its head gives the number of classes."""
    from headscope.core.model.loading.adapters import classes_in_adapter, holds_head, own_class_in, with_adapter

    assert manifest.adapter is not None
    adapter, given = manifest.adapter, request.num_labels is not None or request.labels
    own = own_class_in(adapter.config)
    # Names and shapes alone: the class count of the base model may not be the adapter's yet.
    named = None if given and not own else with_adapter(loaded, adapter, by_names=True)
    count = None if given or named is None else classes_in_adapter(named.diff, choice.config.num_labels)
    if count is None:
        own = "" if named is not None and holds_head(named.diff) else own
        is_free = not (given or request.task or request.model_class)
        # PEFT loads the layers of a language model's adapter into a classifier only without a task.
        is_other = bool(own) and choice.adapter.get("task_type") != adapter.config.get("task_type")
        plain = replace(adapter, config={**adapter.config, "task_type": None}) if is_other else adapter
        return choice, with_adapter(loaded, plain, own=(adapter, choice.config) if own and is_free else None)
    reshaped = {item.parameter for item in named.diff.mismatched} if named is not None else set[str]()
    is_stored = any(item.status is ParameterStatus.LOADED and item.name in reshaped for item in loaded.diff.parameters)
    options = (f"num_labels={count}", *(["ignore_mismatched_sizes=True"] if is_stored else []))
    choice, loaded = load_checkpoint(replace(request, num_labels=count), manifest, tell)
    note = (
        f"the class count {count} is that of the adapter's own tensors; the base model's configuration says another: "
        f"load the base model with num_labels={count}"
    )
    return choice, replace(loaded, notes=(*loaded.notes, note), load_options=options)


def _words_in_adapter(adapter: CheckpointManifest, model: PreTrainedModel) -> int | None:
    """Counts the rows of the word embeddings that an adapter holds whole, if they differ from the model's."""
    from headscope.core.upstream.peft import COPIES
    from headscope.core.upstream.transformers import word_table

    table = word_table(model)
    path = next((path for path, module in model.named_modules() if module is table), None)
    if table is None or path is None:
        return None
    ending = re.compile(rf"(^|\.){re.escape(path)}\.((base_layer|{COPIES})\.)?weight")
    rows, width = table.weight.shape
    counts = {item.shape[0] for item in adapter.tensors if ending.search(item.key) and item.shape[1:] == (width,)}
    return counts.pop() if len(counts) == 1 and counts != {rows} else None


def choose_class(request: Request, manifest: CheckpointManifest) -> Choice:
    """Chooses the class and the configuration for a request and a checkpoint."""
    from headscope.core.checkpoints.foreign.libraries import refuse_model_type
    from headscope.core.model.classes.model_request import ModelRequest, choose

    named = manifest.reference if manifest.kind is CheckpointKind.CLASS else request.model_class
    if named is None:
        # Whoever names a class wants the files read as that class, whatever their configuration says.
        _refuse_timm(manifest)
        refuse_model_type(manifest.config, manifest.reference)
    code = trusted_code(request, manifest)
    rows = tokens_of(request, manifest)
    task = None if rows else request.task or _task_of_adapter(request, manifest)
    with _with_inventory_in_errors(manifest):
        keys, chain = tuple(tensor.key for tensor in manifest.tensors), chain_of(request, manifest)
        head = score_head_of(request, manifest) if chain is None and task is None else None
        decision = decision_of(request, manifest)
        wish = ModelRequest(request.num_labels, request.labels, task, named, code, rows, keys, chain, head, decision)
        choice = choose(own_config(manifest.config), wish)
    if manifest.adapter is None:
        return choice
    from headscope.core.model.loading.adapters import as_classifier

    return replace(choice, adapter=as_classifier(manifest.adapter.config, choice))


@contextmanager
def _with_inventory_in_errors(manifest: CheckpointManifest) -> Iterator[None]:
    """Adds what the weight files hold to the error of a class that cannot be built."""
    try:
        yield
    except HeadscopeError as err:
        if manifest.kind is CheckpointKind.CLASS and not isinstance(err, UsageError):
            raise _explain_unbuildable(manifest.reference, err) from err
        from headscope.core.checkpoints.foreign.timm import is_timm_wrapper

        lacks_timm = is_timm_wrapper(manifest.config) and find_spec("timm") is None
        if lacks_timm and not isinstance(err, UsageError):
            raise _error_without_timm(manifest) from err
        if not isinstance(err, Unsupported) or isinstance(err, Inventoried):
            raise
        inventoried = Inventoried(err.message, err.hint, _inventory_of(manifest))
        inventoried.state = err.state
        raise inventoried from err.__cause__


def _explain_unbuildable(name: str, err: HeadscopeError) -> HeadscopeError:
    """Gives the error for a class that can't be built: it lacks a package, or its defaults don't fit."""
    cause = err.__cause__
    if cause is None or isinstance(cause, HeadscopeError):
        return err
    hint = "install it" if isinstance(cause, ImportError) else "name a checkpoint instead, which has other settings"
    return Unsupported(f"{name} can't be built in its default configuration: {' '.join(str(cause).split())}", hint)


def _refuse_timm(manifest: CheckpointManifest) -> None:
    """Raises Inventoried, with the head as far as it is described, for a checkpoint in timm's own layout."""
    from headscope.core.checkpoints.foreign.timm import is_of_timm, timm_contents

    if is_of_timm(manifest.config):
        raise Inventoried(
            f"{manifest.reference} is a checkpoint of timm: its head is read from config.json and the tensor headers, "
            "without a trace",
            "in an environment with timm and torchvision, save it as a Transformers checkpoint: TimmWrapperFor"
            f"ImageClassification.from_pretrained({manifest.reference!r}).save_pretrained('wrapped'); then run "
            "`headscope inspect wrapped`",
            timm_contents(manifest),
        )


def _error_without_timm(manifest: CheckpointManifest) -> Inventoried:
    from headscope.core.checkpoints.foreign.timm import timm_contents

    return Inventoried(
        f"{manifest.reference} is a timm model in Transformers' TimmWrapper, and timm is not installed: its head is "
        "read from config.json and the tensor headers, without a trace",
        "run `pip install timm` (it needs torchvision), and examine it again",
        timm_contents(manifest),
    )


def _inventory_of(manifest: CheckpointManifest) -> WeightInventory:
    found = checkpoint_facts(manifest)
    architecture = ", ".join(found.architectures) or found.model_type or "architecture not named"
    return contents_of(
        manifest.reference,
        architecture,
        manifest.tensors,
        format_name=manifest.format.value,
        bytes_read=manifest.bytes_read,
    )


def _task_of_adapter(request: Request, manifest: CheckpointManifest) -> str | None:
    """Gives the task that an adapter was trained for, as its base model may not name one."""
    from headscope.core.model.loading.adapters import task_of_adapter

    if manifest.adapter is None or request.model_class is not None:
        return None
    task = task_of_adapter(manifest.adapter.config)
    return task.value if task else None
