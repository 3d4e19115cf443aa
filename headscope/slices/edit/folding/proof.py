"""Proof of a fold: a separate process in which the source's own library and the folded folder score the same texts.

`python -m headscope.slices.edit.folding.proof` reads the task as JSON from standard input and prints a `FoldProof`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import transformers

from headscope.copies.facts import FoldKind
from headscope.copies.proving import answer_task, prove_in_process, same_bytes
from headscope.core.facts import Task
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.model.loading.inference import NO_LIMIT, open_tokenizer
from headscope.core.source.loading import choose_class
from headscope.core.source.reading.reading import loadable, read_checkpoint
from headscope.core.source.request import Request
from headscope.errors import HeadscopeError, Unsupported, first_line
from headscope.shared.trial.inputs import long_text, text_inputs
from headscope.slices.edit.folding.arithmetic import Values
from headscope.slices.edit.folding.source import read_values

_ROUNDINGS, _SUMS = 8, 64
"""How often rounding may add up: in units of the stored format if values were computed, and of single precision."""
_BATCH = 8
_SHORT_LIMIT = 512
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PACKAGES = {FoldKind.CHAIN: "sentence_transformers", FoldKind.VALUE: "trl"}
TextsToScore = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Task of the proof: the folders, what scored before and after, and the tensors that stay."""

    source: str
    result: str
    before: FoldKind
    after: FoldKind
    kept: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    """The tokens of a language model whose logits are the scores."""
    scores: int = 1
    texts: tuple[str, ...] = ()
    is_computed: bool = True
    """Whether a parameter was computed and rounded, not copied."""
    model_class: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class FoldProof:
    """Findings of the separate process; `reason` says why nothing is proven, and is "" for a proof."""

    library: str = ""
    inputs: int = 0
    max_difference: float = 0.0
    tolerance: float = 0.0
    notes: tuple[str, ...] = ()
    reason: str = ""


def package_of(kind: FoldKind) -> str:
    """Gives the package that computes the scores of a kind of head."""
    return _PACKAGES.get(kind, "transformers")


def prove_fold_apart(task: FoldTask) -> FoldProof:
    """Proves the fold in a new process."""
    found = prove_in_process("headscope.slices.edit.folding.proof", task, FoldProof)
    return found if isinstance(found, FoldProof) else FoldProof(reason=found)


def prove_fold_here(task: FoldTask) -> FoldProof:
    """Proves the fold in this process."""
    try:
        eps = _check_kept_tensors(task)
        package = package_of(task.before)
        library = f"{package} {importlib.import_module(package).__version__}"
        before = _SCORERS[task.before](task, task.source)
        after = _SCORERS[task.after](task, task.result)
        if task.before is FoldKind.CHAIN and task.rows:  # the library asks the language model in its own prompt
            after.encode = before.encode
        return replace(_compare_scores(task, before, after, eps), library=library)
    except HeadscopeError as err:
        return FoldProof(reason=err.message)
    except ImportError as err:
        return FoldProof(reason=f"a library can't be imported: {first_line(err)}")


def _check_kept_tensors(task: FoldTask) -> float:
    """Raises Unsupported if a tensor of the base model has changed; gives the rounding of the stored format."""
    options = {"model_class": task.model_class, "trust_remote_code": task.trust_remote_code}
    before = _read_folder(task.source, tokens=task.tokens, **options)
    after = _read_folder(task.result)
    changed = [name for name in task.kept if name not in after or not same_bytes(before[name], after[name])]
    if changed:
        raise Unsupported(f"the base model has changed: {few_of(changed)}", "")
    return max((torch.finfo(item.dtype).eps for item in after.values() if item.is_floating_point()), default=0.0)


def _read_folder(folder: str, **options: Any) -> Values:
    request = Request(Location(folder, hub=HubOptions(offline=True)), **options)
    manifest = read_checkpoint(request, None)
    return read_values(choose_class(request, manifest), loadable(request, manifest))


