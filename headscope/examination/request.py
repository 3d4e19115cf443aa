"""What to examine, and as what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[str], None]
"""What is called with a short sentence before each step."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to examine and as what; `headscope.api.inspect` describes the fields."""

    reference: str
    num_labels: int | None = None
    labels: tuple[str, ...] = ()
    task: str | None = None
    model_class: str | None = None
    revision: str | None = None
    subfolder: str | None = None
    variant: str | None = None
    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    trust_remote_code: bool = False
    verify: bool = False
    adapter: str | None = None
    cache: bool = False
    timeout: float | None = None
