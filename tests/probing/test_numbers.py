"""The numbers beside the answer, against numpy on a plain forward of each text alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing import tiny
from probing.made import LINES, TEXTS, extracted

from headscope.errors import UsageError
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.candidates import list_vectors
from headscope.slices.probe.hidden.numbers import dead_dimensions, feature_numbers, mean_cosine

ONE_WORD = [("w11",), ("w12",), *TEXTS]


def states_of(folder: Path, name: str) -> list[Any]:
    """For each text its hidden states: layers, tokens, numbers."""
    model, tokenizer = tiny.load(folder, name)
    with torch.no_grad():
        given = [tokenizer(text, return_tensors="pt")["input_ids"] for (text,) in ONE_WORD]
        return [
            torch.stack(model(input_ids=ids, output_hidden_states=True).hidden_states)[:, 0].numpy() for ids in given
        ]


def cosine(one: Any, other: Any) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_first_token_and_the_cosines_are_those_of_plain_forwards(name: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", name)
    features = extracted(name, folder, 4, ONE_WORD).features
    found = feature_numbers(list_vectors(features), features)
    states = states_of(folder, name)
    assert [len(text[0]) for text in states].count(1) == (
        0 if name == "bert" else sum(" " not in t for (t,) in ONE_WORD)
    )
    several = [text for text in states if text.shape[1] > 1]
    for item in found.layers:
        norms = [np.linalg.norm(text[item.layer], axis=1) for text in several]
        assert item.first_share == pytest.approx(np.mean([row[0] / row.sum() for row in norms]), abs=1e-6)
        means = [(text[item.layer].mean(0), text[item.layer][1:].mean(0)) for text in several]
        assert item.cosine_without == pytest.approx(np.mean([cosine(*pair) for pair in means]), abs=1e-6)
    assert len(found.layers) == features.seen.layers
    rows = [text[1].mean(0) for text in states]
    pairs = [cosine(one, other) for place, one in enumerate(rows) for other in rows[:place]]
    numbers = {item.name: item for item in found.vectors}
    assert numbers["masked_mean-1"].anisotropy == pytest.approx(np.mean(pairs), abs=1e-6)
    assert numbers["masked_mean-1"].dead == 0
    assert (found.fewest_tokens, found.most_tokens) == (
        min(t.shape[1] for t in states),
        max(t.shape[1] for t in states),
    )
    if name == "bert":  # [CLS] is the same vector for every text
        assert (numbers["first_token-0"].dead, round(numbers["first_token-0"].anisotropy or 0, 6)) == (32, 1.0)


def test_dead_dimensions_and_cosines_of_matrices() -> None:
    matrix = np.array([[1, 2, 0, 1e6], [1, 3, 0, 1e6 + 0.06], [1, 4, 0, 1e6]], dtype=np.float32)
    assert dead_dimensions(matrix) == 3
    assert mean_cosine(np.eye(3, dtype=np.float32)) == pytest.approx(0)
    assert mean_cosine(np.zeros((3, 2), dtype=np.float32)) is None
    assert mean_cosine(np.ones((1, 2), dtype=np.float32)) is None


def test_what_padding_changes_is_measured(tmp_path: Path) -> None:
    """GPT-2 counts positions from the left, padding included: on the left it moves them."""
    for side, moves in (("left", True), ("right", False)):
        folder = tiny.save(tmp_path / side, "gpt2", side=side)
        features = extracted("gpt2", folder).features
        model, tokenizer = tiny.load(folder, "gpt2")
        by_length = sorted(LINES, key=lambda text: len(tokenizer(text)["input_ids"]))
        pair = [by_length[-1], by_length[0]]
        with torch.no_grad():
            batch = tokenizer(pair, padding=True, return_tensors="pt")
            together = model(**batch, output_hidden_states=True).hidden_states[1]
            alone = [
                model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[1]
                for text in pair
            ]
        last = [(one[0, -1], other[-1 if side == "left" else int(mask.sum()) - 1]) for one, other, mask in
                zip(alone, together, batch["attention_mask"], strict=True)]  # fmt: skip
        change = max(float((one - other).abs().max() / one.abs().max()) for one, other in last)
        found = {item.name: item.padding for item in feature_numbers(list_vectors(features), features).vectors}
        assert found["last_non_pad_token-1"] == pytest.approx(change, rel=1e-3, abs=1e-6)
        assert (change > 1e-3) is moves
        assert features.seen.padded is not moves
        assert found["mean_and_max-2"] == max(found["masked_mean-2"] or 0, found["max-2"] or 0)


def test_without_texts_of_different_lengths_padding_is_not_measured(bert: Path) -> None:
    given = [("w11 w12",), ("w13 w14",)]
    features = extracted("bert", bert, 2, given).features
    assert {item.padding for item in feature_numbers(list_vectors(features), features).vectors} == {None}


def test_truncated_texts_are_those_with_more_tokens_than_the_model_takes(bert: Path) -> None:
    given = [(" ".join(["w10"] * count),) for count in (37, 38, 39, 60)]  # the limit is 40, two of them special
    features = extracted("bert", bert, 8, given).features
    tokens = features.seen.tokens
    assert (tokens.fewest, tokens.most, tokens.limit, tokens.truncated) == (39, 62, 40, 2)
    [note] = features.seen.notes
    assert note.startswith("2 texts of 4 (50.0%) ") and " 40 tokens " in note
    assert np.array_equal(features.parts[Vector.MASKED_MEAN, 0][2], features.parts[Vector.MASKED_MEAN, 0][3])


def test_texts_of_one_token_have_vectors_and_no_mean_without_the_first(tmp_path: Path) -> None:
    given = [("w11",), ("w12",), ("w13",)]
    features = extracted("llama", tiny.save(tmp_path / "llama", "llama"), 2, given).features
    assert features.seen.layer_numbers == ()
    for layer in range(features.seen.layers):
        first = features.parts[Vector.FIRST_TOKEN, layer]
        np.testing.assert_allclose(first, features.parts[Vector.MASKED_MEAN, layer], atol=1e-6)
        np.testing.assert_array_equal(first, features.parts[Vector.LAST_NON_PAD_TOKEN, layer])


def test_a_text_without_a_token_is_refused(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "llama", "llama")
    with pytest.raises(UsageError, match=r"no token .*''"):
        extracted("llama", folder, 2, [("w11",), ("",)])
