"""Small checkpoints of a family with a tokenizer of 99 words, texts for them, and results that advise a vector."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headscope.slices.probe.facts.data import HeadInput, Loading, ProbeClass
from headscope.slices.probe.facts.result import Candidate, Metric, ProbeResult, Selected, Vector
from headscope.slices.probe.hidden.candidates import Vectors
from tests.families import FAMILIES as SHARED, Family

WORDS = 99
_SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = _SIZES | {"intermediate_size": 37, "max_position_embeddings": 64}
_OWN = (
    Family("mpnet", "MPNetConfig", _WIDE, "MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
    Family("convbert", "ConvBertConfig", _WIDE | {"embedding_size": 32}, "ConvBertModel", "ConvBertForMaskedLM",
           "ConvBertForSequenceClassification"),
    Family("gpt-neox", "GPTNeoXConfig", _WIDE, "GPTNeoXModel", "GPTNeoXForCausalLM",
           "GPTNeoXForSequenceClassification"),
    Family("opt", "OPTConfig", _SIZES | {"ffn_dim": 37, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
           "OPTModel", "OPTForCausalLM", "OPTForSequenceClassification"),
    Family("bloom", "BloomConfig", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "BloomModel",
           "BloomForCausalLM", "BloomForSequenceClassification"),
    Family("roformer", "RoFormerConfig", _WIDE | {"embedding_size": 32}, "RoFormerModel", "RoFormerForMaskedLM",
           "RoFormerForSequenceClassification"),
)  # fmt: skip
FAMILIES = SHARED | {family.name: family for family in _OWN}
_CLS, _SEP, _UNKNOWN = 7, 8, 9


def texts(count: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Texts of 1 to 12 words."""
    draw = random.Random(seed)
    return [(" ".join(f"w{draw.randrange(10, WORDS)}" for _ in range(draw.randint(1, 12))),) for _ in range(count)]


def tokenizer(*, pad: int | None, eos: int | None, side: str, with_cls: bool) -> PreTrainedTokenizerFast:
    """The word `w07` is token 7. An encoder's text stands between two special tokens, another may end with one."""
    inner = Tokenizer(
        models.WordLevel({f"w{number:02}": number for number in range(WORDS)}, unk_token=f"w{_UNKNOWN:02}")
    )
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special: dict[str, Any] = {"unk_token": f"w{_UNKNOWN:02}"}
    if with_cls:
        inner.post_processor = processors.TemplateProcessing(
            single=f"w{_CLS:02} $A w{_SEP:02}",
            pair=f"w{_CLS:02} $A w{_SEP:02} $B w{_SEP:02}",
            special_tokens=[(f"w{_CLS:02}", _CLS), (f"w{_SEP:02}", _SEP)],
        )
        special |= {"cls_token": f"w{_CLS:02}", "sep_token": f"w{_SEP:02}"}
    elif eos is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=f"$A w{eos:02}", special_tokens=[(f"w{eos:02}", eos)]
        )
    if eos is not None:
        special["eos_token"] = f"w{eos:02}"
    if pad is not None:
        special["pad_token"] = f"w{pad:02}"
    return PreTrainedTokenizerFast(tokenizer_object=inner, padding_side=side, model_max_length=40, **special)


def save(folder: Path, name: str, *, side: str = "right", pads: bool = True, eos: bool = False) -> Path:
    """A classifier of a family on disk; its pad token is that of the family, or 0; without `pads` it has none."""
    family = FAMILIES[name]
    pad = getattr(family.build_config(), "pad_token_id", None)
    pad = (0 if pad is None else pad) if pads else None
    model = family.build(family.classifier, pad_token_id=pad, num_labels=3)
    model.save_pretrained(folder)
    own = getattr(model.config, "eos_token_id", None)
    end = (_SEP if own is None else own) if eos else None
    is_encoder = family.language_model is not None and "CausalLM" not in family.language_model and not eos
    tokenizer(pad=pad, eos=end, side=side, with_cls=is_encoder and name != "gpt2").save_pretrained(folder)
    return folder


def load(folder: Path, name: str) -> tuple[PreTrainedModel, Any]:
    """The model and the tokenizer as any program loads them."""
    model = getattr(transformers, FAMILIES[name].classifier).from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def advised(item: Vectors, layers: int, labels: Sequence[str], head: HeadInput, loading: Loading) -> ProbeResult:
    """A result whose best vector is this one; `head` says what the class reads, should it be its input."""
    best = Candidate(item.name, item.layer, item.pooling, Metric.ACCURACY, 0.9, 0.8, 1.0, item.make().shape[1])
    is_head = item.pooling is Vector.HEAD
    return ProbeResult(
        tool_version="1", reference=loading.reference, data="rows.csv", texts=9, available=9, distinct=9,
        classes=tuple(ProbeClass(label, 3) for label in labels), folds=3, seed=0, device="cpu", padded=True,
        layers=layers, candidates=(best,), baselines=(), best=best.name, head="head" if is_head else None,
        selected=Selected(0.9, 0.8, 1.0, ()), versus=(), head_input=head if is_head else None, loading=loading,
    )  # fmt: skip
