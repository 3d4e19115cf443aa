"""Facts, with counts, on what a model does with its inputs: called one by one, in batches, once more, at length."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from headscope.core.facts import Task
from headscope.core.facts.trial import BatchCure, RaisedError, RunScope, RunStep, RunTrial
from headscope.core.model.loading.inference import lacked_memory
from headscope.core.model.quiet import quiet
from headscope.errors import Unsupported, first_line
from headscope.shared.trial.encoded import (
    Encoded,
    Inputs,
    begins_with_cls,
    image_spread,
    is_empty,
    keeps_sizes,
    not_taken,
    unknown_share,
)

if TYPE_CHECKING:
    from torch import nn

_ALIKE = 5e-5
"""How far scores in single precision may be apart and count as the same, in relation to the largest one (at least 1).
Kernels sum in another order for another length: 1e-6 to 1e-5 were seen where nothing but the length differed."""
_ALIKE_NUMBERS = 1e-5
"""The same for a single score, which may be a number far from zero: a year, a price."""
_ALIKE_ROUNDINGS = 2
"""The same in half precision, in units of the format: scores that differ by more than the last bit aren't the same."""
_LAST_BITS = 4 * torch.finfo(torch.float32).eps
"""What the last addition of a score rounds, in relation to it: a bias of 1e4 leaves no more of what is added to it."""
_PADDED, _PADDED_ROUNDINGS = 1e-3, 16
"""How far a padded batch may be from single inputs: by a thousandth of what lies between the inputs' scores; half
precision rounds in each of some dozen layers."""
_PADDED_LEAST, _LITTLE = 2e-4, 0.1
"""The least that is a difference, in relation to the largest score: kernels that sum rows of another length in another
order were seen to come to 1e-5 in two to twelve layers. In half precision, scores below the second are near zero."""
_IN_BATCH = 4
_MORE_TURNS = 128
"""How often other words are put into a text before none of them counts as changing its scores: a classifier that looks
for a few words, and is sure, gives all ordinary texts the same scores, up to rounding."""

Encoder = Callable[[Sequence[Any]], Encoded]
SingleScores = Sequence[torch.Tensor | None]
"""Scores of each input, None for one on which the model or the tokenizer raises."""


@dataclass(frozen=True, slots=True)
class RunSubject:
    """A model with its inputs: `encode` makes the tensors of some, and `names` says in a report what each is.

    `changed` gives an input with another middle, or other content, None without; `longer` one of the most tokens that
    are tried, with their number. `pipeline` calls Transformers' pipeline on one input. `problem_type` is the
    configuration's.
    """

    model: nn.Module
    task: Task
    noun: str
    inputs: Sequence[Any]
    names: Sequence[str]
    encode: Encoder
    tokenizer: Any = None
    problem_type: str | None = None
    changed: Callable[..., Encoded | None] | None = None
    longer: Callable[[], tuple[Encoded, int] | None] | None = None
    pipeline: Callable[[], object] | None = None
    has_batches: bool = True
    """Whether `encode` takes several inputs."""
    library: str = ""
    """The class of another library that `pipeline` calls; empty for Transformers' pipeline."""
    left_out: str = ""
    """What wasn't called, and why."""
    rows: Sequence[int] = ()
    """The tokens whose logits at the last position are the scores, for a language model."""

    @property
    def takes_offset(self) -> bool:
        """True if an offset of all scores of a row makes no difference, as for a softmax over classes."""
        is_of_classes = self.task is not Task.QUESTION_ANSWERING  # a softmax over the tokens
        return is_of_classes and self.problem_type in (None, "single_label_classification")


