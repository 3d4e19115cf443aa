"""A fold: the head of a checkpoint is written into the parameters of a stock class, proven, and then put in place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from headscope.copies.carried import INDEXES, left_behind, read_contents, taken_names
from headscope.copies.config_changes import changed_fields
from headscope.copies.facts import EditProof, EditReport, FoldKind, HeadFold
from headscope.copies.proving import prove_apart
from headscope.copies.writing import (
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    name_beside,
    staged,
    write_json,
)
from headscope.core.checkpoints.contents.sentence import LIBRARY, MODULES, SETFIT, SETFIT_HEAD, settings_of_module
from headscope.core.checkpoints.edit_record import EDIT_RECORD
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.local import Folder
from headscope.core.facts import Task
from headscope.core.facts.counting import few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.stored.checkpoint import TOKENIZER_CONFIG
from headscope.core.facts.stored.sentence import SentencePipeline, read_prompts
from headscope.core.model.classes.catalog import class_for
from headscope.core.model.loading.inference import open_tokenizer
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.reading.reading import in_local_folder
from headscope.core.source.request import Progress, Request
from headscope.errors import Unsupported, UsageError
from headscope.shared.serving.judging import own_activation
from headscope.slices.edit.checkpoint_edit import edit_folder, finish_copy, folder_to_edit
from headscope.slices.edit.classes import examine_by_name
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values
from headscope.slices.edit.folding.chain import AS_CHAIN, plan_chain
from headscope.slices.edit.folding.proof import EXACT, FoldProof, FoldTask, package_of, prove_fold_here
from headscope.slices.edit.folding.settings import BASE_SETTINGS, check_base_settings
from headscope.slices.edit.folding.source import FoldSource, read_source, read_values
from headscope.slices.edit.folding.target import OWN_CLASS, FoldTarget, class_to_fold_into, find_target
from headscope.slices.edit.promises import FUNCTION_OF_PROBLEM
from headscope.slices.edit.wish import EditOrigin, EditWish

_SETTINGS = (MODULES, LIBRARY, SETFIT, BASE_SETTINGS, "generation_config.json")
"""Files of what computed the scores before, which mean something else beside the class."""


def fold_checkpoint(request: Request, output: Path | None, wish: EditWish, tell: Progress) -> EditReport:
    """Folds the head of a checkpoint into a class, then makes the other changes of the wish.

    Raises DoesNotFold with the part that has no place in the class, and for a result that isn't proven; Unsupported for
    a checkpoint that can't be read so, or whose library isn't installed; NotFound if the source changes meanwhile.
    """
    _check_wish(wish, output)
    named = request.reference
    checkpoint = examine_by_name(in_local_folder(request), wish.changes.labels, tell)
    folder = folder_to_edit(checkpoint)
    if output is None:
        output = name_beside(folder, "folded")  # a name for the report: nothing is written
    check_target(output, folder)
    states = file_states(folder)
    source, target = _plan_fold(checkpoint, wish, tell)
    file = folder / LIBRARY
    settings = parse_object(file.read_bytes(), LIBRARY) if file.is_file() else {}
    prompts = read_prompts(settings)
    if pipeline := checkpoint.manifest.sentence:
        _check_prompts(pipeline, folder, prompts)
    fields = _fields_of_scores(checkpoint, source, settings)
    to_do = _prompt_to_add(settings, prompts)
    # What computes the scores and isn't installed, so that nothing can be proven.
    needed = dict.fromkeys((package_of(target.kind), package_of(source.kind)))
    lacking = [package.replace("_", "-") for package in needed if find_spec(package) is None]
    if lacking and wish.dry_run:
        to_do += (f"The proof needs what computes these scores: pip install {' '.join(lacking)}.",)
    fold = _describe_fold(checkpoint, source, target, fields, to_do)
    report = EditReport(
        tool_version(), named, str(output), target.name, source.labels, EditProof(), fold=fold, is_dry_run=wish.dry_run
    )
    is_fold_alone = target.kind is FoldKind.CHAIN or not wish.changes_more  # a chain is written with its names
    if wish.dry_run and is_fold_alone:
        return report
    if lacking and not wish.dry_run:
        raise Unsupported(
            f"the fold can't be proven here: {' and '.join(lacking)}, which computes these scores, is not installed",
            f"pip install {' '.join(lacking)}, and run this again; --dry-run shows what would fold",
        )
    with staged(output) as place:
        tell("writing the result")
        left = _copy_others(place, folder, checkpoint)
        target.write(place, fields)
        if not wish.dry_run:
            tell("proving the fold in a separate process")
            checkpoint.release()
            fold = _prove_fold(fold, _proof_task(checkpoint, source, target, wish, place), target.exact)
        check_unchanged(folder, states)
        if not is_fold_alone:
            plain = Request(replace(checkpoint.request.location, reference=str(place), subfolder=None))
            origin = EditOrigin(named, sources=(folder,), left_out=left, fold=fold)
            return edit_folder(plain, output, wish, tell, origin)
        proof = EditProof(
            loads=True, scores_equal=True, base_unchanged=True, inputs=fold.inputs, texts=fold.inputs,
            max_difference=fold.max_difference, tolerance=fold.tolerance,
        )  # fmt: skip
        exact = (_describe_scores(report, fold, source),)
        report = replace(report, fold=fold, left_out=left, proof=proof, exact=exact)
        finish_copy(place, output, report, (folder,))
    return report


def _check_wish(wish: EditWish, output: Path | None) -> None:
    """Raises UsageError for options that have no place beside a fold, and for a misspelled `auto` or `chain`."""
    given = {"in-place": wish.in_place, "merge-adapter": wish.merge_adapter, "link": wish.link}
    given["architecture"] = wish.names_class
    if idle := [name for name, is_given in given.items() if is_given]:
        what = f"a fold makes another checkpoint of a whole one, so --{idle[0]} has no place in it"
        raise UsageError(what, "leave it out, and give -o DIR; merge an adapter first, in a copy")
    meant = get_close_matches(wish.as_class.lower(), [OWN_CLASS, AS_CHAIN], 1, _NEAR)
    if meant and wish.as_class not in meant:
        raise UsageError(f"--as {wish.as_class} is not the name of a class", f"did you mean --as {meant[0]}?")
    without_names = replace(wish, changes=replace(wish.changes, labels=None))
    if wish.as_class == AS_CHAIN and without_names.changes_more:
        raise UsageError(
            "--as chain takes no other change than --labels", "make the change first, in a copy, and fold that"
        )
    if output is None and not wish.dry_run:
        raise UsageError("the result needs a place", "give -o DIR")


_NEAR = 0.8
"""How alike a name and `auto` or `chain` are if these are meant: one letter apart."""


def _plan_fold(checkpoint: Checkpoint, wish: EditWish, tell: Progress) -> tuple[FoldSource, FoldTarget]:
    """Plans a fold, with all that can be known of it without a run. Raises DoesNotFold with what doesn't fold."""
    try:
        source = read_source(checkpoint, wish.scores)
        names = wish.changes.labels
        if wish.as_class == AS_CHAIN and names is not None:
            if len(names) != len(source.labels):
                what = f"--labels names {len(names)} classes, and the head has {len(source.labels)}"
                raise UsageError(what, "name every class once, in the order of the scores")
            source = replace(source, labels=tuple(names))
        pipeline, request = checkpoint.manifest.sentence, checkpoint.request
        if pipeline is not None and not (request.model_class or request.tokens):
            place, asks = Path(checkpoint.location.reference), bool(checkpoint.choice.rows)
            check_base_settings(pipeline, place, checkpoint.manifest.config, source.kind, asks=asks)
        tell("loading the weights")
        target = _find_target(checkpoint, source, wish)
        open_tokenizer(checkpoint.location)  # the proof scores texts
        return source, target
    except DoesNotFold as err:
        if err.hint or wish.as_class != AS_CHAIN:
            raise
        name, family = checkpoint.report.model.class_name, str(checkpoint.choice.config.model_type)
        own, hint = class_for(family, Task.SEQUENCE_CLASSIFICATION), "use it with the library that made it"
        if own is not None and own.name == name:
            hint = f"fold nothing: CrossEncoder loads a {name} without modules"
        raise DoesNotFold(err.message, hint) from err


