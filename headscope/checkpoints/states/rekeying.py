"""How the keys of a checkpoint become those of the model: names of wrappers are dropped, a prefix is replaced."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headscope.facts import CheckpointManifest, TensorHeader


@dataclass(frozen=True, slots=True)
class Rekeying:
    """`dropped` are taken out wherever they are in a key; then `prefix` at the start becomes `instead`."""

    dropped: tuple[str, ...] = ()
    prefix: str = ""
    instead: str = ""

    def __call__(self, key: str) -> str:
        """The key of a tensor after the change."""
        for part in self.dropped:
            key = key.replace(part, "")
        return f"{self.instead}{key.removeprefix(self.prefix)}" if key.startswith(self.prefix) else key

    def as_code(self) -> str:
        """The change of `key` as an expression in Python."""
        code = "key"
        for part in self.dropped:
            code = f"{code}.replace({part!r}, '')"
        if not self.instead:
            return f"{code}.removeprefix({self.prefix!r})" if self.prefix else code
        return f"re.sub({'^' + re.escape(self.prefix)!r}, {self.instead!r}, {code})"

    def in_words(self) -> str:
        """The change as the end of `read as if ...`."""
        taken = [repr(part) for part in self.dropped]
        words = f"{' and '.join(taken)} were taken out of the keys" if taken else ""
        if not self.prefix:
            return words
        prefix = f"the prefix {self.prefix!r} were "
        prefix += f"replaced by {self.instead!r}" if self.instead else "stripped"
        return f"{words} and {prefix}" if words else prefix


def rekeyed(manifest: CheckpointManifest, change: Rekeying) -> CheckpointManifest | None:
    """The manifest with its keys changed; None where two tensors would get one key."""
    tensors = renamed_tensors(manifest.tensors, change)
    if len({tensor.key for tensor in tensors}) < len(tensors):
        return None
    shared = tuple(tuple(map(change, group)) for group in manifest.shared)
    return replace(manifest, tensors=tensors, shared=shared)


def renamed_tensors(tensors: Iterable[TensorHeader], change: Rekeying) -> tuple[TensorHeader, ...]:
    """The headers with their keys changed."""
    return tuple(replace(tensor, key=change(tensor.key)) for tensor in tensors)