@dataclass
class _Caller:
    """Calls the model, counts, and keeps what is raised."""

    subject: RunSubject
    calls: int = 0
    errors: Counter[tuple[RunStep, str, str]] = field(default_factory=Counter)
    dtype: torch.dtype = torch.float32

    def scores(self, encoded: Encoded) -> list[torch.Tensor]:
        """Calls the model and gives the scores of each input, [rows, classes]: one row, or one for each token.

        Raises whatever the model does.
        """
        model = self.subject.model
        self.calls += 1
        logits = call_model(model, encoded, next(iter(model.parameters())).device)
        if self.subject.rows and logits.dim() > 2:  # a class that gives the rows has picked them already
            logits = logits[:, -1, list(self.subject.rows)]
        self.dtype = logits.dtype
        found = logits.float().cpu()
        found = found.reshape(len(found), -1, found.shape[-1])
        mask = encoded.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.shape == found.shape[:2]:
            return [row[kept.bool()] for row, kept in zip(found, mask, strict=True)]
        return list(found)

    def tried(self, step: RunStep, name: str, encoded: Encoded) -> list[torch.Tensor] | None:
        """Scores an encoded input; None if the model raises, which is kept under a name."""
        try:
            return self.scores(encoded)
        except Exception as err:  # whatever a model raises
            self.errors[step, name, error_words(err)] += 1
            return None


def error_words(err: Exception) -> str:
    """Describes an error by its class and the first line of its message. Raises Unsupported if memory was lacking."""
    words = f"{type(err).__name__}: {first_line(err)}".rstrip(": .")
    if lacked_memory(err):
        raise Unsupported(f"there was too little memory to call it: {words}", "free some, or name a device") from err
    return words


def call_model(model: nn.Module, encoded: Encoded, device: torch.device) -> torch.Tensor:
    """Calls a model on encoded inputs, moved to a device, and gives the scores. Raises whatever the model does."""
    dtype = getattr(model, "dtype", None)  # of images and sounds, as Transformers' pipeline makes them
    dtype = dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else None
    given = {
        name: value.to(device, dtype if value.is_floating_point() else None) if torch.is_tensor(value) else value
        for name, value in encoded.items()
    }
    with quiet(), torch.no_grad():  # not inference_mode: what a forward keeps may be trained with later
        return logits_of(model(**given)).detach()


def logits_of(output: Any) -> torch.Tensor:
    """Finds the scores in what a model returns. Raises AttributeError if there are none."""
    logits = getattr(output, "logits", None)
    if logits is None and getattr(output, "start_logits", None) is not None:
        return torch.stack([output.start_logits, output.end_logits], -1)
    if logits is None and isinstance(output, tuple):
        logits = next((item for item in output if isinstance(item, torch.Tensor) and item.dim() > 1), None)
    if not isinstance(logits, torch.Tensor):
        raise AttributeError(f"{type(output).__name__} has no logits")
    return logits


def observe(subject: RunSubject) -> RunTrial:
    """Calls the model on its inputs, in the mode that it is in, and collects the facts."""
    caller = _Caller(subject)
    encoded = _encoded_inputs(caller)
    unknown = None if subject.tokenizer is None else unknown_share(subject.tokenizer, subject.names, encoded)
    if not all(map(is_empty, encoded)):  # a text of which the tokenizer leaves nothing is left out
        kept = [at for at, given in enumerate(encoded) if not is_empty(given)]
        encoded = [encoded[at] for at in kept]
        caller.subject = subject = replace(
            subject, inputs=[subject.inputs[at] for at in kept], names=[subject.names[at] for at in kept]
        )
    single: list[torch.Tensor | None] = []
    for given, name in zip(encoded, subject.names, strict=True):
        found = None if given is None else caller.tried(RunStep.SINGLE, name, given)
        single.append(None if found is None else found[0])
    scored = [item for item in single if item is not None]
    facts: dict[str, Any] = {"failed": len(single) - len(scored), "not_taken": not_taken(subject.model, encoded)}
    if scored:
        facts |= _observe_scores(caller, single, encoded)
    if subject.task is Task.IMAGE_CLASSIFICATION:
        facts |= {"keeps_sizes": keeps_sizes(encoded), "image_spread": image_spread(encoded)}
    if subject.tokenizer is not None:
        facts["unknown_tokens"] = unknown
        facts["begins_with_cls"] = begins_with_cls(subject.tokenizer, subject.names, encoded)
    if subject.pipeline is not None and scored:
        caller.calls += 1
        try:
            with quiet():
                subject.pipeline()
        except Exception as err:  # whatever a pipeline raises
            caller.errors[RunStep.PIPELINE, subject.library or "pipeline", error_words(err)] += 1
    batches = sum(step is RunStep.BATCH for step, _, _ in caller.errors) or int("batch_difference" in facts)
    return RunTrial(
        scope=RunScope(len(single), batches, caller.calls, str(next(iter(subject.model.parameters())).device)),
        noun=subject.noun,
        library=subject.library,
        left_out=facts.pop("left_out", "") or subject.left_out,
        dtype=str(caller.dtype).removeprefix("torch."),
        raised=tuple(RaisedError(name, error, count, step) for (step, name, error), count in caller.errors.items()),
        **facts,
    )


