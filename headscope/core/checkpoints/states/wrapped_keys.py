"""Keys that a wrapper changed: DistributedDataParallel, torch.compile, FSDP, Lightning, and modules of one's own."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headscope.core.checkpoints.states.peft_keys import PREFIX, REMEDY_OF_TWO_TENSORS, of_two_tensors
from headscope.core.checkpoints.states.place import ReadyAction, repair_by
from headscope.core.facts import CheckpointManifest, ParameterStatus, TensorHeader, WeightDiff, WeightsFormat
from headscope.core.facts.counting import counted, few_of, verb
from headscope.core.facts.stored.states import CheckpointState, Repair, StateKind
from headscope.core.facts.stored.weights import modern_name


@dataclass(frozen=True, slots=True)
class Rekeying:
    """A change of keys: `dropped` are taken out wherever they are; then `prefix` at the start becomes `instead`."""

    dropped: tuple[str, ...] = ()
    prefix: str = ""
    instead: str = ""

    def __call__(self, key: str) -> str:
        """Gives the key of a tensor after the change."""
        key = _drop_parts(key, self.dropped)
        return f"{self.instead}{key.removeprefix(self.prefix)}" if key.startswith(self.prefix) else key

    def as_code(self) -> str:
        """Writes the change of `key` as an expression in Python."""
        code = "key"
        for part in self.dropped:
            code = f"{code}.replace({part!r}, '')"
        if not self.instead:
            return f"{code}.removeprefix({self.prefix!r})" if self.prefix else code
        return f"re.sub({'^' + re.escape(self.prefix)!r}, {self.instead!r}, {code})"

    def in_words(self) -> str:
        """Describes the change as the end of `read as if ...`."""
        taken = [repr(part) for part in self.dropped]
        words = f"{' and '.join(taken)} were taken out of the keys" if taken else ""
        if not self.prefix:
            return words
        prefix = f"the prefix {self.prefix!r} were "
        prefix += f"replaced by {self.instead!r}" if self.instead else "stripped"
        return f"{words} and {prefix}" if words else prefix


def rekeyed(manifest: CheckpointManifest, change: Rekeying) -> CheckpointManifest:
    """Changes the keys of the manifest; of two tensors that would get one key, it keeps the first."""
    first: dict[str, TensorHeader] = {}
    for tensor in renamed_tensors(manifest.tensors, change):
        first.setdefault(tensor.key, tensor)
    shared = tuple(tuple(map(change, group)) for group in manifest.shared)
    return replace(manifest, tensors=tuple(first.values()), shared=shared)


def renamed_tensors(tensors: Iterable[TensorHeader], change: Rekeying) -> tuple[TensorHeader, ...]:
    """Gives the headers with their keys changed."""
    return tuple(replace(tensor, key=change(tensor.key)) for tensor in tensors)


ANYWHERE = {
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel (FSDP)",
    "_checkpoint_wrapped_module.": "PyTorch's activation checkpointing",
}
"""Parts that a wrapper puts before the names of what it wraps, wherever in the model that is, with the wrapper."""
_LEADING = {
    "module": "DistributedDataParallel or DataParallel",
    "_forward_module": "Lightning Fabric or its DeepSpeed strategy",
}
_OWN = "a LightningModule or another module that holds the model as `self.{}`"
_MOST, _MOST_PREFIXES = 0.5, 20


def find_rekeyings(manifest: CheckpointManifest, diff: WeightDiff) -> tuple[Rekeying, ...]:
    """Finds changes after which most of what the checkpoint does not give would be there, by name; the best first.

    A loader has to confirm them. Empty if every key or every parameter has found its place, as in a clean one. A prefix
    is a wrapper's only if it is before the base model too: `sop_classifier.classifier.weight` beside a base model that
    is read as it is belongs to another head.
    """
    if not diff.unused or not (diff.new or diff.mismatched):
        return ()
    used = {key for item in diff.parameters for key in item.checkpoint_keys}
    keys = [tensor.key for tensor in manifest.tensors if tensor.key not in used]
    wanted = {item.name for item in diff.parameters if item.status in _LACKING and not item.is_buffer}
    bases = sorted({item.name.partition(".")[0] for item in diff.parameters if item.in_base})
    found = _rank_changes(keys, wanted, bases)
    base = [item.name in wanted for item in diff.parameters if item.in_base]
    lacks_base = sum(base) > _MOST * len(base)
    return tuple(change for change in found if lacks_base or not change.prefix)


_LACKING = (ParameterStatus.NEW, ParameterStatus.MISMATCHED)


def _rank_changes(keys: Sequence[str], wanted: set[str], bases: Sequence[str]) -> Iterator[Rekeying]:
    dropped = tuple(part for part in ANYWHERE if any(part in key for key in keys))
    plain = [_drop_parts(key, dropped) for key in keys]
    # A base model that was saved alone has keys without the base's own name.
    names = wanted | {name.removeprefix(f"{base}.") for base in bases for name in wanted}
    scores = {
        prefix: sum(modern_name(key.removeprefix(prefix)) in names for key in plain if key.startswith(prefix))
        for prefix in _common_prefixes(plain)
        if prefix or dropped
    }
    for prefix in sorted(scores, key=lambda prefix: (-scores[prefix], len(prefix)))[:_MOST_PREFIXES]:
        # Most of the missing names must appear: a few could agree by chance.
        if scores[prefix] > _MOST * len(wanted):
            yield Rekeying(dropped, prefix)
            yield from (Rekeying(dropped, prefix, f"{base}.") for base in bases if prefix)


def _drop_parts(key: str, parts: Iterable[str]) -> str:
    for part in parts:
        key = key.replace(part, "")
    return key


def _common_prefixes(keys: Iterable[str]) -> list[str]:
    """Lists what keys begin with, up to a few names deep; none that a single key has."""
    counted_prefixes = Counter[str]()
    for key in keys:
        parts = key.split(".")[:-1][:6]
        counted_prefixes.update("".join(f"{part}." for part in parts[:depth]) for depth in range(len(parts) + 1))
    return [prefix for prefix, count in counted_prefixes.items() if count > 1]


SEVERAL = CheckpointState(StateKind.WRAPPED_KEYS, "", "Several models are in the keys, each under another prefix.", ())


def rival_changes(tried: Iterable[tuple[Rekeying, WeightDiff]]) -> list[tuple[Rekeying, WeightDiff]]:
    """Lists the changes, the best first, that each read a model from other keys and load half as much as the best."""
    found: list[tuple[Rekeying, WeightDiff]] = []
    for change, diff in tried:
        pairs = [(change.prefix, other.prefix) for other, _ in found]
        is_nested = any(one.startswith(two) or two.startswith(one) for one, two in pairs)
        if not is_nested and (not found or diff.loaded > _MOST * found[0][1].loaded):
            found.append((change, diff))
    return found


def keys_of_one(manifest: CheckpointManifest, change: Rekeying, diff: WeightDiff) -> set[str]:
    """Finds the keys of the one model, of several, that a change reads: under its prefix, or filling its class."""
    used = {key for item in diff.parameters for key in item.checkpoint_keys}
    keys = [tensor.key for tensor in manifest.tensors]
    return {key for key in keys if _drop_parts(key, change.dropped).startswith(change.prefix) or change(key) in used}


def groups_beside(manifest: CheckpointManifest, kept: set[str]) -> dict[str, int]:
    """Counts the keys that aren't kept, by the beginning that none of the kept keys has."""
    taken = {begin for key in kept for begin in _prefixes_of(key)}
    others = [tensor.key for tensor in manifest.tensors if tensor.key not in kept]
    return Counter(next((begin for begin in _prefixes_of(key) if begin not in taken), key) for key in others)


