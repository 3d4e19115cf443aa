"""Proof of a fold: a separate process in which the source's own library and the folded folder score the same texts.

`python -m headscope.slices.edit.folding.proof` reads the task as JSON from standard input and prints a `FoldProof`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from headscope.copies.facts import FoldKind
from headscope.copies.proving import answer_task, same_bytes
from headscope.core.facts import Task
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.loading.inference import NO_LIMIT, load_model, open_tokenizer
from headscope.core.source.loading import choose_class
from headscope.core.source.reading.reading import loadable, read_checkpoint
from headscope.core.source.request import Request
from headscope.core.upstream.loaders import LoadRequest, load_with
from headscope.errors import HeadscopeError, Unsupported, first_line
from headscope.shared.trial.inputs import TextInput, encode_text, long_text, text_inputs
from headscope.slices.edit.folding.arithmetic import Values
from headscope.slices.edit.folding.source import read_setfit, read_values

EXACT = ".exact"
"""The file in the result, for the proof alone, with the computed parameters in single precision."""
_ROUNDINGS, _SUMS = 8, 64
"""How often rounding may add up, in relation to the largest number that makes a score: that of the stored format, and
of single precision.
"""
_BATCH = 8
_SHORT_LIMIT = 512
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PACKAGES = {
    FoldKind.CHAIN: "sentence_transformers", FoldKind.SETFIT: "sentence_transformers", FoldKind.VALUE: "trl",
}  # fmt: skip
_Encoded = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Task of the proof: the folders, what scored before and after, the tensors that stay, and the scores' number."""

    source: str
    result: str
    before: FoldKind
    after: FoldKind
    kept: tuple[str, ...]
    scores: int
    tokens: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
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


def prove_fold_here(task: FoldTask) -> FoldProof:
    """Proves the fold in this process."""
    package = package_of(task.before)
    options = {"tokens": task.tokens, "labels": task.labels, "model_class": task.model_class}
    try:
        library = f"{package} {importlib.import_module(package).__version__}"
        own = _choose_in(task.source, trust_remote_code=task.trust_remote_code, **options)
        exact = load_file(Path(task.result) / EXACT)
        eps = _check_stored_values(task, read_values(*own), read_values(*_choose_in(task.result)), exact)
        before = _scorer_of_source(task, *own)
        after = _scorer_of_chain(task, task.result) if task.after is FoldKind.CHAIN else _scorer_of_class(task.result)
        after.side = _RESULT
        texts, notes = _texts_to_score(task, before, after)
        found = _compare_scores(texts, before, after, exact, eps=eps)
        padding = () if found.reason else _compare_padding_in_texts(before, after, found.tolerance)
        return replace(found, library=library, notes=(*notes, *found.notes, *padding))
    except HeadscopeError as err:
        return FoldProof(reason=err.message)
    except ImportError as err:
        return FoldProof(reason=f"a library can't be imported: {first_line(err)}")


def _choose_in(folder: str, **options: Any) -> tuple[Choice, Location]:
    request = Request(Location(folder, hub=HubOptions(offline=True)), **options)
    manifest = read_checkpoint(request, None)
    return choose_class(request, manifest), loadable(request, manifest)


def _check_stored_values(task: FoldTask, before: Values, after: Values, exact: Values) -> float:
    """Raises Unsupported if a tensor of the base model has changed, or a computed one is not just rounded.

    Gives the rounding of the format in which the computed ones are stored.
    """
    changed = [name for name in task.kept if name not in after or not same_bytes(before[name], after[name])]
    if changed:
        raise Unsupported(f"the base model has changed: {few_of(changed)}", "")
    changed = [name for name, item in exact.items() if not same_bytes(item.to(after[name].dtype), after[name])]
    if changed:
        raise Unsupported(f"other values than the computed ones are stored: {few_of(changed)}", "")
    return max((torch.finfo(after[name].dtype).eps for name in exact), default=0.0)


