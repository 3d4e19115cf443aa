"""Everything that results say: frozen dataclasses of str, int, bool, enum and tuple, by their public names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.checks.facts import CheckResult as CheckResult
    from headscope.core.facts import *  # noqa: F403
    from headscope.shared.serving.card.facts import Card as Card
    from headscope.slices.compare.facts import (
        Comparison as Comparison,
        Difference as Difference,
        SameValues as SameValues,
    )
    from headscope.slices.forward.facts import (
        ForwardReport as ForwardReport,
        LabelScore as LabelScore,
        Scored as Scored,
    )

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name
    _NAMES_OF = {
        "checks": "CheckResult",
        "shared.serving.card": "Card",
        "slices.compare": "Comparison Difference SameValues",
        "slices.forward": "ForwardReport LabelScore Scored",
    }
    _MODULE_OF = {name: f"headscope.{room}.facts" for room, names in _NAMES_OF.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """A fact, imported on first use."""
        from importlib import import_module

        core = import_module("headscope.core.facts")
        if name == "__all__":
            return [*core.__all__, *_MODULE_OF]
        if name not in _MODULE_OF and name not in core.__all__:
            raise AttributeError(f"module 'headscope.facts' has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF.get(name, "headscope.core.facts")), name)

    def __dir__() -> list[str]:
        return sorted(__getattr__("__all__"))