def _prefixes_of(key: str) -> list[str]:
    """Gives `a.`, `a.b.` and `a.b.c` for `a.b.c`."""
    return [key[: match.end()] for match in re.finditer(r"\.|$", key)]


def state_of_wrapped_keys(
    manifest: CheckpointManifest, change: Rekeying, before: Sequence[str] = (), twice: Sequence[str] = (), *,
    lost: Sequence[str] = (), without: Sequence[str] = (),
) -> CheckpointState:  # fmt: skip
    """Describes a checkpoint whose keys a change makes those of the model; the repairs of `before` come first.

    There is no repair if the change gives two tensors to the parameters in `twice`. The class has no place for what is
    `lost`; keys that begin as in `without` are those of other models.
    """
    left = [f"the class has no place for {counted(len(lost), 'tensor')}: {few_of(lost)}"] if lost else []
    tools = tuple(dict.fromkeys(_wrapper_names(change)))
    whose = " inside ".join(tools)
    return CheckpointState(
        StateKind.WRAPPED_KEYS,
        tool="; ".join(tools),
        sentence=f"The weights were saved from inside a wrapper ({whose}), whose names are in the keys: "
        "from_pretrained does not recognize them.",
        evidence=(*_key_evidence([tensor.key for tensor in manifest.tensors], change), *of_two_tensors(twice), *left),
        repair=None if twice else _build_repair(manifest, change, before, without),
        remedy=REMEDY_OF_TWO_TENSORS if twice else "",
    )