def _compare_scores(task: FoldTask, before: _Scorer, after: _Scorer, eps: float) -> FoldProof:
    limits = [min(item.tokenizer.model_max_length, NO_LIMIT) for item in (before, after)]
    texts = _texts_to_score(task, before.tokenizer, limits)
    notes = []
    if limits[0] != limits[1]:
        words = ["not cut" if limit == NO_LIMIT else f"cut at {limit:,} tokens" for limit in limits]
        notes.append(f"Long texts were {words[0]} before; now they are {words[1]}.")
    differing = [item for item in texts if before.ids(item) != after.ids(item)]
    if differing:
        raise Unsupported(f"the tokenizers before and after give {len(differing)} of {len(texts)} texts other IDs", "")
    own, new = before.score(texts, 1), after.score(texts, 1)
    if own.shape != new.shape:
        raise Unsupported(f"there were scores of the shape {list(own.shape)}, and now {list(new.shape)}", "")
    if not bool(own.isfinite().all() and new.isfinite().all()):
        raise Unsupported("some scores are not finite, so nothing is proven about them", "")
    if not bool((own.std(0) > 0).any()):
        raise Unsupported("the scores don't depend on the text, so nothing is proven", "")
    single = torch.finfo(torch.float32).eps
    scale = max(1.0, float(own.abs().max()), before.largest)
    tolerance = scale * max(_SUMS * single, _ROUNDINGS * eps if task.is_computed and eps > single else 0.0)
    apart = float((own - new).abs().max())
    if before.can_batch and after.can_batch:
        batch, padded = before.score(texts, _BATCH), after.score(texts, _BATCH)
        moved = float((own - batch).abs().max())
        if moved <= tolerance:
            apart = max(apart, float((padded - batch).abs().max()))
        else:  # the source's own scores depend on padding: the fold has to give those of single texts
            apart = max(apart, float((padded - own).abs().max()))
            notes.append(
                f"In padded batches the scores before the fold differ from those of single texts by up to {moved:.2g}; "
                "those of the result don't."
            )
    else:
        notes.append("Without a pad token, only single texts were compared.")
    reason = "" if apart <= tolerance else f"scores differ by up to {apart:.3g} (rounding explains {tolerance:.3g})"
    return FoldProof("", len(texts), apart, tolerance, tuple(notes), reason)


def _texts_to_score(task: FoldTask, tokenizer: Any, limits: Sequence[int]) -> TextsToScore:
    """Lists texts and pairs of different lengths; a text that is cut too, if both sides cut it at the same few."""
    kind = Task.SEQUENCE_CLASSIFICATION
    found = [*text_inputs(tokenizer, kind), *text_inputs(tokenizer, kind, takes_pairs=True)]
    is_short = limits[0] == limits[1] <= _SHORT_LIMIT
    long = [(long_text(tokenizer, limits[0]),)] if is_short else []
    return [*((text,) for text in task.texts), *(item.parts for item in found), *long]


@dataclass(slots=True)
class _Scorer:
    """A loaded model: `run` scores a batch of texts, with `encode` for their tensors.

    `largest` is the largest number that made a score.
    """

    tokenizer: Any
    encode: Callable[[TextsToScore], Mapping[str, torch.Tensor]]
    run: Callable[[TextsToScore], torch.Tensor]
    largest: float = 0.0

    @property
    def can_batch(self) -> bool:
        """True if texts of different lengths can be padded."""
        return self.tokenizer.pad_token is not None

    def ids(self, text: tuple[str, ...]) -> list[int]:
        """Lists the IDs of the tokens of a text or a pair."""
        return list(self.encode([text])["input_ids"][0].tolist())

    def score(self, texts: TextsToScore, size: int) -> torch.Tensor:
        """Scores texts and pairs in batches of one kind, in their order."""
        found: dict[int, torch.Tensor] = {}
        for parts in sorted({len(item) for item in texts}):
            places = [at for at, item in enumerate(texts) if len(item) == parts]
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                with torch.inference_mode():
                    found |= zip(batch, self.run([texts[at] for at in batch]).float().cpu(), strict=True)
        return torch.stack([found[at].reshape(-1) for at in range(len(texts))])


def _encode_texts(tokenizer: Any, texts: TextsToScore) -> Mapping[str, torch.Tensor]:
    pairs = [item[1] for item in texts if len(item) > 1]
    options = {"padding": len(texts) > 1, "truncation": tokenizer.model_max_length < NO_LIMIT}
    return dict(tokenizer([item[0] for item in texts], pairs or None, return_tensors="pt", **options))


