"""Small language models and encoders with a tokenizer, as other libraries save them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "no", "yes", *(f"w{number}" for number in range(94)))
SIZES: dict[str, object] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_OF_FAMILY: dict[str, dict[str, object]] = {
    "OPT": {"word_embed_proj_dim": 16, "ffn_dim": 32},
    "Gemma2": {"final_logit_softcapping": 0.1},
    "Granite": {"logits_scaling": 3.0},
}
"""What a family has beside the sizes; the last two compute something after their matrix."""
FAMILIES = ("Qwen3", "Gemma", "Llama", "Gemma2", "Granite", "OPT")


def save_tokenizer(folder: Path, *, is_framed: bool = False, **options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, with padding on the side that is the class's default; framed, [CLS] text [SEP]."""
    tokenizer = word_tokenizer(WORDS, eos_token="[SEP]", **options)
    if is_framed:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer.save_pretrained(folder)
    return tokenizer


def word_tokenizer(words: Iterable[str], **options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of these words between spaces, with the special tokens of BERT among them."""
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special, **options)


def save_language_model(family: str, folder: Path, **settings: object) -> PreTrainedModel:
    """A causal language model with random weights, and its tokenizer."""
    config = getattr(transformers, f"{family}Config")(**SIZES | _OF_FAMILY.get(family, {}) | settings)
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model.eval()


def save_encoder(family: str, kind: str, folder: Path, **settings: object) -> None:
    """A model of an encoder's family, such as `BertForMaskedLM`, with random weights, and its tokenizer."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if family == "DistilBert":
        sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(WORDS), max_position_embeddings=64, pad_token_id=0, **sizes, **settings
    )
    getattr(transformers, f"{family}{kind}")(config).save_pretrained(folder)
    save_tokenizer(folder)
