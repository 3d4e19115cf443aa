"""Chains of modules as sentence-transformers saves them: a small base model, a tokenizer, and the modules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.scorers import SIZES, WORDS, save_tokenizer

_SIZES = SIZES | {"max_position_embeddings": 80, "cls_token_id": 2, "sep_token_id": 3}
_OWN_SIZES: dict[str, dict[str, object]] = {
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "T5": {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "d_kv": 8},
}


def save_base(
    family: str, folder: Path, dtype: torch.dtype = torch.float32, kind: str = "Model", **settings: Any
) -> None:
    """A model whose scores depend on their text, and a tokenizer that puts [CLS] and [SEP] around one."""
    config_class = getattr(transformers, f"{family}Config")
    own = _OWN_SIZES.get(family)
    sizes = _SIZES if own is None else own | {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 3}
    known = {*config_class().to_dict(), "num_labels"}
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}{kind}")(
        config_class(**{k: v for k, v in {**sizes, **settings}.items() if k in known})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.to(dtype).save_pretrained(folder)
    save_tokenizer(folder, is_framed=True, model_max_length=64)


def save_chain(folder: Path, family: str, after: Sequence[nn.Module], **options: Any) -> None:
    """The checkpoint that sentence-transformers saves for a base model and the modules after it.

    The modules have weights that no initialization makes. It is a CrossEncoder if a module writes scores.
    """
    import sentence_transformers
    from sentence_transformers.base.modules import Transformer

    save_base(family, folder.parent / "plain", options.pop("dtype", torch.float32), **options.pop("sizes", {}))
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in (item for module in after for item in module.parameters()):
            parameter.normal_(0, 0.3).add_(torch.linspace(-1, 1, parameter.shape[-1]))
    is_scored = any(getattr(module, "module_output_name", "") == "scores" for module in after)
    cls = sentence_transformers.CrossEncoder if is_scored else sentence_transformers.SentenceTransformer
    cls(modules=[Transformer(str(folder.parent / "plain")), *after], **options).save_pretrained(str(folder))
