"""The stored vectors against a plain forward of each text alone, under any batching and padding side."""

import errno
import shutil
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing import tiny
from probing.made import LINES, TEXTS, add, extracted

from headscope.errors import Unsupported
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.candidates import list_vectors
from headscope.slices.probe.hidden.features import Reader, extract_features
from tests.families import FAMILIES

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "albert": ("albert", {}),
    "electra": ("electra", {}),
    "deberta-v2": ("deberta-v2", {}),
    "modernbert": ("modernbert", {}),
    "xlnet, left": ("xlnet", {"side": "left"}),
    "bert, left": ("bert", {"side": "left"}),
    "gpt2, right": ("gpt2", {}),
    "gpt2, left": ("gpt2", {"side": "left"}),
    "gpt2 without a pad token": ("gpt2", {"pads": False}),
    "llama, right": ("llama", {}),
    "llama, left": ("llama", {"side": "left"}),
    "llama without a pad token": ("llama", {"pads": False}),
    "qwen2, left, with an end": ("qwen2", {"side": "left", "eos": True}),
    "mistral, right": ("mistral", {}),
    "bart": ("bart", {"eos": True}),
    "t5": ("t5", {"eos": True}),
    "xlm-roberta": ("xlm-roberta", {}),
    "mpnet": ("mpnet", {}),
    "convbert": ("convbert", {}),
    "roformer": ("roformer", {}),
    "gpt-neox, left": ("gpt-neox", {"side": "left"}),
    "opt": ("opt", {}),
    "bloom, left": ("bloom", {"side": "left"}),
}


READ_BY_HEAD = {"bert": (Vector.POOLER, None), "llama": (Vector.LAST_NON_PAD_TOKEN, 2)}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, options = CASES[request.param]
    return name, tiny.save(tmp_path_factory.mktemp("model"), name, **options)


