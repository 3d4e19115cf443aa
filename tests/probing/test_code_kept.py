"""A written module keeps its classifier: what is trained, saved and loaded elsewhere scores the same, bit by bit."""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from probing import media, tiny
from probing.made import LABELS, configured, extracted, extracted_files, imported, keep_tensors, probed, rows_file
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.facts.data import Loading
from headscope.slices.probe.facts.result import Problem, Vector
from headscope.slices.probe.screen.code import fitted_code, module_code, probe_code
from headscope.slices.probe.screen.code_frame import ModuleFacts
from headscope.slices.probe.screen.source import assignment
from tests import warm
from tests.edits import State, edit_tensors

TEXTS = ["w11 w20 w21", "w12 w20", "w13"]
_SCRIPT = """
import importlib.util, json, sys, torch
spec = importlib.util.spec_from_file_location("module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
step, kept, scores, given = *sys.argv[2:5], json.loads(sys.argv[5])
torch.manual_seed(0)
is_text = hasattr(module, "load_tokenizer")
if step == "train":
    model = module.Classifier()
    tool = model.tokenizer if is_text else model.processor
    target = 0 if module.SETTINGS["problem"].startswith("single") else [1.0] * 3
    module.train(model, [given] if is_text else given, [target] * len(given), epochs=1, rate=1e-3)
    model.save(kept)
else:
    model = module.Classifier.load(kept)
    assert not model.training
    tool = model.tokenizer if is_text else model.processor
batches = module.encode(tool, given)
with torch.no_grad():
    found = [model(**inputs)["logits"] for inputs in ([batches] if is_text else batches)]
torch.save({"scores": torch.cat(found), "state": model.state_dict(), "labels": model.labels}, scores)
"""


