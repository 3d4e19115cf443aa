"""Recorded tensors that were written in place: a write makes a new version, and other views of the memory go stale."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import torch

from headscope.core.trace.record.trees import map_tensors
from headscope.core.upstream.torch import storage_id, version_of

MemoryState = tuple[int, int]


class TensorMemory:
    """Versions of the tensors of one forward.

    A tensor that is written in place stands for its newest version from then on, so that every recorded tensor has one
    value. A tensor that was written through another one (a view of it, `tensor.data`) is stale: what was recorded of it
    isn't what it holds. Every tensor that is passed in must outlive this object or be kept by it.
    """

    def __init__(self) -> None:
        self._newest: dict[int, torch.Tensor] = {}
        self._states: dict[int, MemoryState] = {}
        self._writers: dict[int, list[torch.Tensor]] = {}
        self._values: dict[int, torch.Tensor | None] = {}
        self._written: list[torch.Tensor] = []

    def newest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that represents what `tensor` holds now."""
        return self._newest.get(id(tensor), tensor)

    def renewed(self, value: Any) -> Any:
        """Replaces every tensor in the arguments of a call by its newest version."""
        if not self._newest:
            return value
        return map_tensors(self.newest, value)

    def renewed_output(self, value: Any) -> Any:
        """Replaces every tensor in what a module returned by its newest version; mappings become dictionaries."""
        if not self._newest:
            return value
        if isinstance(value, torch.Tensor):
            return self.newest(value)
        if is_dataclass(value) and not isinstance(value, Mapping | type):
            value = vars(value)
        if isinstance(value, Mapping):
            return {name: self.renewed_output(item) for name, item in value.items()}
        return tuple(map(self.renewed_output, value)) if isinstance(value, tuple | list) else value

    def note(self, tensor: torch.Tensor) -> None:
        """Records the state of a tensor that was made, or is read for the first time."""
        if id(tensor) not in self._states:
            self._states[id(tensor)] = self._memory_state(tensor)

    def is_stale(self, tensor: torch.Tensor) -> bool:
        """True if the memory of a noted tensor was written through another tensor."""
        known = self._states.get(id(tensor))
        return known is not None and known != self._memory_state(tensor)

    def is_written_back(self, target: torch.Tensor, item: Any, value: Any) -> bool:
        """True if `target[item] = value` puts a part of `target` back that was changed in place: `x[:, 0] += 1`."""
        state = self._states.get(id(target))
        items = item if isinstance(item, tuple) else (item,)
        # Any other index makes no view.
        is_basic = all(part is None or part is Ellipsis or type(part) in {int, slice} for part in items)
        if state is None or not isinstance(value, torch.Tensor) or not is_basic:
            return False
        writers = self._writers.get(storage_id(target), [])[state[1] :]
        return all(writer is value for writer in writers) and _memory_place(target[item]) == _memory_place(value)

    def keep_value(self, tensor: torch.Tensor) -> None:
        """Copies what a real tensor holds before it is written."""
        newest = self.newest(tensor)
        # Real tensors are positions and masks. Which tokens were read is found after the forward, from the numbers that
        # stood there when it read them.
        if not tensor.is_meta and id(newest) not in self._values:
            self._values[id(newest)] = tensor.detach().clone()

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes the new version of a tensor that was written: another tensor object on the same memory."""
        before = self.newest(tensor)
        if not tensor.is_meta:
            self._values.setdefault(id(before), None)
        # Keeps both objects: the id of a tensor that was freed would be given to another.
        self._written += [tensor, before]
        self._writers.setdefault(storage_id(tensor), []).append(tensor)
        made: torch.Tensor = torch.ops.aten.alias(tensor)
        self._newest[id(tensor)] = made
        self._states[id(tensor)] = self._memory_state(tensor)
        self._states[id(made)] = self._memory_state(made)
        return made

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns what a real tensor held when it was recorded; None if it was overwritten and nothing kept its
        values.
        """
        if id(tensor) in self._values:
            return self._values[id(tensor)]
        return None if self.is_stale(tensor) else tensor

    def _memory_state(self, tensor: torch.Tensor) -> MemoryState:
        # PyTorch counts the writes of a tensor and its views. `tensor.data` has a separate count but the same storage,
        # so writes to a storage are counted here too.
        written = len(self._writers.get(storage_id(tensor), ())) if self._writers else 0
        return version_of(tensor), written


def _memory_place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return storage_id(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
