"""A checkpoint opened for its run: the model, its tokenizer or processor, what is called, and why some are not run."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import nn

from headscope.checks.evidence.run import with_run
from headscope.core.facts.stored.location import Location
from headscope.core.facts.trial import RunScope, RunStep, RunTrial
from headscope.core.source.checkpoint import examine
from headscope.core.source.loading import choose_class, load_checkpoint
from headscope.core.source.reading.reading import read_checkpoint
from headscope.core.source.request import Request
from headscope.errors import HeadscopeError, Unsupported
from headscope.facts import CheckpointKind, Gap, GapTopic, Task
from headscope.shared.trial import deciding, opening
from headscope.shared.trial.inputs import SENTENCES
from tests.checks.rules.subjects import subject as a_subject
from tests.edits import edit_json, edit_tensors
from tests.verdicts.runs import RunCase, make_tokenizer

NO_LIMIT = int(1e30)


def request_of(folder: Path, **fields: Any) -> Request:
    return Request(Location(str(folder)), **fields)


def subject_of(folder: Path, **fields: Any) -> Any:
    return opening.open_checkpoint(request_of(folder, **fields), "cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunCase("bert", "Bert", dtype="bfloat16").write(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunCase("vit", "ViT", "ImageClassification").write(tmp_path_factory.mktemp("vit"))


@pytest.fixture
def copied(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "copied"))


# ---- what a folder is opened as


def test_a_text_classifier_with_its_tokenizer(bert: Path) -> None:
    subject = subject_of(bert)
    assert (subject.noun, len(subject.inputs), subject.names[0], subject.names[-1]) == ("text", 14, "text", "pair")
    assert {item.dtype for item in subject.model.parameters()} == {torch.bfloat16} and not subject.model.training
    assert (subject.rows, subject.library, subject.left_out, subject.problem_type) == ((), "", "", None)
    encoded = subject.encode(subject.inputs[:2])
    assert encoded["input_ids"].shape[0] == 2 and set(encoded) == {"input_ids", "token_type_ids", "attention_mask"}
    assert subject.changed(subject.encode(subject.inputs[11:12])) is not None
    long, tokens = subject.longer()
    assert (long["input_ids"].shape, tokens) == ((1, 90), 90) and subject.tokenizer.model_max_length == 90
    (answer,) = subject.pipeline()
    scores = subject.model(**subject.encode(subject.inputs[:1])).logits.float().softmax(-1)
    assert answer["score"] == pytest.approx(float(scores.detach().max()), abs=1e-2)


@pytest.mark.parametrize("task", ["TokenClassification", "QuestionAnswering", "MultipleChoice"])
def test_a_model_of_another_task_has_its_own_inputs(task: str, tmp_path: Path) -> None:
    subject = subject_of(RunCase(task, "Bert", task).write(tmp_path))
    assert subject.noun == ("text" if task == "TokenClassification" else "pair")
    assert (subject.pipeline is None) == (task != "TokenClassification")
    long, tokens = subject.longer()
    assert tokens == 90 and len(long["input_ids"].shape) == (3 if task == "MultipleChoice" else 2)


def test_an_image_classifier_with_its_processor(vit: Path) -> None:
    subject = subject_of(vit)
    assert (subject.noun, subject.names, subject.tokenizer, subject.longer) == ("image", ["image"] * 8, None, None)
    pixels = subject.encode(subject.inputs[:2])
    assert pixels["pixel_values"].shape == (2, 3, 32, 32) and subject.changed(pixels) is not None
    assert len(subject.pipeline()) == 3 and subject.left_out == ""
    (gray,) = subject.inputs[:1]
    assert gray.dtype == np.uint8


def test_the_pipeline_takes_no_gray_image(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gray: Any = [np.zeros((8, 8, 1), np.uint8)]
    monkeypatch.setattr(opening, "encoder_of_media", lambda *given: (gray, lambda some: {}))
    subject = subject_of(vit)
    assert subject.pipeline is None and "RGB images" in subject.left_out


def test_a_sound_is_one(tmp_path: Path) -> None:
    subject = subject_of(RunCase("sound", "Wav2Vec2", words="english").write(tmp_path))
    assert (subject.noun, len(subject.inputs)) == ("sound", 8) and len(subject.pipeline()) == 3


def test_a_task_without_a_pipeline_and_a_model_of_somebody_have_none(vit: Path) -> None:
    model: Any = subject_of(vit).model
    assert opening._maker_of_pipelines(model, Task.VIDEO_CLASSIFICATION) is None
    assert opening._maker_of_pipelines(nn.Linear(1, 1), Task.IMAGE_CLASSIFICATION) is None
    assert opening._pipeline_of_media(model, Task.VIDEO_CLASSIFICATION, None, "image", []) is None
    assert opening._maker_of_pipelines(model, Task.MULTIPLE_CHOICE) is None


def test_rows_of_a_language_model_are_its_scores(tmp_path: Path) -> None:
    folder = RunCase("generator", "GPT2").write(tmp_path)
    config = transformers.GPT2Config.from_pretrained(folder)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    subject = subject_of(folder, tokens=("w1", "w2"))
    known = make_tokenizer("english", "GPT2").convert_tokens_to_ids(["w1", "w2"])
    assert list(subject.rows) == known and subject.pipeline is None


# ---- what isn't opened


@pytest.mark.parametrize(
    ("kind", "gone", "sentence"),
    [
        ("bert", "tokenizer", "no tokenizer, and Transformers would make an empty one"),
        ("vit", "processor", "no processor"),
    ],
)
def test_a_folder_without_its_tool(
    kind: str, gone: str, sentence: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "copied"))
    for file in folder.iterdir():
        if gone in file.name:
            file.unlink()
    with pytest.raises(Unsupported, match=sentence) as caught:
        subject_of(folder)
    assert f"{gone}.save_pretrained(FOLDER)" in str(caught.value.hint)
    assert sentence in str(opening.run_checkpoint(request_of(folder), "cpu"))


@pytest.mark.parametrize("name", ["boxes", "xpaths", "table"])
def test_a_tokenizer_that_takes_more_than_text(name: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tokenizer:
        exec(f"def __call__(self, text, {name}=None): pass")

    monkeypatch.setattr(opening, "open_tokenizer", lambda *given, **options: Tokenizer())
    with pytest.raises(Unsupported, match=f"takes {name}"):
        subject_of(bert)


def test_a_configuration_that_transformers_cannot_read(copied: Path) -> None:
    text = (copied / "config.json").read_text(encoding="utf-8")
    (copied / "config.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(OSError, match=r"config\.json"):
        transformers.AutoConfig.from_pretrained(copied)
    with pytest.raises(Unsupported, match=r"Transformers can't read config\.json: .+"):
        subject_of(copied)
    opening._check_config(Location(str(copied)), trusts=True)
    (copied / "config.json").unlink()
    opening._check_config(Location(str(copied)), trusts=False)


def test_a_load_that_fails_is_what_the_run_saw(copied: Path) -> None:
    edit_json(copied / "config.json", {"num_attention_heads": 5})
    found = opening.run_checkpoint(request_of(copied), "cpu")
    assert isinstance(found, RunTrial) and found.scope == RunScope(0, 0, 0, "cpu") and found.always_fails
    (error,) = found.raised
    with pytest.raises(ValueError, match="multiple of") as caught:
        transformers.AutoModelForSequenceClassification.from_pretrained(copied)
    assert (error.input, error.step) == ("loading", RunStep.LOADING) and str(caught.value)[:40] in error.error


def test_a_run_of_a_healthy_folder(bert: Path) -> None:
    found = opening.run_checkpoint(request_of(bert), "cpu")
    assert isinstance(found, RunTrial) and (found.raised, found.scope.inputs, found.dtype) == ((), 14, "bfloat16")


# ---- adapters


@pytest.fixture
def adapter(bert: Path, tmp_path: Path) -> Path:
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(bert)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"], init_lora_weights=False)
    torch.manual_seed(3)
    peft.get_peft_model(model.float(), settings).save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def _scores_of_peft(base: Path, adapter: Path, encoded: Any) -> Any:
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(model, adapter).eval()(**encoded).logits.float()


def test_an_adapter_runs_on_its_base_with_the_tokenizer_that_is_there(bert: Path, adapter: Path) -> None:
    subject = subject_of(adapter)
    assert type(subject.model).__name__.startswith("PeftModel") and subject.tokenizer.model_max_length == 90
    encoded = subject.encode(subject.inputs[:1])
    with torch.no_grad():
        own = subject.model(**encoded).logits.float()
    assert torch.equal(own, _scores_of_peft(bert, adapter, encoded))
    make_tokenizer("english", "Bert", model_max_length=77).save_pretrained(adapter)
    assert subject_of(adapter).tokenizer.model_max_length == 77


def test_an_adapter_beside_its_base_by_the_option(bert: Path, adapter: Path) -> None:
    assert subject_of(bert, adapter=str(adapter)).inputs
    with pytest.raises(HeadscopeError):
        subject_of(bert, adapter=str(adapter / "nowhere"))


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_base_that_does_not_load(adapter: Path, bert: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(adapter)
    manifest = read_checkpoint(request, None)
    choice = choose_class(request, manifest)

    monkeypatch.setattr(opening, "load_model", Mock(side_effect=Unsupported("it cannot be", "")))
    place = Location(str(bert if is_folder else "somebody/base"))
    monkeypatch.setattr(opening, "base_of_adapter", lambda *given: request_of(Path(place.reference)))
    monkeypatch.setattr(opening, "in_local_folder", lambda given: given)
    said = "^it cannot be" if is_folder else "its base model could not be had: it cannot"
    with pytest.raises(Unsupported, match=said):
        opening.load_adapted(request, manifest, choice, "cpu")


@pytest.mark.parametrize(("topic", "is_compared"), [(GapTopic.ADAPTER_FIT, True), (GapTopic.CHECKPOINT, False)])
def test_a_run_compares_the_file_of_an_adapter_where_headers_did_not_tell_whether_it_fits(
    topic: GapTopic, is_compared: bool, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_one(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key: state[key] for key in list(state)[1:]}

    def load(*given: Any) -> Any:
        choice, loaded = load_checkpoint(*given)
        return choice, replace(loaded, diff=replace(loaded.diff, gaps=(Gap(topic, "why"),)))

    edit_tensors(adapter / "adapter_model.safetensors", drop_one)
    monkeypatch.setattr(opening, "load_checkpoint", load)
    with pytest.raises(Unsupported, match="the file of the adapter lacks") if is_compared else nullcontext():
        assert subject_of(adapter).inputs


def test_the_folder_of_an_adapter(adapter: Path, bert: Path, tmp_path: Path) -> None:
    manifest = read_checkpoint(request_of(adapter), None)
    assert opening.adapter_folder(request_of(adapter), manifest) == adapter
    assert opening.adapter_folder(request_of(bert, adapter=str(adapter)), manifest) == adapter
    with pytest.raises(Unsupported, match="not a folder on this machine"):
        opening.adapter_folder(request_of(bert, adapter=str(tmp_path / "nowhere")), manifest)


# ---- the longest text


class Sized(nn.Module):
    """A model of a size, with its configuration."""

    def __init__(self, parameters: int = 10, **config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parameters, device="meta"))
        if config:
            self.config = transformers.PreTrainedConfig(**config)


@pytest.mark.parametrize(
    ("limit", "positions", "most", "expected"),
    [
        (90, 96, 4000, 90),
        (90, 60, 4000, 90),
        (NO_LIMIT, 60, 4000, 61),
        (1_000_000, 60, 4000, 61),
        (NO_LIMIT, None, 4000, None),
        (NO_LIMIT, 4000, 4000, None),
        (NO_LIMIT, 3999, 4000, 4000),
        (5000, 9000, 1000, 512),
        (5000, 900, 1000, 1000),
        (5000, None, 1000, 512),
        (5000, 1000, 1000, 512),
        (5000, 9000, 300, 300),
        (1000, 9000, 1000, 1000),
    ],
)
def test_how_long_the_longest_text_is(
    limit: int, positions: int | None, most: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer("english", "Bert", model_max_length=limit)
    monkeypatch.setattr(opening, "_most_tokens", lambda model: most)
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=positions))
    found = opening._longest_text(model, tokenizer, Task.SEQUENCE_CLASSIFICATION)
    assert (None if found is None else found[1]) == expected
    assert found is None or found[0]["input_ids"].shape == (1, expected)
    assert expected is None or tokenizer.model_max_length == limit


def test_a_long_pair_is_long_in_its_second_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_most_tokens", lambda model: 4000)
    found = opening._longest_text(nn.Linear(1, 1), make_tokenizer("english", "Bert"), Task.QUESTION_ANSWERING)
    assert found is not None and found[0]["token_type_ids"].sum() > 60


@pytest.mark.parametrize(
    ("parameters", "config", "layers", "width", "heads"),
    [
        (110_000_000, {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}, 12, 768, 12),
        (1_500_000_000, {"num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12}, 28, 1536, 12),
        (100, {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 64}, 2, 8, 64),
        (100, {"num_hidden_layers": 0, "hidden_size": 8, "num_attention_heads": 0}, 0, 8, 1),
        (7_000_000, {}, 12, 768, 12),
        (90_000_000_000, {}, 12, 768, 12),
    ],
)
def test_how_many_tokens_two_seconds_allow(
    parameters: int, config: dict[str, int], layers: int, width: int, heads: int
) -> None:
    found = opening._most_tokens(Sized(parameters, **config))

    def fits(tokens: int) -> bool:
        work = parameters * tokens + 2 * layers * width * tokens**2
        return work <= opening._LONG_WORK and heads * tokens**2 <= opening._LONG_ATTENTION

    if layers == 0:
        assert found == 1
        return
    assert (fits(found) or found == 1) and not fits(found + 1)


# ---- whether there is a run


@pytest.fixture
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are not left out, and the checkpoint gives all weights."""
    monkeypatch.delenv(deciding.OFF, raising=False)
    monkeypatch.setattr(deciding, "find_missing", lambda report: SimpleNamespace(head=(), elsewhere=()))


