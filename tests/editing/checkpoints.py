"""What tests of edits share: checkpoints with random values, changed copies, and what Transformers loads of them."""

import csv
import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import peft
import torch
import transformers
from sklearn.linear_model import LogisticRegression

from tests.edits import edit_json
from tests.modules import pooling, write_chain
from tests.scorers import save_tokenizer

LABELS = ("bad", "fair", "good")
SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64,
    "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "head_dim": 16, "num_key_value_heads": 2,
    "embedding_size": 32, "bos_token_id": 1, "eos_token_id": 2, "image_size": 16, "patch_size": 8,
}  # fmt: skip
TEXTS = [f"w{at % 90} w{at * 7 % 90} w{at * at % 89} w{at % 13}" for at in range(240)]


def saved(
    name: str, folder: Path, labels: Sequence[str] = LABELS, *, max_shard_size: str = "1GB", **settings: Any
) -> Path:
    """A class of Transformers with random values in every parameter, saved."""
    torch.manual_seed(5)
    cls = getattr(transformers, name)
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: at for at, label in enumerate(labels)}}
    model = cls(cls.config_class(**(SIZES | names | settings)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def save_base(folder: Path, family: str = "Bert", **settings: Any) -> Path:
    """A base model, and a tokenizer."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**(SIZES | {"vocab_size": 100} | settings))
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_adapter(base: Path, folder: Path, config: peft.PeftConfig, family: str = "Bert") -> Path:
    """An adapter on a base model with three classes, every value of it random."""
    torch.manual_seed(4)
    cls: Any = getattr(transformers, f"{family}ForSequenceClassification")
    model = peft.get_peft_model(cls.from_pretrained(base, num_labels=3, dtype="auto"), deepcopy(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.5) if "ia3" not in name else parameter.normal_(1, 0.5)
    model.save_pretrained(folder)
    (folder / "README.md").write_text("# An adapter\n")
    return folder


def write_setfit(
    folder: Path, family: str = "Bert", *, head: Any = None, classes: Sequence[Any] = range(3), **attributes: Any
) -> Path:
    """A SetFit model whose classifier is fitted to `classes`; then its attributes get other values."""
    write_chain(folder, family, [pooling("mean")], model_type="SentenceTransformer")
    drawn = np.random.default_rng(0).normal(size=(30, 16))
    fitted = (head or LogisticRegression()).fit(drawn, np.array(classes)[np.arange(30) % len(classes)])
    vars(fitted).update(attributes)
    joblib.dump(fitted, folder / "model_head.pkl")
    settings = {"normalize_embeddings": False, "labels": ["bad", "fine", "good"][: len(classes)]}
    (folder / "config_setfit.json").write_text(json.dumps(settings))
    return folder


def with_config(source: Path, folder: Path, fields: dict[str, Any], without: tuple[str, ...] = ()) -> Path:
    """A copy of a checkpoint with other fields in its configuration."""
    shutil.copytree(source, folder)
    edit_json(folder / "config.json", fields, without=without)
    return folder


def into_cache(folder: Path, root: Path) -> Path:
    """A copy of a checkpoint as the Hub's client keeps it: links into `blobs`."""
    repository = root / "models--owner--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    for part in (snapshot, repository / "blobs", repository / "refs"):
        part.mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    for path in folder.iterdir():
        shutil.copy(path, repository / "blobs" / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    return snapshot


def table(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    """Labeled data, as a file."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def load_whole(name: str, folder: Path) -> Any:
    """The model of a class of Transformers, whose loader finds every key and no other."""
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def logits_of(model: Any) -> torch.Tensor:
    """What a model computes for fixed inputs: [texts, classes]."""
    generator = torch.Generator().manual_seed(3)
    given = {"input_ids": torch.randint(5, 90, (6, 11), generator=generator)}
    if model.main_input_name == "pixel_values":
        given = {"pixel_values": torch.randn(6, 3, 16, 16, generator=generator)}
    with torch.no_grad():
        found = model(**given).logits.float()
    return found.reshape(-1, found.shape[-1])


def logits(folder: Path, name: str = "BertForSequenceClassification") -> torch.Tensor:
    """What a checkpoint computes for fixed inputs."""
    return logits_of(load_whole(name, folder))


def scores(folder: Path, *columns: list[str]) -> np.ndarray:
    """What a plain use of Transformers computes for texts or pairs: [texts, classes]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = load_whole("AutoModelForSequenceClassification", folder)
    with torch.no_grad():
        given = tokenizer(*(columns or (TEXTS,)), return_tensors="pt", padding=True)
        return model(**given).logits.double().numpy()


def drawn_labels(folder: Path, temperature: float, seed: int, *columns: list[str]) -> list[str]:
    """A label for each text, drawn from the model's own probabilities at a temperature."""
    chances = torch.from_numpy(scores(folder, *columns) / temperature).softmax(1)
    names = transformers.AutoConfig.from_pretrained(folder).id2label
    torch.manual_seed(seed)
    return [names[at] for at in torch.multinomial(chances, 1)[:, 0].tolist()]
