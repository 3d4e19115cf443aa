"""Folders of other libraries, as adapters 1.3, timm 1.0, open_clip 3.3, Flair 0.15 and spaCy 3.8 write them.

The tests install none of them. The JSON and the keys are what each of them wrote for
a model of these sizes; the tensors are those of modules that are put together here as the library's source does it.
"""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import nn

from tests.saving import save_state

HIDDEN = 32
ADAPTER_CONFIG: dict[str, Any] = {
    "config": {"mh_adapter": False, "non_linearity": "relu", "output_adapter": True, "reduction_factor": 16},
    "hidden_size": HIDDEN, "model_class": "BertAdapterModel", "model_name": "bert-base-uncased", "model_type": "bert",
    "name": "sst", "version": "adapters.1.3.0",
}  # fmt: skip
CLASSIFICATION: dict[str, Any] = {
    "activation_function": "tanh", "bias": True, "dropout_prob": None, "head_type": "classification",
    "label2id": {"pos": 2, "neg": 0, "neu": 1}, "layers": 2, "num_labels": 3, "use_pooler": False,
}  # fmt: skip


def head_config(config: dict[str, Any] | None, **beside: Any) -> dict[str, Any]:
    """`head_config.json` as `PredictionHeadLoader.save` writes it."""
    return {**ADAPTER_CONFIG, "config": config, **beside}


def prediction_head(config: dict[str, Any]) -> nn.Sequential:
    """The modules in the order of `PredictionHead.build` (adapters/heads/base.py)."""
    outputs = config.get("num_labels", 1)
    modules: list[nn.Module] = []
    for at in range(config["layers"]):
        modules.append(nn.Dropout(0.1))
        if at < config["layers"] - 1:
            modules.append(nn.Linear(HIDDEN, HIDDEN))
            if config["activation_function"]:
                modules.append(nn.Tanh())
        else:
            modules.append(nn.Linear(HIDDEN, outputs, bias=config.get("bias", True)))
    return nn.Sequential(*modules)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_adapter(folder: Path, *, safe: bool = False) -> None:
    """An adapter of the bottleneck kind, without a prediction head."""
    write_json(folder / "adapter_config.json", ADAPTER_CONFIG)
    place = "bert.encoder.layer.0.output.adapters.sst"
    tensors = {
        f"{place}.adapter_down.0.weight": torch.ones(2, HIDDEN),
        f"{place}.adapter_up.weight": torch.ones(HIDDEN, 2),
    }
    save_state(tensors, folder / ("adapter.safetensors" if safe else "pytorch_adapter.bin"))


def write_prediction_head(
    folder: Path, config: dict[str, Any] = CLASSIFICATION, *, safe: bool = False
) -> nn.Sequential:
    """A prediction head named `sst`; the modules whose tensors it holds."""
    write_json(folder / "head_config.json", head_config(config))
    head = prediction_head(config)
    tensors = {f"heads.sst.{key}": value for key, value in head.state_dict().items()}
    save_state(tensors, folder / ("model_head.safetensors" if safe else "pytorch_model_head.bin"))
    return head


TIMM_CONFIG: dict[str, Any] = {
    "architecture": "resnet18", "num_classes": 5, "num_features": 512, "global_pool": "avg",
    "model_args": {"num_classes": 5, "in_chans": 3, "global_pool": "avg"},
    "label_names": ["a", "b", "c", "d", "e"],
    "pretrained_cfg": {"tag": "a1_in1k", "num_classes": 5, "first_conv": "conv1", "classifier": "fc"},
}  # fmt: skip
WRAPPER_CONFIG: dict[str, Any] = {
    "architecture": "resnet18", "architectures": ["TimmWrapperForImageClassification"], "do_pooling": True,
    "dtype": "float32", "initializer_range": 0.02, "label_names": ["a", "b", "c", "d", "e"], "model_args": None,
    "model_type": "timm_wrapper", "num_classes": 5, "transformers_version": "5.23.0",
}  # fmt: skip


def write_timm(
    folder: Path, config: dict[str, Any] = TIMM_CONFIG, classes: int = 5, names: tuple[str, ...] = ("fc",)
) -> None:
    """A checkpoint of timm, or of the wrapper: a convolution, a norm, and the classifiers."""
    write_json(folder / "config.json", config)
    before = "timm_model." if config.get("model_type") == "timm_wrapper" else ""
    tensors = {f"{before}conv1.weight": torch.ones(64, 3, 7, 7), f"{before}bn1.weight": torch.ones(64)}
    for name in names:
        tensors |= {f"{before}{name}.weight": torch.ones(classes, 512), f"{before}{name}.bias": torch.ones(classes)}
    save_file(tensors, folder / "model.safetensors")


OPEN_CLIP_CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": 16, "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.48, 0.45, 0.4], "std": [0.26, 0.26, 0.27]},
}  # fmt: skip


