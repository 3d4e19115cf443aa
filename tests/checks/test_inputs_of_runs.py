"""The inputs of a run: which texts, images and sounds there are, and what tokenizers and processors make of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from headscope.core.model.loading.inference import NO_LIMIT
from headscope.errors import Unsupported
from headscope.facts import Task
from headscope.shared.trial import inputs
from tests.verdicts.runs import SPECIAL, WORDS, make_tokenizer

SENTENCES = inputs.SENTENCES


@pytest.fixture(scope="module")
def english() -> Any:
    return make_tokenizer("english", "Bert")


# ---- texts


def test_texts_of_a_classifier_are_sentences_texts_of_the_vocabulary_and_pairs(english: Any) -> None:
    found = inputs.text_inputs(english, Task.SEQUENCE_CLASSIFICATION)
    assert [item.name for item in found] == ["text"] * 6 + ["text of the vocabulary"] * 6 + ["pair"] * 2
    assert [item.parts for item in found[:6]] == [(text,) for text in SENTENCES]
    assert [len(item.parts[0].split()) for item in found[6:12]] == [3, 5, 8, 8, 12, 20]
    assert {word for item in found[6:12] for word in item.parts[0].split()} <= set(WORDS["english"])
    assert [item.parts for item in found[12:]] == [(SENTENCES[0], SENTENCES[4]), (SENTENCES[2], SENTENCES[3])]
    assert found == inputs.text_inputs(english, Task.SEQUENCE_CLASSIFICATION)
    of_tokens = inputs.text_inputs(english, Task.TOKEN_CLASSIFICATION)
    assert {item.name for item in of_tokens} == {"text", "text of the vocabulary"}


@pytest.mark.parametrize("task", [*inputs.TASKS_OF_PAIRS, None])
def test_some_tasks_take_only_pairs(english: Any, task: Task | None) -> None:
    options = {} if task else {"takes_pairs": True}
    found = inputs.text_inputs(english, task or Task.SEQUENCE_CLASSIFICATION, **options)
    assert len(found) == 12 and {item.name for item in found} == {"pair"}
    assert found[0].parts == SENTENCES[:2] and found[-1].parts == (found[-2].parts[1], SENTENCES[0])


def test_drawn_tokens_are_ordinary_ones(english: Any) -> None:
    plain = inputs.ordinary_tokens(english)
    assert sorted(plain) == [at for at in range(len(english)) if at >= len(SPECIAL)]
    assert plain != sorted(plain) and plain == inputs.ordinary_tokens(english)
    added = make_tokenizer("english", "Bert")
    added.add_tokens([transformers.AddedToken("<mark>", special=True), transformers.AddedToken("plain", special=False)])
    drawn = set(inputs.ordinary_tokens(added))
    assert added.convert_tokens_to_ids("<mark>") not in drawn and added.convert_tokens_to_ids("plain") in drawn


def test_of_a_large_vocabulary_some_thousand_are_looked_at(monkeypatch: pytest.MonkeyPatch, english: Any) -> None:
    monkeypatch.setattr(inputs, "_TRIED_TOKENS", 10)
    assert 5 <= len(inputs.ordinary_tokens(english)) <= 10


def test_a_vocabulary_of_special_tokens_gives_no_texts() -> None:
    make: Any = transformers.PreTrainedTokenizerFast
    only_special = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    empty = make(tokenizer_object=only_special, pad_token="[PAD]", unk_token="[UNK]")
    assert len(inputs.text_inputs(empty, Task.SEQUENCE_CLASSIFICATION)) == 8


def test_texts_are_joined_as_the_tokenizer_reads_them() -> None:
    events = make_tokenizer("events", "Bert")
    drawn = [item.parts[0] for item in inputs.text_inputs(events, Task.SEQUENCE_CLASSIFICATION)[6:12]]
    assert [len(text.split(",")) for text in drawn] == [3, 5, 8, 8, 12, 20]
    assert set(",".join(drawn).split(",")) <= set(WORDS["events"])


@pytest.mark.parametrize(("kept", "expected"), [(2, True), (1, False)])
def test_half_of_the_tokens_are_read_back(kept: int, expected: bool) -> None:
    tokenize = Mock(return_value={"input_ids": [5, 6, 7, 8][:kept]})
    assert inputs._are_read_back(tokenize, [[5, 6, 7, 8]], ["text"]) is expected
    assert tokenize.call_args.kwargs == {"add_special_tokens": False, "verbose": False}


def test_texts_stay_plain_where_no_separator_helps() -> None:
    deaf = Mock(return_value={"input_ids": []})
    deaf.decode = lambda row, **options: " ".join(f"w{at}" for at in row) + " "
    assert inputs._texts_read_back(deaf, [[1, 2], [3]]) == ["w1 w2", "w3"]


# ---- other words in the middle


def test_the_middle_is_replaced_between_the_first_and_the_last_ordinary_token(english: Any) -> None:
    encoded = english("w0 w1 w2 w3 w4", return_tensors="pt")
    before = encoded["input_ids"].clone()
    changed = inputs.with_other_middle(english, encoded)
    assert changed is not None and torch.equal(encoded["input_ids"], before)
    moved = (changed["input_ids"] != before)[0].tolist()
    ordinary = [token not in english.all_special_ids for token in before[0].tolist()]
    first, last = ordinary.index(True), len(ordinary) - 1 - ordinary[::-1].index(True)
    assert moved == [first < at < last for at in range(len(ordinary))]
    put_in = changed["input_ids"][0][torch.tensor(moved)].tolist()
    assert not set(put_in) & {*before[0].tolist(), *english.all_special_ids}
    other = inputs.with_other_middle(english, encoded, 1)
    assert other is not None and not set(other["input_ids"][0][torch.tensor(moved)].tolist()) & set(put_in)
    assert changed["attention_mask"] is encoded["attention_mask"]


@pytest.mark.parametrize(("words", "changes"), [("w0 w1 w2", False), ("w0 w1 w2 w3", True)])
def test_a_text_with_fewer_than_two_tokens_in_its_middle_has_no_other(english: Any, words: str, changes: bool) -> None:
    assert (inputs.with_other_middle(english, english(words, return_tensors="pt")) is not None) == changes


def test_each_choice_gets_other_words() -> None:
    proteins = make_tokenizer("protein", "Bert")
    long, short = inputs.TextInput("pair", ("ACD", "EFG")), inputs.TextInput("pair", ("A", "C"))
    encoded = inputs.encode_text(proteins, [long], Task.MULTIPLE_CHOICE)
    changed = inputs.with_other_middle(proteins, encoded)
    assert changed is not None and changed["input_ids"].shape == encoded["input_ids"].shape
    moved = changed["input_ids"] != encoded["input_ids"]
    put_in = changed["input_ids"][moved]
    assert moved.sum(-1).tolist() == [[4, 4]] and torch.equal(put_in[:4], put_in[4:])
    assert inputs.with_other_middle(proteins, inputs.encode_text(proteins, [short], Task.MULTIPLE_CHOICE)) is None


def test_tokens_are_put_in_step_by_step_and_turn_by_turn() -> None:
    row = {"input_ids": torch.arange(6)[None], "other": 1}

    def middle(*given: Any) -> Any:
        found = inputs.replace_middle(row, [0, 1, 3, 5], *given)
        return None if found is None else (found["input_ids"][0].tolist(), found["other"])

    assert middle([90, 91, 92], 0) == ([0, 90, 2, 91, 4, 5], 1)
    assert middle([90, 91, 92], 1) == ([0, 92, 2, 90, 4, 5], 1)
    assert middle([90, 91, 92], 1, 2) == ([0, 91, 2, 90, 4, 5], 1)
    assert middle([], 0) is None


@pytest.mark.parametrize("name", ["pixel_values", "input_values"])
def test_an_image_without_content_is_noise_of_the_same_mean_and_spread(name: str) -> None:
    torch.manual_seed(0)
    given = {name: 3 + 2 * torch.randn(1, 3, 64, 64), "attention_mask": torch.ones(1, 64)}
    state = torch.get_rng_state()
    found = inputs.with_other_content(given)[name]
    assert found.shape == given[name].shape and torch.equal(torch.get_rng_state(), state)
    assert abs(float(found.mean()) - 3) < 0.1 and abs(float(found.std()) - 2) < 0.1
    again, other = inputs.with_other_content(given)[name], inputs.with_other_content(given, 1)[name]
    assert torch.equal(found, again) and not torch.allclose(found, other)
    assert torch.equal(inputs.with_other_content(given)["attention_mask"], given["attention_mask"])


# ---- tensors


def test_several_texts_are_padded_and_one_is_not(english: Any) -> None:
    two = inputs.encode_text(english, [inputs.TextInput("text", (words,)) for words in ("w0 w1 w2", "w0")], TASK)
    assert two["attention_mask"].sum(1).tolist() == [5, 3] and two["input_ids"].shape == (2, 5)
    tokenize = Mock(return_value={}, model_max_length=512)
    pair, text = inputs.TextInput("pair", ("a", "b")), inputs.TextInput("text", ("c",))
    for some in ([text], [pair], [pair, pair]):
        inputs.encode_text(tokenize, some, TASK)
    tokenize.model_max_length = NO_LIMIT
    inputs.encode_text(tokenize, [text], TASK)
    calls = [(call.args, call.kwargs["padding"], call.kwargs["truncation"]) for call in tokenize.call_args_list]
    assert calls == [
        ((["c"], None), False, True),
        ((["a"], ["b"]), False, True),
        ((["a", "a"], ["b", "b"]), True, True),
        ((["c"], None), False, False),
    ]


TASK = Task.SEQUENCE_CLASSIFICATION


def test_choices_are_a_second_text_and_its_letters_backwards(english: Any) -> None:
    recording = Mock(side_effect=english, model_max_length=512)
    pairs = [inputs.TextInput("pair", ("w0", "w1 w2")), inputs.TextInput("pair", ("w3", "w4"))]
    encoded = inputs.encode_text(recording, pairs, Task.MULTIPLE_CHOICE)
    assert recording.call_args.args == (["w0", "w0", "w3", "w3"], ["w1 w2", "2w 1w", "w4", "4w"])
    assert recording.call_args.kwargs["padding"] is True and encoded["input_ids"].shape[:2] == (2, 2)


@pytest.mark.parametrize("tokens", [1, 100, 1000])
def test_a_long_text_has_at_least_as_many_tokens_and_words_of_the_vocabulary(english: Any, tokens: int) -> None:
    text = inputs.long_text(english, tokens)
    ids = english(text, add_special_tokens=False)["input_ids"]
    once = len(english(inputs.long_text(english, 0), add_special_tokens=False)["input_ids"]) / 2
    assert tokens <= len(ids) <= tokens + 2 * once and set(text.split()) & {"w1", "w2", "w3", "w4", "w5", "w6"}


# ---- images and sounds


def test_images_are_of_several_kinds_and_sizes() -> None:
    found = inputs.image_inputs()
    assert [image.shape for image in found] == [(96 + 32 * at, 320 - 24 * at, 3) for at in range(8)]
    assert {image.dtype for image in found} == {np.dtype(np.uint8)}
    assert all(np.array_equal(one, other) for one, other in zip(found, inputs.image_inputs(), strict=True))
    noise, gradient, blocks = found[:3]
    assert abs(noise.mean() - 127.5) < 2 and len(np.unique(noise)) == 256
    assert gradient[:, 0, 0].max() == 0 and gradient[:, -1, 0].min() > 250 and gradient[-1, :, 1].min() > 250
    assert gradient[10, 20, 2] == 30 and (np.diff(gradient[0, :, 0].astype(int)) >= 0).all()
    assert len({tuple(color) for color in blocks.reshape(-1, 3)}) == 2
    assert not np.array_equal(blocks[0, 0], blocks[0, 16]) and np.array_equal(blocks[0, 0], blocks[0, 15])
    assert np.array_equal(blocks[23, 0], blocks[0, 0]) and not np.array_equal(blocks[24, 0], blocks[0, 0])
    assert (blocks[0, 0] == 80).all() and found[5][0, 0, 0] == 200
    assert [image.shape for image in inputs.image_inputs((8, 9), 1)] == [(8, 9, 1)] * 8


class Processor:
    """Makes pixels of one size, or of the image's own; raises where it is `broken`."""

    def __init__(self, size: int | None = None, broken: bool = False, do_resize: bool = False) -> None:
        self.size, self.broken, self.do_resize = size, broken, do_resize

    def __call__(self, images: Any, return_tensors: str) -> dict[str, Any]:
        if self.broken:
            raise ValueError("no")
        rows, columns = images.shape[:2] if self.size is None else (self.size, self.size)
        return {"pixel_values": np.zeros((1, images.shape[-1], rows, columns))}


