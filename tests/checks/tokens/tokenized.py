"""Checkpoints with tokenizers, and what the rules on them find."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

import headscope
from headscope.checks.facts import CheckResult
from tests.families import FAMILIES

SPECIAL: dict[str, tuple[dict[str, int], str]] = {
    "bert": ({"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, "[cls] $A [sep]"),
    "roberta": ({"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": 4}, "[cls] $A [sep]"),
    "bart": ({"bos": 0, "pad": 1, "eos": 2, "unk": 3}, "[bos] $A [eos]"),
    "t5": ({"pad": 0, "eos": 1, "unk": 2}, "$A [eos]"),
    "gpt2": ({"pad": 0, "unk": 1, "eos": 2}, "$A"),
    "llama": ({"pad": 0, "bos": 1, "eos": 2, "unk": 3}, "[bos] $A"),
}


def tokenizer(family: str, side: str = "right", count: int = 40, **more: Any) -> Any:
    """The word `w11` is token 11, unless a special token has that id."""
    special, template = SPECIAL[family]
    names = {number: f"[{role}]" for role, number in special.items()}
    inner = Tokenizer(models.WordLevel({names.get(n, f"w{n}"): n for n in range(count)}, unk_token="[unk]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(f"[{role}]", number) for role, number in special.items() if f"[{role}]" in template]
    if ends:
        inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    named = {f"{role}_token": f"[{role}]" for role in special}
    kind: Any = PreTrainedTokenizerFast
    return kind(tokenizer_object=inner, padding_side=side, **(named | more))


def save(folder: Path, family: str, tokens: Any, **config: Any) -> Path:
    special = {f"{role}_token_id": number for role, number in SPECIAL[family][0].items()}
    chosen = FAMILIES[family]
    model = chosen.build(chosen.classifier, **(special | {"num_labels": 3} | config))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.05 * torch.randn_like(value))
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def check(folder: Path, rules: str = "HS306,HS307,HS308,HS309", profile: Any = "inference") -> CheckResult:
    return headscope.check(str(folder), profile, select=rules, offline=True)


def found(folder: Path) -> dict[str, str]:
    return {item.id: str(item.severity) for item in check(folder).findings}


def scores(folder: Path, texts: list[str], **config: Any) -> torch.Tensor:
    """The scores that a service gives: the first text in a batch with the others."""
    encode = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, **config).eval()
    inputs = encode(texts, return_tensors="pt", padding=len(texts) > 1)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        given: torch.Tensor = model(**inputs).logits
    return given[0]


def vocabulary(text: str) -> str:
    return '{"added_tokens": [], "model": {"vocab": ' + text + "}}"


ENDING = {"id": "[eos]", "ids": [2], "tokens": ["[eos]"]}
TEXT, END = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[eos]", "type_id": 0}}


def template(*parts: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": parts, "pair": [TEXT, END], "special_tokens": {"[eos]": ENDING}}