def _texts_to_score(task: FoldTask, before: _Scorer, after: _Scorer) -> tuple[list[TextInput], tuple[str, ...]]:
    """Lists texts, then pairs, of different lengths, and what a user has to know about them, in sentences.

    A text that is cut is among them if both sides cut it at the same few tokens. Raises Unsupported for other IDs.
    """
    kind, tokenizer = Task.SEQUENCE_CLASSIFICATION, before.tokenizer
    limits = [min(item.tokenizer.model_max_length, NO_LIMIT) for item in (before, after)]
    found = [TextInput("text", (text,)) for text in task.texts]
    found += (*text_inputs(tokenizer, kind), *text_inputs(tokenizer, kind, takes_pairs=True))
    if limits[0] == limits[1] <= _SHORT_LIMIT:
        found.append(TextInput("long text", (long_text(tokenizer, limits[0]),)))
    encoders = before.encode, after.encode
    if before.asks:  # the library asks a language model in its own prompt, which stays with the caller
        encoders = _encoder_of(before.tokenizer), _encoder_of(after.tokenizer)
        after.encode = before.encode
    ids = [[encode([item])["input_ids"].tolist() for item in found] for encode in encoders]
    differing = sum(one != other for one, other in zip(*ids, strict=True))
    if differing:
        raise Unsupported(f"the tokenizers before and after give {differing} of {len(found)} texts other IDs", "")
    notes, words = [], ["not cut" if limit == NO_LIMIT else f"cut at {limit:,} tokens" for limit in limits]
    if limits[0] != limits[1]:
        notes.append(f"Long texts were {words[0]} before; now they are {words[1]}.")
    if not (before.can_batch and after.can_batch):
        notes.append("Without a pad token, only single texts were compared.")
    return sorted(found, key=lambda item: len(item.parts)), tuple(notes)


def _compare_scores(
    texts: Sequence[TextInput], before: _Scorer, after: _Scorer, exact: Values, *, eps: float
) -> FoldProof:
    """Compares the scores with the computed parameters in single precision, so that half precision hides nothing.

    Then it measures what rounding these parameters does to the scores; `eps` is the rounding of their format.
    """
    stored = {name: item.clone() for name, item in after.model.state_dict().items() if name in exact}
    after.model.load_state_dict(exact, strict=False)
    own, new = before.score(texts, 1), after.score(texts, 1)
    if own.shape != new.shape:
        raise Unsupported(f"there were scores of the shape {list(own.shape)}, and now {list(new.shape)}", "")
    apart, most, notes = _largest_of(own - new), _SUMS * torch.finfo(torch.float32).eps * before.largest, list[str]()
    if not bool((own.std(0) > most).any()):
        raise Unsupported("the scores don't depend on the text, so nothing is proven", "")
    if before.can_batch and after.can_batch:
        batch, padded = before.score(texts, _BATCH), after.score(texts, _BATCH)
        padding = _largest_of(padded - batch)
        if padding > most:  # the source's own scores may depend on it: the fold has to give those of single texts
            padding, moved = _largest_of(padded - own), _largest_of(batch - own)
            notes.append(
                f"In padded batches the scores before the fold differ from those of single texts by up to {moved:.2g}; "
                "those of the result don't."
            )
        apart = max(apart, padding)
    if apart <= most:
        after.model.load_state_dict(stored, strict=False)
        rounded = after.score(texts, 1)
        apart = max(apart, _largest_of(rounded - own))
        most += min(_largest_of(rounded - new), _ROUNDINGS * eps * before.largest)
    reason = "" if apart <= most else f"scores differ by up to {apart:.3g} (rounding explains {most:.3g})"
    return FoldProof("", len(texts), apart, most, tuple(notes), reason)


