"""The verdicts on engines: nothing is the same that the facts don't support."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from probing import tiny

import headscope
from headscope.shared.serving.cited import Served, cited_code, engine_names, facts_on, first_that_fits
from headscope.shared.serving.engine_facts import EnginesReport, EngineVerdict
from tests.cli.command import Cli
from tests.edits import edit_json, edit_tensors

SAME, OPEN = EngineVerdict.SAME, EngineVerdict.NOT_DETERMINED
LABELS = {"0": "a", "1": "b", "2": "c"}
KNOWN = {"id2label": LABELS, "label2id": {name: int(place) for place, name in LABELS.items()}}
RELU = "torch.nn.modules.activation.ReLU"
CLASS, DECODER = "BertForSequenceClassification", "Qwen3ForSequenceClassification"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tiny.save(tmp_path_factory.mktemp("bert") / "model", "bert")
    return place


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(bert, tmp_path / "model")
    name_tokenizer(tmp_path / "model", "PreTrainedTokenizerFast")
    return configure(tmp_path / "model", **KNOWN)


def name_tokenizer(folder: Path, name: str) -> None:
    """Writes the class of the tokenizer: Transformers 5 names one that libraries on Transformers 4 don't have."""
    edit_json(folder / "tokenizer_config.json", {"tokenizer_class": name})


def configure(folder: Path, **fields: Any) -> Path:
    """Writes fields to config.json; None removes one."""
    given = {name: value for name, value in fields.items() if value is not None}
    edit_json(folder / "config.json", given, without=tuple(fields))
    return folder


def without(folder: Path, prefix: str) -> None:
    edit_tensors(
        folder / "model.safetensors",
        lambda state: {name: tensor for name, tensor in state.items() if not name.startswith(prefix)},
    )


def verdicts(report: EnginesReport) -> dict[str, EngineVerdict]:
    return {item.engine: item.verdict for item in report.engines}


def test_a_classifier_that_is_known_throughout_is_the_same_in_several_engines(folder: Path) -> None:
    found = headscope.engines(folder, offline=True)
    same = {name for name, verdict in verdicts(found).items() if verdict is SAME}
    assert same == {"infinity", "sglang", "text-embeddings-inference", "transformers-pipeline", "vllm"}


