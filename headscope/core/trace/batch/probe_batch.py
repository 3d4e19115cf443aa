"""Probe batches: dummy inputs and labels on which a head shows which tokens it reads.

Rows differ in padding (none, right, left), every row holds one `<eos>` that is not its last token, and the batch and
sequence sizes occur nowhere else in the model, so that its size identifies every axis of every shape.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from headscope.core.facts import Shape, Task
from headscope.core.facts.stored.checkpoint import LABEL_MAPS
from headscope.core.trace.batch.inputs import MAKERS, ProbeRow, Sizes, make_pixels, mask_of_rows
from headscope.core.upstream.optional.peft_prompts import PromptCaller
from headscope.core.upstream.transformers import text_config_of
from headscope.errors import Unsupported

# At least as many rows as there are ways of padding (5), so that each occurs. The numbers are those that sizes of
# models seldom are: no 8, 12 or 16, which count heads, layers and features.
_BATCH_SIZES = (5, 7, 9, 11, 13, 17, 19, 21, 22, 23, 25, 26, 29, 31, 34, 35, 37, 38, 39, 41, 43, 46, 47)
_BATCH_SIZES_OF_IMAGES = (5, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
# Primes: no product of other sizes (heads by head size, rows by choices) equals one, so an axis of that size is the
# text.
_LENGTHS = (11, 13, 17, 19, 23, 27, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)
_FEWER_ROWS, _FEWER_IMAGES = (4, *range(6, 48)), range(2, 48)
"""Rows of the later runs: as few as possible, because a model in memory keeps what it computes until it is read."""
_LONG = 23
"""Tokens in the texts of the later runs, at least, where the model takes that many: beyond a `[:, :20]`."""
LONGEST_TEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")
# RoBERTa counts positions from behind the pad token: of 514 positions, texts can use 512.
RESERVED_POSITIONS = 4
# Left and right of the text. Both sides, or "the last token" and "the last that is not padding" would be one position;
# different amounts, or an index from the end could pass for a rule on padding; one row without any, as people's own
# batches have, where code that looks for the first pad token finds none.
_PADDING = ((0, 0), (0, 2), (3, 0), (0, 4), (1, 0))
# Behind `<eos>` two more tokens, or the rule "at <eos>" would look like "the last that is not padding".
_EOS_FROM_END = 2


@dataclass(frozen=True, slots=True)
class ProbeBatch:
    """Dummy inputs with the sizes and positions that let an observer name what is read.

    `length` is 0 for inputs that have no token axis of free length (pixels); `rows` are those that the
    base model sees: every choice of every example is one. `given` names the inputs whose values are a caller's own:
    what a head finds by them (a length, its own token) does not follow from the padding of the rows. `examples`
    are the caller's inputs before they were stretched to `inputs`; None where the inputs are made up.
    """

    inputs: dict[str, Any]
    labels: dict[str, Any]
    sizes: Sizes
    rows: tuple[ProbeRow, ...]
    given: frozenset[str] = frozenset()
    examples: Mapping[str, Any] | None = None

    @property
    def length(self) -> int:
        """Tokens in a row; 0 where the inputs count no tokens."""
        return self.sizes.length

    @property
    def batch(self) -> int:
        """Rows that the base model sees."""
        return self.sizes.batch * self.sizes.choices

    def shape(self, sizes: torch.Size | tuple[int, ...]) -> Shape:
        """Replaces the sizes of varying axes by their names."""
        names = {size: name for name, size in self.axis_sizes().items()}
        return tuple(names.get(size, size) for size in sizes)

    def axis_sizes(self) -> dict[str, int]:
        """Returns the sizes of the varying axes, by their names."""
        sizes = self.sizes
        rows = "batch*choices" if sizes.choices > 1 else "batch"
        named = {"batch": sizes.batch}
        if sizes.choices > 1:
            named |= {"choices": sizes.choices, rows: self.batch}
        if sizes.length:
            named |= {"sequence": sizes.length, f"{rows}*sequence": self.batch * sizes.length}
        return named

    def resized(self, batch: int, length: int, rows: tuple[ProbeRow, ...]) -> "ProbeBatch":
        """Repeats or cuts the inputs to `batch` and `length`, with the padding of `rows` (none: no texts).

        A probe without padding stays without it.
        """
        # It may have been built without padding because the model fails with it.
        if all(row.last - row.first == self.length - 1 for row in self.rows):
            rows = tuple(ProbeRow(0, length - 1, row.eos) for row in rows)
        sizes = Sizes(batch, length)
        inputs = {name: resize_input(value, self.sizes, sizes) for name, value in self.inputs.items()}
        mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
        kept = mask_of_rows(rows, length)
        if rows and isinstance(mask, torch.Tensor) and mask.shape == kept.shape:
            inputs["attention_mask"] = kept.to(mask)
        if rows and isinstance(ids, torch.Tensor) and ids.shape == kept.shape and "input_ids" not in self.given:
            inputs["input_ids"] = self._with_special_tokens(ids, kept, rows)
        return replace(self, inputs=inputs, labels={}, sizes=sizes, rows=rows)

    def _with_special_tokens(self, ids: torch.Tensor, kept: torch.Tensor, rows: tuple[ProbeRow, ...]) -> torch.Tensor:
        """Puts pad tokens where nothing is kept and one end token into each row, taken from this probe's own ids."""
        own = self.inputs["input_ids"]
        widths = [row.last - row.first for row in self.rows]
        at = widths.index(min(widths))
        # The row with the most padding surely shows the pad token, at its beginning or at its end.
        padded = self.rows[at]
        pad, end = own[at, 0 if padded.first else -1], own[at, padded.eos]
        ids = torch.where((ids == end) | (ids == pad), own[at, padded.first], ids)
        for number, row in enumerate(rows):
            ids[number, row.eos] = end
        return torch.where(kept.to(ids.device), ids, pad)

    def with_token(self, token: int) -> "ProbeBatch":
        """Puts a token into the middle of every other text; unchanged if the caller gave the ids."""
        ids = self.inputs.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.shape[:2] != (self.batch, self.length) or "input_ids" in self.given:
            return self
        ids = ids.clone()
        for at, row in list(enumerate(self.rows))[::2]:
            ids[at, (row.first + row.last) // 2] = token
        return replace(self, inputs={**self.inputs, "input_ids": ids}, labels={})

    def one_row(self, at: int) -> "ProbeBatch":
        """Keeps only row `at`, for a model that reads one text of each example."""

        def row_of(values: dict[str, Any]) -> dict[str, Any]:
            return {name: value[at : at + 1] if self._has_rows(value) else value for name, value in values.items()}

        sizes = Sizes(1, self.sizes.length)
        return replace(
            self, inputs=row_of(self.inputs), labels=row_of(self.labels), sizes=sizes, rows=self.rows[at : at + 1]
        )

    def without_padding(self) -> "ProbeBatch":
        """Replaces the padding of each row with a token of its text."""
        inputs, last = dict(self.inputs), self.length - 1
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        if isinstance(ids := inputs.get("input_ids"), torch.Tensor) and ids.shape[:2] == (self.batch, self.length):
            inputs["input_ids"] = ids = ids.clone()
            for at, row in enumerate(self.rows):
                ids[at, : row.first] = ids[at, row.first]
                ids[at, row.last + 1 :] = ids[at, row.first]
        return replace(self, inputs=inputs, labels={}, rows=tuple(ProbeRow(0, last, row.eos) for row in self.rows))

    def of_one_token(self) -> "ProbeBatch":
        """Removes the padding and cuts the rows after their first token."""
        whole = self.without_padding()
        inputs = {name: value[:, :1] if self._has_tokens(value) else value for name, value in whole.inputs.items()}
        sizes = Sizes(self.sizes.batch, 1)
        return replace(whole, inputs=inputs, sizes=sizes, rows=tuple(ProbeRow(0, 0, 0) for _ in self.rows))

    def _has_tokens(self, value: Any) -> bool:
        return self._has_rows(value) and value.dim() > 1 and value.shape[1] == self.length

    def _has_rows(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == self.sizes.batch


def passed_probe(caller: PromptCaller, task: Task, *sizes: Any, **options: Any) -> ProbeBatch:
    """Builds a probe as it reaches the model inside when PEFT is called with it. Raises Unsupported where PEFT raises.

    PEFT puts virtual tokens before the tokens of each text.
    """
    probe = build_probe(caller.base, task, *sizes, ahead=caller.ahead, **options)
    return pass_on(caller, probe) if caller.ahead else probe


def pass_on(caller: PromptCaller, probe: ProbeBatch) -> ProbeBatch:
    """Turns a probe for PEFT's model into one for the model inside; its sizes and rows count the virtual tokens
    already.

    Raises Unsupported where PEFT raises.
    """
    try:
        passed = caller.passed_inputs({**probe.inputs, **probe.labels})
    except Exception as err:  # whatever PEFT raises
        raise Unsupported(f"PEFT raises {type(err).__name__}: {err}", "") from err
    labels = {name: passed.pop(name) for name in probe.labels if name in passed}
    return replace(probe, inputs=passed, labels=labels)


def resize_input(value: Any, before: Sizes, after: Sizes) -> Any:
    """Repeats or cuts the rows of a tensor, and the columns of one with tokens; anything else stays as it is."""
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != before.batch:
        return value
    resized = value.index_select(0, torch.arange(after.batch, device=value.device) % before.batch)
    if before.length and value.dim() > 1 and value.shape[1] == before.length:
        resized = resized.index_select(1, torch.arange(after.length, device=value.device) % before.length)
    return resized


def build_probe(
    model: PreTrainedModel,
    task: Task,
    avoid: frozenset[int] = frozenset(),
    turn: int = 0,
    *,
    with_image: bool = False,
    with_labels: bool = True,
    ahead: int = 0,
) -> ProbeBatch:
    """Makes inputs that `model.forward` accepts for `task`; no varying axis has a size of `avoid`.

    With `with_image` every text has an image, for models of both that take no text alone. `ahead` counts the virtual
    tokens that come before the tokens of these inputs: sizes and rows count them too, and rows are padded on the right.

    Each `turn` has other sizes (with those of the turns before in `avoid`), other tokens, and other rows padded: what
    two turns show alike follows from the model, not from the inputs.
    """
    names = [name for name in inspect.signature(model.forward).parameters if name in MAKERS]
    if model.main_input_name in MAKERS and model.main_input_name not in names:
        names.insert(0, model.main_input_name)
    is_text = "input_ids" in names or ("inputs" in names and task is not Task.IMAGE_CLASSIFICATION)
    # An axis is recognized by its size, so no parameter and no number of the configuration may have the same one.
    dimensions = {size for parameter in model.parameters() for size in parameter.shape}
    most = longest_text(model.config)
    lengths = lengths_of_turn(turn, None if most is None else most - ahead)
    sizes = free_sizes(
        dimensions | set(integers(model.config)) | {model.config.num_labels or 0} | avoid,
        has_tokens=is_text,
        has_choices=task is Task.MULTIPLE_CHOICE,
        lengths=tuple(length + ahead for length in lengths),
        turn=turn,
    )
    rows = make_rows(sizes, turn, sided=not ahead)
    # What PEFT gets has the tokens of the text alone; behind its virtual tokens, the rows are where `rows` says.
    given = replace(sizes, length=sizes.length - ahead)
    texts = tuple(ProbeRow(row.first, row.last - ahead, row.eos - ahead) for row in rows)
    inputs: dict[str, Any] = {}
    for name in names:
        value = MAKERS[name](model, given, texts, task)
        if value is not None:
            inputs[name] = value
    if with_image:
        inputs["pixel_values"] = make_pixels(model, sizes, task)
    labels = make_labels(model, task, given) if with_labels else {}
    return ProbeBatch(inputs, labels, sizes, rows if sizes.length else ())


def integers(value: Any) -> Iterator[int]:
    """Yields every integer in nested configuration values; truth values don't count."""
    match value:
        case bool():
            return
        case int():
            yield value
        case PreTrainedConfig():
            yield from integers(vars(value))
        case dict():
            for name, item in value.items():
                if name not in LABEL_MAPS:  # a label's number is not a size
                    yield from integers(item)
        case list() | tuple():
            for item in value:
                yield from integers(item)


def make_rows(sizes: Sizes, turn: int = 0, *, sided: bool = True) -> tuple[ProbeRow, ...]:
    """Makes the rows of a probe, padded differently one after the other; all choices of one example are padded alike.

    The first row of the first turn has no padding; in later turns every row has some. Without `sided`, all of it is on
    the right.
    """
    # The first turn has seen a row without padding. In later turns every row is padded, so what is read of padding
    # shows in each of them.
    padding: tuple[tuple[int, int], ...] = _PADDING[1:] if turn else _PADDING
    padding = padding if sided else tuple((0, left + right) for left, right in padding)
    sides = [padding[index // sizes.choices % len(padding)] for index in range(sizes.batch * sizes.choices)]
    ends = ((left, sizes.length - 1 - right) for left, right in sides)
    return tuple(ProbeRow(left, last, last - _EOS_FROM_END) for left, last in ends)


def lengths_of_turn(turn: int, most: int | None = None) -> tuple[int, ...]:
    """Lists the lengths to try, in order: short texts first, in later turns long ones; none beyond `most`."""
    fitting = tuple(length for length in _LENGTHS if most is None or length <= most) or _LENGTHS[:1]
    return tuple(sorted(fitting, key=lambda length: length < _LONG)) if turn else fitting


def longest_text(config: Any) -> int | None:
    """Returns the most tokens that a text may have, less the positions that some families reserve; None without a
    limit.
    """
    found = most_positions(config)
    return None if found is None else found - RESERVED_POSITIONS


def most_positions(config: Any) -> int | None:
    """Returns the smallest number of positions that a configuration names; None if it names none."""
    text = None if config is None else text_config_of(config)
    found = [value for name in LONGEST_TEXT if type(value := getattr(text, name, None)) is int and value > 0]
    return min(found, default=None)


def free_sizes(
    taken: set[int], *, has_tokens: bool, has_choices: bool = False, lengths: tuple[int, ...] = _LENGTHS, turn: int = 0
) -> Sizes:
    """Picks the first batch, length and number of choices that nothing else in the model has."""
    of_texts, of_images = (_FEWER_ROWS, _FEWER_IMAGES) if turn else (_BATCH_SIZES, _BATCH_SIZES_OF_IMAGES)
    batches = of_texts if has_tokens else of_images
    lengths = lengths if has_tokens else (0,)
    choices = (3, 6, 10, 14, 15, 18, 20) if has_choices else (1,)
    for length in lengths:
        for batch in batches:
            for choice in choices:
                sizes = Sizes(batch, length, choice)
                if not _has_ambiguous_sizes(sizes, taken):
                    return sizes
    # Every size is taken: axes may be named wrongly in this run, and the next turn, with other sizes, contradicts it.
    return Sizes(next(iter(batches)), lengths[0], choices[0])


def _has_ambiguous_sizes(sizes: Sizes, taken: set[int]) -> bool:
    """True if two axes would have the same size, or one has a size that is taken."""
    rows = sizes.batch * sizes.choices
    used = [sizes.batch]
    if sizes.choices > 1:
        used += [sizes.choices, rows]
    if sizes.length:
        used += [sizes.length, rows * sizes.length]
    return len(set(used)) < len(used) or bool(set(used) & taken)


def make_labels(model: PreTrainedModel, task: Task, sizes: Sizes) -> dict[str, Any]:
    """Makes the label arguments of `model.forward` for `task`; empty if their form is not known."""
    if task is Task.QUESTION_ANSWERING:
        position = torch.ones(sizes.batch, dtype=torch.long)
        return {"start_positions": position, "end_positions": position.clone()}
    if task is Task.TOKEN_CLASSIFICATION:
        return {"labels": torch.zeros(sizes.batch, sizes.length, dtype=torch.long)}
    # The number of frames follows from the model's convolutions, so the shape of the labels isn't known here.
    if task is Task.AUDIO_FRAME_CLASSIFICATION:
        return {}
    if task in (Task.MULTIPLE_CHOICE, Task.NEXT_SENTENCE_PREDICTION):
        return {"labels": torch.zeros(sizes.batch, dtype=torch.long)}
    return {"labels": _sequence_labels(model, sizes.batch)}


def _sequence_labels(model: PreTrainedModel, batch: int) -> torch.Tensor:
    count, problem = model.config.num_labels or 1, getattr(model.config, "problem_type", None)
    if problem == "multi_label_classification":
        return torch.zeros(batch, count, device=model.device)
    if problem == "regression" or (problem is None and count == 1):
        return torch.zeros(batch, *((count,) if count > 1 else ()), device=model.device)
    return torch.zeros(batch, dtype=torch.long)
