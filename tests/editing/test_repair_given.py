"""`repair`: what is given is enough and is used; code runs only where it is trusted; a result says what it lacks."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import headscope
from headscope.core.checkpoints.states.peft_keys import MergePeft
from headscope.core.source.reading import without_config
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError
from headscope.facts import CheckpointState, Repair, StateKind
from headscope.shell.app import main
from headscope.slices.repair import repaired_copy as repairing
from headscope.slices.repair.given import check_trust
from tests.editing.ending import disturb
from tests.editing.seeded import model_of, save, save_peft_state, state_of
from tests.edits import contents, edit_json


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights without a configuration, which is proposed at once; `config.json` is beside the folder."""
    folder, model = tmp_path / "bare", model_of(3)
    model.save_pretrained(folder)
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "notes.txt").write_text("mine")
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
    fields = {name: getattr(model.config, name) for name in sizes} | {"num_labels": 3}
    open_fields = (("num_attention_heads", 4), ("hidden_act", "gelu"))
    action = without_config.WriteConfig(
        "BertForSequenceClassification", "BertConfig", tuple(fields.items()), open_fields, ""
    )
    state = CheckpointState(StateKind.NO_CONFIG, "", "no configuration.", (), Repair("", "", "python", action))

    def proposed(error: HeadscopeError) -> HeadscopeError:
        error.state = state
        return error

    monkeypatch.setattr(without_config, "with_proposals", proposed)
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = save_peft_state(tmp_path / "adapter")
    (folder / "notes.txt").write_text("mine")
    return folder