@pytest.fixture(scope="module")
def one_score(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "model"
    shutil.copytree(bert, folder)
    edit_tensors(
        folder / "model.safetensors",
        lambda state: {name: item[:1] if name.startswith("classifier") else item for name, item in state.items()},
    )
    return configure(folder, id2label={"0": "score"}, label2id={"score": 0}, problem_type=None)


def test_the_reference_is_what_the_checkpoints_own_library_applies(folder: Path, one_score: Path) -> None:
    own = headscope.engines(one_score, engine="pipeline", offline=True)
    assert (own.activation, own.engines[0].verdict) == ("sigmoid", SAME)
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    encoder = headscope.engines(configure(folder, sentence_transformers=settings), engine="st", offline=True)
    assert (encoder.activation, encoder.engines[0].verdict) == ("none", SAME)


def test_one_score_under_a_softmax_is_a_fault(one_score: Path) -> None:
    [item] = headscope.engines(one_score, engine="sglang", offline=True).engines
    assert item.is_constant and item.is_fault and "always 1.0" in item.reason
    assert item.verdict is EngineVerdict.DIFFERENT


def rows_of(folder: Path, engine: str) -> tuple[Any, Any, Any]:
    [item] = headscope.engines(folder, engine=engine, offline=True).engines
    return item.runs, item.same_head, item.activation


def test_a_tokenizer_of_transformers_5_is_refused_by_infinity(folder: Path) -> None:
    assert rows_of(folder, "infinity")[0] is True
    name_tokenizer(folder, "TokenizersBackend")
    assert rows_of(folder, "infinity")[0] is False


def test_a_bert_that_is_a_decoder_is_another_model_in_engines_without_a_causal_mask(folder: Path) -> None:
    configure(folder, is_decoder=True)
    assert rows_of(folder, "vllm")[:2] == (True, False)
    assert rows_of(folder, "pipeline")[:2] == (True, True)
    assert [rows_of(folder, engine)[1] for engine in ("sglang", "tei")] == [None, None]


def test_a_head_that_is_made_of_tokens_is_not_that_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    settings = {"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}
    qwen = configure(tiny.save(tmp_path / "qwen2", "qwen2"), **KNOWN, **settings)
    assert rows_of(qwen, "vllm")[:2] == (True, False)
    assert rows_of(configure(folder, **settings), "vllm")[:2] == (None, None)


def test_a_cross_encoder_of_sentence_transformers_6_is_the_same_in_its_own_library(folder: Path) -> None:
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    found = headscope.engines(folder, engine="st", offline=True)
    assert (found.activation, found.engines[0].verdict) == ("none", SAME)


def test_a_class_is_answered_in_its_default_configuration(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("engines", CLASS, "--offline")
    assert "default configuration" in shown.words and max(map(len, shown.out.splitlines())) <= 80
    assert headscope.engines(CLASS, engine="llamacpp", offline=True).engines[0].same_head is False


def test_a_library_that_is_compared_with_itself_does_not_make_the_list_the_same(folder: Path) -> None:
    found = headscope.engines(folder, offline=True)
    assert [item.engine for item in found.engines if item.is_reference] == ["transformers-pipeline"]
    kept = tuple(item for item in found.engines if item.is_reference or item.engine == "llama-cpp")
    assert replace(found, engines=kept).verdict is EngineVerdict.DIFFERENT
    assert replace(found, engines=kept[-1:]).verdict is EngineVerdict.NOT_DETERMINED


def test_a_tokenizer_that_is_not_known_may_be_one_that_infinity_refuses(folder: Path, tmp_path: Path) -> None:
    headscope.snapshot(folder, tmp_path / "snapshot.json")
    [item] = headscope.engines(tmp_path / "snapshot.json", engine="infinity", offline=True).engines
    assert (item.verdict, item.reason) == (OPEN, "the class of the tokenizer is not known")


BEHIND_A_POOLING = {"": "none", ", Normalize": "softmax", ", Dense": "other"}


@pytest.mark.parametrize(("more", "activation"), BEHIND_A_POOLING.items())
def test_what_vllm_applies_behind_a_pooling_depends_on_the_other_modules(more: str, activation: str) -> None:
    files = frozenset({"modules.json", "1_Pooling/config.json"})
    served = Served(CLASS, KNOWN, 3, files, modules=f"Transformer, Pooling{more}")
    row, _ = first_that_fits(facts_on("vllm").scores, served)
    assert row is not None and row["activation"] == activation


POOLINGS = [
    (CLASS, "cls"),
    (CLASS, "mean"),
    (CLASS, "lasttoken"),
    (CLASS, ""),
    (DECODER, "lasttoken"),
    (DECODER, "cls"),
]


@pytest.mark.parametrize(("architecture", "pooling"), POOLINGS)
def test_vllm_runs_the_same_head_behind_a_pooling_that_reads_the_heads_own_token(
    architecture: str, pooling: str
) -> None:
    files = frozenset({"modules.json", "1_Pooling/config.json"})
    is_same = True if (architecture, pooling) in {(CLASS, "cls"), (DECODER, "lasttoken")} else None
    row, _ = first_that_fits(facts_on("vllm").heads, Served(architecture, KNOWN, 3, files, pooling=pooling))
    assert row is not None and row["runs"] and row.get("same_head") is is_same


HEAD = """
class BertForSequenceClassification:
    def __init__(self, config):
        self.pooler = BertPooler(config)

    def forward(self, states):
        return self.classifier(self.pooler(states))
"""


LATER = {
    "the same": (HEAD, SAME),
    "a comment": (HEAD.replace("    def forward", "    # moved\n    def forward"), SAME),
    "another result": (HEAD.replace("self.pooler(states)", "states[:, 0]"), OPEN),
    "other layers": (HEAD.replace("BertPooler(config)", "None"), OPEN),
    "another name": (HEAD.replace("class Bert", "class Other"), OPEN),
    "not to be parsed": (HEAD.replace("forward(", "forward(("), OPEN),
}


@pytest.mark.parametrize(("text", "verdict"), LATER.values(), ids=LATER)
def test_a_row_holds_for_an_installed_version_with_the_same_code(
    text: str, verdict: EngineVerdict, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, later = folder.parent / "read", folder.parent / "later"
    for packages, code in ((read, HEAD), (later, f"import torch\n{text}")):
        (packages / "vllm").mkdir(parents=True)
        (packages / "vllm" / "__init__.py").touch()
        (packages / "vllm" / "bert.py").write_text(code)
    cited_code.cache_clear()
    row = {"runs": True, "same_head": True, "file": "vllm/bert.py", "line": 4}
    row["code"] = cited_code(read, "vllm/bert.py", 4)
    score = {"activation": "softmax", "file": "vllm/absent.py", "line": 1}  # not followed: as of the version read
    facts = replace(facts_on("vllm"), heads=[row], scores=[score], versions=">=0.33,<0.35", notes=())
    monkeypatch.setattr("headscope.shared.serving.judging.facts_on", lambda name: facts)
    monkeypatch.setattr("headscope.shared.serving.cited.package_version", lambda name: "0.34.0")
    monkeypatch.syspath_prepend(later)
    [item] = headscope.engines(folder, engine="vllm@0.34.0", offline=True).engines
    assert item.verdict is verdict
    if verdict is OPEN:
        assert item.reason == "the same head as of 0.33.0, not checked for 0.34.0"
    assert [bool(item.evidence), item.version] == [verdict is SAME, "0.34.0"]


GATES = [
    ([], 0),
    (["--strict"], 1),
    (["--engine", "llamacpp"], 1),
    (["--engine", "st"], 0),
    (["--engine", "st", "--strict"], 1),
    (["--engine", "onnx"], 0),
    (["--engine", "tei"], 0),
    (["--engine", "TEI@1.9.3", "--strict"], 0),
    (["--engine", "ctranslate2"], 1),
    (["--engine", "vllm@0.1.0"], 3),
]


@pytest.mark.parametrize(
    ("options", "code"), GATES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_different_head_fails_and_a_different_activation_only_with_strict(
    options: list[str], code: int, folder: Path, cli: Cli
) -> None:
    cli("engines", folder, "--offline", *options, code=code)


@pytest.mark.parametrize(("engine", "code"), [("llamacpp", 1), ("st", 0), ("tei", 0), ("ctranslate2", 1)])
def test_check_agrees_with_the_command(engine: str, code: int, folder: Path, cli: Cli) -> None:
    rules = ["--select", "HS901,HS902,HS903,HS904", "--for", "inference"]
    cli("check", folder, "--offline", "--engine", engine, *rules, code=code)


def test_every_engine_without_scores_has_its_reason_on_its_row(folder: Path) -> None:
    found = headscope.engines(folder, offline=True)
    shown = " ".join(str(found).split())
    refused = [item for item in found.engines if item.verdict is EngineVerdict.NO_SCORES]
    assert len(refused) > 1 and len({item.reason for item in refused}) > 1
    assert all(f"no scores. {item.reason.removesuffix('.')}" in shown for item in refused)


def test_padding_that_is_read_is_on_the_screen_and_in_the_verdict(tmp_path: Path, cli: Cli) -> None:
    folder = configure(tiny.save(tmp_path / "model", "qwen2"), **KNOWN)
    first, _, _ = cli("engines", folder, "--offline", "--engine", "vllm").out.partition("\n\n")
    assert "even if that is the padding token" in " ".join(first.split())
    cli("engines", folder, "--offline", "--engine", "vllm", "--strict", code=1)


UNKNOWN: dict[str, tuple[dict[str, Any] | Callable[[Path], None], str]] = {
    "no class": ({"architectures": None}, "names no class"),
    "a class that is a text": ({"architectures": CLASS}, "names no class"),
    "no classes": ({"architectures": []}, "names no class"),
    "several classes": ({"architectures": [CLASS, "BertModel"]}, "several classes"),
    "another class": ({"architectures": ["BertModel"]}, "names BertModel"),
    "remote code": ({"auto_map": {"AutoModelForSequenceClassification": "modeling.Own"}}, "remote code"),
    "quantized": ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "quantized"),
    "quantized, in an older field": ({"compression_config": {"format": "x"}}, "quantized"),
    "no weights of the head": (lambda folder: without(folder, "classifier"), "all the weights"),
    "no weights of the pooler": (lambda folder: without(folder, "bert.pooler"), "all the weights"),
    "a gap in the base model": (lambda folder: without(folder, "bert.encoder.layer.0"), "all the weights"),
    "other shapes": ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}, "all the weights"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "which weights"),
}
"""What is written to config.json, or done to the folder, and the reason."""


@pytest.mark.parametrize("case", UNKNOWN)
def test_no_engine_is_judged_where_the_checkpoint_is_not_what_the_facts_are_on(case: str, folder: Path) -> None:
    change, reason = UNKNOWN[case]
    configure(folder, **change) if isinstance(change, dict) else change(folder)
    found = headscope.engines(folder, offline=True)
    assert set(verdicts(found).values()) == {OPEN}
    assert found.verdict is OPEN
    assert all(reason in item.reason for item in found.engines)


def test_a_weight_file_and_a_subfolder_are_not_what_an_engine_loads(folder: Path) -> None:
    file = headscope.engines(folder / "model.safetensors", offline=True)
    part = headscope.engines(folder.parent, subfolder="model", offline=True)
    assert {*verdicts(file).values(), *verdicts(part).values()} == {OPEN}
    assert "weight file" in file.engines[0].reason
    assert "subfolders" in part.engines[0].reason


def test_an_adapter_is_not_what_the_facts_are_on(bert: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, _ = tiny.load(bert, "bert")
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2)
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    found = headscope.engines(tmp_path / "adapter", offline=True)
    assert set(verdicts(found).values()) == {OPEN}
    assert "adapters" in found.engines[0].reason


def test_weights_with_a_prefix_that_from_pretrained_does_not_load_are_not_determined(folder: Path) -> None:
    edit_tensors(
        folder / "model.safetensors",
        lambda state: {f"module.{name}": tensor.float() for name, tensor in state.items()},
    )
    assert set(verdicts(headscope.engines(folder, offline=True)).values()) == {OPEN}


def test_another_version_is_not_determined(folder: Path) -> None:
    found = headscope.engines(folder, engine="vllm@0.34.0", offline=True)
    assert found.verdict is OPEN
    assert found.engines[0].reason == "the same head as of 0.33.0, not checked for 0.34.0"


READ_THE_PROBLEM_TYPE = {"vllm", "infinity", "transformers-pipeline", "sglang", "text-embeddings-inference"}
SETTINGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "an activation that has no name here": ({"sentence_transformers": {"activation_fn": RELU}}, {"vllm"}),
    "the same in the older field": ({"sbert_ce_default_activation_function": RELU}, {"vllm", "sglang"}),
    "a sigmoid before the softmax of SGLang": (
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
        {"sglang"},
    ),
    "an activation that is not a text": ({"sentence_transformers": {"activation_fn": 5}}, {"vllm"}),
    "settings that are not an object": ({"sentence_transformers": "5"}, {"vllm"}),
    "a problem type that does not exist": ({"problem_type": "other"}, READ_THE_PROBLEM_TYPE),
    "a problem type that is a list": ({"problem_type": ["regression"]}, READ_THE_PROBLEM_TYPE),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_no_row_is_on_leaves_the_engines_that_read_it_open(case: str, folder: Path) -> None:
    settings, engines = SETTINGS[case]
    found = headscope.engines(configure(folder, **settings), offline=True)
    for item in found.engines:
        if item.engine in engines:
            assert item.verdict is OPEN, item.engine
            assert "could not" in item.reason


@pytest.mark.parametrize("text", ["[]", "[{", '{"a": 1}', '[{"idx": 0}]'])
def test_a_module_list_that_cannot_be_read_leaves_open_what_depends_on_it(text: str, folder: Path) -> None:
    (folder / "modules.json").write_text(text)
    found = headscope.engines(folder, offline=True)
    reference = ("text-embeddings-inference", "transformers-pipeline")  # of these, the library's own function
    assert {verdicts(found)[name] for name in ("vllm", "sentence-transformers", *reference)} == {OPEN}
    assert found.activation == "not determined"


def test_every_engine_has_one_entry_and_the_json_names_the_same_verdicts(folder: Path) -> None:
    found = headscope.engines(folder, offline=True)
    assert tuple(verdicts(found)) == engine_names()
    plain = found.to_dict()
    assert plain["verdict"] == found.verdict.value
    assert [item["verdict"] for item in plain["engines"]] == [item.verdict.value for item in found.engines]


@pytest.mark.parametrize(
    ("engine", "architecture", "becomes"),
    [
        ("vllm", "BertForSequenceClassification", "float16"),
        ("vllm", "GemmaForSequenceClassification", "float16"),
        ("vllm", "Gemma2ForSequenceClassification", ""),
        ("vllm", "Glm4ForSequenceClassification", ""),
        ("sglang", "Gemma2ForSequenceClassification", ""),
        ("infinity", "BertForSequenceClassification", ""),
    ],
)
def test_a_class_that_the_rule_on_precision_leaves_out_has_no_claim(
    engine: str, architecture: str, becomes: str
) -> None:
    assert facts_on(engine).float32_becomes(architecture) == becomes


NARROW = {"when": {"field": {"is": [True]}}, "runs": False}
NUMBER = {"when": {"@num_labels": {"max": 1}}, "runs": False}
FILES = {"when": {"@files": {"has": ["modules.json"]}}, "runs": False}
REST = {"runs": True}


@pytest.mark.parametrize(
    ("row", "config", "runs"),
    [
        (NARROW, {"field": True}, False),
        (NARROW, {"field": False}, True),
        (NARROW, {}, True),
        (NARROW, {"field": None}, True),
        (NARROW, {"field": 1}, None),
        (NARROW, {"field": "true"}, None),
        (NARROW, {"field": []}, None),
        ({"when": {"a.b": {"absent": True}}, "runs": False}, {"a": {}}, False),
        ({"when": {"a.b": {"absent": True}}, "runs": False}, {"a": "b"}, None),
        ({"when": {"a": {"not": ["x"]}}, "runs": False}, {"a": 5}, None),
        ({"when": {"a": {"min": 2}}, "runs": False}, {"a": True}, None),
        ({"when": {"a": {"is": ["x"]}, "b": {"is": ["y"]}}, "runs": False}, {"a": 5, "b": "z"}, True),
        (NUMBER, {}, None),
        (FILES, {}, None),
    ],
)
def test_a_row_behind_a_condition_that_is_not_known_is_not_used(row: Any, config: Any, runs: bool | None) -> None:
    served = Served("BertForSequenceClassification", config, num_labels=None, files=None)
    found, reason = first_that_fits([row, REST], served)
    assert (found["runs"] if found is not None else None) is runs
    assert bool(reason) is (runs is None)