def write_open_clip(folder: Path, *, safe: bool = False) -> None:
    """A zero-shot model."""
    write_json(folder / "open_clip_config.json", OPEN_CLIP_CONFIG)
    tensors = {
        "logit_scale": torch.ones([]), "visual.proj": torch.ones(64, 16), "text_projection": torch.ones(64, 16),
        "visual.class_embedding": torch.ones(64), "ln_final.weight": torch.ones(64),
    }  # fmt: skip
    save_state(tensors, folder / ("open_clip_model.safetensors" if safe else "open_clip_pytorch_model.bin"))


def write_flair(
    path: Path, items: list[Any], *, tagger: bool = False, tokenizer: int = 100_000, classes: int = 3
) -> None:
    """A `TextClassifier` or a `SequenceTagger` of Flair, whose embeddings hold the files of a tokenizer as bytes."""
    module = ModuleType("flair.data")
    kind = vars(module)["Dictionary"] = type("Dictionary", (), {"__module__": "flair.data"})
    dictionary = kind()
    vars(dictionary).update(
        item2idx={str(item): at for at, item in enumerate(items)},
        idx2item=[item.encode() if isinstance(item, str) else item for item in items],
        add_unk=False, multi_label=False, span_labels=False,
    )  # fmt: skip
    layer = "linear" if tagger else "decoder"
    state = {f"{layer}.weight": torch.ones(classes, HIDDEN), f"{layer}.bias": torch.ones(classes)}
    embeddings = {
        "__cls__": "TransformerDocumentEmbeddings", "cls_pooling": "cls", "model": "distilbert-base-uncased",
        "tokenizer_data": io.BytesIO(bytes(tokenizer)), "layers": "-1", "subtoken_pooling": "first",
    }  # fmt: skip
    value: dict[str, Any] = {"state_dict": state, "__cls__": "SequenceTagger" if tagger else "TextClassifier"}
    if tagger:
        state["crf.transitions"] = torch.ones(classes, classes)
        value |= {"embeddings": embeddings, "tag_dictionary": dictionary, "tag_type": "ner", "use_crf": True}
    else:
        value |= {"document_embeddings": embeddings, "label_dictionary": dictionary, "label_type": "topic"}
        value |= {"multi_label": False, "weight_dict": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    with patch.dict(sys.modules, {"flair": ModuleType("flair"), "flair.data": module}):
        torch.save(value, path, pickle_protocol=4)


SPACY_META: dict[str, Any] = {
    "lang": "en", "name": "pipeline", "version": "0.0.0", "spacy_version": ">=3.8.18,<3.9.0",
    "labels": {"transformer": [], "textcat": ["POS", "NEG"]}, "pipeline": ["transformer", "textcat"],
    "components": ["transformer", "textcat"], "disabled": [],
}  # fmt: skip
SPACY_CONFIG = """[nlp]
lang = "en"
pipeline = ["transformer","textcat"]

[components]

[components.textcat]
factory = "textcat"
threshold = 0.0

[components.textcat.model]
@architectures = "spacy.TextCatReduce.v1"
exclusive_classes = true
nO = null

[components.transformer]
factory = "transformer"

[components.transformer.model]
@architectures = "spacy-transformers.TransformerModel.v3"
name = "roberta-base"
mixed_precision = false

[training.optimizer]
@optimizers = "Adam.v1"
"""


def write_spacy(folder: Path, meta: Any = SPACY_META, config: str = SPACY_CONFIG) -> None:
    """A pipeline with a classifier of texts on a transformer."""
    write_json(folder / "meta.json", meta)
    (folder / "config.cfg").write_text(config)
    for name in ("transformer", "textcat"):
        (folder / name).mkdir()
        (folder / name / "model").write_bytes(b"\x85\xa5nodes")
        (folder / name / "cfg").write_text("{}")


FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "adapters": (
        lambda path: (write_adapter(path), write_prediction_head(path)),
        "adapters (AdapterHub)",
    ),
    "adapters, safe": (
        lambda path: (write_adapter(path, safe=True), write_prediction_head(path, safe=True)),
        "adapters (AdapterHub)",
    ),
    "adapters, head alone": (write_prediction_head, "adapters (AdapterHub)"),
    "adapters, no head": (write_adapter, "adapters (AdapterHub)"),
    "timm": (write_timm, "checkpoint of timm"),
    "timm wrapper": (lambda path: write_timm(path, WRAPPER_CONFIG), "TimmWrapper"),
    "open_clip": (write_open_clip, "zero-shot model of open_clip"),
    "open_clip, safe": (lambda path: write_open_clip(path, safe=True), "zero-shot model of open_clip"),
    "flair": (lambda path: write_flair(path / "pytorch_model.bin", ["a", "b", "c"]), "model of Flair"),
    "flair tagger": (
        lambda path: write_flair(path / "final-model.pt", ["a"] * 3, tagger=True),
        "model of Flair",
    ),
    "spacy": (write_spacy, "pipeline of spaCy"),
    "gliner": (lambda path: write_json(path / "gliner_config.json", {"model_type": "gliner"}), "GLiNER"),
    "gliclass": (lambda path: write_json(path / "config.json", {"model_type": "GLiClass"}), "GLiClass"),
    "span-marker": (lambda path: write_json(path / "config.json", {"model_type": "span-marker"}), "SpanMarker"),
}
"""How each is written, and what it is called."""