def plain(model: Any, tokenizer: Any, text: str) -> dict[tuple[Vector, int | None], torch.Tensor]:
    """What each vector is, from one text alone: nothing is padded, so every position is a token of it."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        output = model(input_ids=ids, output_hidden_states=True)
        base = getattr(model, model.base_model_prefix)
        own = base(input_ids=ids) if "pooler" in dict(base.named_children()) else None
    states = output.hidden_states if "hidden_states" in output else output.encoder_hidden_states
    found: dict[tuple[Vector, int | None], torch.Tensor] = {}
    for layer, state in enumerate(states):
        assert state.shape[:2] == ids.shape
        found[Vector.FIRST_TOKEN, layer] = state[0, 0]
        found[Vector.MASKED_MEAN, layer] = state[0].mean(0)
        found[Vector.LAST_NON_PAD_TOKEN, layer] = state[0, -1]
    found[Vector.MAX, len(states) - 1] = states[-1][0].max(0).values
    if tokenizer.eos_token_id is not None:
        found[Vector.EOS_TOKEN, len(states) - 1] = states[-1][0, (ids[0] == tokenizer.eos_token_id).nonzero()[-1, 0]]
    if own is not None and own.get("pooler_output") is not None:
        found[Vector.POOLER, None] = own.pooler_output[0]
    found[Vector.HEAD, None] = output.logits[0]
    return found


def test_vectors_equal_those_of_each_text_alone_under_any_batch_size(case: tuple[str, Path]) -> None:
    name, folder = case
    model, tokenizer = tiny.load(folder, name)
    (classifier,) = [item for item in model.modules() if isinstance(item, torch.nn.Linear) and item.out_features == 3]
    expected = [plain(model, tokenizer, text) for text in LINES]
    logits = np.stack([row[Vector.HEAD, None].numpy() for row in expected])
    for size in (1, 4, 64):
        features = extracted(name, folder, size).features
        assert features.seen.not_determined == ()
        assert set(features.parts) == set(expected[0])
        for part, stored in features.parts.items():
            if part[0] is Vector.HEAD:
                with torch.no_grad():
                    made = classifier(torch.from_numpy(np.array(stored)))
                np.testing.assert_allclose(made, logits, rtol=0, atol=1e-4)
                continue
            wanted = np.stack([row[part].numpy() for row in expected])
            np.testing.assert_allclose(stored, wanted, rtol=0, atol=1e-5, err_msg=f"{part} in batches of {size}")
        np.testing.assert_allclose(features.scores, logits, rtol=0, atol=1e-5)
        if name in READ_BY_HEAD:
            np.testing.assert_array_equal(features.parts[Vector.HEAD, None], features.parts[READ_BY_HEAD[name]])


def test_vectors_of_several_layers_are_made_of_the_stored_ones(bert: Path) -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification", num_hidden_layers=5, num_labels=3)
    model.save_pretrained(bert)
    features = extracted("bert", bert).features
    loaded, tokenizer = tiny.load(bert, "bert")
    made = {item.pooling: item.make() for item in list_vectors(features)}
    for row, text in enumerate(LINES):
        with torch.no_grad():
            states = loaded(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        first = [state[0, 0] for state in states]
        wanted = {
            Vector.LAST_FOUR_CONCAT: torch.cat(first[-4:]),
            Vector.LAST_FOUR_AVERAGE: torch.stack(first[-4:]).mean(0),
            Vector.FIRST_LAST_MEAN: (states[1][0].mean(0) + states[-1][0].mean(0)) / 2,
            Vector.MEAN_AND_MAX: torch.cat([states[-1][0].mean(0), states[-1][0].max(0).values]),
        }
        for vector, value in wanted.items():
            np.testing.assert_allclose(made[vector][row], value, rtol=0, atol=1e-5, err_msg=vector.value)


def test_pairs_of_texts_are_encoded_as_pairs(bert: Path) -> None:
    pairs = list(pairwise(LINES))
    features = extracted("bert", bert, 4, pairs).features
    model, tokenizer = tiny.load(bert, "bert")
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(*pair, return_tensors="pt")).logits for pair in pairs])
    np.testing.assert_allclose(features.scores, logits, rtol=0, atol=1e-5)


def test_too_large_a_batch_is_halved(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = extracted("bert", bert, 16).features
    assert expected.seen.padded
    forward = type(tiny.load(bert, "bert")[0]).forward

    def small(self: Any, input_ids: torch.Tensor, **given: Any) -> Any:
        if len(input_ids) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **given)

    monkeypatch.setattr("transformers.BertForSequenceClassification.forward", small)
    model, tokenizer = tiny.load(bert, "bert")
    (tmp_path / "halves").mkdir()
    reader = Reader(model, tokenizer, torch.device("cpu"))
    reader.takes = frozenset({"input_ids", "attention_mask", "token_type_ids"})
    features = extract_features(reader, TEXTS, tmp_path / "halves", batch_size=16, tell=lambda step: None)
    assert "memory" in features.seen.notes[0] and " 16 texts" in features.seen.notes[0]
    for part, stored in features.parts.items():
        np.testing.assert_allclose(stored, expected.parts[part], rtol=0, atol=1e-5)


ONE_NAN = torch.tensor([nan] + [0.0] * 31)


def test_vectors_with_nan_are_named_and_the_others_kept(bert: Path) -> None:
    features = extracted("bert", add(bert, "bert.pooler.dense.bias", ONE_NAN)).features
    assert {gap.topic for gap in features.seen.not_determined} == {"pooler", "head"}
    assert "23 texts of 23 gave NaN" in features.seen.not_determined[0].reason
    with pytest.raises(Unsupported, match="no vector"):
        extracted("bert", add(bert, "bert.embeddings.LayerNorm.bias", ONE_NAN))


def test_vectors_that_cannot_be_written_name_their_folder(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(np.lib.format, "open_memmap", refuse)
    with pytest.raises(Unsupported, match=rf"{tmp_path / 'features'}.*: File too large"):
        extracted("bert", bert)


def test_a_full_disk_is_told_before_the_pass(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match=r"23 texts need .* GB free"):
        extracted("bert", bert)
