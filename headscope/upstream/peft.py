"""PEFT: the names that it gives to what it wraps, adds and saves. It is not imported: an adapter is read without it."""

import re
from collections.abc import Container

PREFIXES = ("base_model.model.", "base_model.", "")
"""What may stand before a parameter's name in an adapter's file."""
PREFIXES_OF_TUNERS = ("base_model.model.",)
"""What stands there for the methods that wrap single layers (LoRA, IA3)."""
SAVED_FOR_TASK = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
"""What PEFT adds to `modules_to_save` for a task; source: peft/peft_model.py."""
WRAPPED = ("base_layer", "original_module", "modules_to_save")
"""The children of PEFT's wrappers that hold what was wrapped."""
SUFFIXES = {
    "LORA": r"lora_[AB]\.weight|lora_B\.bias|lora_embedding_[AB]|lora_magnitude_vector(?:\.weight)?",
    "IA3": r"ia3_l",
}
"""The tensors that a method adds to a layer, as the file names them."""
ADAPTER_NAME = re.compile(r"(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|ia3_l)\.default(?=\.|$)")
"""Keys may have the name of the adapter in them too: `from_pretrained` calls it `default`."""
_OF_PEFT = r"base_layer|original_module|modules_to_save\.\w+|token_adapter"
_OF_TORCH = r"_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module"
_WRAPPING = re.compile(rf"\.({_OF_PEFT}|{_OF_TORCH})(?=\.)")


def plain_name(name: str) -> str:
    """`classifier.modules_to_save.default.weight` -> `classifier.weight`; wrappers of PyTorch are left out too."""
    return _WRAPPING.sub("", f".{name}").removeprefix(".")


_OF_ADAPTER = re.compile(r"\.modules_to_save\.\w+(?=\.)|(?<=[AB])\.\w+(?=\.weight$|\.bias$|$)|(?<=ia3_l)\.\w+$")


def key_in_adapter(name: str, keys: Container[str]) -> str | None:
    """The key under which an adapter's file holds a tensor of a wrapped model; None where it holds none.

    `bert.query.lora_A.default.weight` -> `base_model.model.bert.query.lora_A.weight`. A model without wrappers has no
    other name for a module that the adapter saved whole: then the name itself is tried.
    """
    plain = _OF_ADAPTER.sub("", name)
    for prefix in PREFIXES:
        for key in (f"{prefix}{plain}", f"{prefix}{name}"):
            if key in keys:
                return key
    return None
