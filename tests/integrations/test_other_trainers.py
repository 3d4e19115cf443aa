"""The callback in the trainers of sentence-transformers and TRL, which are subclasses of Transformers' own."""

from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from headscope.errors import CheckFailed
from tests.chains import save_base
from tests.edits import edit_tensors
from tests.families import FAMILIES
from tests.integrations.small import USUAL, ids


def settings(kind: Any, folder: Path, **given: Any) -> Any:
    return kind(**(USUAL | {"output_dir": str(folder / "out"), "max_steps": 2, "save_steps": 1} | given))


def passed(callback: Any) -> bool:
    verdicts = {result.verdict.value for result in callback.saves}
    return verdicts == {"passed"} and not ids(callback)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_base("Bert", tmp_path / "base")
    return tmp_path


def pairs() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(
        {"first": ["w1 w2", "w2 w3", "w3", "w4"], "second": ["w1", "no", "w3", "yes"], "label": [1.0, 0.0, 1.0, 0.0]}
    )


def test_a_cross_encoder(folder: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.cross_encoder import losses

    model = st.CrossEncoder(str(folder / "base"), num_labels=1, device="cpu")
    callback = headscope.HeadscopeCallback(on_fail="warn")
    trainer = st.CrossEncoderTrainer(
        model=model,
        args=settings(st.CrossEncoderTrainingArguments, folder),
        train_dataset=pairs(),
        loss=losses.BinaryCrossEntropyLoss(model),
        callbacks=[callback],
    )
    trainer.train()
    assert len(callback.saves) >= 2
    assert passed(callback), [str(item) for item in callback.saves]
    saved = folder / "final"
    trainer.save_model(str(saved))
    assert headscope.verify_save(model, saved).verdict.value == "passed"
    edit_tensors(saved / "model.safetensors", lambda state: {k: v for k, v in state.items() if "classifier" not in k})
    result = headscope.verify_save(model, saved)
    assert [item.id for item in result.findings] == ["HS711"]
    assert {name.rpartition("classifier.")[2] for name in result.findings[0].parameters} == {"weight", "bias"}


def test_a_sentence_transformer_with_a_dense_layer(folder: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers import losses, models as parts

    model = st.SentenceTransformer(
        modules=[parts.Transformer(str(folder / "base")), parts.Pooling(16), parts.Dense(16, 4)], device="cpu"
    )
    callback = headscope.HeadscopeCallback(on_fail="warn")
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=settings(st.SentenceTransformerTrainingArguments, folder),
        train_dataset=pairs(),
        loss=losses.CosineSimilarityLoss(model),
        callbacks=[callback],
    )
    trainer.train()
    assert passed(callback), [str(item) for item in callback.saves]
    assert any("linear" in item.name for item in callback.saves[0].tensors)
    saved = folder / "final"
    model.save_pretrained(str(saved))
    assert headscope.verify_save(model, saved).verdict.value == "passed"
    edit_tensors(saved / "2_Dense" / "model.safetensors", lambda state: {k: v + 1 for k, v in state.items()})
    assert [item.id for item in headscope.verify_save(model, saved).findings] == ["HS713"]
    edit_tensors(saved / "2_Dense" / "model.safetensors", lambda state: {f"x.{k}": v - 1 for k, v in state.items()})
    assert {item.id for item in headscope.verify_save(model, saved).findings} <= {"HS711", "HS712"}


def test_a_setfit_save_without_its_head(folder: Path) -> None:
    setfit = pytest.importorskip("setfit")
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models as parts

    body = st.SentenceTransformer(modules=[parts.Transformer(str(folder / "base")), parts.Pooling(16)], device="cpu")
    head = pytest.importorskip("sklearn.linear_model").LogisticRegression()
    head.fit(body.encode(["w1", "w2", "w3", "w4"]), [0, 1, 0, 1])
    model = setfit.SetFitModel(model_body=body, model_head=head, labels=["no", "yes"])
    model.save_pretrained(folder / "saved")
    assert headscope.verify_save(model, folder / "saved").verdict.value == "not_determined"  # it lies in a pickle
    (folder / "saved" / "model_head.pkl").unlink()
    assert "HS711" in [item.id for item in headscope.verify_save(model, folder / "saved").findings]


def test_a_reward_model_of_trl(folder: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    peft = pytest.importorskip("peft")
    rows = datasets.Dataset.from_dict(
        {"chosen": ["w1 yes", "w2 yes", "w3 yes", "w4 yes"], "rejected": ["w1 no", "w2 no w2", "w3 no", "w4 no"]}
    )

    def run(config: Any, name: str, **options: Any) -> Any:
        model = transformers.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=1)
        callback = headscope.HeadscopeCallback(**options)
        trainer = trl.RewardTrainer(
            model=model,
            args=settings(trl.RewardConfig, folder / name, max_length=16),
            train_dataset=rows,
            processing_class=transformers.AutoTokenizer.from_pretrained(folder / "base"),
            peft_config=config,
            callbacks=[callback],
        )
        trainer.train()
        return callback

    assert passed(run(None, "whole"))
    assert passed(run(peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]), "adapter"))
    with pytest.raises(CheckFailed, match="HS714"):
        run(peft.LoraConfig(target_modules=["query"]), "lost", ignore=("HS6",))


def test_a_value_head_of_trl(folder: Path) -> None:
    trl = pytest.importorskip("trl")
    cls = getattr(trl, "AutoModelForCausalLMWithValueHead", None)
    if cls is None:
        cls = pytest.importorskip("trl.experimental.ppo").AutoModelForCausalLMWithValueHead
    FAMILIES["gpt2"].build("GPT2LMHeadModel").save_pretrained(folder / "gpt2")
    model = cls.from_pretrained(str(folder / "gpt2"))
    model.save_pretrained(folder / "saved")
    result = headscope.verify_save(model, folder / "saved")
    assert result.verdict.value == "passed", str(result)
    assert any("v_head" in item.name for item in result.tensors)
    model.pretrained_model.save_pretrained(folder / "without")
    assert "HS711" in [item.id for item in headscope.verify_save(model, folder / "without").findings]