def run(module: Path, step: str, given: list[str]) -> dict[str, Any]:
    """What a separate process finds after it has trained and saved, or loaded."""
    kept, scores = module.parent / "kept", module.parent / f"{step}.pt"
    words = [module, step, kept, scores, json.dumps(given)]
    done = subprocess.run(
        [*warm.python(), "-c", _SCRIPT, *map(str, words)], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(scores, weights_only=False)  # type: ignore[no-any-return]


def check_kept(text: str, source: Path, given: list[str], *, needs_source: bool = False) -> Path:
    """The saved folder, after one process trained and another, without the checkpoint, scored the same."""
    module = source.parent / "module.py"
    module.write_text(text, encoding="utf-8")
    before = run(module, "train", given)
    if not needs_source:
        shutil.rmtree(source)
        (source.parent / "classifier.safetensors").unlink(missing_ok=True)
    after = run(module, "load", given)
    assert torch.equal(before["scores"], after["scores"])
    assert before["scores"].isfinite().all()
    assert before["labels"] == after["labels"]
    assert before["state"].keys() == after["state"].keys()
    assert all(torch.equal(value, after["state"][name]) for name, value in before["state"].items())
    assert sorted(path.name for path in source.parent.iterdir() if path.name.startswith("tmp")) == []
    return source.parent / "kept"


TEXT_CASES: dict[str, tuple[str, dict[str, Any], str, int | None]] = {
    "bert, its own head": ("bert", {}, "head", None),
    "llama without a pad token, its own head": ("llama", {"pads": False, "eos": True}, "head", None),
    "bart, whose embeddings are tied, its own head": ("bart", {"eos": True}, "head", None),
    "t5, of which the encoder is read": ("t5", {"eos": True}, "mean", None),
    "gpt2, padded on the left": ("gpt2", {"side": "left"}, "last", None),
    "a layer between": ("bert", {}, "max", 1),
    "mean and maximum": ("roberta", {}, "mean_and_max", None),
    "two layers": ("distilbert", {}, "first_last_mean", None),
    "xlnet": ("xlnet", {"side": "left"}, "cls", 0),
}


@pytest.mark.parametrize("name", TEXT_CASES)
def test_what_is_saved_scores_the_same_in_another_process(name: str, tmp_path: Path) -> None:
    family, options, pooling, layer = TEXT_CASES[name]
    source = tiny.save(tmp_path / "model", family, **options)
    text = headscope.code(source, pooling=pooling, layer=layer, labels=LABELS, offline=True)
    kept = check_kept(text, source, TEXTS)
    settings = json.loads((kept / "classifier.json").read_text(encoding="utf-8"))
    assert settings["labels"] == list(LABELS)
    assert settings["checkpoint"] == str(source)
    if pooling == "head":
        _, info = AutoModelForSequenceClassification.from_pretrained(kept, output_loading_info=True)
        assert not any(info.values()), "any program that loads the class loads it"


@pytest.mark.parametrize("problem", [Problem.MULTI_LABEL, Problem.REGRESSION])
@pytest.mark.parametrize("pooling", ["head", "mean"])
def test_several_labels_and_numbers_are_kept_too(problem: Problem, pooling: str, tmp_path: Path) -> None:
    source = configured(tiny.save(tmp_path / "model", "bert"), problem_type=problem.value)
    check_kept(headscope.code(source, pooling=pooling, offline=True), source, TEXTS)


@pytest.mark.parametrize(("family", "vector"), [("bart", Vector.EOS_TOKEN), ("bert", Vector.POOLER)])
def test_vectors_that_only_data_show_are_kept_too(family: str, vector: Vector, tmp_path: Path) -> None:
    source = tiny.save(tmp_path / "model", family, eos=family == "bart")
    if vector is Vector.POOLER:
        facts = ModuleFacts(
            "A module.", "pooler", vector, Loading(str(source), None, None, "AutoModel"), LABELS,
            Problem.SINGLE_LABEL, size=32,
        )  # fmt: skip
        check_kept(module_code(facts), source, TEXTS)
        return
    found = extracted(family, source)
    check_kept(probe_code(found.result(found.vector(vector))), source, TEXTS)


MEDIA_CASES = [
    ("vit", Vector.HEAD), ("vit", Vector.MEAN_AND_MAX), ("resnet", Vector.MASKED_MEAN), ("clip", Vector.MASKED_MEAN),
    ("wav2vec2", Vector.HEAD), ("wav2vec2", Vector.MAX), ("whisper", Vector.MASKED_MEAN),
]  # fmt: skip


@pytest.mark.parametrize(("name", "vector"), MEDIA_CASES)
def test_images_and_sounds_are_kept_too(name: str, vector: Vector, tmp_path: Path) -> None:
    source, paths = media.save(name, tmp_path / "model"), media.files(name, tmp_path, 3)
    found = extracted_files(name, source, paths)
    check_kept(probe_code(found.result(found.vector(vector))), source, paths)


def test_a_fitted_classifier_is_trained_further_and_kept(tmp_path: Path) -> None:
    source, written = tiny.save(tmp_path / "model", "distilbert"), tmp_path / "written"
    keep_tensors(source, lambda name: name.startswith("distilbert."))
    found = probed(source, rows_file(tmp_path), write_head=written)
    text = (written / "classifier.py").read_text(encoding="utf-8")
    assert text == fitted_code(
        replace(found, loading=replace(found.loading, reference=str(source))),
        found.candidate(found.written.vector),
        "classifier.safetensors",
    )
    fitted = load_file(written / "classifier.safetensors")["weight"]
    model = imported(text, written / "again.py").Classifier()
    assert torch.equal(model.classifier.weight, fitted)
    shutil.copy(written / "classifier.safetensors", tmp_path)
    kept = check_kept(text, source, TEXTS)
    assert not torch.equal(load_file(kept / "classifier.safetensors")["classifier.weight"], fitted)


CODE = """
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig

class OwnClassifier(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.mark.parametrize("pooling", ["head", "mean"])
def test_a_class_of_the_repository_is_kept_too(pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own head goes with its code into the folder; a new layer needs the code of the checkpoint again."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    classes = {
        "AutoConfig": "OwnConfig",
        "AutoModel": "OwnModel",
        "AutoModelForSequenceClassification": "OwnClassifier",
    }
    named = {auto: f"own.{name}" for auto, name in classes.items()}
    source = configured(tiny.save(tmp_path / "model", "bert"), model_type="own", auto_map=named)
    (source / "own.py").write_text(CODE)
    text = headscope.code(source, pooling=pooling, labels=LABELS, trust_remote_code=True, offline=True)
    kept = check_kept(text, source, TEXTS, needs_source=pooling == "mean")
    assert pooling == "mean" or (kept / "own.py").exists()


@pytest.fixture(params=["head", "mean"])
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    source = tiny.save(tmp_path / "model", "bert")
    return imported(headscope.code(source, pooling=request.param, labels=LABELS, offline=True), tmp_path / "module.py")


def weight_in(state: State) -> str:
    return next(name for name in state if name.endswith("classifier.weight"))


OTHER_WEIGHTS: dict[str, Callable[[State], State]] = {
    "without the weight": lambda state: {name: state[name] for name in state if name != weight_in(state)},
    "with another": lambda state: state | {"other.weight": state[weight_in(state)]},
    "with more rows": lambda state: state | {weight_in(state): torch.zeros(5, state[weight_in(state)].shape[1])},
}


@pytest.mark.parametrize("name", OTHER_WEIGHTS)
def test_a_folder_with_other_weights_is_not_loaded(module: Any, name: str, tmp_path: Path) -> None:
    module.Classifier().save(tmp_path / "kept")
    module.Classifier.load(tmp_path / "kept")
    edit_tensors(next((tmp_path / "kept").glob("*.safetensors")), OTHER_WEIGHTS[name])
    with pytest.raises(RuntimeError, match=r"classifier\.weight|other\.weight|mismatch"):
        module.Classifier.load(tmp_path / "kept")


def test_a_folder_of_another_vector_is_not_loaded(tmp_path: Path) -> None:
    source = tiny.save(tmp_path / "model", "bert")
    codes = {
        str(at): headscope.code(source, pooling=pooling, layer=layer, offline=True)
        for at, (pooling, layer) in enumerate([("mean", None), ("max", None), ("mean", 1)])
    }
    first, *others = (imported(text, tmp_path / f"m{name}.py") for name, text in codes.items())
    first.Classifier().save(tmp_path / "kept")
    for other, name in zip(others, ("pooling", "layer"), strict=True):
        with pytest.raises(ValueError, match=f"{name} is "):
            other.Classifier.load(tmp_path / "kept")


def test_labels_come_back_from_the_folder(module: Any, tmp_path: Path) -> None:
    model = module.Classifier()
    assert model.labels == LABELS
    model.labels = ("x", "x", "z")
    model.save(tmp_path / "kept")
    assert module.Classifier.load(tmp_path / "kept").labels == ("x", "x", "z")


def test_a_save_that_fails_leaves_nothing(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = module.Classifier(), sorted(tmp_path.iterdir())
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match="exists already"):
        model.save(tmp_path / "taken")
    (tmp_path / "taken").unlink()
    model.extra = torch.nn.Linear(2, 2)  # no part of the class: it would be lost
    model.get_submodule("model" if hasattr(model, "model") else "base").extra = torch.nn.Linear(2, 2)
    with pytest.raises((RuntimeError, KeyError), match="extra"):
        model.save(tmp_path / "kept")
    del model.extra
    monkeypatch.setattr(type(model.tokenizer), "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(tmp_path / "kept")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_number_format_is_kept(module: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model = module.Classifier().to(dtype).eval()
    model.save(tmp_path / "kept")
    loaded = module.Classifier.load(tmp_path / "kept")
    inputs = module.encode(loaded.tokenizer, TEXTS)
    with torch.no_grad():
        assert torch.equal(model(**inputs)["logits"], loaded(**inputs)["logits"])
    assert next(loaded.parameters()).dtype is dtype


def test_weights_in_two_number_formats_are_refused_instead_of_rounded(module: Any, tmp_path: Path) -> None:
    model = module.Classifier()
    next(model.parameters()).data = next(model.parameters()).data.half()
    with pytest.raises(ValueError, match="would change"):
        model.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_saving_changes_nothing_for_the_training_that_follows(module: Any, tmp_path: Path) -> None:
    model = module.Classifier().train()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    model.save(tmp_path / "deep" / "kept")
    assert torch.equal(torch.rand(3), expected)
    assert model.training


def test_a_frozen_base_whose_statistics_moved_is_kept_whole(tmp_path: Path) -> None:
    """ResNet's batch normalization moves with every training batch, even if no parameter of the base trains."""
    source, paths = media.save("resnet", tmp_path / "model"), media.files("resnet", tmp_path, 3)
    module = extracted_files("resnet", source, paths).module(Vector.MASKED_MEAN)
    model = module.Classifier()
    model.base.requires_grad_(requires_grad=False)
    old = {name: value.clone() for name, value in model.base.named_buffers()}
    module.train(model, paths, [0, 1, 2], epochs=1)
    assert any(not torch.equal(old[name], value) for name, value in model.base.named_buffers())
    model.save(tmp_path / "kept")
    loaded = dict(module.Classifier.load(tmp_path / "kept").base.named_buffers())
    assert all(torch.equal(value, loaded[name]) for name, value in model.base.named_buffers())


@pytest.mark.parametrize("input", [Input.TEXT, Input.IMAGE])
def test_the_module_shows_by_itself_that_it_keeps_what_it_trains(input: Input, tmp_path: Path) -> None:
    if input is Input.TEXT:
        source, paths = tiny.save(tmp_path / "model", "bert"), []
    else:
        source, paths = media.save("vit", tmp_path / "model"), media.files("vit", tmp_path, 2)
    place = tmp_path / "module.py"
    place.write_text(headscope.code(source, offline=True), encoding="utf-8")
    words = [place, "--save", tmp_path / "kept", *paths]
    done = subprocess.run([*warm.python(), *map(str, words)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith("loaded again, its scores are the same: True\n")


CLASSES = {
    Input.TEXT: "RobertaPreLayerNormForSequenceClassification",
    Input.IMAGE: "PerceiverForImageClassificationConvProcessing",
    Input.AUDIO: "Wav2Vec2ConformerForSequenceClassification",
}
LABEL_SETS = ((), ("a", 'b"\n'), tuple(f"label number {number}" for number in range(9)), ("\u202e" * 30,))


def variants() -> list[str]:
    """A module of every kind, with names of every length."""
    found = []
    count = itertools.count()
    poolings = [item for item in Vector if item not in (Vector.EOS_TOKEN, Vector.LAST_NON_PAD_TOKEN)]
    for input, problem, remote in itertools.product(Input, Problem, [False, True]):
        for vector in Vector if input is Input.TEXT else poolings:
            at = next(count)
            is_auto = input is Input.TEXT and vector is not Vector.HEAD
            loading = Loading(
                "x" * (5 + at % 90), "0" * 40 if at % 2 else None, "folder" * (at % 5), remote_code=remote, input=input,
                model_class="AutoModel" if is_auto else CLASSES[input], base="a.b" if at % 3 else "",
            )  # fmt: skip
            weights = "classifier.safetensors" if at % 2 and vector is not Vector.HEAD else ""
            facts = ModuleFacts(
                "A module.", "some vector", vector, loading, LABEL_SETS[at % 4], problem, layer=at % 7,
                size=None if is_auto and at % 3 else 768, max_tokens=512 if at % 2 else None, classifier="c.out",
                weights=weights,
            )  # fmt: skip
            found.append(module_code(facts))
    return found


def check_with_ruff(*words: str | Path) -> None:
    command = [Path(sys.executable).with_name("ruff"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[:3000]


def test_every_module_is_laid_out_as_ruff_does(tmp_path: Path) -> None:
    written = variants()
    for number, text in enumerate(written):
        (tmp_path / f"m{number}.py").write_text(text, encoding="utf-8")
    assert len(written) > 150
    check_with_ruff("format", "--check", "--diff", "--isolated", tmp_path)
    check_with_ruff("check", "--isolated", "--no-cache", "--extend-select", "I", tmp_path)


NAMES = ["", "a", "it's", 'a "b"', "'\"", "\\", "\\'", "\n\x00\x85", "\u202e\ud800", "中" * 20, "😀" * 39, "é" * 84]


def test_names_are_written_as_ruff_writes_them(tmp_path: Path) -> None:
    values: list[Any] = [
        *NAMES,
        *("x" * count for count in range(60, 95)),
        ("it's",) * 9,
        {},
        {"a": "x" * 90, "b": True},
    ]
    values += [(name,) for name in NAMES] + [("b", name) for name in NAMES]
    lines = [assignment(f"X{at}", value) for at, value in enumerate(values)]
    (tmp_path / "names.py").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {}
    exec("".join(lines), found)
    assert [found[f"X{at}"] for at in range(len(values))] == values
    check_with_ruff("format", "--check", "--diff", "--isolated", tmp_path)