@pytest.mark.parametrize(
    ("value", "is_off"),
    [("1", True), ("yes", True), (" True ", True), *((word, False) for word in ("", "0", "false", "No", " off "))],
)
def test_the_environment_leaves_runs_out(value: str, is_off: bool, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(deciding.OFF, value)
    assert deciding.is_run_off() == is_off
    likely = [deciding.is_run_likely(request_of(bert, run=wanted)) for wanted in (None, True, False)]
    assert likely == [not is_off, True, False]
    assert not deciding.is_run_likely(request_of(Path("somebody/model"), run=True))
    checkpoint = examine("check", request_of(bert), None)
    assert bool(deciding.why_not_run(checkpoint)) == is_off
    assert deciding.why_not_run(checkpoint, is_wanted=True) == ""
    assert deciding.why_not_run(checkpoint, is_wanted=False) == "--no-run leaves it out"


def _opened(request: Request, **fields: Any) -> Any:
    """What was read of a healthy folder, but for some fields of the manifest and of the report."""
    manifest = SimpleNamespace(kind=CheckpointKind.LOCAL, adapter=None, gaps=(), bytes_total=10)
    report = SimpleNamespace(
        adapter=None, not_determined=(), unknown=(), head=(), weights=SimpleNamespace(mismatched=()),
        checkpoint=SimpleNamespace(kind=CheckpointKind.LOCAL, states=()), model=SimpleNamespace(quantization=None),
    )  # fmt: skip
    for name, value in fields.items():
        where, _, field = name.partition("_in_")
        target: Any = {"manifest": manifest, "checkpoint": report.checkpoint, "model": report.model}.get(field, report)
        setattr(target, where, value)
    return SimpleNamespace(request=request, manifest=manifest, report=report)


PATH_GAP, OTHER_GAP = Gap(GapTopic.HEAD_PATH, "why"), Gap(GapTopic.CHECKPOINT, "why")
OPEN_TRACES = ("head path", "head path without padding", "head path of a single token", "head path on other inputs",
               "pooling", "pooling of long texts", "adapter fit")  # fmt: skip
UNREAD = ("head", "token rows", "checkpoint", "quantized weights")
NOT_ALL, SNAPSHOT = "headscope could not read all of it", "it is a snapshot"
REASONS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"kind_in_manifest": CheckpointKind.SNAPSHOT}, SNAPSHOT),
    ({"kind_in_manifest": CheckpointKind.CLASS}, "it is "),
    ({"adapter_in_manifest": SimpleNamespace(kind=CheckpointKind.SNAPSHOT)}, SNAPSHOT),
    ({"kind_in_checkpoint": CheckpointKind.HUB}, "it is on the Hub, and --run would download it"),
    ({"gaps_in_manifest": ("one",)}, NOT_ALL),
    ({"not_determined": (OTHER_GAP,)}, NOT_ALL),
    *(({"not_determined": (Gap(topic, "why"),)}, "") for topic in OPEN_TRACES),
    *(({"not_determined": (Gap(topic, "why"),)}, NOT_ALL) for topic in UNREAD),
    ({"unknown": ("one",)}, NOT_ALL),
    ({"not_determined": (PATH_GAP, OTHER_GAP)}, NOT_ALL),
    ({"states_in_checkpoint": ("one",)}, "it needs `headscope repair` first"),
    ({"quantization_in_model": "int8"}, "its weights are quantized"),
    ({"bytes_total_in_manifest": 10**15}, "its weights take 1000000.0 GB, more than half"),
]


