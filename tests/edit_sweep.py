"""Edits one class added, dropped, renamed and moved for every class of Transformers: `python -m tests.edit_sweep`.

Each class is saved small and with random values, edited and proven; then Transformers loads both, which is the oracle:
every key is found, and the stored rows are those that the edit promises. `--every N` takes every Nth class.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headscope
from headscope.copies import proving
from headscope.core.model.classes import random_copy
from headscope.core.model.classes.defaults import default_values
from headscope.core.model.classes.model_request import ModelRequest, choose
from headscope.core.model.classes.reduced_config import fitting_config
from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta
from headscope.errors import HeadscopeError, UsageError
from tests.edits import prove_in_this_process

LABELS = ("a", "b", "c")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--classes", nargs="*", help="only these classes")
    given = parser.parse_args(arguments)
    proving.prove_in_process = prove_in_this_process
    counts: Counter[str] = Counter()
    entries = {entry.class_name: entry for entry in headscope.heads(cache=True)}
    for name in given.classes or sorted(entries)[given.offset :: given.every]:
        outcome, why = outcome_of(name, str(entries[name].model_type))
        counts[outcome] += 1
        if outcome not in ("proven", "without classes"):
            print(f"{outcome:9} {name}: {why}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["FAILED"] > 0)


def outcome_of(name: str, model_type: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        try:
            model = small_model(name, model_type)
        except UsageError:
            return "without classes", ""
        except Exception as err:
            return "not built", f"{type(err).__name__}: {str(err)[:150]}"
        with quiet():
            model.save_pretrained(old)
        try:
            found = headscope.edit(
                old, new, model_class=name, drop="b", rename={"a": "A"}, add={"d": "mean"}, order="d,c,A"
            )
        except HeadscopeError as err:
            return "refused", err.message[:200]
        except Exception as err:
            return "FAILED", f"{type(err).__name__}: {str(err)[:300]}"
        if found.verdict.value != "proven":
            return "refused" if found.proof.scores_equal is None else "FAILED", found.proof.reason
        return held_against_transformers(type(model), old, new, found)


def small_model(name: str, model_type: str) -> Any:
    choice = choose(default_values(model_type)[0], ModelRequest(labels=LABELS, model_class=name))

    def count(config: Any) -> int:
        with on_meta():
            return sum(item.numel() for item in choice.cls(config).parameters())

    config = _small_config(choice, count)
    _name_own_stages(config)
    if config.num_labels != len(LABELS):  # a family whose configuration counts for itself
        config.num_labels = len(LABELS)
    torch.manual_seed(1)
    with quiet(), torch.no_grad():
        model = choice.cls(config).eval()
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    return model


def _small_config(choice: Any, count: Callable[[Any], int]) -> Any:
    """A configuration of a small model, if possible one whose forward runs."""
    try:
        return random_copy._small_config(choice)
    except Exception:  # no vocabulary, or sizes that must stay
        for smallest in (1024, 256, 64):
            small = fitting_config(choice.config, count, 80_000_000, factors=(8, 4, 2), smallest=smallest)
            if small is not None:
                return small
    raise ValueError("no small model of this class can be made")


def _name_own_stages(config: Any) -> None:
    """A backbone's configuration lists stages, which have gone with the layers."""
    if getattr(config, "out_features", None):
        count = getattr(config, "num_hidden_layers", None) or len(config.stage_names)
        config.stage_names = config.stage_names[: 1 + count]
        config.out_features = config.stage_names[-1:]


def held_against_transformers(cls: Any, old: Path, new: Path, found: headscope.Edited) -> tuple[str, str]:
    """Transformers' own load of both: the keys, and every tensor of the state."""
    with quiet():
        (one, told), (other, also) = (cls.from_pretrained(folder, output_loading_info=True) for folder in (old, new))
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if any(set(told[kind]) != set(also[kind]) for kind in kinds):
        return "FAILED", f"the loader finds other keys: {also}"
    before, after = one.state_dict(), other.state_dict()
    edited = {item.parameter: item.axis for item in found.tensors}
    for key, tensor in before.items():
        if key in edited:
            rows, now = tensor.movedim(edited[key], 0), after[key].movedim(edited[key], 0)
            promised = torch.stack([rows.double().mean(0).to(rows.dtype), rows[2], rows[0]])
            if not torch.allclose(promised, now, rtol=1e-5, atol=1e-6) or not torch.equal(promised[1:], now[1:]):
                return "FAILED", f"{key} has other rows"
        elif not torch.equal(tensor, after[key]):
            return "FAILED", f"{key} has changed"
    if other.config.id2label != {0: "d", 1: "c", 2: "A"}:
        return "FAILED", f"labels are {other.config.id2label}"
    return "proven", ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
