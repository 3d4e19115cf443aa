"""`code`: a Python module with a classifier on a checkpoint, written without data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, get_args

from headscope.core.facts import CheckpointKind, Report
from headscope.core.facts.heads.head import classifier_weight
from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.stored.location import Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.request import Progress, Request
from headscope.errors import Unsupported, UsageError, did_you_mean
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import VectorName
from headscope.shell.values import make_request
from headscope.slices.probe.facts.data import Loading
from headscope.slices.probe.facts.result import Problem, Vector
from headscope.slices.probe.options import CodeOptions
from headscope.slices.probe.plan import TASK_OF

OTHER_VECTOR_NAMES = {"cls": "first_token", "first": "first_token", "mean": "masked_mean", "last": "last_non_pad_token"}
"""Other names that people use for them."""
_NO_LIMIT = 100_000
"""Number of positions from which a model limits no text in practice."""
_WITHOUT_LAYER = (Vector.HEAD, Vector.FIRST_LAST_MEAN, Vector.LAST_FOUR_CONCAT, Vector.LAST_FOUR_AVERAGE)


@use_case
def code(
    reference: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[CodeOptions],
) -> str:
    """Writes a Python module with a classifier: the class of the checkpoint, or a linear layer on another vector.

    The module loads the checkpoint, encodes inputs, gives features and scores, trains, and keeps what it trained; it
    needs PyTorch and Transformers, not headscope. No data are read, so nothing says which vector is best: `probe`
    measures that.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, or a local folder.
        options: See `CodeOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The text of the module. A linear layer that it adds is new, and has to be trained.

    Raises:
        UsageError: The pooling is unknown, or there is no such layer.
        HeadscopeError: The checkpoint can't be read, its head could not be determined, or its folder holds no
            tokenizer.

    Example:
        >>> import headscope
        >>> text = headscope.code("roberta-base", pooling="mean", labels=["bad", "good"], offline=True)
        >>> "def mean(state" in text
        True
    """
    vector, layer = _vector_named(options.pop("pooling", "head")), options.pop("layer", None)
    if layer is not None and vector in _WITHOUT_LAYER:
        raise UsageError(f"pooling {vector.value} takes no layer", "leave it out")
    request = make_request(reference, options)
    checkpoint = examine("inspect", request, progress)
    report = checkpoint.report
    place = checkpoint.location
    _refuse_what_cannot_be_loaded(report, request, place)
    if layer is not None:
        _check_layer(layer, checkpoint.manifest.config)
    from headscope.slices.probe.screen.code import module_code
    from headscope.slices.probe.screen.code_frame import ModuleFacts
    from headscope.slices.probe.screen.words import vector_words

    input, weight = _input_of(report, vector), classifier_weight(report.head) if report.head else None
    if input is Input.TEXT and checkpoint.manifest.kind is CheckpointKind.LOCAL:
        _check_tokenizer(checkpoint)
    if vector is Vector.HEAD and weight is None:
        raise Unsupported("the last layer of the head could not be determined", "name a vector: --pooling mean")
    positions = checkpoint.built.positions
    where = "" if vector in _WITHOUT_LAYER else " of the last layer" if layer is None else f" of layer {layer}"
    what = f"{vector_words(vector, input)}{where}"
    own = f"{report.model.class_name}, with its own head. `headscope code` wrote it without data."
    new = f"A new linear layer on a vector: {what}. `headscope code` wrote it without data."
    return module_code(
        ModuleFacts(
            origin=own if vector is Vector.HEAD else new,
            what=what,
            vector=vector,
            loading=Loading(
                reference=place.reference,
                revision=place.commit or place.revision,
                subfolder=place.subfolder,
                model_class=report.model.class_name,
                remote_code=request.trust_remote_code,
                input=input,
            ),
            labels=report.model.labels,
            problem=_problem_type_of(report),
            layer=-1 if layer is None else layer,
            max_tokens=positions if positions and positions < _NO_LIMIT else None,
            classifier=weight.name.rpartition(".")[0] if weight is not None else "",
            pooling=report.head.pooling.kind if report.head is not None else None,
        )
    )


def _vector_named(name: str) -> Vector:
    found = name.strip().lower().replace("-", "_")
    found = OTHER_VECTOR_NAMES.get(found, found)
    known = get_args(VectorName)
    if found not in known:
        hint = did_you_mean(found, known, f"one of {', '.join(known)}; `headscope probe` scores others on data")
        raise UsageError(f"no such pooling for code: {name!r}", hint)
    return Vector(found)


def _refuse_what_cannot_be_loaded(report: Report, request: Request, place: Location) -> None:
    """Checks that the module's `from_pretrained` loads what was examined. Raises Unsupported."""
    kind, hint = report.checkpoint.kind, "give a Hub ID or the folder of a checkpoint"
    if report.adapter is not None or kind is CheckpointKind.ADAPTER:
        raise Unsupported("code doesn't write modules with a PEFT adapter", "merge it into its base model first")
    # from_pretrained takes the folder of a weight file, and may load another file in it.
    is_file = Path(request.reference).is_file()
    if report.needs_repair:
        hint = f"run `headscope repair {shlex.quote(request.reference)} -o DIR`, and give DIR"
    if is_file or report.needs_repair or request.tokens or place.variant:
        raise Unsupported("code writes modules for checkpoints that from_pretrained loads as they are", hint)


def _check_layer(layer: int, config: Mapping[str, Any]) -> None:
    """Checks that the model has the layer, if its configuration gives their number. Raises UsageError."""
    from transformers import CONFIG_MAPPING

    from headscope.core.model.classes.model_config import build_config

    model_type = str(config.get("model_type"))
    built = build_config(CONFIG_MAPPING[model_type], dict(config)) if model_type in CONFIG_MAPPING else None
    count = getattr(built, "num_hidden_layers", None)
    # Transformers gives one hidden state more than there are layers: the embeddings come first.
    if type(count) is int and not -count - 1 <= layer <= count:
        raise UsageError(f"there is no layer {layer}", f"the last one is {count}; 0 is the embeddings")


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    """Checks that the folder holds a tokenizer. Raises Unsupported."""
    from headscope.core.source.tokenizer import read_tokenizer

    # For some families, Transformers makes a tokenizer without words from a folder that has none.
    read = read_tokenizer(checkpoint, checkpoint.report)
    if read.found is None and read.inapplicable:
        raise Unsupported(
            f"code needs a tokenizer: {read.inapplicable[0].reason}", "save it to the folder of the checkpoint"
        )


def _input_of(report: Report, vector: Vector) -> Input:
    """Gives the kind of input that the model scores. Raises Unsupported if no module can be written for it."""
    found = next((input for input, task in TASK_OF.items() if task == report.model.task), None)
    if found is None:
        raise Unsupported(
            f"code writes classifiers of whole inputs, and {report.model.class_name} is for {report.model.task}",
            "name a class or a task: --task sequence-classification",
        )
    if vector is not Vector.HEAD and found is not Input.TEXT:
        raise Unsupported(
            f"without data, code knows only the head's own vector for {found.noun}s", "use --pooling head, or probe"
        )
    return found


def _problem_type_of(report: Report) -> Problem:
    """Gives the problem type of the configuration; without one, regression for one label and one class for more."""
    if report.model.problem_type == Problem.SINGLE_LABEL and report.model.num_labels == 1:
        raise Unsupported(
            "problem_type is single_label_classification, which needs two labels or more",
            "give more labels, or save the checkpoint with problem_type regression",
        )
    if report.model.problem_type in {item.value for item in Problem}:
        return Problem(report.model.problem_type)
    return Problem.REGRESSION if report.model.num_labels == 1 else Problem.SINGLE_LABEL