def _encoded_inputs(caller: _Caller) -> list[Encoded | None]:
    """Encodes the inputs; None for one that the tokenizer or processor raises an error for."""
    encoded = list[Encoded | None]()
    for one, name in zip(caller.subject.inputs, caller.subject.names, strict=True):
        try:
            encoded.append(caller.subject.encode([one]))
        except Exception as err:  # whatever a tokenizer or a processor raises
            caller.errors[RunStep.SINGLE, name, error_words(err)] += 1
            encoded.append(None)
    return encoded


def _observe_scores(caller: _Caller, single: SingleScores, encoded: Inputs) -> dict[str, Any]:
    """Collects the facts that need scores of at least one input."""
    scored = [item for item in single if item is not None]
    finite = [item for item in scored if bool(item.isfinite().all())]
    facts: dict[str, Any] = {"not_finite": len(scored) - len(finite)}
    first = next(at for at, item in enumerate(single) if item is not None)
    again = caller.tried(RunStep.AGAIN, "the same input again", encoded[first] or {})
    if again is not None and facts["not_finite"] == 0:
        facts["repeats_equal"] = _are_same(caller, again[0], scored[0], single)
    if not facts["not_finite"]:
        named = zip(single, caller.subject.names, strict=True)
        alone = [item for item, name in named if item is not None and name != "pair"]
        compared = alone if len(alone) > 1 else finite
        facts["all_alike"] = False  # one input alone shows nothing
        if len(compared) > 1:
            rows, added = _scores_by_class(caller, compared)
            bound = _bound_of_same(caller, rows.abs().amax(0), added.amax(0))
            facts["all_alike"] = bool((rows.amax(0) - rows.amin(0) <= bound).all())
        facts |= _observe_middle(caller, single, encoded)
        if (facts["all_alike"] or facts.get("ignores_middle")) and _some_words_matter(caller, single, encoded):
            facts |= {"all_alike": False, "ignores_middle": False}
        if facts.get("repeats_equal") is not False:  # noise in every call says nothing about padding
            facts |= _observe_batch(caller, single)
    facts |= _observe_length(caller)
    return facts