@pytest.mark.parametrize(
    ("processor", "config", "shapes"),
    [
        (Processor(32), {}, {(96, 320, 3), (320, 152, 3)}),
        (Processor(32), {"num_channels": 1}, {(96, 320, 1), (320, 152, 1)}),
        (Processor(), {"image_size": 30}, {(30, 30, 3)}),
        (Processor(), {"image_size": [20, 40]}, {(20, 40, 3)}),
        (Processor(), {"image_size": (20, 40), "num_channels": 4}, {(20, 40, 3)}),
        (Processor(), {"image_size": [20, 40, 60]}, {(224, 224, 3)}),
        (Processor(), {"num_channels": 1}, {(224, 224, 1)}),
        (Processor(do_resize=True), {"image_size": 30}, {(96, 320, 3), (320, 152, 3)}),
        (Processor(broken=True), {"image_size": 30}, {(96, 320, 3), (320, 152, 3)}),
    ],
)
def test_images_are_as_the_model_takes_them(processor: Any, config: dict[str, Any], shapes: set[Any]) -> None:
    found, _ = inputs.encoder_of_media(processor, Task.IMAGE_CLASSIFICATION, SimpleNamespace(**config))
    assert len(found) == 8 and shapes <= {image.shape for image in found}
    assert len(shapes) > 1 or shapes == {image.shape for image in found}