def _find_target(checkpoint: Checkpoint, source: FoldSource, wish: EditWish) -> FoldTarget:
    """Finds what the head is folded into. Raises DoesNotFold with the part of the head that has no place there."""
    values = read_values(checkpoint.choice, checkpoint.location)
    if wish.as_class == AS_CHAIN:
        return plan_chain(checkpoint, source, values, _function_on_scores(checkpoint, source))
    if source.kind is FoldKind.SETFIT:
        raise DoesNotFold(
            "the classifier is a pickle beside the model; --as chain makes a module of it, which may fold"
        )
    cls = class_to_fold_into(wish.as_class, checkpoint.choice)
    if source.kind is FoldKind.CLASS and cls.__name__ == checkpoint.report.model.class_name:
        raise UsageError(
            f"the checkpoint is a {cls.__name__} already", "--as chain writes sentence-transformers modules"
        )
    return find_target(cls, checkpoint.choice, source, values)


def _function_on_scores(checkpoint: Checkpoint, source: FoldSource) -> str:
    """Names what the source's own library puts on the scores; scikit-learn's sigmoid is the softmax of two here."""
    is_setfit = source.kind is FoldKind.SETFIT
    return Activation.SOFTMAX if is_setfit else own_activation(checkpoint.report, checkpoint.manifest)