@pytest.mark.usefixtures("_allowed")
@pytest.mark.parametrize(("fields", "reason"), REASONS, ids=str)
def test_why_a_checkpoint_is_not_run(
    fields: dict[str, Any], reason: str, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "base_of_adapter", lambda *given: request_of(bert))
    found = deciding.why_not_run(_opened(request_of(bert), **fields))
    assert found.startswith(reason) and bool(found) == bool(reason)
    wanted = deciding.why_not_run(_opened(request_of(bert, run=True), **fields))
    assert bool(wanted) == (reason != "" and "Hub" not in reason and "GB" not in reason)


@pytest.mark.usefixtures("_allowed")
def test_random_weights_are_named(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for head, elsewhere in ((("classifier.weight",), ()), ((), ("pooler.weight",))):
        missing = SimpleNamespace(head=head, elsewhere=elsewhere)
        monkeypatch.setattr(deciding, "find_missing", lambda report, found=missing: found)
        said = deciding.why_not_run(_opened(request_of(bert)))
        assert said == f"the checkpoint doesn't give {(head + elsewhere)[0]}"
        reshaped = SimpleNamespace(mismatched=(SimpleNamespace(parameter=(head + elsewhere)[0]),))
        said = deciding.why_not_run(_opened(request_of(bert), weights=reshaped))
        assert said == f"the checkpoint has {(head + elsewhere)[0]} in another shape"


@pytest.mark.usefixtures("_allowed")
def test_what_is_not_taken_up(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for request in (Request(Location(str(bert), subfolder="a")), Request(Location(str(bert), variant="fp16"))):
        assert deciding.why_not_run(_opened(request)) == "--subfolder and --variant are not run"
    file = request_of(bert / "model.safetensors")
    assert deciding.why_not_run(_opened(file)) == "a weight file without its folder has no tokenizer"
    monkeypatch.setattr(deciding, "base_of_adapter", lambda *given: request_of(Path("somebody/base")))
    adapted = _opened(request_of(bert), adapter_in_manifest=SimpleNamespace(kind=CheckpointKind.LOCAL))
    assert "--run would download it" in deciding.why_not_run(adapted)
    assert deciding.why_not_run(adapted, is_wanted=True) == ""
    monkeypatch.setattr(deciding, "base_of_adapter", lambda *given: request_of(tmp_path))
    assert deciding.why_not_run(adapted) == ""


@pytest.mark.parametrize(("size", "fits"), [(50, True), (51, False)])
def test_half_of_the_free_memory(size: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100))
    assert (deciding.too_large(size) == "") == fits


def test_a_run_that_was_wanted_and_is_not_is_unknown() -> None:
    about = a_subject(run=None)
    gap = Gap("run", "the model was not run: why")
    wanted, other = (with_run(about, "why", is_wanted=is_wanted) for is_wanted in (True, False))
    assert wanted.run_reason == other.run_reason == "why"
    assert (wanted.unknown, wanted.inapplicable) == ((*about.unknown, gap), about.inapplicable)
    assert (other.unknown, other.inapplicable) == (about.unknown, (*about.inapplicable, gap))


def test_a_run_shows_what_peft_does_with_numbers() -> None:
    fit = Gap(GapTopic.ADAPTER_FIT, "without values")
    trial, failed = RunTrial(RunScope(1, 1, 1, "cpu")), RunTrial(RunScope(0, 0, 0, "cpu"))
    about = a_subject(not_determined=(OTHER_GAP, fit), run=None)
    found = with_run(about, trial, is_wanted=True)
    assert found.run is trial and found.report.not_determined == (OTHER_GAP,)
    assert with_run(about, failed, is_wanted=True).report.not_determined == (OTHER_GAP, fit)
    plain = a_subject(not_determined=(OTHER_GAP,), run=None)
    assert with_run(plain, trial, is_wanted=True).report is plain.report


# ---- chains of sentence-transformers


@pytest.mark.parametrize(("scores", "noun"), [(1, "pair"), (0, "text")])
def test_only_a_chain_that_makes_scores_is_called_with_pairs(scores: int, noun: str, bert: Path) -> None:
    request = request_of(bert)
    choice = replace(choose_class(request, read_checkpoint(request, None)), chain=Mock(score_count=scores))
    subject = opening.subject_of_model(nn.Linear(1, 1), choice, request.location)
    assert (subject.noun, {len(item.parts) for item in subject.inputs[:5]}) == (noun, {scores + 1})


def test_a_chain_is_called_through_its_library(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(bert)
    choice: Any = SimpleNamespace(chain=SimpleNamespace(chain_class="CrossEncoder"))
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    without = opening._with_library(subject, choice, Location(str(bert)))
    assert without.left_out == "sentence-transformers is not installed, so CrossEncoder was not called"
    assert without.library == "" and without.pipeline is subject.pipeline
    monkeypatch.setattr(opening, "find_spec", lambda name: object())
    check = Mock(return_value="checked")
    monkeypatch.setattr(opening, "check_library", check)
    found: Any = opening._with_library(replace(subject), choice, Location(str(bert)))
    assert found.library == "CrossEncoder" and found.pipeline() == "checked"
    [((reference, name, texts, score), _)] = check.call_args_list
    assert (reference, name, texts) == (str(bert), "CrossEncoder", [(SENTENCES[0],), (SENTENCES[1],)])
    encoded = dict(subject.encode(subject.inputs[:1]))
    expected = subject.model(**encoded).logits
    assert torch.allclose(score(encoded | {"text_keys": []}), expected.detach().cpu())
