"""The share of an adapter in a model in memory, and what the adapter's file holds for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, Gap, TensorHeader
from headscope.core.facts.counting import few_of
from headscope.core.source.live.live_tensors import LiveTensor
from headscope.core.upstream.peft import PROMPTS, held_adapters, key_in_adapter, plain_name
from headscope.errors import Unsupported

if TYPE_CHECKING:
    import torch
    from torch import nn


class AdapterShare:
    """The adapter in a model, and the manifest of its file; None if none was given."""

    def __init__(self, module: nn.Module, manifest: CheckpointManifest | None) -> None:
        self.manifest = manifest
        self.held = held_adapters(module)
        self.headers = {header.key: header for header in manifest.tensors} if manifest else {}
        self._module = module

    def header_of(self, name: str) -> TensorHeader | None:
        """Finds what the file holds for a tensor of the model; None for nothing."""
        key = key_in_adapter(name, self.headers, self.held.active) if not _is_copied(name) else None
        return None if key is None else self.headers[key]

    def has(self, name: str) -> bool:
        """True if the file may hold a tensor."""
        return bool(self.headers) and not _is_copied(name) and (name in self.added or self.header_of(name) is not None)

    def changes_at(self, path: str) -> dict[str, TensorHeader]:
        """Finds what the file holds to change a module's weight, by the ends of the keys; {} if it isn't merged."""
        start = f"base_model.model.{path}."
        return {key.removeprefix(start): header for key, header in self.headers.items() if key.startswith(start)}

    @cached_property
    def added(self) -> frozenset[str]:
        """Tensors that PEFT adds to the model."""
        from headscope.core.model.tensors.held import added_by_peft

        return added_by_peft(self._module) if self.held.names else frozenset()

    @cached_property
    def settled(self) -> Mapping[str, torch.Tensor]:
        """Parameters that PEFT stores nowhere, because the stored ones decide them."""
        import torch

        ranks = {
            name: self.header_of(name.replace(".ranknum.", ".lora_E.")) for name in self.added if ".ranknum." in name
        }
        # AdaLoRA's rank, by which the forward divides
        return {name: torch.tensor([float(item.shape[0])]) for name, item in ranks.items() if item is not None}

    def is_not_given(self, item: LiveTensor) -> bool:
        """True if a tensor belongs to an adapter of the model, and nothing was named that stores the adapter."""
        return not self.headers and (item.name in self.added or item.name.startswith(PROMPTS))

    def is_unused(self, item: LiveTensor) -> bool:
        """True if a tensor belongs to an inactive adapter, or to a module that PEFT runs a copy of."""
        return self.held.is_of_inactive(item.name) or item.name.startswith(tuple(self.held.replaced))

    def is_second_copy(self, key: str) -> bool:
        """True if a key is one under which PEFT saves a tensor once more with bias="all"."""
        once = key.replace(".original_module.", ".").replace(".modules_to_save.", ".")
        return once != key and once in self.headers

    @property
    def inactive(self) -> tuple[str, ...]:
        """Adapters that the model holds and does not use, beside the given one."""
        return tuple(sorted(self.held.names - self.held.active)) if self.manifest is not None else ()

    def gaps(self) -> Iterator[Gap]:
        """Explains why the scores of a model may not be those of the adapter whose tensors it holds."""
        if self.manifest is None or not self.held.names:
            return
        if self.held.is_disabled:
            yield Gap("adapter", "the model holds it disabled, so the scores are those of the base model")
        if len(self.held.active) > 1:
            yield Gap("adapter", f"several adapters are active: {few_of(sorted(self.held.active))}")
        settings = {**self.manifest.config, "use_dora": False}  # DoRA scales as LoRA does
        wrong = [path for path, scale in self.held.scales.items() if not self._is_scale(path, scale, settings)]
        if wrong:
            reason = "the model multiplies the change by another factor than the adapter's configuration says"
            yield Gap(few_of(wrong), reason)

    def _is_scale(self, path: str, scale: float, settings: Mapping[str, object]) -> bool:
        """True if a layer's factor is the one that the configuration gives; unknown counts as right."""
        from headscope.core.model.loading.adapters import scale_of

        plain = plain_name(f"{path}.")[:-1]
        changes = self.changes_at(plain)
        down = changes.get("lora_A.weight", changes.get("lora_embedding_A"))
        with suppress(Unsupported):
            return down is None or math.isclose(scale, scale_of(plain, settings, down.shape[0]), rel_tol=1e-6)
        return True


def _is_copied(name: str) -> bool:
    """True if a name is that of the module from which PEFT made the copy that it trains."""
    return ".original_module." in name
