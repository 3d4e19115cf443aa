"""Small models of many families, and where each family's checkpoints come from: base, language model, classifier."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
_ENCODER = _SIZES | {"vocab_size": 99, "max_position_embeddings": 64}
_DECODER = _ENCODER | {"num_key_value_heads": 2}
_ENCODER_DECODER = {"vocab_size": 99, "d_model": 32, "max_position_embeddings": 64} | {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 37))
}
_T5 = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_VIT = _SIZES | {"image_size": 30, "patch_size": 6, "num_channels": 3}


@dataclass(frozen=True)
class Family:
    """One family at a small size, as people's files are: GPT-2, Llama, Mistral and Qwen2 have no pad token."""

    name: str
    config_class: str
    config: dict[str, Any]
    base: str
    language_model: str | None
    classifier: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """The classes that save checkpoints of this family."""
        return tuple(name for name in (self.base, self.language_model, self.classifier) if name)

    @property
    def pad_token(self) -> dict[str, int]:
        """The setting that a family without a pad token needs for batches; empty for the others."""
        return {"pad_token_id": 0} if getattr(self.build_config(), "pad_token_id", 0) is None else {}

    def build_config(self, **changes: Any) -> Any:
        """A fresh configuration."""
        return getattr(transformers, self.config_class)(**(self.config | self.extra | changes))

    def build(self, class_name: str, **changes: Any) -> PreTrainedModel:
        """A model of a class of this family with random weights, the same at every call."""
        torch.manual_seed(0)
        return getattr(transformers, class_name)(self.build_config(**changes)).eval()


def _family(name: str, stem: str, config: dict[str, Any], language_model: str | None, **extra: Any) -> Family:
    classifier = f"{stem}ForImageClassification" if stem == "ViT" else f"{stem}ForSequenceClassification"
    return Family(name, f"{stem}Config", config, f"{stem}Model", language_model, classifier, extra)


FAMILIES = {
    family.name: family
    for family in (
        _family("bert", "Bert", _ENCODER, "BertForPreTraining"),
        _family("roberta", "Roberta", _ENCODER, "RobertaForMaskedLM", pad_token_id=1),
        _family(
            "distilbert",
            "DistilBert",
            {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37, "max_position_embeddings": 64},
            "DistilBertForMaskedLM",
        ),
        _family(
            "xlnet",
            "XLNet",
            {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
            "XLNetLMHeadModel",
        ),
        _family(
            "gpt2",
            "GPT2",
            {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
            "GPT2LMHeadModel",
        ),
        _family("albert", "Albert", _ENCODER | {"embedding_size": 16}, "AlbertForPreTraining"),
        _family("electra", "Electra", _ENCODER | {"embedding_size": 16}, "ElectraForPreTraining"),
        _family("deberta-v2", "DebertaV2", _ENCODER, "DebertaV2ForMaskedLM", relative_attention=True),
        _family("xlm-roberta", "XLMRoberta", _ENCODER, "XLMRobertaForMaskedLM", pad_token_id=1),
        _family("bart", "Bart", _ENCODER_DECODER, "BartForConditionalGeneration"),
        _family("t5", "T5", _T5, "T5ForConditionalGeneration"),
        _family("llama", "Llama", _DECODER, "LlamaForCausalLM"),
        _family("mistral", "Mistral", _DECODER, "MistralForCausalLM"),
        _family("qwen2", "Qwen2", _DECODER, "Qwen2ForCausalLM"),
        _family(
            "modernbert",
            "ModernBert",
            _ENCODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
            "ModernBertForMaskedLM",
        ),
        _family("vit", "ViT", _VIT, "ViTForMaskedImageModeling"),
    )
}
