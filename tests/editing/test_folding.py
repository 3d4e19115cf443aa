"""`edit --as`: the scores of a folded head, held against the library that computed them before."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

import headscope
from headscope.copies.facts import EditVerdict, FoldKind
from headscope.errors import Malformed, Unsupported, UsageError
from headscope.slices.edit.folding import fold, proof, target
from tests import fold_table
from tests.editing.checkpoints import load_whole, write_setfit
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES
from tests.fold_table import KINDS, Kind
from tests.modules import Module, dense, norm, normalize, pooling, write_chain
from tests.scorers import WORDS, save_encoder, save_language_model

NO, YES = WORDS.index("no"), WORDS.index("yes")
PAIRS = [("w1 w2 w3", "w4"), ("w5", "w6 w7 w8 w9 w10"), ("w11 w12", "w13 w14")]
MODERN = [dense(16, 16, "GELU", bias=False), norm(), dense(16, 1)]


def scores_of_class(folder: Path) -> torch.Tensor:
    """Logits of a padded batch, of the class and the tokenizer that `from_pretrained` gives alone."""
    model = load_whole("AutoModelForSequenceClassification", folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(*map(list, zip(*PAIRS, strict=True)), return_tensors="pt", padding=True)
    with torch.no_grad():
        return model(**encoded).logits


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_chain(tmp_path / "chain", "ModernBert", [pooling("cls"), *MODERN])


@pytest.mark.parametrize(
    ("family", "after", "settings"),
    [
        ("ModernBert", [pooling("cls"), *MODERN], {}),
        (
            "ModernBert",
            [pooling("mean"), dense(16, 16, "ReLU"), norm(), dense(16, 3)],
            {"classifier_pooling": '"mean"', "classifier_activation": '"relu"', "classifier_bias": "true"},
        ),
        ("Bert", [pooling("cls"), dense(16, 16, "Tanh"), dense(16, 2)], {}),
        ("Bert", [pooling("cls"), dense(16, 16, "Tanh"), dense(16, 8), dense(8, 2)], {}),
        ("XLMRoberta", [pooling("cls"), dense(16, 16, "Tanh"), dense(16, 1)], {}),
        ("DistilBert", [pooling("cls"), dense(16, 16, "ReLU"), dense(16, 1)], {}),
        ("Electra", [pooling("cls"), dense(16, 16, "GELU"), dense(16, 4)], {}),
        ("Qwen3", [pooling("lasttoken"), dense(16, 1, bias=False)], {}),
    ],
)
def test_a_chain_that_a_class_computes_is_planned(
    family: str, after: list[Module], settings: dict[str, str], tmp_path: Path
) -> None:
    write_chain(tmp_path / "chain", family, after)
    found = headscope.edit(tmp_path / "chain", as_class="auto", dry_run=True)
    assert found.verdict is EditVerdict.PLANNED
    assert {item.name: item.after for item in found.fold.settings} == settings
    assert found.model_class == f"{family}ForSequenceClassification"
    assert not found.exact  # nothing was proven
    assert sorted(item.name for item in tmp_path.iterdir()) == ["chain"]


@pytest.mark.parametrize(
    ("family", "after", "reason"),
    [
        ("Bert", [pooling("weightedmean"), dense(16, 16, "Tanh"), dense(16, 1)], "Pooling weightedmean"),
        ("Bert", [pooling("mean"), dense(16, 16, "Tanh"), dense(16, 1)], "Bert.* reads the first token"),
        ("Bert", [pooling("cls"), normalize(), dense(16, 1)], "normalize where Bert.* has tanh"),
        ("Bert", [pooling("cls"), dense(16, 16, "ReLU"), dense(16, 1)], "relu where Bert.* has tanh"),
        ("DistilBert", [pooling("cls"), dense(16, 16, "ReLU6"), dense(16, 1)], "where DistilBert.* has relu"),
        ("Bert", [pooling("cls"), dense(16, 8, "Tanh"), dense(8, 1)], "tanh is of 8 features.* of 16"),
        ("Bert", [pooling("cls"), dense(16, 1)], "has tanh where the head has nothing"),
        (
            "Bert",
            [pooling("cls", 24), dense(24, 24, "Tanh"), dense(24, 1)],
            "2_Dense takes 24 features, and the base model gives 16",
        ),
        ("Bert", [pooling("cls"), dense(16, 16, "Tanh", residual=True), dense(16, 1)], "row of layers"),
        ("Qwen3", [pooling("lasttoken"), dense(16, 1)], "bias of .* has no place: score"),
        ("ModernBert", [pooling("max"), *MODERN], "Pooling max"),
    ],
)
def test_a_part_without_a_place_in_the_class_is_named(
    family: str, after: list[Module], reason: str, tmp_path: Path
) -> None:
    write_chain(tmp_path / "chain", family, after)
    found = headscope.edit(tmp_path / "chain", tmp_path / "out", as_class="auto")
    assert found.verdict is EditVerdict.REFUSED
    assert re.search(reason, found.proof.reason)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["chain"]


def test_without_its_library_a_fold_is_planned_and_not_written(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "find_spec", lambda name: None if name == "sentence_transformers" else name)
    with pytest.raises(Unsupported, match="can't be proven here: sentence-transformers"):
        headscope.edit(chain, tmp_path / "out", as_class="auto")
    found = headscope.edit(chain, as_class="auto", dry_run=True)
    assert any("pip install sentence-transformers" in sentence for sentence in found.fold.to_do)
    named = headscope.edit(chain, as_class="auto", labels="good", dry_run=True)
    assert named.verdict is EditVerdict.PLANNED and named.fold is not None
    assert sorted(item.name for item in tmp_path.iterdir()) == ["chain"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (chain / name).unlink()
    with pytest.raises(Unsupported, match="tokenizer"):
        headscope.edit(chain, as_class="auto", dry_run=True)


@pytest.mark.parametrize(
    ("family", "mode", "after"),
    [
        ("ModernBert", "mean", MODERN),
        ("Bert", "cls", [dense(16, 16, "Tanh"), dense(16, 2)]),
        ("DistilBert", "cls", [dense(16, 16, "ReLU"), dense(16, 1)]),
        ("Qwen3", "lasttoken", [dense(16, 1, bias=False)]),
    ],
)
def test_the_class_gives_the_scores_of_the_cross_encoder(
    family: str, mode: str, after: list[Module], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    source = write_chain(tmp_path / "chain", family, [pooling(mode), *after])
    found = headscope.edit(source, tmp_path / "out", as_class="auto", texts="w50 w51 w52")
    assert found.verdict is EditVerdict.PROVEN
    assert found.fold.max_difference <= found.fold.tolerance < 1e-3
    assert found.exact
    encoder = library.CrossEncoder(str(source), device="cpu")
    theirs = encoder.predict(PAIRS, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
    torch.testing.assert_close(scores_of_class(tmp_path / "out"), theirs.reshape(len(PAIRS), -1), atol=1e-5, rtol=1e-5)
    # The function on the scores stays too, for the library and for a pipeline.
    again = library.CrossEncoder(str(tmp_path / "out"), device="cpu")
    torch.testing.assert_close(
        again.predict(PAIRS, convert_to_tensor=True), encoder.predict(PAIRS, convert_to_tensor=True)
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text())["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize(("activation", "kept"), [(None, "Sigmoid"), ("torch.nn.modules.linear.Identity", "Identity")])
def test_a_chain_keeps_the_card_and_the_function_of_its_class(
    activation: str | None, kept: str, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    settings = {} if activation is None else {"sentence_transformers": {"activation_fn": activation}}
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=1, **settings)
    (tmp_path / "class" / "README.md").write_text("# Rates answers.\n")
    headscope.edit(tmp_path / "class", tmp_path / "chain", as_class="chain")
    assert (tmp_path / "chain" / "README.md").read_text().startswith("# Rates answers.")
    library = json.loads((tmp_path / "chain" / "config_sentence_transformers.json").read_text())
    assert library["activation_fn"].endswith(f".{kept}")


def test_a_chain_names_the_function_that_cross_encoder_puts_on_its_class(tmp_path: Path) -> None:
    library: Any = pytest.importorskip("sentence_transformers")
    function = {"activation_fn": "torch.nn.modules.activation.Softmax"}
    save_encoder(
        "ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=3, sentence_transformers=function
    )
    folded = headscope.edit(tmp_path / "class", tmp_path / "chain", as_class="chain")
    before, after = (library.CrossEncoder(str(tmp_path / name)).predict([("a", "b")]) for name in ("class", "chain"))
    assert np.allclose(before, np.exp(after) / np.exp(after).sum(), atol=1e-5) and not np.allclose(before, after)
    assert "CrossEncoder puts Softmax on the class's scores" in json.dumps(folded.to_dict())


@pytest.mark.usefixtures("proofs_apart")
def test_a_softmax_over_one_score_is_no_problem_type_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    function = {"activation_fn": "torch.nn.modules.activation.Softmax"}
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=1)
    headscope.edit(tmp_path / "class", tmp_path / "chain", as_class="chain")
    edit_json(tmp_path / "chain" / "config_sentence_transformers.json", function)
    planned = headscope.edit(tmp_path / "chain", as_class="auto", labels="good", dry_run=True)
    assert planned.verdict is EditVerdict.PLANNED
    folded = headscope.edit(tmp_path / "chain", tmp_path / "folded", as_class="auto", labels="good")
    config = json.loads((tmp_path / "folded" / "config.json").read_text())
    assert folded.verdict is EditVerdict.PROVEN and config["sentence_transformers"] == function
    assert config.get("problem_type") is None


@pytest.mark.parametrize(
    ("scores", "problem", "here"),
    [
        (3, "multi_label_classification", "a sigmoid"),
        (1, "multi_label_classification", ""),
        (1, "regression", "no function"),
        (3, "single_label_classification", ""),
        (1, None, ""),
    ],
)
def test_a_chain_says_where_cross_encoder_scores_it_otherwise_than_the_class(
    scores: int, problem: str | None, here: str, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=scores, problem_type=problem)
    found = headscope.edit(tmp_path / "class", tmp_path / "chain", as_class="chain")
    of_class, of_chain = (
        library.CrossEncoder(str(tmp_path / name), device="cpu").predict(PAIRS, convert_to_tensor=True)
        for name in ("class", "chain")
    )
    assert torch.allclose(of_class, of_chain, atol=1e-5) is (not here)
    notes = [sentence for sentence in found.fold.to_do if "scores of the chain" in sentence]
    assert len(notes) == bool(here) and all(f"puts {here} on" in sentence for sentence in notes)
    logits = scores_of_class(tmp_path / "class").reshape(of_chain.shape)
    if here:
        torch.testing.assert_close(of_chain, logits.sigmoid() if here == "a sigmoid" else logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.family} {kind.head}")
def test_engines_give_the_scores_that_the_source_s_library_gave(kind: Kind, tmp_path: Path) -> None:
    """On the same texts and pairs, alone and padded; each engine that is installed here."""
    pytest.importorskip("setfit" if kind.head.startswith("SetFit") else "sentence_transformers")
    if kind.head.startswith("value_head"):
        ppo = pytest.importorskip("trl.experimental.ppo")
        if not hasattr(ppo, "AutoModelForCausalLMWithValueHead"):
            pytest.skip("could not import 'trl.experimental.ppo.AutoModelForCausalLMWithValueHead'")
    folded = fold_table.fold(kind, tmp_path)
    if kind.head.startswith("value_head"):
        stored = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("source", "folded")]
        assert torch.equal(stored[0]["v_head.summary.weight"], stored[1]["score.weight"])
    for engine, package in (
        ("sentence-transformers", "sentence_transformers"), ("transformers-pipeline", "transformers"),
        ("onnx-runtime", "onnxruntime"),
    ):  # fmt: skip
        if engine in kind.engines and find_spec(package) is not None:
            assert folded.apart(engine)[0] < 1e-4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"solver": "liblinear"}, r"one scaled sigmoid .*solver='liblinear'"),
        ({"multi_class": "ovr"}, r"one scaled sigmoid .*multi_class='ovr'"),
        ({"multi_class": "warn"}, r"one scaled sigmoid .*multi_class='warn'"),
        ({"multi_class": "newer"}, "its multi_class is none that headscope knows"),
        ({"multi_class": 1.5}, "its multi_class is none that headscope knows"),
        # An older scikit-learn's one score is not that of a sigmoid.
        ({"classes": range(2), "multi_class": "multinomial"}, "the one score and its opposite"),
        ({"head": RidgeClassifier()}, "RidgeClassifier, which is not a LogisticRegression"),
        ({"head": KNeighborsClassifier()}, "KNeighborsClassifier, which is not a LogisticRegression"),
        ({"coef_": [1.0]}, "without weights and intercepts"),
        ({"classes_": np.array(["good", "fine", "bad"])}, "lists bad, fine, good"),
        ({"coef_": np.ones(16)}, r"shape \[16\].* don't fit each other"),
        ({"coef_": np.ones((1, 16))}, r"shape \[1, 16\].* don't fit each other"),
        ({"intercept_": np.ones(1)}, r"intercepts of shape \[1\].* don't fit"),
        ({"intercept_": np.ones((3, 1))}, "don't fit each other"),
        ({"coef_": np.ones((3, 8))}, "takes 8 features, and the modules .* give 16"),
        ({"coef_": np.full((3, 16), np.nan)}, "numbers that are not finite"),
    ],
)
def test_a_classifier_of_setfit_that_no_module_computes_is_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = headscope.edit(write_setfit(tmp_path / "setfit", **settings), as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and re.search(reason, found.proof.reason)


@pytest.mark.parametrize(
    "settings",
    [
        {"multi_class": "auto"},
        {"multi_class": "multinomial"},
        {"multi_class": "deprecated"},
        {"classes": range(2), "multi_class": "ovr"},
        {"classes": range(2), "multi_class": "auto", "solver": "liblinear"},
        {"head": LogisticRegression(fit_intercept=False)},
        {"head": LogisticRegressionCV(Cs=2, cv=2), "classes": np.array(["bad", "fine", "good"], dtype=object)},
        {"head": LogisticRegressionCV(Cs=2, cv=2)},
    ],
)
def test_a_classifier_whose_probabilities_a_softmax_gives_is_planned(settings: dict[str, Any], tmp_path: Path) -> None:
    source = write_setfit(tmp_path / "setfit", **settings)
    found = headscope.edit(source, as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.PLANNED, found.proof.reason
    assert any("scikit-learn did not run" in sentence for sentence in found.fold.to_do)
    found = headscope.edit(source, as_class="auto", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "--as chain makes a module of it" in found.proof.reason


def test_a_name_for_two_classes_of_setfit_is_refused(tmp_path: Path) -> None:
    source = write_setfit(tmp_path / "setfit")
    edit_json(source / "config_setfit.json", {"labels": ["bad", "bad", "good"]})
    found = headscope.edit(source, as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "several classes have the name bad" in found.proof.reason


def test_the_hint_of_the_reader_stays_in_the_refusal(tmp_path: Path) -> None:
    source = write_setfit(tmp_path / "setfit")
    joblib.dump(joblib.load(source / "model_head.pkl"), source / "model_head.pkl", compress=3)
    found = headscope.edit(source, as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "without compress" in found.proof.reason


@pytest.mark.parametrize("file", ["model_head.pkl", "config_setfit.json"])
def test_a_broken_file_of_setfit_is_named(file: str, tmp_path: Path) -> None:
    source = write_setfit(tmp_path / "setfit")
    content = (source / file).read_bytes()
    (source / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(Malformed, match=file):
        headscope.edit(source, as_class="chain", dry_run=True)


@pytest.mark.parametrize("is_setfit", [False, True])
@pytest.mark.parametrize("includes", [False, True])
def test_a_prompt_that_the_pooling_leaves_out_is_refused(is_setfit: bool, includes: bool, tmp_path: Path) -> None:
    if is_setfit:
        source = write_setfit(tmp_path / "source")
    else:
        source = write_chain(tmp_path / "source", "ModernBert", [pooling("mean"), *MODERN])
    edit_json(source / "config_sentence_transformers.json", {"prompts": {"query": "w1 w2 ", "plain": ""}})
    edit_json(source / "1_Pooling" / "config.json", {"include_prompt": includes})
    found = headscope.edit(source, as_class="chain" if is_setfit else "auto", dry_run=True)
    assert found.verdict is (EditVerdict.PLANNED if includes else EditVerdict.REFUSED)
    assert includes or "has prompts: query" in found.proof.reason
    edit_json(source / "config_sentence_transformers.json", {"prompts": {"query": "", "document": ""}})
    found = headscope.edit(source, as_class="chain" if is_setfit else "auto", dry_run=True)
    assert found.verdict is EditVerdict.PLANNED


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", b"[{", "modules.json is not valid JSON"),
        ("modules.json", b"[]", "modules.json lists 0 modules"),
        ("4_Dense/model.safetensors", b"\x88\0\0\0\0\0\0\0{", "4_Dense/model.safetensors is not a valid"),
        ("4_Dense/config.json", None, "4_Dense/config.json"),
    ],
)
def test_the_fault_of_a_module_is_named(file: str, content: bytes | None, said: str, chain: Path) -> None:
    path = chain / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(Unsupported, match=said):
        headscope.edit(chain, as_class="auto", dry_run=True)


def test_a_module_outside_of_the_checkpoint_is_not_read(chain: Path) -> None:
    modules = json.loads((chain / "modules.json").read_text())
    modules[-1]["path"] = "../other/4_Dense"
    (chain / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(Unsupported, match="not inside the checkpoint"):
        headscope.edit(chain, as_class="auto", dry_run=True)


def test_a_language_model_without_tokens_gets_the_option(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path / "lm")
    with pytest.raises(Unsupported) as caught:
        headscope.edit(tmp_path / "lm", as_class="auto", dry_run=True)
    assert "--tokens no,yes" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"as_class": "Chain"}, "--as Chain", "--as chain"),
        ({"as_class": "AUTO"}, "--as AUTO", "--as auto"),
        ({"as_class": "chain", "labels": "a,b", "drop": "a"}, "takes no other change", "first"),
        ({"as_class": "chain", "temperature": 2.0}, "takes no other change", "first"),
    ],
)
def test_what_can_not_follow_is_refused_before_any_work(options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        headscope.edit("a-folder-that-is-not-there", "out", **options)
    assert hint in caught.value.hint


def test_names_that_contradict_each_other_are_not_settled_by_a_fold(tmp_path: Path) -> None:
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=2)
    edit_json(tmp_path / "class" / "config.json", {
        "id2label": {"0": "bad", "1": "good"}, "label2id": {"good": 0, "bad": 1},
    })  # fmt: skip
    found = headscope.edit(tmp_path / "class", as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "label2id" in found.proof.reason
    assert "--labels A,B,C" in found.proof.reason
    found = headscope.edit(tmp_path / "class", as_class="chain", labels="bad,good", dry_run=True)
    assert found.verdict is EditVerdict.PLANNED and found.labels_before == ("bad", "good")


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("BertForNextSentencePrediction", "not the class that AutoModel.* loads for bert", "--as auto"),
        ("BertForMaskedLM", "not the class that AutoModel.* loads for bert", "BertForSequenceClassification"),
        ("bertforsequenceclassification", "no class", "did you mean BertForSequenceClassification?"),
    ],
)
def test_a_class_that_gives_no_scores_of_a_sequence_is_refused_in_a_dry_run(
    name: str, said: str, hint: str, tmp_path: Path
) -> None:
    write_chain(tmp_path / "chain", "Bert", [pooling("cls"), dense(16, 16, "Tanh"), dense(16, 2)])
    with pytest.raises(UsageError, match=said) as caught:
        headscope.edit(tmp_path / "chain", as_class=name, dry_run=True)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("family", "head", "reason", "step"),
    [
        ("bart", "BartForSequenceClassification", "only encodes texts.* none for bart", "CrossEncoder loads a Bart"),
        ("t5", "T5ForSequenceClassification", "reads the end-of-text token", "CrossEncoder loads a T5"),
        ("bert", "BertForTokenClassification", "reads every token", "with the library that made it"),
        ("vit", "ViTForImageClassification", "takes no texts", "with the library that made it"),
    ],
)
def test_a_refused_chain_says_what_to_do(family: str, head: str, reason: str, step: str, tmp_path: Path) -> None:
    FAMILIES[family].build(head).save_pretrained(tmp_path)
    found = headscope.edit(tmp_path, as_class="chain", dry_run=True)
    assert re.search(f"{reason}.*; .*{step}", found.proof.reason)


def test_an_activation_with_an_option_has_no_place_in_a_chain(tmp_path: Path) -> None:
    settings = {"num_labels": 1, "classifier_activation": "gelu_new"}
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", **settings)
    found = headscope.edit(tmp_path / "class", as_class="chain", dry_run=True)
    assert "classifier_activation: gelu_new" in found.proof.reason
    modules = pytest.importorskip("sentence_transformers.base.modules")
    modules.Dense(2, 2, activation_function=torch.nn.GELU(approximate="tanh")).save(str(tmp_path))
    assert modules.Dense.load(str(tmp_path)).activation_function.approximate == "none"  # the library loses it


def test_as_many_names_as_scores_are_needed_for_a_chain(tmp_path: Path) -> None:
    save_encoder("Bert", "ForSequenceClassification", tmp_path / "class", num_labels=3)
    with pytest.raises(UsageError, match="--labels names 2 classes, and the head has 3"):
        headscope.edit(tmp_path / "class", as_class="chain", labels="a,b", dry_run=True)


def test_a_source_that_its_library_cannot_run_is_named(tmp_path: Path) -> None:
    save_encoder("Bert", "ForSequenceClassification", tmp_path / "class", num_labels=1)
    edit_json(tmp_path / "class" / "tokenizer_config.json", {"model_max_length": 90})
    task = proof.FoldTask(
        str(tmp_path / "class"), str(tmp_path / "class"), FoldKind.CLASS, FoldKind.CLASS, (), 1, texts=("w1 " * 90,)
    )
    safetensors.torch.save_file({}, tmp_path / "class" / proof.EXACT)
    assert "scoring single texts with the source failed" in proof.prove_fold_here(task).reason


def test_an_adapter_is_merged_first(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "bert-base-uncased", "task_type": "SEQ_CLS"})
    )
    safetensors.torch.save_file(
        {"base_model.model.x.lora_A.weight": torch.ones(1, 1)}, tmp_path / "adapter_model.safetensors"
    )
    with pytest.raises(Unsupported) as caught:
        headscope.edit(tmp_path, as_class="auto", dry_run=True)
    assert "--merge-adapter" in caught.value.hint


def test_a_class_becomes_a_chain_and_the_chain_the_class(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=3)
    found = headscope.edit(tmp_path / "class", tmp_path / "chain", as_class="chain")
    assert any("softmax" in sentence for sentence in found.fold.to_do)
    assert (tmp_path / "chain" / "modules.json").is_file()
    found = headscope.edit(tmp_path / "chain", tmp_path / "back", as_class="auto")
    assert found.fold.max_difference < 1e-5
    torch.testing.assert_close(scores_of_class(tmp_path / "back"), scores_of_class(tmp_path / "class"))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Qwen3", {}),
        ("Llama", {"scores": 2}),
        ("Gemma", {}),
        ("OPT", {}),
        ("Qwen3", {"scores": 2, "labels": "bad,good", "temperature": 2.0}),
    ],
)
def test_rows_of_a_language_model_become_the_scores_of_a_class(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = save_language_model(family, tmp_path / "lm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "lm", padding_side="left")
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes", **changes)
    assert found.verdict is EditVerdict.PROVEN
    encoded = tokenizer(*map(list, zip(*PAIRS, strict=True)), return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = model(**encoded).logits[:, -1, [NO, YES]]
    theirs = logits / changes.get("temperature", 1) if "scores" in changes else logits[:, 1:] - logits[:, :1]
    torch.testing.assert_close(scores_of_class(tmp_path / "out"), theirs, atol=1e-5, rtol=1e-4)
    assert found.labels_before == (("no", "yes") if "scores" in changes else ("yes",))
    assert ",".join(label.name for label in found.labels) == changes.get("labels", "")
    assert any("prompt" in sentence for sentence in found.fold.to_do)


def test_a_fold_that_loses_a_hundredth_is_refused_in_half_precision_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_language_model("Qwen3", tmp_path / "lm")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "lm")
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes")
    assert found.verdict is EditVerdict.PROVEN
    assert sorted(item.name for item in (tmp_path / "out").iterdir() if item.name.startswith(".")) == []
    fill = target.fill_class
    monkeypatch.setattr(
        target, "fill_class", lambda *given: {item: values * 1.01 for item, values in fill(*given).items()}
    )
    lossy = headscope.edit(tmp_path / "lm", tmp_path / "lossy", as_class="auto", tokens="no,yes")
    assert lossy.verdict is EditVerdict.REFUSED and "scores differ" in lossy.proof.reason


def test_the_class_knows_the_pad_token_of_the_tokenizer(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path / "lm", pad_token_id=None)
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes")
    assert found.verdict is EditVerdict.PROVEN
    assert [(item.name, item.after) for item in found.fold.settings] == [("pad_token_id", "0")]
    assert scores_of_class(tmp_path / "out").shape == (3, 1)


def test_the_class_that_was_named_scores_in_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "own_classes.py"
    code.write_text(
        "from transformers import BertForSequenceClassification\n"
        "class Doubled(BertForSequenceClassification):\n"
        "    def forward(self, *args, **options):\n"
        "        found = super().forward(*args, **options)\n"
        "        found.logits = found.logits * 2\n"
        "        return found\n"
    )
    save_encoder("Bert", "ForSequenceClassification", tmp_path / "class", num_labels=3)
    edit_tensors(
        tmp_path / "class" / "model.safetensors",
        lambda state: {name: item * (20 if "classifier.weight" in name else 1) for name, item in state.items()},
    )
    plain = scores_of_class(tmp_path / "class")
    found = headscope.edit(
        tmp_path / "class", tmp_path / "out", as_class="BertForSequenceClassification", model_class=f"{code}:Doubled"
    )
    assert found.verdict is EditVerdict.PROVEN
    torch.testing.assert_close(scores_of_class(tmp_path / "out"), plain * 2)


@pytest.mark.parametrize("swaps_words", [False, True])
def test_a_cross_encoder_that_asks_a_language_model_becomes_a_class_with_its_tokenizer(
    swaps_words: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_language_model("Qwen3", tmp_path / "lm")
    library.CrossEncoder(str(tmp_path / "lm")).save_pretrained(str(tmp_path / "saved"))

    def prove(task: proof.FoldTask) -> proof.FoldProof:
        file = Path(task.result) / "tokenizer.json"
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        words["w1"], words["w2"] = words["w2"], words["w1"]
        if swaps_words:
            file.write_text(json.dumps(content))
        return proof.prove_fold_here(task)

    monkeypatch.setattr(fold, "prove_fold_here", prove)
    found = headscope.edit(tmp_path / "saved", tmp_path / "out", as_class="auto", texts="w1 w3")
    assert found.verdict is (EditVerdict.REFUSED if swaps_words else EditVerdict.PROVEN)
    assert swaps_words == ("tokenizers before and after" in found.proof.reason)


def test_a_function_on_the_logits_of_tokens_is_refused(tmp_path: Path) -> None:
    save_language_model("Gemma2", tmp_path / "lm")
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes")
    assert "the head has tanh" in found.proof.reason


def test_what_no_class_takes_is_not_folded_away(tmp_path: Path) -> None:
    save_encoder("Bert", "ForSequenceClassification", tmp_path / "reward", num_labels=1)
    statistics = {"mean": torch.tensor([0.7]), "std": torch.tensor([2.5])}
    edit_tensors(tmp_path / "reward" / "model.safetensors", lambda state: {**state, **statistics})
    found = headscope.edit(tmp_path / "reward", as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "mean, std" in found.proof.reason


@pytest.mark.parametrize("damage", ["head", "base"])
def test_a_result_that_differs_is_not_put_in_place(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_language_model("Qwen3", tmp_path / "lm")
    key = "score.weight" if damage == "head" else "model.norm.weight"

    def prove_damaged(task: proof.FoldTask) -> proof.FoldProof:
        edit_tensors(Path(task.result) / "model.safetensors", lambda state: {**state, key: state[key] * 1.01})
        return proof.prove_fold_here(task)

    monkeypatch.setattr(fold, "prove_fold_here", prove_damaged)
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes")
    assert found.verdict is EditVerdict.REFUSED
    assert sorted(item.name for item in tmp_path.iterdir()) == ["lm"]


def test_each_parameter_names_what_it_was_made_of(chain: Path) -> None:
    found = headscope.edit(chain, as_class="auto", dry_run=True)
    made = {item.name: (item.sources, item.is_copied) for item in found.fold.parameters}
    assert made == {
        "head.dense.weight": (("2_Dense.linear.weight",), True),
        "head.norm.weight": (("3_LayerNorm.norm.weight",), True),
        "classifier.weight": (("4_Dense.linear.weight",), True),
        "classifier.bias": (("3_LayerNorm.norm.bias", "4_Dense.linear.weight", "4_Dense.linear.bias"), False),
    }


def test_prompts_are_left_to_the_caller(chain: Path) -> None:
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    edit_json(chain / "config_sentence_transformers.json", prompts)
    found = headscope.edit(chain, as_class="auto", dry_run=True)
    assert any('"query: "' in sentence and "first text of a pair" in sentence for sentence in found.fold.to_do)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"as_class": "RobertaForSequenceClassification"}, "not a class of the checkpoint's family, qwen3"),
        ({"as_class": "auto", "scores": 2}, "counts the scores of two tokens"),
        ({"as_class": "auto", "tokens": "no,yes,w1", "scores": 1}, "--tokens names no, yes, w1"),
        ({"as_class": "auto", "tokens": "no,yes", "scores": -1}, "not 1 or the number of tokens, 2"),
        ({"tokens": "no,yes"}, "only in a fold"),
        ({"as_class": "auto", "tokens": "no,yes", "in_place": True}, "another checkpoint"),
        ({"as_class": "auto", "tokens": "no,yes", "link": True}, "--link has no place in it"),
        ({"as_class": "auto", "architecture": "Qwen3ForSequenceClassification"}, "--architecture has no place in it"),
    ],
)
def test_a_fold_that_cannot_be_meant_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path / "lm")
    edit_json(tmp_path / "lm" / "config.json", {"architectures": ["Qwen3ForSequenceClassification"]})
    edit_tensors(
        tmp_path / "lm" / "model.safetensors",
        lambda state: {**state, "score.weight": torch.ones(2, 16)},
    )
    where = {} if options.get("in_place") else {"output": tmp_path / "out"}
    with pytest.raises(UsageError, match=said):
        headscope.edit(tmp_path / "lm", **where, **options)


def test_a_chat_template_that_ends_in_the_token_that_pads_is_refused(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path / "lm", pad_token_id=None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "lm")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "lm")
    found = headscope.edit(tmp_path / "lm", tmp_path / "plain", as_class="auto", tokens="no,yes")
    assert found.verdict is EditVerdict.PROVEN
    assert any("A text that ends in" in sentence for sentence in found.fold.to_do)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {{ eos_token }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "lm")
    found = headscope.edit(tmp_path / "lm", tmp_path / "out", as_class="auto", tokens="no,yes")
    assert found.verdict is EditVerdict.REFUSED and "the chat template ends in" in found.proof.reason
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {
                "architectures": ["XForSequenceClassification"],
                "auto_map": {"AutoModelForSequenceClassification": "x.X"},
            },
            "XForSequenceClassification, a class of the checkpoint's own code",
        ),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantized"),
    ],
)
def test_weights_and_classes_that_are_not_computed_are_refused(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", fields)
    with pytest.raises(Unsupported, match=reason):
        headscope.edit(tmp_path, as_class="chain", dry_run=True)
