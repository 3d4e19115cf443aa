"""Classes of the installed Transformers saved without config.json: what headscope offers, held against the saved model.

    python -m tests.sweeps.no_config_sweep --every 8 --seconds 200

An offer is told as unproven. With what it lists as `assumed` set as in the saved configuration, the printed code must
load the weights whole; where the scores still differ, a setting was not named. Prints the counts and these classes.
"""

import argparse
import ast
import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

import headscope
from headscope.core.trace.batch.probe_batch import build_probe
from headscope.core.trace.record.execution import run_unrecorded
from headscope.errors import WithoutConfig
from headscope.facts import Task
from tests.sweeps.sweep import draw, targets

_ATTEMPTS = 6
"""Random configurations of one class, of which many make no model."""
ASSUMED = re.compile(r"assumed = (\{.*\})")


def with_settings_of(config: transformers.PreTrainedConfig, code: str) -> str:
    """The code with what it assumes set as in the configuration that the weights were saved from."""
    own = config.to_dict()
    assumed = ast.literal_eval(ASSUMED.search(code)[1])
    return ASSUMED.sub(f"assumed = { {name: own.get(name, value) for name, value in assumed.items()}!r}", code)


def try_class(name: str, model_type: str, task: str, folder: Path, attempt: int) -> str:
    """What became of one class: `same`, `differs`, `raises: ...`, `open`, `stated as proven` or `not legal`."""
    try:
        torch.manual_seed(0)
        config = draw(random.Random(f"{name}{attempt}" if attempt else name), model_type)[0]
        config.get_text_config().pad_token_id = 1  # without one, most classes refuse a batch
        model: Any = getattr(transformers, name)(config).float().eval()
        inputs = build_probe(model, Task(task)).inputs
        scores = run_unrecorded(model, inputs).logits
        model.save_pretrained(folder)
        (folder / "config.json").unlink()
    except Exception:  # whatever a foreign class raises at a random configuration
        return "not legal"
    try:
        headscope.inspect(str(folder), offline=True)
    except WithoutConfig as error:
        repair = error.state.repair
    if repair is None or "could be run" in repair.sentence:
        return "open" if repair is None else "untried, as told"
    if "not proven" not in repair.sentence:
        return "stated as proven"
    os.chdir(folder)
    try:
        exec(with_settings_of(model.config, repair.code), {})
        (offered,) = json.loads((folder / "config.json").read_text())["architectures"]
        loaded, info = getattr(transformers, offered).from_pretrained(folder, output_loading_info=True)
        again = run_unrecorded(loaded.float().eval(), inputs).logits
    except Exception as error:
        return f"raises: {type(error).__name__}"
    if any(info.values()):
        return "not whole"
    is_same = scores.shape == again.shape and torch.allclose(scores, again, rtol=1e-3, atol=1e-4)
    return "same" if is_same else f"differs as {offered}"


def main() -> None:
    """Tries the classes, and prints what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    ended, found = time.monotonic() + given.seconds, dict[str, str]()
    for name, model_type, task in targets()[:: given.every]:
        if time.monotonic() > ended:
            break
        with tempfile.TemporaryDirectory() as folder:
            for attempt in range(_ATTEMPTS):
                found[name] = try_class(name, model_type, task, Path(folder), attempt)
                os.chdir("/")
                if found[name] != "not legal":
                    break
        print(name, found[name], flush=True)
    print(Counter(value.split()[0] for value in found.values()), "of", len(targets()))


if __name__ == "__main__":
    main()