def _describe_fold(
    checkpoint: Checkpoint, source: FoldSource, target: FoldTarget, fields: Mapping[str, Any], prompts: tuple[str, ...]
) -> HeadFold:
    settings = {**target.settings, **{name: fields[name] for name in (_PAD,) if name in fields}}
    before, report = {name: getattr(checkpoint.choice.config, name, None) for name in settings}, checkpoint.report
    return HeadFold(
        kind=source.kind,
        class_before="SetFitModel" if source.kind is FoldKind.SETFIT else report.model.class_name,
        formula_before=report.head.formula if report.head is not None and source.head.layers else source.head.formula,
        formula=target.formula,
        parameters=target.parameters,
        settings=changed_fields(before, settings),
        to_do=(*prompts, *_sentences_to_do(checkpoint, source, target, fields)),
    )


def _check_prompts(pipeline: SentencePipeline, folder: Path, prompts: Mapping[str, str]) -> None:
    """Raises DoesNotFold for prompts whose tokens the pooling leaves out: no class does, nor does a chain without them.

    The library computes so with `include_prompt: false`, an option of its Pooling.
    """
    for part in pipeline.parts if prompts else ():
        if part.name == "Pooling" and not settings_of_module(Folder(folder), part.folder).get("include_prompt", True):
            raise DoesNotFold(
                f"{part.folder} leaves the tokens of a prompt out (include_prompt: false), and {LIBRARY} has prompts: "
                f"{few_of(prompts)}"
            )


def _prompt_to_add(settings: Mapping[str, Any], prompts: Mapping[str, str]) -> tuple[str, ...]:
    """Says what the library adds to every text; nothing without a default prompt."""
    default = settings.get("default_prompt_name")
    if not isinstance(default, str) or default not in prompts:
        return ()
    prompt = json.dumps(prompts[default], ensure_ascii=False)
    place = "before a single text and before the first text of a pair, or as the system message of a chat"
    return (f"sentence-transformers puts the prompt {prompt} {place}: put it there yourself.",)


def _sentences_to_do(
    checkpoint: Checkpoint, source: FoldSource, target: FoldTarget, fields: Mapping[str, Any]
) -> Iterator[str]:
    """Yields what the library does to scores, and the caller to texts, beside the arithmetic of the head."""
    if target.kind is FoldKind.CHAIN:
        function = _function_on_scores(checkpoint, source)
        stated = checkpoint.manifest.sentence.activation if checkpoint.manifest.sentence is not None else ""
        if function == Activation.NOT_DETERMINED and stated:
            yield f"CrossEncoder puts {stated} on the class's scores, and none on the chain's: put it there yourself."
        elif function == Activation.NOT_DETERMINED:
            yield "Which function the scores had is not determined; CrossEncoder puts none on them."
        elif function not in (Activation.NONE, Activation.SIGMOID):
            yield f"CrossEncoder doesn't put {function} on the scores: put it there yourself."
        elif checkpoint.manifest.sentence is None and (function == Activation.SIGMOID) != (len(source.labels) == 1):
            # By default, CrossEncoder puts a sigmoid on the one score of a class, and nothing on several.
            here, there = ("a sigmoid", "none") if function == Activation.SIGMOID else ("no function", "a sigmoid")
            yield (
                f"CrossEncoder puts {here} on the scores of the chain (activation_fn in {LIBRARY}), as the pipeline of "
                f"Transformers does; on those of the class it puts {there} by default."
            )
    if source.kind is not FoldKind.CLASS and "problem_type" not in fields:
        function = checkpoint.report.model.activation
        yield f"No setting of config.json says that {function} is put on the scores: put it there yourself."
    elif source.kind is not FoldKind.CLASS and len(source.labels) > 1:
        kind = str(fields["problem_type"])
        yield f"config.json says problem_type {kind!r}: so a pipeline puts on the scores what CrossEncoder does."
    if source.kind is FoldKind.SETFIT:
        yield (
            f"headscope read the classifier's numbers from {SETFIT_HEAD}, and scikit-learn did not run: compare some "
            "probabilities with those of SetFit."
        )
    if source.rows:
        yield "The prompt stays with the caller: give the class each text in the prompt or chat template of before."