def test_sounds_are_tones_of_several_lengths() -> None:
    found = inputs.sound_inputs(16000)
    assert [len(sound) for sound in found] == [int(16000 * (0.5 + 0.1 * at)) for at in range(8)]
    assert {sound.dtype for sound in found} == {np.dtype(np.float32)} and max(np.abs(s).max() for s in found) <= 1
    assert all(np.array_equal(one, other) for one, other in zip(found, inputs.sound_inputs(16000), strict=True))
    for at, sound in enumerate(found):
        power = np.abs(np.fft.rfft(sound))
        loudest = np.fft.rfftfreq(len(sound), 1 / 16000)[power.argmax()]
        assert abs(loudest - (180 + 90 * at)) < 3
        rest = np.sort(power)[: len(power) // 2].mean() / len(sound) ** 0.5
        assert (rest > 0.06) == bool(at % 2)  # the odd ones have more noise


def test_a_clip_moves() -> None:
    def process(clips: Any, return_tensors: str) -> Any:
        return {"clips": clips, "kind": return_tensors}

    for config, count in (({"num_frames": 5}, 5), ({"frames_per_clip": 3}, 3), ({}, 16)):
        clips, encode = inputs.encoder_of_media(process, Task.VIDEO_CLASSIFICATION, SimpleNamespace(**config))
        assert [len(clip) for clip in clips] == [count] * 4
        assert np.array_equal(clips[1][2][:, 16:], clips[1][0][:, :-16])
        assert encode(tuple(clips[:1])) == {"clips": clips[:1], "kind": "pt"}


@pytest.mark.parametrize("task", [Task.AUDIO_CLASSIFICATION, Task.AUDIO_FRAME_CLASSIFICATION, Task.AUDIO_XVECTOR])
@pytest.mark.parametrize("pads", [False, True])
def test_sounds_are_padded_where_the_processor_does_not(task: Task, pads: bool) -> None:
    seen: list[dict[str, Any]] = []

    class Extractor:
        sampling_rate = 8000

        def __call__(self, some: list[Any], **options: Any) -> Any:
            seen.append(options)
            if not pads and "padding" not in options:
                raise ValueError("several lengths")
            return {"input_values": some}

    sounds, encode = inputs.encoder_of_media(Extractor(), task, SimpleNamespace())
    assert len(sounds[0]) == 4000 and encode(tuple(sounds))["input_values"] == sounds
    plain = {"sampling_rate": 8000, "return_tensors": "pt"}
    assert seen == [plain, *([] if pads else [plain | {"padding": True}])]
    sounds, _ = inputs.encoder_of_media(object(), task, SimpleNamespace())
    assert len(sounds[0]) == 8000


def test_a_task_without_inputs_is_said() -> None:
    with pytest.raises(Unsupported, match="has no inputs for"):
        inputs.encoder_of_media(object(), Task.SEQUENCE_CLASSIFICATION, SimpleNamespace())