def _scores_by_class(caller: _Caller, scores: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Arranges scores of several inputs as [rows, classes], with what was added to get them, which rounds as well.

    If an offset makes no difference, each score is taken against the best of its row: one class that a bias of -1e9
    switches off doesn't hide what the others do, as it would in a mean.
    """
    rows = torch.cat([item.reshape(-1, item.shape[-1]) for item in scores])
    if caller.subject.takes_offset and rows.shape[-1] > 1:
        best = rows.amax(-1, keepdim=True)
        return rows - best, rows.abs().maximum(best.abs())
    return rows, rows.abs()


def _bound_of_same(caller: _Caller, sizes: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Computes how far scores of those sizes may be apart and count as the same."""
    if caller.dtype.itemsize < 4:
        return _ALIKE_ROUNDINGS * torch.finfo(caller.dtype).eps * added
    # Probabilities don't tell smaller differences than that of scores around 1; the numbers of a regression do.
    least = 0.0 if caller.subject.problem_type == "regression" else 1.0
    share = _ALIKE if sizes.shape[-1] > 1 else _ALIKE_NUMBERS
    return (share * sizes.clamp(min=least)).maximum(_LAST_BITS * added)


def _are_same(caller: _Caller, one: torch.Tensor, other: torch.Tensor, single: SingleScores) -> bool:
    """True if two inputs of one length have the same scores, up to the rounding of those of all `single` inputs.

    Of tokens, each is compared with itself: some models take a million from the scores of those that can't be answers.
    """
    if one.shape != other.shape:
        return False
    count = one.reshape(-1, one.shape[-1]).shape[0]
    every = [one, other] if count > 1 else [one, other, *(item for item in single if item is not None)]
    rows, added = _scores_by_class(caller, every)
    first, second = rows[:count], rows[count : 2 * count]
    if count > 1:
        bound = _bound_of_same(caller, first.abs().maximum(second.abs()), added[:count].maximum(added[count:]))
    else:
        bound = _bound_of_same(caller, rows.abs().amax(0), added.amax(0))
    return bool(((first - second).abs() <= bound).all())


def _observe_middle(caller: _Caller, single: SingleScores, encoded: Inputs) -> dict[str, Any]:
    """Tries whether the scores depend on what is between the first and the last token."""
    change = caller.subject.changed
    if change is None:
        return {}
    equal = 0
    for own, given in zip(single, encoded, strict=True):
        other = change(given) if own is not None and given is not None and equal < _IN_BATCH else None
        if other is None or own is None:
            continue
        found = caller.tried(RunStep.CHANGED, f"{caller.subject.noun} with other contents", other)
        if found is not None and not _are_same(caller, found[0], own, single):
            return {"ignores_middle": False}  # one that differs is enough
        equal += found is not None
    return {"ignores_middle": True} if equal > 1 else {}


def _some_words_matter(caller: _Caller, single: SingleScores, encoded: Inputs) -> bool:
    """True if some of the vocabulary's words change the scores of the longest text, tried group by group.

    It takes several times as long as the usual inputs, and is for models on which those changed nothing.
    """
    change = caller.subject.changed
    pairs = [(own, given) for own, given in zip(single, encoded, strict=True) if own is not None and given is not None]
    texts = [item for item in pairs if isinstance(item[1].get("input_ids"), torch.Tensor)]
    if change is None or not texts:
        return False
    own, given = max(texts, key=lambda item: int(item[1]["input_ids"].numel()))
    for turn in range(1, _MORE_TURNS):
        other = change(given, turn)
        found = None if other is None else caller.tried(RunStep.CHANGED, "text with other words", other)
        if found is None:
            return False
        if not _are_same(caller, found[0], own, single):
            return True
    return False


def _observe_batch(caller: _Caller, single: SingleScores) -> dict[str, Any]:
    """Compares the scores of a padded batch of inputs of different lengths with those of each input alone."""
    subject, tokenizer = caller.subject, caller.subject.tokenizer
    chosen = [at for at, item in enumerate(single) if item is not None][:_IN_BATCH]
    if (
        len(chosen) < 2
        or not subject.has_batches
        or subject.rows
        or subject.task in (Task.AUDIO_FRAME_CLASSIFICATION, Task.AUDIO_XVECTOR)
    ):
        return {}
    own = [item for at in chosen if (item := single[at]) is not None]
    batch = _Batch(caller, [subject.inputs[at] for at in chosen], own, _batch_bounds(caller, single))
    difference, bound, error = batch.compare()
    facts: dict[str, Any] = {"batch_bound": bound, "side": getattr(tokenizer, "padding_side", None)}
    if error:
        caller.errors[RunStep.BATCH, "batch", error] += 1
        return facts | {"batch_error": error}
    facts["batch_difference"] = difference
    if difference > bound and tokenizer is not None:
        facts["batch_cure"] = batch.find_cure()
    return facts


def _batch_bounds(caller: _Caller, single: SingleScores) -> torch.Tensor:
    """Computes how far the scores of each class in a padded batch may be from those of single inputs."""
    rows = torch.cat([item.reshape(-1, item.shape[-1]) for item in single if item is not None])
    largest, spread = rows.abs().amax(0), rows.amax(0) - rows.amin(0)
    if caller.dtype.itemsize < 4:
        return _PADDED_ROUNDINGS * torch.finfo(caller.dtype).eps * largest.clamp(min=_LITTLE)
    return (_PADDED * spread).maximum(_PADDED_LEAST * largest.clamp(min=1.0))


@dataclass(frozen=True)
class _Batch:
    """Some inputs, the scores of each alone, and how far those in a padded batch may be from them, by class."""

    caller: _Caller
    inputs: Sequence[Any]
    own: Sequence[torch.Tensor]
    bounds: torch.Tensor

    def compare(self, *, with_mask: bool = False) -> tuple[float, float, str]:
        """Compares the batch with single inputs; gives the difference of the worst class, its bound, and an error.

        The worst class is the farthest beyond its bound. The error is "" if there is a difference to give.
        """
        try:
            encoded = dict(self.caller.subject.encode(self.inputs))
            if with_mask:
                pad_token_id = self.caller.subject.tokenizer.pad_token_id
                encoded["attention_mask"] = encoded["input_ids"].ne(pad_token_id).long()
            found = self.caller.scores(encoded)
        except Exception as err:  # whatever a tokenizer or a model raises
            return math.inf, 0.0, error_words(err)
        if getattr(self.caller.subject.tokenizer, "padding_side", "right") == "left":
            found = [row[-len(one) :] for row, one in zip(found, self.own, strict=True)]
        else:  # without a mask, the scores of a tagger have rows for the padding too
            found = [row[: len(one)] for row, one in zip(found, self.own, strict=True)]
        if any(one.shape != other.shape for one, other in zip(found, self.own, strict=True)):
            return math.inf, 0.0, "the scores have another shape than those of single inputs"
        if not all(bool(row.isfinite().all()) for row in found):
            return math.inf, 0.0, "scores that are not finite"
        apart = (torch.cat(list(found)) - torch.cat(list(self.own))).abs().amax(0)
        worst = int((apart / self.bounds).argmax())
        return float(apart[worst]), float(self.bounds[worst]), ""

    def find_cure(self) -> BatchCure:
        """Finds what makes the batch equal: an attention mask that the tokenizer omits, the other side, or both."""
        tokenizer, model = self.caller.subject.tokenizer, self.caller.subject.model
        takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
        masks = [True] if takes_mask and "attention_mask" not in tokenizer.model_input_names else []
        side = tokenizer.padding_side
        other = "left" if side == "right" else "right"
        ways = [(mask, side) for mask in masks] + [(mask, other) for mask in (False, *masks)]
        try:
            for with_mask, padding_side in ways:
                tokenizer.padding_side = padding_side
                difference, bound, _ = self.compare(with_mask=with_mask)
                if difference <= bound:
                    parts = ["attention_mask"] * with_mask + [f"padding_side={other}"] * (padding_side == other)
                    return BatchCure(" and ".join(parts))
            return BatchCure.NONE
        finally:
            tokenizer.padding_side = side


def _observe_length(caller: _Caller) -> dict[str, Any]:
    """Tries whether the longest text raises an error."""
    try:
        found = caller.subject.longer() if caller.subject.longer is not None else None
    except Exception as err:  # whatever a tokenizer raises
        caller.errors[RunStep.LONG, "long text", error_words(err)] += 1
        return {}
    if found is None:
        return {}
    encoded, length = found
    try:
        is_finite = all(bool(item.isfinite().all()) for item in caller.scores(encoded))
    except Exception as err:  # whatever a model raises
        if lacked_memory(err):  # of this machine; the other calls had enough
            return {"left_out": f"a text of {length:,} tokens was not called: there was too little memory"}
        return {"fails_at_length": length, "length_error": error_words(err), "longest": length}
    failure = {} if is_finite else {"fails_at_length": length, "length_error": "scores that are not finite"}
    return {"longest": length, **failure}