def _compare_padding_in_texts(before: _Scorer, after: _Scorer, most: float) -> tuple[str, ...]:
    """Says how scores differ for a text that ends in the token that pads: a class leaves it out, and reads another one.

    Raises Unsupported if the chat template of the source ends so.
    """
    tokenizer = before.tokenizer
    pad = tokenizer.pad_token
    if pad is None or before.asks:
        return ()
    texts = [f"{text_inputs(tokenizer, Task.SEQUENCE_CLASSIFICATION)[0].parts[0]} {pad}"]
    if getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": texts[0].removesuffix(pad).strip()}]
        with suppress(Exception):  # a template may want other roles
            texts += [
                tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=on) for on in (True, False)
            ]
    apart = [
        _largest_of(after.score([one], 1) - before.score([one], 1))
        for one in (TextInput("", (text,)) for text in texts)
    ]
    if max(apart[1:], default=0.0) > most:
        raise Unsupported(
            f"the chat template ends in {pad}, which is padding for the class: scores differ by {max(apart[1:]):.2g}; "
            "give the tokenizer and config.json a separate pad token first",
            "",
        )
    if apart[0] <= most:
        return ()
    told = f"A text that ends in {pad}, the token that pads, gets other scores (by {apart[0]:.2g})"
    return (f"{told}: the class reads the token before it.",)


def _largest_of(difference: torch.Tensor) -> float:
    """Gives the largest difference of two scores. Raises Unsupported if one isn't a number."""
    if not bool(difference.isfinite().all()):
        raise Unsupported("some scores are not finite, so nothing is proven about them", "")
    return float(difference.abs().max())


@dataclass(slots=True)
class _Scorer:
    """A loaded model: `run` scores a batch of texts or of pairs, with `encode` for their tensors.

    `side` is what sentences call it, `asks` is true for a library that puts texts into its own prompt, and
    `is_difference` if the second score minus the first one is the result. `largest` is the largest number that made a
    score.
    """

    model: Any
    tokenizer: Any
    encode: Callable[[Sequence[TextInput]], _Encoded]
    run: Callable[[_Scorer, Sequence[TextInput]], torch.Tensor]
    side: str = "the source"
    asks: bool = False
    is_difference: bool = False
    largest: float = 1.0

    @property
    def can_batch(self) -> bool:
        """True if texts of different lengths can be padded."""
        return self.tokenizer.pad_token is not None

    def score(self, texts: Sequence[TextInput], size: int) -> torch.Tensor:
        """Scores texts, then pairs, in batches of one kind."""
        rows = list[torch.Tensor]()
        with torch.inference_mode():
            for count, group in groupby(texts, key=lambda item: len(item.parts)):
                some = list(group)
                try:
                    rows += (self.run(self, some[at : at + size]) for at in range(0, len(some), size))
                except Exception as err:  # whatever a library raises for texts that it doesn't take
                    kind, cause = "pairs of texts" if count > 1 else "single texts", first_line(err)
                    what = f"scoring {kind} with {self.side} failed ({type(err).__name__}: {cause})"
                    step = "fold it into another class" if self.side == _RESULT else "make its own library score one"
                    raise Unsupported(f"{what}, so nothing can be proven", step) from err
            found = torch.cat(rows).float().cpu()
        self.largest = max(self.largest, float(found.abs().max()))
        return found[:, 1:] - found[:, :1] if self.is_difference else found


_RESULT = "the result"


def _encoder_of(tokenizer: Any) -> Callable[[Sequence[TextInput]], _Encoded]:
    return lambda texts: encode_text(tokenizer, texts, Task.SEQUENCE_CLASSIFICATION)


def _scorer_in(folder: str, model: Any, run: Callable[[_Scorer, Sequence[TextInput]], torch.Tensor]) -> _Scorer:
    tokenizer = open_tokenizer(Location(folder, hub=HubOptions(offline=True)))
    return _Scorer(model, tokenizer, _encoder_of(tokenizer), run)


def _scores_of_class(scorer: _Scorer, texts: Sequence[TextInput]) -> torch.Tensor:
    found: torch.Tensor = scorer.model(**scorer.encode(texts)).logits
    return found


def _scorer_of_class(folder: str) -> _Scorer:
    """Loads a classifier with `from_pretrained` alone."""
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    gaps = [str(name) for part in ("missing_keys", "mismatched_keys", "unexpected_keys") for name in info[part]]
    if gaps:
        raise Unsupported(f"from_pretrained leaves {few_of(gaps)}", "")
    return _scorer_in(folder, model.eval(), _scores_of_class)


