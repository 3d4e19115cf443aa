"""Names of parameters and modules without what PEFT and torch.compile put into them."""

import re

_WRAPPING = re.compile(r"\.(base_layer|original_module|modules_to_save\.\w+|token_adapter|_orig_mod)(?=\.)")


def plain_name(name: str) -> str:
    """`classifier.modules_to_save.default.weight` -> `classifier.weight`."""
    return _WRAPPING.sub("", f".{name}").removeprefix(".")
