"""Half precision: used where sample texts have the vectors of float32, said and given up where they don't."""

from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing import tiny
from probing.made import TEXTS, add, keep_base_model
from transformers import AutoConfig, BertForSequenceClassification

from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.model_request import Choice
from headscope.facts import Task
from headscope.slices.probe.hidden import opening
from headscope.slices.probe.hidden.features import Reader, extract_features, padding_of_vectors, run_batch
from headscope.slices.probe.hidden.opening import HALF_TOLERANCE, InputSource, open_reader


def source(folder: Path, stored: str = "bfloat16", **changes: Any) -> InputSource:
    choice = Choice(BertForSequenceClassification, Task.SEQUENCE_CLASSIFICATION, AutoConfig.from_pretrained(folder))
    return InputSource(choice, Location(str(folder)), stored, "classifier", **changes)


def in_half(given: InputSource, *, may_refuse: bool, dtype: torch.dtype = torch.bfloat16) -> Reader:
    """As `auto` does on a GPU: PyTorch's CPU computes in bfloat16 too."""
    tokenizer = opening.open_tokenizer(given.place)
    return opening._open_in_half(given, tokenizer, torch.device("cpu"), dtype, TEXTS, may_refuse=may_refuse)


def test_auto_is_float32_on_the_cpu(bert: Path) -> None:
    BertForSequenceClassification.from_pretrained(bert).to(torch.bfloat16).save_pretrained(bert)
    reader = open_reader(source(bert), "cpu", "auto", TEXTS)
    assert reader.model.dtype is torch.float32
    assert (reader.precision.dtype, reader.precision.stored, reader.precision.change) == ("float32", "bfloat16", None)


def test_half_precision_is_compared_with_float32_on_sample_texts(bert: Path) -> None:
    reader = in_half(source(bert), may_refuse=True)
    assert reader.model.dtype is torch.bfloat16
    found = reader.precision
    assert (found.dtype, found.tolerance, found.texts) == ("bfloat16", HALF_TOLERANCE, 8)
    wide, tokenizer = tiny.load(bert, "bert")
    narrow = BertForSequenceClassification.from_pretrained(bert, dtype=torch.bfloat16).eval()
    lengths = [len(tokenizer(text)["input_ids"]) for (text,) in TEXTS]
    order = np.argsort(lengths, kind="stable")
    sample = [TEXTS[order[place]][0] for place in np.linspace(0, len(order) - 1, 8).round().astype(int)]
    changes = []
    for text in sample:
        with torch.no_grad():
            one, other = (
                model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True) for model in (wide, narrow)
            )
        means = [
            (a[0].mean(0), b[0].float().mean(0)) for a, b in zip(one.hidden_states, other.hidden_states, strict=True)
        ]
        firsts = [(a[0, 0], b[0, 0].float()) for a, b in zip(one.hidden_states, other.hidden_states, strict=True)]
        pairs = [*means, *firsts, (one.logits[0], other.logits[0].float())]
        changes.append(max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs))
    assert found.change is not None
    assert max(changes) <= found.change * 1.001
    assert found.change < 10 * max(changes)


def test_auto_gives_half_precision_up_where_vectors_change(bert: Path) -> None:
    add(bert, "bert.embeddings.LayerNorm.bias", 200)  # differences that bfloat16 rounds away, made large again
    given = source(bert)
    refused = in_half(given, may_refuse=True)
    assert refused.model.dtype is torch.float32
    assert refused.precision.dtype == "float32"
    assert refused.precision.change is not None
    assert refused.precision.change > HALF_TOLERANCE
    asked = in_half(given, may_refuse=False)
    assert (asked.model.dtype, asked.precision.dtype) == (torch.bfloat16, "bfloat16")
    assert asked.precision.change == refused.precision.change


@pytest.mark.parametrize("may_refuse", [True, False])
def test_an_overflow_in_half_precision_is_told_and_gives_it_up(bert: Path, may_refuse: bool) -> None:
    add(bert, "classifier.bias", 1e5)  # float16 ends at 65,504
    reader = in_half(source(bert), may_refuse=may_refuse, dtype=torch.float16)
    assert reader.model.dtype is (torch.float32 if may_refuse else torch.float16)
    assert reader.precision.change is None
    assert bool(run_batch(reader, [TEXTS[0]]).vectors[None].isfinite().all()) is may_refuse


def test_padding_that_breaks_vectors_has_no_size(bert: Path, tmp_path: Path) -> None:
    reader = open_reader(source(bert), "cpu", "auto", TEXTS)
    extract = partial(extract_features, reader, TEXTS, batch_size=4, tell=lambda sentence: None)
    (tmp_path / "before").mkdir()
    before = extract(tmp_path / "before").seen
    pad = reader.tokenizer.pad_token_id

    def break_padded(module: Any, given: Any, named: Any, made: torch.Tensor) -> torch.Tensor:
        return made * torch.nan if bool((named["input_ids"] == pad).any()) else made

    hook = reader.model.bert.embeddings.register_forward_hook(break_padded, with_kwargs=True)
    lengths = np.array([len(reader.tokenizer(text)["input_ids"]) for (text,) in TEXTS])
    effects = padding_of_vectors(reader, TEXTS, lengths)
    (tmp_path / "after").mkdir()
    after = extract(tmp_path / "after").seen
    hook.remove()
    assert before.effects and after.effects == ()
    assert {(effect.change, effect.holds) for effect in effects.values()} == {(inf, False)}


def test_weights_that_were_drawn_are_the_same_in_both(bert: Path) -> None:
    """Another dtype draws other values from one seed."""
    keep_base_model(bert)
    new = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")
    reader = in_half(source(bert, new=new), may_refuse=True)
    assert reader.precision.change is not None
    assert reader.precision.change < HALF_TOLERANCE


def test_without_memory_for_float32_half_precision_is_used_and_not_compared(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_batch

    def short(reader: Reader, texts: Any) -> Any:
        if reader.model.dtype is torch.float32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(reader, texts)

    monkeypatch.setattr(opening, "run_batch", short)
    reader = in_half(source(bert), may_refuse=True)
    assert (reader.precision.dtype, reader.precision.tolerance) == ("bfloat16", None)
