"""What the tests of this folder share: a BERT of two layers, adapters of it, and what a result says."""

from pathlib import Path
from typing import Any

import peft
from torch import nn
from transformers import BertForSequenceClassification

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37, "vocab_size": 99}
HEAD = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")


def ids(result: Any) -> list[str]:
    return [finding.id for finding in result.findings]


def adapted(folder: Path, base: Path, cls: Any = BertForSequenceClassification, **options: Any) -> Path:
    """A LoRA adapter with weights that change something, saved by PEFT."""
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=12, **options)
    model = peft.get_peft_model(cls.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder
