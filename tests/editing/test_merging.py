"""`edit --merge-adapter` on adapters that PEFT saved: PEFT's own load, and its merge, are the oracles."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shell.app import main
from headscope.slices.edit import adapter_head, checkpoint_edit, merging
from tests.editing.checkpoints import SIZES, load_whole, logits, logits_of, save_adapter, save_base, saved, with_config
from tests.editing.ending import disturb
from tests.edits import edit_json, edit_tensors


def unmerged(base: Path, adapter: Path, family: str = "Bert") -> peft.PeftModel:
    cls: Any = getattr(transformers, f"{family}ForSequenceClassification")
    return peft.PeftModel.from_pretrained(cls.from_pretrained(base, num_labels=3), adapter).eval()


BARE = peft.LoraConfig(target_modules=["query"], r=2)
"""Without a task, so PEFT saves no head."""
CONFIGS = {
    "lora": peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=4),
    "dora": peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2, use_dora=True),
    "ia3": peft.IA3Config(task_type="SEQ_CLS", target_modules=["key", "value"], feedforward_modules=[]),
    "loha": peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"], r=2),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def lora(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(base, tmp_path_factory.mktemp("adapter") / "lora", CONFIGS["lora"])


@pytest.fixture
def bare(base: Path, tmp_path: Path) -> Path:
    return save_adapter(base, tmp_path / "bare", BARE)


@pytest.mark.parametrize("method", CONFIGS)
def test_the_merged_checkpoint_is_what_peft_merges_and_scores_as_the_adapter(
    method: str, base: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(base, tmp_path / "adapter", CONFIGS[method])
    states = checkpoint_edit.file_states(adapter), checkpoint_edit.file_states(base)
    found = headscope.edit(adapter, tmp_path / "new", merge_adapter=True)
    assert found.verdict.value == "proven" and found.merge is not None, found.proof
    assert found.merge.method == CONFIGS[method].peft_type.value and "classifier.weight" in found.merge.saved
    assert states == (checkpoint_edit.file_states(adapter), checkpoint_edit.file_states(base))
    result = load_whole("BertForSequenceClassification", tmp_path / "new")
    torch.testing.assert_close(logits_of(result), logits_of(unmerged(base, adapter)), rtol=1e-3, atol=1e-4)
    expected, state = unmerged(base, adapter).merge_and_unload().state_dict(), result.state_dict()
    assert expected.keys() == state.keys() and all(torch.equal(expected[key], state[key]) for key in expected)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"tokenizer.json", "README.md", "headscope-edit.json", "config.json", "model.safetensors"} <= names
    assert not [name for name in names if name.startswith("adapter")]
    assert "An adapter" in (tmp_path / "new" / "README.md").read_text()
    assert headscope.inspect(tmp_path / "new").verdict.value == "complete"


def test_half_precision_is_kept_and_its_rounding_said(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "Llama")
    edit_tensors(base / "model.safetensors", lambda state: {key: value.bfloat16() for key, value in state.items()})
    edit_json(base / "config.json", {"dtype": "bfloat16"})
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"], r=2)
    adapter = save_adapter(base, tmp_path / "adapter", settings, "Llama")
    found = headscope.edit(adapter, tmp_path / "new", merge_adapter=True)
    assert found.verdict.value == "proven" and found.merge is not None
    assert found.merge.tolerance > 0.05
    assert load_whole("LlamaForSequenceClassification", tmp_path / "new").dtype == torch.bfloat16


@pytest.mark.usefixtures("proofs_apart")
def test_the_command_merges_and_then_renames(
    base: Path, lora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    changes = [f"--rename=LABEL_{at}={name}" for at, name in enumerate("abc")]
    command = ["edit", str(lora), "--merge-adapter", "-o", str(new), *changes, "--drop", "LABEL_1"]
    assert main(command) == 2 and not new.exists()  # dropped after it was renamed
    assert main([*command[:-1], "b", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == str(lora) and document["merge"]["method"] == "LORA"
    before = logits_of(unmerged(base, lora))
    torch.testing.assert_close(logits(new), before[:, [0, 2]], rtol=1e-3, atol=1e-4)
    assert transformers.AutoConfig.from_pretrained(new).id2label == {0: "a", 1: "c"}
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_screen_names_the_classes_and_libraries_are_silent(lora: Path, tmp_path: Path) -> None:
    """As its own process: the runner of the tests catches warnings before they reach stderr."""
    code = "import sys; from tests import warm; from headscope.shell import main; warm.warm_children(); "
    python = [sys.executable, "-W", "always", "-c", f"{code}sys.exit(main(sys.argv[1:]))"]
    command = [*python, "edit", str(lora), "--merge-adapter", "-o", str(tmp_path / "new")]
    wide = os.environ | {"COLUMNS": "2000"}  # no path is broken into lines
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=wide)
    assert "Warning" not in ran.stderr, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "classes LABEL_0, LABEL_1, LABEL_2 an adapter holds no names of classes" in words
    assert f"--labels A,B,... in this call, or later: headscope edit {tmp_path / 'new'} -o DIR --labels" in words


def test_a_dry_run_merges_and_leaves_nothing(lora: Path, tmp_path: Path) -> None:
    found = headscope.edit(lora, tmp_path / "new", merge_adapter=True, dry_run=True)
    assert found.verdict.value == "planned" and found.merge is not None and not list(tmp_path.iterdir())


def test_what_cannot_be_merged_is_refused_with_the_reason(base: Path, lora: Path, bare: Path, tmp_path: Path) -> None:
    def refused(adapter: Path, kind: type[HeadscopeError], words: str) -> None:
        with pytest.raises(kind, match=words):
            headscope.edit(adapter, tmp_path / "new", merge_adapter=True)
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*"))

    refused(base, UsageError, "not the folder of an adapter")
    prompts = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    refused(save_adapter(base, tmp_path / "prompts", prompts), Unsupported, "can't merge")
    refused(bare, Unsupported, "random")
    cut = shutil.copytree(lora, tmp_path / "cut")
    edit_tensors(
        cut / "adapter_model.safetensors",
        lambda state: {key: item for key, item in state.items() if "layer.0.attention.self.query.lora_B" not in key},
    )
    refused(cut, Unsupported, "as it was trained")
    quantized = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    packed = with_config(base, tmp_path / "packed", quantized)
    of_packed = shutil.copytree(lora, tmp_path / "of-packed")
    edit_json(of_packed / "adapter_config.json", {"base_model_name_or_path": str(packed)})
    refused(of_packed, Unsupported, "quantized")
    with pytest.raises(Unsupported, match="adapter"):
        headscope.edit(lora, tmp_path / "new", rename={"LABEL_0": "a"})


def test_a_merge_that_is_not_pefts_is_refused(lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "bert.encoder.layer.1.attention.self.query.weight"

    def damage(adapter: Path, base: Path, folder: Path, *_: Any) -> None:
        edit_tensors(folder / "model.safetensors", lambda state: state[query][0, 0].add_(1e-3))

    disturb(monkeypatch, merging, "_copy_others", damage)
    with pytest.raises(Unsupported, match="not the one that PEFT merges"):
        headscope.edit(lora, tmp_path / "new", merge_adapter=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("proofs_apart")
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_an_adapter_gets_the_head_of_a_checkpoint(family: str, tmp_path: Path) -> None:
    """What PEFT loads from the result against the adapter's own load with the head's values put in by hand."""
    base = save_base(tmp_path / "base", family, pad_token_id=1)
    adapter = save_adapter(base, tmp_path / "adapter", BARE, family)
    name = f"{family}ForSequenceClassification"
    saved(name, tmp_path / "trained", vocab_size=100, pad_token_id=1)
    with pytest.raises(Unsupported, match="random"):
        headscope.edit(adapter, tmp_path / "merged", merge_adapter=True)
    found = headscope.edit(adapter, tmp_path / "new", adapter_head=tmp_path / "trained")
    assert found.verdict.value == "proven" and found.head_from, found.proof
    loaded = unmerged(base, tmp_path / "new", family)
    by_hand = unmerged(base, adapter, family)
    trained = load_whole(name, tmp_path / "trained")
    by_hand.get_base_model().classifier.load_state_dict(trained.classifier.state_dict())
    torch.testing.assert_close(logits_of(loaded), logits_of(by_hand), rtol=0, atol=0)
    assert headscope.edit(tmp_path / "new", tmp_path / "merged", merge_adapter=True).verdict.value == "proven"
    torch.testing.assert_close(logits(tmp_path / "merged", name), logits_of(by_hand), rtol=1e-3, atol=1e-4)
    for source, head, options in (
        (adapter, base, {}), (base, tmp_path / "trained", {}), (tmp_path / "new", tmp_path / "trained", {}),
        (adapter, tmp_path / "trained", {"drop": "bad"}),
    ):  # fmt: skip
        with pytest.raises(HeadscopeError):
            headscope.edit(source, tmp_path / "other", adapter_head=head, **options)
    assert not (tmp_path / "other").exists()


OTHER_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "model_type roberta": ("Roberta", {"pad_token_id": 1}),
    "hidden_size 8": ("Bert", {"hidden_size": 8}),
}


@pytest.mark.parametrize("found", OTHER_HEADS)
def test_a_head_of_another_family_or_size_is_refused_by_the_configurations(
    found: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    family, settings = OTHER_HEADS[found]
    head = saved(f"{family}ForSequenceClassification", tmp_path / "trained", vocab_size=100, **settings)
    monkeypatch.setattr(adapter_head, "examine", lambda *_: pytest.fail("nothing is built"))
    assert main(["edit", str(bare), "-o", str(tmp_path / "new"), "--adapter-head", str(head)]) == 2
    assert found in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_target_inside_any_folder_that_is_read_is_refused(base: Path, lora: Path, bare: Path, bert: Path) -> None:
    given: tuple[tuple[Path, Path, dict[str, Any]], ...] = (
        (lora, base, {"merge_adapter": True}), (bare, base, {"adapter_head": bert}),
        (bare, bert, {"adapter_head": bert}),
    )  # fmt: skip
    for source, read, options in given:
        before = merging.file_states(read)
        with pytest.raises(UsageError, match="which is read"):
            headscope.edit(source, read / "x", **options)
        assert merging.file_states(read) == before and not (read / "x").exists()


def test_a_merge_is_a_change_where_the_base_has_the_setting_already(lora: Path, tmp_path: Path) -> None:
    found = headscope.edit(lora, tmp_path / "merged", merge_adapter=True, pad_token_id=SIZES["pad_token_id"])
    assert found.verdict.value == "proven" and not (found.settings or found.exact)
    assert (tmp_path / "merged").is_dir()


def test_the_index_of_a_sharded_base_stays_behind(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    transformers.BertModel.from_pretrained(base).save_pretrained(base, max_shard_size="20KB")
    assert (base / "model.safetensors.index.json").is_file()
    adapter = save_adapter(base, tmp_path / "adapter", CONFIGS["lora"])
    headscope.edit(adapter, tmp_path / "merged", merge_adapter=True)
    named = tmp_path / "merged" / "model.safetensors.index.json"
    stored = {path.name for path in (tmp_path / "merged").glob("*.safetensors")}
    assert stored == (set(json.loads(named.read_text())["weight_map"].values()) if named.exists() else stored)
    assert torch.allclose(logits(tmp_path / "merged"), logits_of(unmerged(base, adapter)), atol=1e-4)


def test_files_of_training_and_of_other_adapters_stay_behind(lora: Path, tmp_path: Path) -> None:
    adapter = shutil.copytree(lora, tmp_path / "adapter")
    shutil.copytree(lora, adapter / "second")
    for name in ("training_args.bin", "trainer_state.json", "scheduler.pt", "rng_state_0.pth", "notes.txt"):
        (adapter / name).write_bytes(b"{}")
    (adapter / "1_Pooling").mkdir()
    (adapter / "1_Pooling" / "config.json").write_bytes(b"{}")
    headscope.edit(adapter, tmp_path / "merged", merge_adapter=True)
    found = {path.relative_to(tmp_path / "merged").as_posix() for path in (tmp_path / "merged").rglob("*.*")}
    assert {"notes.txt", "1_Pooling/config.json", "config.json"} <= found
    assert not [name for name in found if name.rpartition("/")[2].startswith(("adapter_", "train", "sched", "rng_"))]


def test_scores_that_are_not_numbers_prove_nothing(lora: Path, tmp_path: Path) -> None:
    adapter = shutil.copytree(lora, tmp_path / "adapter")
    bias = {"base_model.model.classifier.bias": torch.tensor([0, torch.nan, 0])}
    edit_tensors(adapter / "adapter_model.safetensors", lambda state: state | bias)
    with pytest.raises(Unsupported, match="not finite"):
        headscope.edit(adapter, tmp_path / "merged", merge_adapter=True)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("option", [{"texts": "a text"}, {"link": True}])
def test_a_merge_alone_takes_no_option_without_effect(option: dict[str, Any], lora: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a merge alone"):
        headscope.edit(lora, tmp_path / "merged", merge_adapter=True, **option)
