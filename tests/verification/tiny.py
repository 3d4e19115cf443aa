"""What the tests of this folder share: a BERT of two layers, adapters of it, and what a result says."""

from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn
from transformers import BertForSequenceClassification

from headscope.shared.loaded.facts import TensorStatus

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37, "vocab_size": 99}
S = TensorStatus
HEAD = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")


def ids(result: Any) -> list[str]:
    return [finding.id for finding in result.findings]


def loaded(folder: Path, **options: Any) -> BertForSequenceClassification:
    return BertForSequenceClassification.from_pretrained(folder, **options)


def reloaded(model: Any, folder: Path, **options: Any) -> Any:
    """A model as its class loads it from a save of it."""
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, **options)


def drawn_lora(base: Path, cls: Any = BertForSequenceClassification, *, std: float = 1.0, **options: Any) -> Any:
    """A model with a LoRA adapter whose weights change something."""
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=12, **options)
    model = peft.get_peft_model(cls.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, std=std)
    return model


def adapted(folder: Path, base: Path, cls: Any = BertForSequenceClassification, **options: Any) -> Path:
    """Such an adapter, saved by PEFT."""
    drawn_lora(base, cls, **options).save_pretrained(folder)
    return folder


def statuses(result: Any) -> dict[str, TensorStatus]:
    return {item.name: item.status for item in result.tensors}


def counts(result: Any) -> dict[str, int]:
    return dict(Counter(item.status.value for item in result.tensors))


def lost_in_a_load(folder: Path, model: Any) -> set[str]:
    """The names under which Transformers loads from a folder other values than a live model has, or random ones."""
    again, info = type(model).from_pretrained(
        folder, dtype=model.dtype, ignore_mismatched_sizes=True, output_loading_info=True
    )
    one, other = model.state_dict(), again.state_dict()
    differing = {name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])}
    drawn = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    return differing | drawn | (one.keys() ^ other.keys())


METHODS: dict[str, peft.PeftConfig] = {
    "DoRA": peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], use_dora=True),
    "biases": peft.LoraConfig(task_type="SEQ_CLS", target_modules=["word_embeddings", "query"], bias="all"),
    "tokens": peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], trainable_token_indices=[3, 5]),
    "IA3": peft.IA3Config(
        task_type="SEQ_CLS", target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]
    ),
    "AdaLoRA": peft.AdaLoraConfig(task_type="SEQ_CLS", target_modules=["query"], total_step=10),
    "VeRA": peft.VeraConfig(task_type="SEQ_CLS", target_modules=["query"]),
    "LoHa": peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"]),
    "OFT": peft.OFTConfig(task_type="SEQ_CLS", target_modules=["query"], oft_block_size=8, r=0),
    "BOFT": peft.BOFTConfig(task_type="SEQ_CLS", target_modules=["query"], boft_block_size=8),
    "prompts": peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
    "prompt encoder": peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=4, encoder_hidden_size=8),
    "prefixes": peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    "norms": peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"]),
}


def saved_adapter(method: str, base: Path, folder: Path) -> Any:
    """A model with an adapter of a method, as PEFT begins and saves it."""
    model = peft.get_peft_model(loaded(base), deepcopy(METHODS[method]))
    model.save_pretrained(folder)
    return model


def with_adapter(base: Path, adapter: Path, **options: Any) -> Any:
    """What PEFT loads."""
    return peft.PeftModel.from_pretrained(loaded(base), adapter, **options)
