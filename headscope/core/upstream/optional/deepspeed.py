"""DeepSpeed: its engine. It is not imported."""

from torch import nn

from headscope.core.upstream.python import descends_from


def inside_engine(module: nn.Module) -> nn.Module | None:
    """Gives the model that a DeepSpeedEngine trains; None for no engine."""
    if not descends_from(module, "deepspeed", "DeepSpeedEngine"):
        return None
    found = getattr(module, "module", None)
    return found if isinstance(found, nn.Module) else None