def _describe_scores(report: EditReport, fold: HeadFold, source: FoldSource) -> str:
    """Says what holds of the scores."""
    is_difference = len(source.labels) < len(source.rows)
    probability = f" Their sigmoid is the probability of {source.labels[0]}." if is_difference else ""
    is_setfit = source.kind is FoldKind.SETFIT
    read = f", as computed from its body and the numbers that headscope read in {SETFIT_HEAD}" if is_setfit else ""
    return f"The scores of {report.model_class} are those of {fold.class_before}{read}, up to rounding.{probability}"


_PROBLEMS = {function.value: kind for kind, function in FUNCTION_OF_PROBLEM.items()}
_PAD = "pad_token_id"


def _fields_of_scores(checkpoint: Checkpoint, source: FoldSource, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the fields of the configuration that keep the function on the scores, for programs and a CrossEncoder.

    A class of a language model needs the pad token too, to find the last token of each text in a batch.
    """
    found: dict[str, Any] = {}
    pipeline, function = checkpoint.manifest.sentence, checkpoint.report.model.activation
    if source.kind is FoldKind.TOKENS:
        function = Activation.SOFTMAX if len(source.labels) > 1 else Activation.SIGMOID
    elif source.rows and pipeline is not None:
        function = pipeline.activation.lower().replace("identity", Activation.NONE)
    if source.kind is not FoldKind.CLASS:
        is_constant = function == Activation.SOFTMAX and len(source.labels) == 1  # which Transformers refuses
        found |= {"problem_type": _PROBLEMS[function]} if function in _PROBLEMS and not is_constant else {}
        if getattr(checkpoint.choice.config, _PAD, None) is None:
            pad = open_tokenizer(checkpoint.location).pad_token_id
            found |= {_PAD: pad} if pad is not None else {}
    activation = settings.get("activation_fn")
    if isinstance(activation, str):
        found["sentence_transformers"] = {"activation_fn": activation}  # where it looks without modules.json
    return found


def _copy_others(place: Path, folder: Path, checkpoint: Checkpoint) -> tuple[str, ...]:
    manifest, contents = checkpoint.manifest, read_contents(folder)
    parts = manifest.sentence.parts if manifest.sentence is not None else ()
    modules = tuple(f"{part.folder}/" for part in parts if part.folder)
    weights = {*(file.name for file in manifest.files), *INDEXES}
    replaced = {name for name in contents.files if name in _SETTINGS or name.startswith(modules)}
    left = [item for item in left_behind(folder, contents, manifest) if item not in {*weights, *replaced, *modules}]
    taken = taken_names(contents.files, left, *weights, *replaced, "config.json", EDIT_RECORD)
    copy_files(folder, place, taken, link=False)
    _limit_texts(place, checkpoint)
    return tuple(left)


def _limit_texts(place: Path, checkpoint: Checkpoint) -> None:
    """Gives the tokenizer the length at which the library cuts texts."""
    most = checkpoint.manifest.sentence.max_length if checkpoint.manifest.sentence is not None else None
    path = place / TOKENIZER_CONFIG
    if most is None or not path.is_file():
        return
    settings = parse_object(path.read_bytes(), TOKENIZER_CONFIG)
    if settings.get("model_max_length") != most:
        write_json(path, settings | {"model_max_length": most})


def _proof_task(
    checkpoint: Checkpoint, source: FoldSource, target: FoldTarget, wish: EditWish, place: Path
) -> FoldTask:
    request = checkpoint.request
    return FoldTask(
        checkpoint.location.reference, str(place), source.kind, target.kind, target.kept, len(source.labels),
        request.tokens, request.labels, tuple(wish.texts), request.model_class, request.trust_remote_code,
    )  # fmt: skip


def _prove_fold(fold: HeadFold, task: FoldTask, exact: Values) -> HeadFold:
    """Adds the proof to the facts of a fold. Raises DoesNotFold for a result that isn't proven."""
    file = Path(task.result) / EXACT
    save_file({name: item.contiguous() for name, item in exact.items()}, file)
    found = prove_apart(prove_fold_here, task, lambda reason: FoldProof(reason=reason))
    file.unlink()
    if found.reason:
        raise DoesNotFold(f"the fold could not be proven: {found.reason}")
    proof = {name: getattr(found, name) for name in ("inputs", "max_difference", "tolerance")}
    return replace(fold, proven_with=found.library, to_do=(*fold.to_do, *found.notes), **proof)
