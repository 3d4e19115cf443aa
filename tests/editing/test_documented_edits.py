"""Every `headscope edit` command of docs/edit.md, run on small checkpoints of the kinds that it names."""

import json
import re
import shlex
from pathlib import Path

import joblib
import peft
import pytest
import torch
import transformers
from scorers import save_language_model, save_tokenizer
from sklearn.linear_model import LogisticRegression
from test_checkpoint_edit import TEXT
from test_labeled_edits import TEXTS, table
from test_merging import save_adapter, save_base

import headscope
from headscope.copies.proving import prove_here
from headscope.shell.app import main
from headscope.slices.edit import adapter_head, checkpoint_edit, merging
from headscope.slices.edit.folding import fold, proof
from tests.modules import dense, norm, pooling, write_chain

PAGE = Path(__file__).resolve().parents[2] / "docs" / "edit.md"
COMMANDS = [
    line.strip()
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("headscope edit")
]
CHECKPOINTS = {
    "my-checkpoint": ("BertForSequenceClassification", ("negative", "positive", "other"), ""),
    "my-unnamed-checkpoint": ("BertForSequenceClassification", ("LABEL_0", "LABEL_1"), ""),
    "my-miscounted-checkpoint": ("BertForSequenceClassification", ("negative", "neutral", "positive"), ""),
    "my-intents": ("BertForSequenceClassification", ("shipping", "payment", "account"), ""),
    "my-nli": ("BertForSequenceClassification", ("entailment", "neutral", "contradiction"), ""),
    "my-toxicity-model": ("BertForSequenceClassification", ("toxic", "threat"), "multi_label_classification"),
    "my-gpt2-classifier": ("GPT2ForSequenceClassification", ("no", "yes"), ""),
    "my-ner": ("BertForTokenClassification", ("O", "B-corporation", "I-corporation", "B-person", "I-person"), ""),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    for name, (class_name, labels, kind) in CHECKPOINTS.items():
        torch.manual_seed(1)
        cls = getattr(transformers, class_name)
        sizes = {**TEXT, "vocab_size": 100, "num_hidden_layers": 1, "n_layer": 1}
        if "GPT2" in class_name:
            sizes.pop("pad_token_id")
        ids = {label: at for at, label in enumerate(labels)}
        model = cls(
            cls.config_class(**sizes, id2label=dict(enumerate(labels)), label2id=ids, problem_type=kind or None)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.3)
        model.save_pretrained(folder / name)
        save_tokenizer(folder / name)
    config = folder / "my-miscounted-checkpoint" / "config.json"
    names = {"1": "negative", "2": "neutral", "3": "positive"}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": names}))
    lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2)
    base = save_base(folder / "base")
    save_adapter(base, folder / "my-adapter", lora)
    save_adapter(base, folder / "my-headless-adapter", peft.LoraConfig(target_modules=["query"], r=2))
    classifier = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=3)
    classifier.save_pretrained(folder / "my-classifier")
    save_language_model("Qwen3", folder / "my-reranker")
    after = [pooling("mean"), dense(16, 16, "GELU", bias=False), norm(), dense(16, 1)]
    write_chain(folder / "my-cross-encoder", "ModernBert", after)
    write_chain(folder / "my-setfit", "Bert", [pooling("mean")], model_type="SentenceTransformer")
    vectors = torch.randn(30, 16, generator=torch.Generator().manual_seed(0)).numpy()
    joblib.dump(
        LogisticRegression().fit(vectors, [at % 3 for at in range(30)]), folder / "my-setfit" / "model_head.pkl"
    )
    draw = torch.Generator().manual_seed(0)
    places = torch.randint(0, 3, (len(TEXTS),), generator=draw).tolist()
    sentiments, relations = (CHECKPOINTS[name][1] for name in ("my-checkpoint", "my-nli"))
    rows = list(zip(TEXTS, places, strict=True))
    table(folder / "texts.csv", ["text", "label"], [[text, sentiments[at]] for text, at in rows])
    table(folder / "flags.csv", ["text", "toxic", "threat"], [[text, int(at > 0), int(at > 1)] for text, at in rows])
    pairs = [[text, text[::-1], relations[at]] for text, at in rows]
    table(folder / "pairs.csv", ["premise", "hypothesis", "label"], pairs)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_edit_is_proven(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(checkpoint_edit, "prove_apart", prove_here)
    monkeypatch.setattr(merging, "prove_merge_apart", merging.prove_merge_here)
    arguments = shlex.split(command)[1:]
    if {"my-cross-encoder", "chain"}.intersection(arguments):
        pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(fold, "prove_fold_apart", proof.prove_fold_here)
    if "temperature" in arguments:  # labels that were drawn at random would fit no temperature
        _label_by_scores(place, arguments)
    monkeypatch.setattr(adapter_head, "prove_head_apart", adapter_head.prove_head_here)
    assert main([*arguments, "-q"]) == 0
    if "--adapter-head" in arguments:
        return  # an adapter: tests/editing/test_merging.py loads it with PEFT
    new = place / arguments[arguments.index("-o") + 1]
    assert any("edited from" in text for text in headscope.inspect(new).checkpoint.notices)
    config = transformers.AutoConfig.from_pretrained(new)
    cls = getattr(transformers, config.architectures[0])
    _, info = cls.from_pretrained(new, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


def _label_by_scores(place: Path, arguments: list[str]) -> None:
    """Labels of the data that are drawn from the model's own probabilities."""
    path = place / arguments[arguments.index("--data") + 1]
    header, *lines = (line.split(",") for line in path.read_text().splitlines())
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / arguments[1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / arguments[1]).eval()
    columns = list(zip(*(line[:-1] for line in lines), strict=True))
    with torch.no_grad():
        logits = model(**tokenizer(*map(list, columns), return_tensors="pt", padding=True)).logits
    torch.manual_seed(0)
    drawn = torch.multinomial((logits / 2).softmax(1), 1)[:, 0].tolist()
    table(path, header, [[*line[:-1], model.config.id2label[at]] for line, at in zip(lines, drawn, strict=True)])
