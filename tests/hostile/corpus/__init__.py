"""Hostile checkpoints, built again on every run: one file for each kind, all of them in `CASES`."""

from hostile.corpus import (
    adapters,
    bombs,
    configs,
    exports,
    files,
    foreign,
    headers,
    indexes,
    labeled,
    names,
    pickles,
    quantized,
    states,
)
from hostile.corpus.case import Case

GROUPS: dict[str, tuple[Case, ...]] = {
    "files": files.CASES,
    "headers": headers.CASES,
    "indexes": indexes.CASES,
    "pickles": pickles.CASES,
    "configs": configs.CASES,
    "bombs": bombs.CASES,
    "names": names.CASES,
    "adapters": adapters.CASES,
    "quantized": quantized.CASES,
    "exports": exports.CASES,
    "states": states.CASES,
    "foreign": foreign.CASES,
    "labeled": labeled.CASES,
}
CASES: tuple[Case, ...] = tuple(case for group in GROUPS.values() for case in group)
