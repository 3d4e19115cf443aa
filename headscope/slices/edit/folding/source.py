"""A head that is folded: its layers, its tensors, and the library that scores texts with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headscope.copies.facts import FoldKind
from headscope.core.checkpoints.contents.sentence import SETFIT, SETFIT_HEAD
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.pickle.scikit_pickle import read_linear_classifier
from headscope.core.facts import HiddenSource, Positions, ScoreHead, Where
from headscope.core.facts.counting import counted
from headscope.core.facts.report import find_missing, find_without_place
from headscope.core.facts.stored.checkpoint import architectures_in
from headscope.core.facts.stored.location import Location
from headscope.core.facts.stored.sentence import PickledHead, SentencePipeline
from headscope.core.facts.stored.unplaced import describe_unplaced
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.token_rows import with_few_tokens
from headscope.core.model.loading.inference import load_model
from headscope.core.model.quiet import quiet
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.trace.layers import HeadLayer, LayeredHead, LayerKind, read_layers
from headscope.core.upstream.torch import on_meta
from headscope.errors import Unsupported, UsageError, first_line
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values

DIFFERENCE = "yes - no"
"""The name of the matrix that makes one score of two."""


@dataclass(frozen=True, slots=True, eq=False)
class FoldSource:
    """A head that is folded, what computes it now, and the names of its scores."""

    kind: FoldKind
    head: LayeredHead
    labels: tuple[str, ...]
    rows: tuple[int, ...] = ()
    """The tokens whose logits are the scores, or whose difference is the one score."""


def read_source(checkpoint: Checkpoint, scores: int | None) -> FoldSource:
    """Reads the layers of a checkpoint's head; `scores` is how many the fold of two tokens is to have.

    Raises DoesNotFold for scores that no class has, Unsupported for a head that is not known or not whole.
    """
    choice, report = checkpoint.choice, checkpoint.report
    pipeline = checkpoint.manifest.sentence
    if pipeline is not None and not (checkpoint.request.model_class or checkpoint.request.tokens):
        _check_modules(pipeline)
        if pipeline.head is not None:
            return _source_of_setfit(pipeline, pipeline.head, Path(checkpoint.location.reference))
    _check_what_computes(checkpoint)
    missing = find_missing(report)
    if missing.head or missing.elsewhere:
        name = (*missing.head, *missing.elsewhere)[0]
        has_tokens = any(item.endswith("ForCausalLM") for item in architectures_in(checkpoint.manifest.config))
        hint = "name two tokens whose logits are the scores: --tokens no,yes" if has_tokens else "train the head first"
        raise Unsupported(f"the checkpoint doesn't give {name}, so its scores are random", hint)
    if choice.chain is None and choice.head is None and (unplaced := find_without_place(report)):
        what = f"{describe_unplaced(unplaced)}: no class takes them, and the model that was saved may have"
        raise DoesNotFold(f"the checkpoint holds {what} (`headscope explain HS112`)")
    if scores is not None and not choice.rows:
        raise UsageError("--scores counts the scores of two tokens", "leave it out, or add --tokens NO,YES")
    if choice.rows:
        return _source_of_tokens(checkpoint, scores)
    if choice.chain is not None and not choice.chain.score_count:
        raise DoesNotFold("the chain gives an embedding and no scores: no class of Transformers returns one")
    if choice.head is not None and (not isinstance(choice.head, ScoreHead) or choice.head.name == "lm_head"):
        raise DoesNotFold("the head scores each token, and which of them is read isn't in the checkpoint")
    head = _read_head(checkpoint, choice.cls, choice.config)
    kind = FoldKind.CHAIN if choice.chain is not None else FoldKind.CLASS
    if choice.head is not None:
        # TRL, LlamaFactory and OpenRLHF take the value of the last token that is not padding as the reward.
        kind, head = FoldKind.VALUE, replace(head, positions=Positions(Where.LAST_NON_PAD))
    return FoldSource(kind, head, report.model.labels)


def _check_what_computes(checkpoint: Checkpoint) -> None:
    """Raises Unsupported for weights that are packed, and for a class of the checkpoint's own that isn't run."""
    model, request = checkpoint.report.model, checkpoint.request
    if model.quantization is not None:
        raise Unsupported("the weights are quantized, and a fold computes with them", "fold the original")
    if model.is_saved_by_own_code and not request.model_class:
        what = f"{model.saved_class}, a class of the checkpoint's own code, makes the scores, and was not run"
        raise Unsupported(
            what, f"--trust-remote-code runs it; or --model-class {model.class_name}, if that is the same"
        )


def _check_modules(pipeline: SentencePipeline) -> None:
    """Raises Unsupported for files of modules that are broken, missing or contradict each other."""
    fault = pipeline.reason or next(
        (f"{part.folder} ({part.name}): {part.fault}" for part in pipeline.parts if part.fault), ""
    )
    if fault:
        raise Unsupported(f"the checkpoint's modules can't be used: {fault}", "download it or save it again")


def _source_of_setfit(pipeline: SentencePipeline, head: PickledHead, folder: Path) -> FoldSource:
    """Reads SetFit's classifier. Raises DoesNotFold for one that isn't the last layer of its body."""
    if head.fault:
        raise DoesNotFold(head.fault)
    weight, _, _ = read_setfit(folder)
    labels, size = head.labels, pipeline.vector_size
    if len(weight) != len(labels):
        raise DoesNotFold(
            f"the classifier scores {counted(len(weight), 'class', 'classes')}, and {len(labels)} have names"
        )
    if doubled := [name for name, count in Counter(labels).items() if count > 1]:
        raise DoesNotFold(f"several classes have the name {doubled[0]}: give each its own in {SETFIT}")
    if size is not None and weight.shape[1] != size:
        raise DoesNotFold(f"the classifier takes {weight.shape[1]} features, and the modules before it give {size}")
    plain = LayeredHead((), "", None, HiddenSource(), f"{head.class_name}(embedding)")
    return FoldSource(FoldKind.SETFIT, plain, labels)


def read_setfit(folder: Path) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Reads SetFit's classifier without running its pickle: weight [classes, features], bias, and if it normalizes.

    The one score of two classes becomes two, of which the first is 0: their softmax is its sigmoid. Raises DoesNotFold
    for another classifier, Malformed for a file that is broken.
    """
    try:
        weight, bias = map(torch.tensor, read_linear_classifier(LocalBytes(folder / SETFIT_HEAD, SETFIT_HEAD)))
    except Unsupported as err:
        raise DoesNotFold(err.message, err.hint) from err
    if len(weight) == 1:
        weight, bias = (torch.cat([torch.zeros_like(item), item]) for item in (weight, bias))
    settings = folder / SETFIT
    is_normalized = settings.is_file() and parse_object(settings.read_bytes(), SETFIT).get("normalize_embeddings")
    return weight.float(), bias.float(), bool(is_normalized)


