"""A request: what to examine, and as what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from headscope.core.facts.stored.location import Location, is_own_code
from headscope.core.upstream.python import descends_from

if TYPE_CHECKING:
    from torch import nn


Progress = Callable[[str], None]
"""What is called with a short sentence before each step."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checkpoint to examine and how to read it; `headscope.api.inspect` describes the fields.

    `take` names the models that a repair is to take where the files may mean several.
    """

    location: Location
    num_labels: int | None = None
    labels: tuple[str, ...] = ()
    task: str | None = None
    model_class: str | None = None
    adapter: str | None = None
    trust_remote_code: bool = False
    prove: bool = False
    health: bool = False
    cache: bool = False
    no_values: bool = False
    run: bool | None = None
    run_device: str = "cpu"
    engine: str | None = None
    tokens: tuple[str, ...] = ()
    take: tuple[str, ...] = ()

    @property
    def runs_code(self) -> bool:
        """True if code runs that no key of a cache names: that of the checkpoint, or a class of the user's own."""
        return self.trust_remote_code or is_own_code(self.model_class)

    @property
    def reference(self) -> str:
        """The checkpoint as the user named it."""
        return self.location.reference


@dataclass(frozen=True, slots=True)
class ModuleRequest:
    """How to examine a model in memory; `headscope.api.inspect` describes the fields."""

    example_inputs: Any = None
    labels: tuple[str, ...] = ()
    task: str | None = None
    output: str | None = None
    loaded_from: str | None = None
    loading_info: Mapping[str, Any] | None = None
    offline: bool = False
    prove: bool = False
    health: bool = False


def is_in_memory(reference: Any) -> TypeGuard[nn.Module]:
    """True if `reference` is meant as a model in memory: a module, a class of modules, an exported program."""
    # SetFit's models aren't modules: they hold one, and a classifier that may be scikit-learn's.
    is_module = callable(getattr(reference, "named_parameters", None))
    return is_module or descends_from(reference, "setfit", "SetFitModel")
