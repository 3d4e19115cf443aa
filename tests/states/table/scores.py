"""Saves of libraries with heads of their own, and exports: SetFit, sentence-transformers, TRL, GGUF, ONNX."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from states.table.entry import Made, entry
from states.table.small import classifier, configured
from states.table.wrapped import SAFE

from tests.edits import edit_json
from tests.scorers import save_encoder, save_language_model, save_tokenizer

_SETFIT = ("torch", "setfit", "sentence_transformers", "sklearn", "joblib")


def _encoder(folder: Path) -> Any:
    import sentence_transformers

    save_encoder("Bert", "Model", folder)
    return sentence_transformers.SentenceTransformer(str(folder))


def _setfit(title: str, compress: int, said: tuple[str, ...]) -> None:
    @entry(
        title,
        "SetFit",
        f"SetFitModel.save_pretrained(...){f', joblib.dump(compress={compress})' if compress else ''}",
        needs=_SETFIT,
        findings=("HS103",),
        repaired="the classifier is no part of the model",
        said=said,
    )
    def make(folder: Path) -> Made:
        import joblib
        import setfit
        from sklearn.linear_model import LogisticRegression

        body = _encoder(folder.parent / "plain")
        texts = [f"w{number}" for number in range(12)]
        head = LogisticRegression().fit(body.encode(texts), [at % 3 for at in range(12)])
        model = setfit.SetFitModel(model_body=body, model_head=head, labels=["bad", "fine", "good"])
        model.save_pretrained(str(folder))
        if compress:
            joblib.dump(head, folder / "model_head.pkl", compress=compress)
        return Made()


_setfit("SetFit with a LogisticRegression", 0, ())
_setfit("SetFit with a compressed head", 3, ("compressed",))


@entry(
    "SentenceTransformer whose 2_Dense was not copied",
    "HS405",
    "SentenceTransformer(modules=[..., Dense]).save(...), 2_Dense removed",
    needs=("torch", "sentence_transformers"),
    findings=("HS405",),
    repaired="the folder has to be copied",
)
def _dense(folder: Path) -> Made:
    from sentence_transformers import SentenceTransformer, models

    body = _encoder(folder.parent / "plain")
    SentenceTransformer(modules=[body[0], body[1], models.Dense(16, 8)]).save(str(folder))
    (dense,) = folder.glob("2_*")
    shutil.rmtree(dense)
    return Made()


@entry(
    "CrossEncoder of bert", "clean", "CrossEncoder(...).save_pretrained(...)", needs=("torch", "sentence_transformers")
)
def _cross(folder: Path) -> Made:
    from sentence_transformers import CrossEncoder

    model = classifier("bert")
    model.config.num_labels = 3
    model.save_pretrained(folder.parent / "plain")
    save_tokenizer(folder.parent / "plain")
    CrossEncoder(str(folder.parent / "plain")).save_pretrained(str(folder))
    return Made(model)


def _headed(name: str, heads: dict[str, tuple[int, ...]], family: str) -> None:
    @entry(
        f"{family} with {name}",
        "HS406",
        f"a {name} of two layers in model.safetensors, as custom code writes it",
        findings=("HS406",),
        repaired="the library that saved it loads it",
        said=(name,),
    )
    def make(folder: Path) -> Made:
        save_language_model(family, folder)
        more = {key: torch.randn(shape) for key, shape in heads.items()}
        save_file(load_file(folder / SAFE) | more, folder / SAFE, metadata={"format": "pt"})
        return Made()


_headed("v_head", {"v_head.0.weight": (8, 16), "v_head.2.weight": (1, 8), "v_head.2.bias": (1,)}, "Qwen3")
_headed("value_head", {"value_head.0.weight": (8, 16), "value_head.2.weight": (1, 8)}, "Llama")
_headed("reward_head", {"reward_head.0.weight": (8, 16), "reward_head.2.weight": (1, 8)}, "Gemma")


@entry(
    "a reward model's adapter without its score",
    "HS107",
    "get_peft_model(model, LoraConfig()) without task_type, save_pretrained",
    needs=("torch", "peft"),
    findings=("HS107",),
    repaired="the score was never saved",
)
def _reward(folder: Path) -> Made:
    import peft

    save_language_model("Llama", folder / "base")
    model = transformers.LlamaForSequenceClassification.from_pretrained(folder / "base", num_labels=1)
    made = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"]))
    made.peft_config["default"].base_model_name_or_path = str(folder / "base")
    made.save_pretrained(folder / "adapter")
    edit_json(folder / "adapter" / "adapter_config.json", {"task_type": "SEQ_CLS"})
    return Made(at="adapter")


def _exported(title: str, code: str, library: str, write: Callable[[Any, Path], object]) -> None:
    @entry(title, "export", code, needs=("torch", library))
    def make(folder: Path) -> Made:
        model = classifier(title.partition(" ")[0])
        write(model, configured(model, folder))
        return Made()


def _onnx(model: Any, folder: Path) -> None:
    from tests.checkpoints.formats.onnx_exports import write_onnx

    write_onnx(model, folder / "model.onnx")


def _gguf(model: Any, folder: Path) -> None:
    from tests.checkpoints.formats.exports import write_gguf

    write_gguf(model, folder / "model.gguf")


for _family in ("bert", "distilbert", "roberta"):
    _exported(f"{_family} exported to ONNX", "torch.onnx.export(model, ...)", "onnx", _onnx)
for _family in ("bert", "roberta", "distilbert"):
    _exported(f"{_family} as GGUF", "gguf.GGUFWriter with the names of llama.cpp's converter", "gguf", _gguf)