def _wrapper_names(change: Rekeying) -> Iterator[str]:
    """Names the wrappers that a change undoes, the innermost first."""
    yield from (ANYWHERE[part] for part in change.dropped)
    rest = change.prefix
    if rest.endswith(PREFIX):
        yield "PEFT"
        rest = rest.removesuffix(PREFIX)
    for name in reversed(rest.split(".")[:-1]):
        yield _LEADING[name] if name in _LEADING else _OWN.format(name)


def _key_evidence(keys: Sequence[str], change: Rekeying) -> Iterator[str]:
    for part in change.dropped:
        holding = sum(part in key for key in keys)
        yield f"{_share_text(holding, len(keys))} {verb(holding, 'contains', 'contain')} {part!r}"
    if change.prefix:
        plain = [_drop_parts(key, change.dropped) for key in keys]
        beginning = sum(key.startswith(change.prefix) for key in plain)
        behind = " without it" if change.dropped else ""
        yield f"{_share_text(beginning, len(keys))} {verb(beginning, 'begins', 'begin')} with {change.prefix!r}{behind}"


def _share_text(part: int, whole: int) -> str:
    if part == whole:
        return "the only key" if whole == 1 else f"all {counted(whole, 'key')}"
    return f"{part:,} of {counted(whole, 'key')}"


@dataclass(frozen=True, slots=True)
class RenameKeys(ReadyAction):
    """Saves every weight file, and the index of shards, with the keys changed, and without those of other models."""

    files: tuple[str, ...]
    is_torch: bool
    change: Rekeying
    without: tuple[str, ...] = ()

    def __call__(self, key: str) -> str | None:
        """Gives the key of a tensor after the change; None for one that is left out."""
        return None if key.startswith(self.without) else self.change(key)

    def code(self) -> str:
        """See `RepairAction`."""
        names, is_torch, changed = list(self.files), self.is_torch, self.change.as_code()
        those = f" if not key.startswith({self.without!r})" if self.without else ""
        opened = "torch.load(file, map_location='cpu', weights_only=True)" if is_torch else "load_file(file)"
        saved = "torch.save(state, file + '.new')"
        saved = saved if is_torch else "save_file(state, file + '.new', metadata={'format': 'pt'})"
        lines = [
            f"import {'json, ' if len(names) > 1 else ''}os{', re' if 're.sub' in changed else ''}",
            *(["from pathlib import Path"] if len(names) > 1 else []),
            "import torch" if is_torch else "from safetensors.torch import load_file, save_file",
            f"for file in {names!r}:",
            f"    state = {opened}",
            f"    state = {{{changed}: value for key, value in state.items(){those}}}",
            f"    {saved}",
            "    os.replace(file + '.new', file)",
        ]
        if len(names) > 1:
            lines += [
                f"path = next(Path().glob('{'pytorch_model.bin' if is_torch else 'model.safetensors'}.index*.json'))",
                "index = json.loads(path.read_text())",
                f"index['weight_map'] = {{{changed}: file for key, file in index['weight_map'].items(){those}}}",
                "path.write_text(json.dumps(index, indent=2))",
            ]
        return "\n".join(lines)


def _build_repair(
    manifest: CheckpointManifest, change: Rekeying, before: Sequence[str], without: Sequence[str]
) -> Repair:
    names = tuple(file.name for file in manifest.files) or ("model.safetensors",)
    first = f"After the repair of {' and '.join(before)}, save" if before else "Save"
    return repair_by(
        f"{first} the weights with the names of the wrapper taken out of the keys:",
        RenameKeys(names, manifest.format is WeightsFormat.TORCH, change, tuple(without)),
    )