def build_on_meta(cls: Any, config: Any) -> Any:
    """Builds a class without memory for its weights. Raises Unsupported if its configuration can't be built."""
    try:
        with quiet(), on_meta():
            return cls(config).train(False)
    except Exception as err:  # whatever a foreign constructor raises
        raise Unsupported(f"{cls.__name__} can't be built from config.json: {first_line(err)}", "") from err


def _read_head(checkpoint: Checkpoint, cls: Any, config: Any) -> LayeredHead:
    model = build_on_meta(cls, config)
    try:
        return read_layers(model, checkpoint.choice.task)
    except Unsupported as err:
        chain = checkpoint.choice.chain
        width = getattr(config.get_text_config(), "hidden_size", None)
        # Vectors of several poolings are concatenated: the width is then another.
        parts = chain.chain[1:] if chain is not None and len(chain.pooling) == 1 else ()
        dense = next((part for part in parts if part.name == "Dense"), None)
        if dense is not None and width is not None and dense.input_size not in (None, width):
            raise DoesNotFold(
                f"{dense.folder} takes {dense.input_size} features, and the base model gives {width}",
                "save the model again, with the modules that belong to it",
            ) from err
        which = f"Pooling {', '.join(chain.pooling)}: " if chain is not None and chain.pooling else ""
        raise DoesNotFold(f"{which}{err.message}") from err


def _source_of_tokens(checkpoint: Checkpoint, scores: int | None) -> FoldSource:
    """Reads the head of a language model: the rows of one or two tokens."""
    choice, labels = checkpoint.choice, checkpoint.report.model.labels
    small, config, _ = with_few_tokens(choice.cls, choice.config, len(choice.rows))
    head = _read_head(checkpoint, small, config)
    rows = tuple(row.id for row in choice.rows)
    if scores not in {None, len(rows)} and (scores != 1 or len(rows) > 2):
        raise UsageError(f"--scores {scores} is not 1 or the number of tokens, {len(rows)}", "leave it out")
    named = checkpoint.manifest.sentence is not None and not checkpoint.request.tokens
    if named and scores == 2:
        raise UsageError("the CrossEncoder has one score, yes minus no", "leave out --scores")
    # The rows are picked in the matrix of the vocabulary: what comes after it computes single scores.
    layers = [replace(layer, rows=rows) if layer.kind is LayerKind.LINEAR else layer for layer in head.layers]
    layers = [layer for layer in layers if layer.kind is not LayerKind.ROWS]
    if len(rows) == 2 and scores != 2:
        # sentence-transformers' LogitScore subtracts too, and the softmax of two logits is the sigmoid of the
        # difference.
        layers.append(HeadLayer(LayerKind.LINEAR, DIFFERENCE, DIFFERENCE))
        labels = labels[1:]
    kind = FoldKind.CHAIN if named else FoldKind.TOKENS
    return FoldSource(kind, replace(head, layers=tuple(layers)), labels, rows)


def read_values(choice: Choice, place: Location) -> Values:
    """Loads the tensors of a checkpoint, by the names that they have in the class that headscope reads it as."""
    values: Values = load_model(choice, place, torch.device("cpu")).state_dict()
    return {**values, DIFFERENCE: torch.tensor([[-1.0, 1.0]])}
