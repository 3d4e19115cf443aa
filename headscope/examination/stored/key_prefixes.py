"""What is before the names of a model that is not Transformers' own, and before the keys of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headscope.upstream.peft import plain_name


@dataclass(frozen=True, slots=True)
class KeyPrefixes:
    """`of_model` is before the names of the model, `of_file` before the stored keys; "" for none."""

    of_model: str = ""
    of_file: str = ""

    def key_of(self, name: str) -> str:
        """The key under which a tensor of the model would be stored."""
        return f"{self.of_file}{plain_name(name).removeprefix(self.of_model)}"

    def notes(self) -> Iterator[str]:
        """What a reader has to know of the names."""
        if self.of_model:
            yield f"names were matched without {self.of_model!r}, which the model puts before them"
        if self.of_file:
            yield f"names were matched with {self.of_file!r}, which the checkpoint puts before them"


def prefixes_between(names: Sequence[str], keys: Iterable[str]) -> KeyPrefixes:
    """The prefixes that the first name shows which is the end of a key, or ends with one."""
    position = {key: number for number, key in enumerate(keys)}
    inside: dict[str, str] = {}
    for key in position:
        for end in _ends_of(key):
            inside.setdefault(end, key)
    for name in names if not any(name in position for name in names) else ():
        found = [end for end in _ends_of(name) if end in position]
        found += [inside[name]] if name in inside else []
        if found:
            key = min(found, key=position.__getitem__)
            is_shorter = len(key) < len(name)
            return KeyPrefixes(name.removesuffix(key), "") if is_shorter else KeyPrefixes("", key.removesuffix(name))
    return KeyPrefixes()


def _ends_of(name: str) -> Iterator[str]:
    """`a.b.c` -> `b.c`, `c`."""
    return (name[at + 1 :] for at, sign in enumerate(name) if sign == ".")
