"""Every `headscope edit` command of docs/edit.md, run on small checkpoints of the kinds that it names."""

import re
import shlex
from pathlib import Path
from typing import Any

import peft
import pytest
import transformers

import headscope
from headscope.shell.app import main
from tests.editing.checkpoints import (
    TEXTS,
    drawn_labels,
    load_whole,
    save_adapter,
    save_base,
    saved,
    table,
    write_setfit,
)
from tests.edits import edit_json
from tests.modules import dense, norm, pooling, write_chain
from tests.scorers import save_language_model, save_tokenizer

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
        sizes: dict[str, Any] = {"vocab_size": 100, "num_hidden_layers": 1, "n_layer": 1}
        sizes |= {"pad_token_id": None} if "GPT2" in class_name else {}
        saved(class_name, folder / name, labels, **sizes, problem_type=kind or None)
        save_tokenizer(folder / name)
    names = {"1": "negative", "2": "neutral", "3": "positive"}
    edit_json(folder / "my-miscounted-checkpoint" / "config.json", {"id2label": names})
    lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2)
    base = save_base(folder / "base")
    save_adapter(base, folder / "my-adapter", lora)
    save_adapter(base, folder / "my-headless-adapter", peft.LoraConfig(target_modules=["query"], r=2))
    classifier = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=3)
    classifier.save_pretrained(folder / "my-classifier")
    save_language_model("Qwen3", folder / "my-reranker")
    after = [pooling("mean"), dense(16, 16, "GELU", bias=False), norm(), dense(16, 1)]
    write_chain(folder / "my-cross-encoder", "ModernBert", after)
    (write_setfit(folder / "my-setfit") / "config_setfit.json").unlink()  # which older versions don't write
    # Labels that were drawn at random would fit no temperature.
    labels = drawn_labels(folder / "my-checkpoint", 2, 0)
    table(folder / "texts.csv", ["text", "label"], [list(row) for row in zip(TEXTS, labels, strict=True)])
    others = [text[::-1] for text in TEXTS]
    labels = drawn_labels(folder / "my-nli", 2, 0, TEXTS, others)
    rows = [list(row) for row in zip(TEXTS, others, labels, strict=True)]
    table(folder / "pairs.csv", ["premise", "hypothesis", "label"], rows)
    flags = [[text, int(at % 3 > 0), int(at % 3 > 1)] for at, text in enumerate(TEXTS)]
    table(folder / "flags.csv", ["text", "toxic", "threat"], flags)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_edit_is_proven(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    arguments = shlex.split(command)[1:]
    if {"my-cross-encoder", "chain"}.intersection(arguments):
        pytest.importorskip("sentence_transformers")
    assert main([*arguments, "-q"]) == 0
    if "--adapter-head" in arguments:
        return  # an adapter: tests/editing/test_merging.py loads it with PEFT
    new = place / arguments[arguments.index("-o") + 1]
    assert any("edited from" in text for text in headscope.inspect(new).checkpoint.notices)
    load_whole(transformers.AutoConfig.from_pretrained(new).architectures[0], new)
