"""Writes docs/engines.md: what each engine does with the classes of Transformers, from the facts on engines."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generated import write_or_compare
from transformers import AutoConfig

import headscope
from headscope.serving.cited import EngineFacts, Served, engine_names, facts_on, first_that_fits

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "engines.md"
_TASKS = ("sequence-classification", "token-classification")
_LABELS = 3
_CELLS = {None: "?", True: "same", False: "other"}
_INTRO = """\
# Which head does the server run?

`headscope engines MODEL` compares the head that an inference engine runs for a checkpoint with that of Transformers:

```bash
headscope engines distilbert-base-uncased-finetuned-sst-2-english
```

It reports for each engine whether it computes scores at all, whether it runs the same head, and which function it
applies to the scores by default. `--details` adds where it pools, what it drops, how to get logits, and the file and
line that this was read in. `--engine vllm` shows one engine, `--engine vllm@0.33.0` one version of it. The exit code is
0 if nothing differs, 1 for another head or another function, and 3 if the facts don't say.

**What it looks at.** `config.json`, the class that it names, and the pooling files of sentence-transformers beside it.
The answers come from facts that were read in the sources of the engines. They hold for the versions below only: with
another version, the answer is "not determined". If the engine is installed beside headscope, its version counts.

**What it doesn't look at.** No engine is run or imported, and no numbers are compared. The layers below the head aren't
compared either: an engine can run the right head on hidden states that differ. Quantized checkpoints and adapters are
not determined.

## Engines

| engine | facts hold for | read at | default precision | how to get logits |
|---|---|---|---|---|
"""
_TABLE = f"""
## Classes

For each class of the installed Transformers whose scores belong to a text or its tokens: what an engine does with a
checkpoint in the default configuration of the class, as `save_pretrained` writes it, with {_LABELS} named labels.
`same`: the same head; `other`: another head; `none`: no scores; `?`: not determined. The word behind it is the function
that is applied to the scores by default. Every cell is cited, none was run.
"""
_DIFFERENCES = """
## Differences

Every other head, what the engine computes, and where that was read.
"""


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    facts = [facts_on(name) for name in engine_names()]
    lines = [_INTRO.rstrip("\n")]
    lines += [
        f"| {item.title} | `{item.versions}` | {item.read_at[:12]} | {_cell(item.dtype)} | {_cell(item.logits)} |"
        for item in facts
    ]
    lines += [_TABLE, *_classes(facts), _DIFFERENCES, *_differences(facts)]
    return write_or_compare(_PAGE, "\n".join(lines) + "\n", arguments)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _classes(facts: list[EngineFacts]) -> Iterator[str]:
    """Classes with equal cells share a row."""
    os.environ.pop("HEADSCOPE_NO_CACHE", None)  # the shipped atlas says as much as tracing all classes again
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for entry in headscope.heads(cache=True):
        if entry.task in _TASKS:
            served = Served(entry.class_name, _config(entry.model_type), _LABELS, frozenset())
            rows[tuple(_told(item, served) for item in facts)].append(entry.class_name)
    titles = [item.title for item in facts]
    yield f"| class | {' | '.join(titles)} |"
    yield "|---|" + "---|" * len(titles)
    for cells in sorted(rows, key=lambda cells: rows[cells][0]):
        yield f"| {', '.join(f'`{name}`' for name in dict.fromkeys(rows[cells]))} | {' | '.join(cells)} |"


def _config(model_type: str) -> dict[str, Any]:
    """What `config.json` says in the default configuration."""
    names = {number: f"name {number}" for number in range(_LABELS)}
    config = AutoConfig.for_model(model_type, id2label=names, label2id={name: number for number, name in names.items()})
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return found


def _told(facts: EngineFacts, served: Served) -> str:
    row, _ = first_that_fits(facts.heads, served)
    if row is None:
        return "?"
    if not row["runs"]:
        return "none"
    score, _ = first_that_fits(facts.scores, served)
    function = {"none": "logits"}.get(score["activation"], score["activation"]) if score else "?"
    return f"{_CELLS[row.get('same_head')]}, {function}"


def _differences(facts: list[EngineFacts]) -> Iterator[str]:
    yield "| engine | classes | computes | why | read in |"
    yield "|---|---|---|---|---|"
    for item in facts:
        for row in item.heads:
            if row["runs"] and row.get("same_head") is False:
                names = ", ".join(f"`{name}`" for name in row["architectures"])
                where = f"`{row['file']}`, line {row['line']}"
                yield f"| {item.title} | {names} | `{row['formula']}` | {_cell(row['reason'])} | {where} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