def _open_tokenizer_in(folder: str) -> tuple[Any, Callable[[TextsToScore], Mapping[str, torch.Tensor]]]:
    tokenizer = open_tokenizer(Location(folder, hub=HubOptions(offline=True)))
    return tokenizer, partial(_encode_texts, tokenizer)


def _scorer_of_class(task: FoldTask, folder: str) -> _Scorer:
    """Loads a classifier with `from_pretrained` alone."""
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    gaps = [str(name) for part in ("missing_keys", "mismatched_keys", "unexpected_keys") for name in info[part]]
    if gaps:
        raise Unsupported(f"from_pretrained leaves {few_of(gaps)}", "")
    model.eval()
    tokenizer, encode = _open_tokenizer_in(folder)

    def run(texts: TextsToScore) -> torch.Tensor:
        found: torch.Tensor = model(**scorer.encode(texts)).logits
        return found

    scorer = _Scorer(tokenizer, encode, run)
    return scorer


def _scorer_of_chain(task: FoldTask, folder: str) -> _Scorer:
    """Loads a CrossEncoder, whose own `predict` scores."""
    library: Any = importlib.import_module("sentence_transformers")
    encoder = library.CrossEncoder(
        folder, device="cpu", local_files_only=True, trust_remote_code=task.trust_remote_code
    ).float()

    def encode(texts: TextsToScore) -> Mapping[str, torch.Tensor]:
        found = encoder.preprocess([item if len(item) > 1 else item[0] for item in texts], prompt="")
        return {name: found[name] for name in _INPUTS if name in found}

    def run(texts: TextsToScore) -> torch.Tensor:
        is_single = len(texts[0]) == 1
        if is_single and len(texts) > 1:  # predict takes a list of texts as one pair
            found: torch.Tensor = encoder(encoder.preprocess([item[0] for item in texts], prompt=""))["scores"]
            return found
        found = encoder.predict(
            texts[0][0] if is_single else list(texts),
            batch_size=len(texts),
            activation_fn=torch.nn.Identity(),
            convert_to_tensor=True,
            show_progress_bar=False,
            prompt="",
        )
        return found.reshape(len(texts), -1)

    return _Scorer(encoder.tokenizer, encode, run)


def _scorer_of_tokens(task: FoldTask, folder: str) -> _Scorer:
    """Loads a language model; its scores are logits of the last position, with padding on the left."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    model.eval()
    tokenizer, encode = _open_tokenizer_in(folder)
    tokenizer.padding_side = "left"

    def run(texts: TextsToScore) -> torch.Tensor:
        logits: torch.Tensor = model(**encode(texts)).logits[:, -1, list(task.rows)]
        scorer.largest = max(scorer.largest, float(logits.abs().max()))
        return logits if task.scores == len(task.rows) else logits[:, 1:] - logits[:, :1]

    scorer = _Scorer(tokenizer, encode, run)
    return scorer


def _scorer_of_values(task: FoldTask, folder: str) -> _Scorer:
    """Loads a language model with TRL's value head, whose value at the last token is the score."""
    library: Any = importlib.import_module("trl.experimental.ppo")
    model = library.AutoModelForCausalLMWithValueHead.from_pretrained(folder).float().eval()
    tokenizer, encode = _open_tokenizer_in(folder)
    tokenizer.padding_side = "right"

    def run(texts: TextsToScore) -> torch.Tensor:
        encoded = encode(texts)
        values = model(**encoded)[2]
        found: torch.Tensor = values[torch.arange(len(texts)), encoded["attention_mask"].sum(1) - 1]
        return found.reshape(len(texts), -1)

    return _Scorer(tokenizer, encode, run)


_SCORERS: dict[FoldKind, Callable[[FoldTask, str], _Scorer]] = {
    FoldKind.CHAIN: _scorer_of_chain,
    FoldKind.TOKENS: _scorer_of_tokens,
    FoldKind.VALUE: _scorer_of_values,
    FoldKind.CLASS: _scorer_of_class,
}

if __name__ == "__main__":
    answer_task(FoldTask, prove_fold_here)