def _scorer_of_source(task: FoldTask, choice: Choice, place: Location) -> _Scorer:
    """Loads what scored before, with its own library."""
    if task.before is FoldKind.CHAIN:
        return replace(_scorer_of_chain(task, task.source), asks=bool(choice.rows))
    if task.before is FoldKind.SETFIT:
        return _scorer_of_setfit(task)
    if task.before is FoldKind.VALUE:
        model = load_with("trl", LoadRequest(task.source, {}, {})).float().eval()
        scorer = _scorer_in(task.source, model, _scores_of_values)
        scorer.tokenizer.padding_side = "right"
        return scorer
    # Of tokens, it's Transformers' own model, whose logits at the last position are read.
    model = load_model(choice, place, torch.device("cpu"), torch.float32)
    scorer = replace(_scorer_in(task.source, model, _scores_of_class), is_difference=len(choice.rows) > task.scores)
    if choice.rows:
        scorer.tokenizer.padding_side = "left"
    return scorer


def _scores_of_values(scorer: _Scorer, texts: Sequence[TextInput]) -> torch.Tensor:
    """Gives the value at the last token, with TRL's value head."""
    encoded = scorer.encode(texts)
    found: torch.Tensor = scorer.model(**encoded)[2]
    return found[torch.arange(len(texts)), encoded["attention_mask"].sum(1) - 1].reshape(len(texts), -1)


def _scorer_of_chain(task: FoldTask, folder: str) -> _Scorer:
    """Loads a CrossEncoder, whose own `predict` scores."""
    return _scorer_in_library("CrossEncoder", task, folder, _scores_of_chain)


def _scores_of_chain(scorer: _Scorer, texts: Sequence[TextInput]) -> torch.Tensor:
    encoder = scorer.model
    if len(texts) > 1:  # predict takes a list of texts as one pair
        found: torch.Tensor = encoder(_preprocess_texts(encoder, texts))["scores"]
        return found
    found = encoder.predict(_as_given(texts[0]), activation_fn=torch.nn.Identity(), **_PLAIN)
    return found.reshape(1, -1)


def _scorer_of_setfit(task: FoldTask) -> _Scorer:
    """Loads the body of a SetFit model with its library; the classifier's numbers are read, and not unpickled."""
    weight, bias, is_normalized = read_setfit(Path(task.source))

    def run(scorer: _Scorer, texts: Sequence[TextInput]) -> torch.Tensor:
        vectors = scorer.model.encode([_as_given(item) for item in texts], normalize_embeddings=is_normalized, **_PLAIN)
        return torch.nn.functional.linear(vectors, weight, bias)

    return _scorer_in_library("SentenceTransformer", task, task.source, run)


def _scorer_in_library(
    name: str, task: FoldTask, folder: str, run: Callable[[_Scorer, Sequence[TextInput]], torch.Tensor]
) -> _Scorer:
    """Loads a folder with a class of sentence-transformers."""
    library: Any = importlib.import_module("sentence_transformers")
    options = {"device": "cpu", "local_files_only": True, "trust_remote_code": task.trust_remote_code}
    encoder = getattr(library, name)(folder, **options).float()

    def encode(texts: Sequence[TextInput]) -> _Encoded:
        return {name: value for name, value in _preprocess_texts(encoder, texts).items() if name in _INPUTS}

    return _Scorer(encoder.eval(), encoder.tokenizer, encode, run)


_PLAIN: dict[str, Any] = {"convert_to_tensor": True, "show_progress_bar": False, "prompt": ""}


def _preprocess_texts(encoder: Any, texts: Sequence[TextInput]) -> _Encoded:
    found: _Encoded = encoder.preprocess([_as_given(item) for item in texts], prompt="")
    return found


def _as_given(item: TextInput) -> str | tuple[str, ...]:
    return item.parts if len(item.parts) > 1 else item.parts[0]


if __name__ == "__main__":
    answer_task(prove_fold_here)
