"""Every method of the installed PEFT, on an encoder, a decoder and a tagger: the scores and the verdict, beside PEFT's.

    python -m tests.sweeps.adapter_kinds [KIND ...]

Each adapter gets numbers as after a training, is saved, and is loaded by PEFT for the truth: whether it answers, and
what. Prints a line for each, fails where headscope disagrees, and says which methods could not be made so small.
"""

import inspect
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError
from tests.verdicts.runs import RunCase, make_tokenizer, run_here

TEXTS = ("w1 w2 w3 w4 w5", "film was good w7 w8 w9 w10", "no")
PLACES = (
    ("Bert", "SEQ_CLS", "SequenceClassification"),
    ("Llama", "SEQ_CLS", "SequenceClassification"),
    ("Bert", "TOKEN_CLS", "TokenClassification"),
)
_TARGETS = {"Bert": ["query", "value"], "Llama": ["q_proj", "v_proj"]}
_NORMS = {"Bert": ["LayerNorm"], "Llama": ["input_layernorm"]}
_WORDS = {"Bert": ["embeddings.word_embeddings"], "Llama": ["embed_tokens"]}
_SETTINGS: dict[str, dict[str, Any]] = {
    "PROMPT_TUNING": {"num_virtual_tokens": 4}, "P_TUNING": {"num_virtual_tokens": 4, "encoder_hidden_size": 16},
    "PREFIX_TUNING": {"num_virtual_tokens": 4}, "MULTITASK_PROMPT_TUNING": {"num_virtual_tokens": 4, "num_tasks": 2},
    "ADALORA": {"total_step": 10}, "IA3": {"feedforward_modules": []}, "FOURIERFT": {"n_frequency": 50},
    "VBLORA": {"vector_length": 16}, "MISS": {"r": 8}, "ROAD": {"group_size": 8}, "SHIRA": {"r": 4},
    "C3A": {"block_size": 8}, "WAVEFT": {"n_frequency": 50}, "PSOFT": {"r": 8},
    "CARTRIDGE": {"num_virtual_tokens": 4}, "TRAINABLE_TOKENS": {"token_indices": [5, 6, 7]},
}  # fmt: skip
BATCH = "a padded batch gives other scores"


@dataclass(frozen=True)
class Tried:
    """An adapter, what PEFT does with it ("works" or why not), and what headscope says."""

    name: str
    truth: str
    has_same_scores: bool
    verdict: str
    said: str

    @property
    def is_wrong(self) -> bool:
        """Other scores than PEFT's, a pass of what fails, anything but a pass of what works; a batch by its finding."""
        works = self.truth == "works"
        if self.truth == BATCH:
            return not self.has_same_scores or "HS525" not in self.said
        return (works and not self.has_same_scores) or (self.verdict == "passed") != works


def settings_of(kind: str, family: str, task: str) -> Any:
    """The settings of a method for a small model. Raises whatever PEFT raises."""
    cls = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(kind)]
    given = dict(_SETTINGS.get(kind, {}))
    if kind == "LN_TUNING":
        given["target_modules"] = _NORMS[family]
    elif kind == "TRAINABLE_TOKENS":
        given["target_modules"] = _WORDS[family]
    elif "target_modules" in inspect.signature(cls).parameters:
        given["target_modules"] = _TARGETS[family]
    return cls(task_type=task, **given)


def write(kind: str, family: str, task: str, name: str, folder: Path) -> Any:
    """Saves an adapter beside its base model, and gives the live one. Raises whatever PEFT raises."""
    base = RunCase(kind, family, name).write(folder / "base")
    model: Any = getattr(transformers, f"AutoModelFor{name}").from_pretrained(base)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, settings_of(kind, family, task))
    for value in model.parameters():
        if value.requires_grad and value.is_floating_point():
            value.data.add_(torch.randn_like(value) * 0.2)
    model.save_pretrained(str(folder / "adapter"))
    make_tokenizer("english", family).save_pretrained(folder / "adapter")
    return model.eval()


def _answers(model: Any, tokenizer: Any, task: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt"), **task).logits.reshape(-1, 3) for text in TEXTS]


def tried(kind: str, family: str, task: str, name: str, folder: Path) -> Tried:
    """Writes an adapter and asks PEFT and headscope. Raises whatever PEFT raises when it is made."""
    live = write(kind, family, task, name, folder)
    adapter = str(folder / "adapter")
    tokenizer = make_tokenizer("english", family)
    given = {"task_ids": torch.tensor([0])} if kind == "MULTITASK_PROMPT_TUNING" else {}
    base: Any = getattr(transformers, f"AutoModelFor{name}").from_pretrained(folder / "base", num_labels=3)
    try:
        fresh = _answers(peft.PeftModel.from_pretrained(base, adapter).eval(), tokenizer, given)
        own = _answers(live, tokenizer, given)
        is_kept = all(torch.allclose(one, other, atol=1e-4) for one, other in zip(own, fresh, strict=True))
        truth = _in_batches(live, tokenizer, given, own, task) if is_kept else "a reload gives other scores"
    except Exception as err:  # whatever PEFT raises
        fresh, truth = [], f"{type(err).__name__}: {err}"
    try:
        shown = [torch.tensor(headscope.forward(adapter, device="cpu", text=[text]).logits) for text in TEXTS]
        is_same = bool(fresh) and all(
            torch.allclose(one.reshape(-1, 3), other, atol=1e-4) for one, other in zip(shown, fresh, strict=True)
        )
        result = headscope.check(adapter, "inference", ignore=["HS502", "HS202"])
    except HeadscopeError as err:
        return Tried(f"{kind} {family} {task}", truth, False, "refused", err.message)
    said = "; ".join([item.id for item in result.findings] + [gap.reason for gap in result.not_determined])
    return Tried(f"{kind} {family} {task}", truth, is_same, result.verdict.value, said)


def _in_batches(model: Any, tokenizer: Any, given: dict[str, Any], own: list[torch.Tensor], task: str) -> str:
    """ "works", or what a padded batch does to the scores."""
    if task != "SEQ_CLS":
        return "works"
    more = {name: value.repeat(len(TEXTS)) for name, value in given.items()}
    with torch.no_grad():
        found = model(**tokenizer(list(TEXTS), padding=True, return_tensors="pt"), **more).logits
    is_same = torch.allclose(found, torch.cat(own), atol=1e-3)
    return "works" if is_same else BATCH


def main() -> int:
    """Prints a line for each adapter and a summary; 1 where headscope disagrees."""
    warnings.filterwarnings("ignore")
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    run_here()
    counts = Counter[str]()
    for kind in sys.argv[1:] or [item.value for item in peft.PeftType]:
        for place in PLACES:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = tried(kind, *place, Path(folder))
                except Exception as err:  # a method that this model is too small for, or not made for
                    counts["not made"] += 1
                    print(
                        f"-  {kind} {' '.join(place[:2])}: not made: {type(err).__name__}: {str(err)[:90]}", flush=True
                    )
                    continue
            counts["wrong" if found.is_wrong else "right"] += 1
            mark = "!!" if found.is_wrong else "  "
            print(f"{mark} {found.name}: {found.truth[:90]} | {found.verdict} {found.said[:160]}", flush=True)
    print(dict(counts))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