def test_code_of_a_checkpoint_that_nobody_trusts_is_not_run(adapter: Path, tmp_path: Path) -> None:
    names = {"AutoModelForSequenceClassification": "evil.Evil", "AutoConfig": "evil.Evil"}
    edit_json(adapter / "config.json", {"auto_map": names})
    (adapter / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write('run')\nclass Evil: pass\n")
    for dry_run in (True, False):
        with pytest.raises(Unsupported, match="auto_map") as caught:
            headscope.repair(adapter, tmp_path / "new", settings={"lora_alpha": 16}, dry_run=dry_run)
        assert "--trust-remote-code" in caught.value.hint
    assert {path.name for path in tmp_path.iterdir()} == {"adapter"}
    action = MergePeft("AutoModelForSequenceClassification", True, (), True, 4, (), (), False)
    with pytest.raises(Unsupported):
        check_trust(action, trusts=False)
    check_trust(action, trusts=True)


def test_the_code_of_a_repair_reaches_no_hub_and_asks_nothing(tmp_path: Path) -> None:
    repairing._run_code("import os, sys; assert os.environ['HF_HUB_OFFLINE'] == '1' and not sys.stdin.read()", tmp_path)


def test_a_configuration_with_too_few_layers_is_refused(bare: Path, tmp_path: Path) -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "short.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    short = headscope.repair(bare, tmp_path / "new", config=tmp_path / "short.json")
    assert short.verdict.value == "refused" and short.proof.loads is False and not (tmp_path / "new").exists()
    whole = headscope.repair(bare, tmp_path / "new", config=tmp_path / "config.json")
    assert whole.verdict.value == "proven" and whole.proof.files_equal


def test_a_result_whose_head_has_another_name_is_not_called_whole(folder: Path, tmp_path: Path, capsys: Any) -> None:
    new = tmp_path / "new"
    state = {key.replace("classifier", "own_head"): value for key, value in state_of(3).items()}
    torch.save({"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.5"}, folder / "last.ckpt")
    assert main(["repair", str(folder), "-o", str(new), "-q"]) == 1
    first = capsys.readouterr().out
    assert "Proven" not in first and "classifier.weight" in first and "own_head.weight" in first
    found = json.loads((new / "headscope-repair.json").read_text())
    assert found["verdict"] == "incomplete" and found["proof"]["tensors_equal"] is True
    assert set(found["proof"]["new"]) == {"classifier.weight", "classifier.bias"}
    assert set(found["proof"]["unused"]) == {"own_head.weight", "own_head.bias"}


def test_a_relative_path_is_that_of_the_caller(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Mock(side_effect=NotFound("seen", ""))
    monkeypatch.setattr(repairing, "repair_checkpoint", seen)
    monkeypatch.chdir(tmp_path)
    for given in ("adapter", "owner/name"):
        with pytest.raises(NotFound):
            headscope.repair(adapter, "new", config=given)
    assert [call.args[2].config for call in seen.call_args_list] == [str(tmp_path / "adapter"), "owner/name"]


@pytest.mark.parametrize("kind", ["adapter", "bare"])
def test_a_library_that_writes_does_not_reach_the_source(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = request.getfixturevalue(kind)
    before = contents(folder)
    written = []

    def writing(code: str, target: Path) -> None:
        for path in target.iterdir():
            path.write_bytes(b"")
            written.append(path.name)

    monkeypatch.setattr(repairing, "_run_code", writing)
    settings = {"lora_alpha": 16} if kind == "adapter" else {}
    with pytest.raises(HeadscopeError):
        headscope.repair(folder, tmp_path / "new", settings=settings, defaults=not settings, link=True)
    assert "notes.txt" in written
    assert contents(folder) == before


def test_every_open_setting_is_given_or_accepted(bare: Path, tmp_path: Path) -> None:
    def planned(**options: Any) -> headscope.RepairedCopy:
        return headscope.repair(bare, tmp_path / "new", dry_run=True, **options)

    with pytest.raises(UsageError, match="hiden_act is not a setting of BertConfig"):
        planned(settings={"hiden_act": "relu", "num_attention_heads": 2}, defaults=True)
    with pytest.raises(Unsupported) as caught:
        planned(settings={"num_attention_heads": 2})
    assert "hidden_act" in caught.value.hint and "num_attention_heads" not in caught.value.hint
    assert 'no shape tells: hidden_act; or --defaults if those of the class are right: hidden_act="gelu"' in str(
        caught.value.hint
    )
    of_file = headscope.repair(bare / "model.safetensors", tmp_path / "new", dry_run=True, defaults=True)
    assert of_file.assumed == planned(defaults=True).assumed
    assert planned(settings={"num_attention_heads": 2, "hidden_act": "relu"}).assumed == ()
    assert planned(settings={"num_attention_heads": 2}, defaults=True).assumed == ('hidden_act="gelu"',)
    assert planned(config=tmp_path / "config.json").assumed == ()


def test_an_option_that_no_step_takes_ends_the_repair_before_it_begins(
    bare: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = tmp_path / "clean"
    model_of(3).save_pretrained(clean)

    monkeypatch.setattr(repairing, "_carry_out", Mock(side_effect=AssertionError("work began")))
    config, alpha = str(tmp_path / "config.json"), {"lora_alpha": 16}
    refused: list[tuple[Path, dict[str, Any], str]] = [
        (bare, {"config": config, "defaults": True}, "defaults"),
        (bare, {"config": config, "settings": {"hidden_act": "relu"}}, "hidden_act"),
        (adapter, {"settings": alpha, "labels": "a,b,c"}, "labels"),
        (adapter, {"settings": alpha, "defaults": True}, "defaults"),
        (adapter, {"settings": alpha, "config": str(adapter)}, "config"),
        (adapter, {"settings": {"use_rslora": True}, "config": str(adapter)}, "use_rslora"),
        (clean, {"defaults": True}, "defaults"),
        (clean, {"labels": "x"}, "labels"),
    ]
    for folder, options, named in refused:
        for dry_run in (True, False):
            with pytest.raises(UsageError, match=f"^{named}.* is given, and the repair doesn't take it"):
                headscope.repair(folder, tmp_path / "new", dry_run=dry_run, **options)


@pytest.mark.parametrize("name", ["r", "target_modules", "modules_to_save"])
def test_a_setting_that_the_file_tells_is_not_given(name: str, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{name} is read from the file"):
        headscope.repair(
            adapter, tmp_path / "new", settings={"lora_alpha": 16, name: 7}, trust_remote_code=True, dry_run=True
        )


def test_the_folder_of_a_given_configuration_holds_no_result(adapter: Path, bare: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which is read"):
        headscope.repair(bare, adapter / "x", config=adapter)
    assert not (adapter / "x").exists()


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a": "\xff"}', b'"text"'])
def test_a_configuration_that_is_no_json_is_a_sentence(content: bytes, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(Malformed):
        headscope.repair(bare, tmp_path / "new", config=tmp_path / "config.json")
    with pytest.raises(NotFound):
        headscope.repair(bare, tmp_path / "new", config="nobody/has-this")


def test_files_that_stay_are_compared_and_are_not_the_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state_of(3, "module."), folder / "pytorch_model.bin")
    save({"average": torch.ones(2)}, folder / "model_ema.safetensors")
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "proven" and found.proof.files_equal is True

    def damage(source: Path, target: Path, *_: Any) -> None:
        (target / "model_ema.safetensors").write_bytes(b"other")

    disturb(monkeypatch, repairing, "copy_files", damage)
    other = headscope.repair(folder, tmp_path / "other")
    assert other.verdict.value == "refused" and other.proof.files_equal is False
