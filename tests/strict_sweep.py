"""Loads each classifier of Transformers inside `headscope.strict()`: `python -m tests.strict_sweep`.

Each class is saved small, and its base model beside it. The oracle is the loading info of Transformers: the load of the
base model as the class raises for the keys that it misses, and the load of the class doesn't raise.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import headscope
from headscope.core.model.quiet import quiet
from headscope.errors import HeadNotLoaded, LoadNotJudged, UsageError
from tests.edit_sweep import small_model

KINDS = ("SequenceClassification", "TokenClassification", "ImageClassification", "AudioClassification")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--classes", nargs="*", help="only these classes")
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    entries = {entry.class_name: str(entry.model_type) for entry in headscope.heads(cache=True)}
    names = [name for name in sorted(entries) if name.endswith(KINDS)]
    for name in given.classes or names[given.offset :: given.every]:
        outcome, why = outcome_of(name, entries[name])
        counts[outcome] += 1
        if why:
            print(f"{outcome:10} {name}: {why}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["FAILED"] > 0)


def outcome_of(name: str, model_type: str) -> tuple[str, str]:
    """What `strict` makes of both loads, and why it isn't what Transformers says."""
    with tempfile.TemporaryDirectory() as folder:
        whole, base = Path(folder, "whole"), Path(folder, "base")
        try:
            model = small_model(name, model_type)
            inner = getattr(model, model.base_model_prefix, model)
            with quiet():
                model.save_pretrained(whole)
                if inner is not model:
                    inner.save_pretrained(base)
                missing = [_missing_keys(type(model), place) for place in (whole, base) if place.is_dir()]
        except UsageError:
            return "no class", ""
        except Exception as err:  # whatever a class raises
            return "not built", f"{type(err).__name__}: {str(err)[:150]}"
        if missing[0]:
            return "unsaved", f"the loader misses {sorted(missing[0])[:3]} in the class's own save"
        if lost := _lost_in(type(model), whole):
            return "FAILED", f"raised for {sorted(lost)[:3]} of a whole classifier"
        return _outcome_of_base(type(model), base, missing[1]) if len(missing) > 1 else ("no base", "")


def _outcome_of_base(cls: Any, base: Path, missing: set[str]) -> tuple[str, str]:
    found = _lost_in(cls, base)
    if found == missing:
        return "raised", ""
    lacking, more = sorted(missing - found), sorted(found - missing)
    return "FAILED" if more or not found else "in part", f"not raised for {lacking[:4]}, more: {more[:4]}"


def _missing_keys(cls: Any, folder: Path) -> set[str]:
    _, info = cls.from_pretrained(folder, output_loading_info=True)
    return {*info["missing_keys"]}


def _lost_in(cls: Any, folder: Path) -> set[str]:
    """The parameters for which the load is stopped; a load that can't be judged has none."""
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("always", LoadNotJudged)
        try:
            with headscope.strict():
                cls.from_pretrained(folder)
        except HeadNotLoaded as err:
            return {*err.parameters}
    return set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
