"""The forward pass on saved checkpoints of every task: the shapes are those traced, the values the model's own."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import headscope
from headscope.core.model.classes.catalog import classes_of_task
from headscope.core.model.quiet import quiet
from headscope.core.trace.batch.probe_batch import ProbeBatch, build_probe
from headscope.core.trace.slice.observe import measure
from headscope.facts import Stage, Task
from headscope.slices.forward.facts import ForwardReport
from tests.families import FAMILIES

pytest.importorskip("torchlens", reason="torchlens is not installed")
from tests.trace.record.operations import bound
from tests.trace.small import small_model

CLASSES = {
    Task.SEQUENCE_CLASSIFICATION: ("Bert", "Roberta", "GPT2", "Llama", "T5", "Bart", "XLNet", "ModernBert"),
    Task.TOKEN_CLASSIFICATION: ("Bert", "DistilBert", "DebertaV2"),
    Task.MULTIPLE_CHOICE: ("Bert", "Roberta", "Electra"),
    Task.QUESTION_ANSWERING: ("Bert", "Roberta", "DistilBert"),
    Task.NEXT_SENTENCE_PREDICTION: ("Bert", "MobileBert", "FNet"),
    Task.IMAGE_CLASSIFICATION: ("ViT", "ResNet", "DeiT"),
    Task.AUDIO_CLASSIFICATION: ("Wav2Vec2", "AST", "Whisper"),
    Task.AUDIO_FRAME_CLASSIFICATION: ("Wav2Vec2", "UniSpeechSat"),
    Task.AUDIO_XVECTOR: ("Wav2Vec2", "WavLM"),
    Task.VIDEO_CLASSIFICATION: ("Timesformer", "VideoMAE"),
}
FLOOR = 25


def _targets() -> list[tuple[Task, str, str]]:
    found = []
    for task, stems in CLASSES.items():
        by_name = {name: model_type for model_type, name in classes_of_task(task).items()}
        names = [name for stem in stems for name in by_name if name.startswith(f"{stem}For")]
        found += [(task, name, by_name[name]) for name in names]
    return found


TARGETS = _targets()


@pytest.mark.parametrize(("task", "name", "model_type"), TARGETS, ids=[f"{task}-{name}" for task, name, _ in TARGETS])
def test_a_saved_checkpoint_runs_as_it_was_traced(task: Task, name: str, model_type: str, tmp_path: Path) -> None:
    _model(name, model_type).save_pretrained(tmp_path)
    options = {"task": task.value, "model_class": name, "offline": True}
    traced = headscope.forward(str(tmp_path), **options)
    seen = headscope.forward(str(tmp_path), device="cpu", **options)
    with quiet():
        model = getattr(transformers, name).from_pretrained(tmp_path).eval()
    probe = build_probe(model, task)
    assert [item.stage.operation for item in seen.stages] == [item.stage.operation for item in traced.stages]
    sizes = _sizes(probe)
    assert [item.shape for item in seen.stages] == [bound(item.shape, sizes) for item in traced.stages]
    _compare_values(model, probe.inputs, seen)


def _model(name: str, model_type: str) -> torch.nn.Module:
    """A small model whose configuration can be saved and read back."""
    family = FAMILIES.get(model_type)
    return (
        family.build(name, **family.pad_token)
        if family and family.classifier == name
        else small_model(name, model_type)
    )


def _sizes(probe: ProbeBatch) -> dict[str, int]:
    sizes = probe.sizes
    return {
        "batch": sizes.batch,
        "sequence": sizes.length,
        "choices": sizes.choices,
        "batch*choices": probe.batch,
        "batch*sequence": sizes.batch * sizes.length,
        "batch*choices*sequence": probe.batch * sizes.length,
    }


def _compare_values(model: torch.nn.Module, inputs: dict[str, Any], seen: ForwardReport) -> None:
    """The scores and the output of every leaf module of the head, as the model computes them by itself."""
    outputs: dict[str, list[torch.Tensor]] = {}
    leaves = {item.stage.module for item in seen.stages if _is_leaf_stage(item.stage, model)}
    hooks = [
        model.get_submodule(path).register_forward_hook(
            lambda module, given, made, path=path: outputs.setdefault(path, []).append(made)
        )
        for path in leaves
    ]
    with torch.no_grad():
        made = model(**inputs)
    for hook in hooks:
        hook.remove()
    scores = next(value for key, value in made.items() if "logits" in key)
    rows = torch.tensor(seen.logits)
    assert torch.allclose(rows, scores.reshape(-1, scores.shape[-1]), rtol=1e-5, atol=1e-6)
    for path in leaves:
        mine = [item for item in seen.stages if item.stage.module == path and not item.stage.functional]
        if len(mine) == len(outputs[path]):
            for item, tensor in zip(mine, outputs[path], strict=True):
                expected, found = measure(tensor), item.statistics
                assert expected is not None and found is not None
                assert asdict(found) == pytest.approx(asdict(expected), rel=1e-4, abs=1e-5), path


def _is_leaf_stage(stage: Stage, model: torch.nn.Module) -> bool:
    return not stage.functional and next(model.get_submodule(stage.module).children(), None) is None


def test_all_tasks_are_there() -> None:
    assert {task for task, _, _ in TARGETS} == set(Task)
    assert len(TARGETS) >= FLOOR
