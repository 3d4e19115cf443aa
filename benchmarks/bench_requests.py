"""Requests to a Hub on loopback for each kind of checkpoint: to the resolver, to the API, and to the store behind it.

The server is the one of the tests. As the real one it redirects weights to a second host, and small files within the
Hub, to its edge cache, which its published limits do not count.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_hub import run_beside_hub
from benchmarks.goals import Goal, exact, print_goals

ROUNDS = 1
_MOST = {"one file": 3, "one file, from a listing": 2}
_LISTED = """
import sys
from headscope.slices.fleet.hub.listing import listed_models
from headscope.core.source.checkpoint import examine
from headscope.checks.evidence.gathering import gather
from headscope.core.source.request import Request
from headscope.facts import Profile
from headscope.core.facts.stored.location import HubOptions
for model in listed_models(HubOptions(), search="someone/model"):
    request = Request(model.location())
    checkpoint = examine(sys.argv[1], request, None)
    if sys.argv[1] == "check":
        gather(checkpoint, Profile.INFERENCE)
"""
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests by where they went; `redirected` are those to the edge cache of the Hub."""

    resolver: int = 0
    api: int = 0
    redirected: int = 0
    store: int = 0

    def __str__(self) -> str:
        return f"{self.resolver:>9}{self.api:>6}{self.redirected:>12}{self.store:>8}"


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the table and returns its goals; a count is the same in every round."""
    print("Requests to the Hub (its resolver, its API, redirects to its edge cache) and to the store that it leads to")
    print(f"  {'':<34}{'command':<9}{'resolver':>9}{'API':>6}{'edge cache':>12}{'store':>8}")
    goals = []
    for name, files in _kinds().items():
        for command in ("inspect", "check"):
            found = _traffic(command, files, listed=name.endswith("from a listing"))
            print(f"  {name:<34}{command:<9}{found}", flush=True)
            if command == "inspect" and name in _MOST:
                goals.append(Goal(f"requests for {name}, over {_MOST[name]}", exact(found.resolver / _MOST[name]), 1.0))
                goals.append(Goal(f"API requests for {name}, plus 1", exact(found.api + 1), 1.0))
    print_goals(goals)
    return goals


def _kinds() -> dict[str, dict[str, Files]]:
    """Repositories by the kind of checkpoint; the first of each is the one that is read."""
    tokenizer = {"tokenizer_config.json": b'{"padding_side": "right"}', "tokenizer.json": b"{}"}
    one = _saved("BertForSequenceClassification")
    shards = _saved("BertForSequenceClassification", max_shard_size="60KB")
    modules = [{"path": "", "type": "st.Transformer"}, {"path": "1_Pooling", "type": "st.Pooling"}]
    pooling = {"1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}'}
    sentence = _saved("BertModel") | pooling | {"modules.json": json.dumps(modules).encode()}
    adapter = {"adapter_config.json": b'{"base_model_name_or_path": "someone/base", "peft_type": "LORA"}'}
    return {
        "one file": {"someone/model": one | tokenizer},
        "one file, from a listing": {"someone/model": one | tokenizer},
        "one file, no tokenizer": {"someone/model": one},
        "one file, token classification": {"someone/model": _saved("BertForTokenClassification") | tokenizer},
        "three shards": {"someone/model": shards | tokenizer},
        "three shards, from a listing": {"someone/model": shards},
        "pytorch_model.bin": {"someone/model": _pickled(one) | tokenizer},
        "sentence-transformers": {"someone/model": sentence | tokenizer},
        "adapter and its base": {"someone/model": adapter | _adapter(), "someone/base": one | tokenizer},
        "no weights": {"someone/model": {"config.json": one["config.json"], "README.md": b""}},
    }


def _saved(class_name: str, **options: Any) -> Files:
    """The files of a small BERT of a class."""
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    model = getattr(transformers, class_name)(transformers.BertConfig(vocab_size=900, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, **options)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _pickled(files: Files) -> Files:
    import io

    import torch
    from safetensors.torch import load

    file = io.BytesIO()
    torch.save(load(files["model.safetensors"]), file)
    return {"config.json": files["config.json"], "pytorch_model.bin": file.getvalue()}


def _adapter() -> Files:
    import torch
    from safetensors.torch import save

    return {"adapter_model.safetensors": save({"base_model.model.classifier.weight": torch.zeros(2, 32)})}


def _traffic(command: str, repos: dict[str, Files], *, listed: bool) -> Traffic:
    """The requests of one command in a separate process with an empty cache."""
    from tests.hub import OWN_CACHE, Hub

    ours = ("-m", "headscope", command, "someone/model", "--no-cache", "--json")
    words = ("-c", _LISTED, command) if listed else ours
    _, asked = run_beside_hub(Hub(repos, own_cache=True), *words, HEADSCOPE_NO_CACHE="1")
    if os.environ.get("SHOW_REQUESTS"):
        for item in asked:
            print(f"    {item.origin:<4}{item.method:<5}{item.path} {item.range}")
    of_hub = [item.path for item in asked if item.origin == "hub"]
    redirected = sum(path.startswith(OWN_CACHE) for path in of_hub)
    api = sum(path.startswith("/api/") for path in of_hub) - redirected - listed  # the listing is for many models
    return Traffic(len(of_hub) - redirected - api - listed, api, redirected, len(asked) - len(of_hub))
