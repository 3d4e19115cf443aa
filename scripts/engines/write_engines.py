"""Writes docs/engines.md: what each engine does with the classes of Transformers, from facts and kept runs."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoConfig

import headscope
from headscope.shared.serving.cited import EngineFacts, Served, engine_names, facts_on, first_that_fits
from scripts.engines.run_engines import ONE_LABEL
from scripts.generated import write_or_compare

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
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
line that this was read in. `--engine vllm` shows one engine, `--engine vllm@0.33.0` one version of it; `tei`, `st`,
`llamacpp`, `onnx` and `pipeline` are names too. MODEL may be a class of Transformers, in its default configuration.

The function that the others are compared with is that of the checkpoint's own library: CrossEncoder's for a checkpoint
that it saved, otherwise the pipeline's. The exit code for all engines leaves this library out.

| exit code | one engine (`--engine`) | all engines |
|---|---|---|
| 0 | the same head; another activation is shown in yellow | at least one runs the same head with the same function |
| 1 | a different head, no scores, or a softmax of one score, which is always 1.0 | none does |
| 3 | the facts don't say | the facts on none say |

With `--strict`, another activation is 1 too, and so is an engine that reads the padding token at the end of a text, or
any engine of the list that differs. `headscope check --engine` reports the same as findings: errors where `engines`
exits with 1, warnings where only `--strict` does.

**Run an engine.** `--run` runs the engines that are installed next to headscope, or `--engine NAME` with the
interpreter that `--python` names, on a small copy of the configuration with random weights, next to Transformers on
the same tokens:

```bash
headscope engines my-checkpoint --run --engine vllm --python ~/vllm/bin/python
```

It compares texts one by one and in padded batches, texts that end in padding tokens, pairs, and a text that is too
long. What the scores show replaces what was read. Another head is named only if one variant of the model's proven
expression gives all scores. vLLM, llama.cpp (`HEADSCOPE_LLAMA_CONVERTER` is the path of its `convert_hf_to_gguf.py`),
ONNX Runtime, Transformers.js (Node.js, with `NODE_PATH`), CrossEncoder and the pipeline can be run. For the
checkpoint's own weights, see [`headscope verify --url` and `--with`](verify.md#a-running-server).

**Ask an engine.** `--engine vllm --python ~/vllm/bin/python` without `--run` lets vLLM resolve `config.json` itself,
without weights and without a GPU: whether it refuses the class, which of its classes it takes, where that pools, and
the precision that it chooses on this machine. Without `--python`, this is done if vLLM is installed beside headscope
and is named. That it takes a configuration doesn't show that it loads the weights, or which head it computes.

**What it looks at.** `config.json`, the class that it names, and the pooling files of sentence-transformers beside it.
The answers come from facts that were read in the sources of the engines. They hold for the versions below. If
the engine is installed beside headscope, its version counts: a fact holds for another version too while the function
or class that it cites is the same there, apart from comments and type hints. Otherwise the answer is "not determined",
with "as of 0.33.0" and what held there. What else a new version changed around the cited code isn't looked at.

**What it doesn't look at.** Without `--run`, no engine is run or imported, and no values are compared. The layers
below the head aren't compared either: an engine can run the right head on hidden states that differ. A run looks at
random weights, one layer of each kind, and float32; an engine that refuses this copy may take the checkpoint, so that
is "not determined". Quantized checkpoints, adapters, and classifiers beside a pooling of sentence-transformers are not
determined. Flags of the server, tokenizers (except those that Infinity refuses) and texts that are cut aren't compared.

## Engines

| engine | facts hold for | read at | default precision | how to get logits |
|---|---|---|---|---|
"""
_TABLE = f"""
## Classes

For each class of the installed Transformers whose scores belong to a text or its tokens: what an engine does with a
checkpoint in the default configuration of the class, as `save_pretrained` writes it, with {_LABELS} named labels.
`same`: the same head; `other`: a different head; `none`: no scores; `?`: not determined. The word behind it is the
function that is applied to the scores by default. **Bold**: the engine was run; otherwise the cell is cited. Where a
run and the source contradict each other, the run counts.
"""
_REPRODUCERS = """
## Reproduce a difference

Each script makes a small random checkpoint, and prints the logits of Transformers and of the engine for the same
tokens, or what differs below the head. It needs the engine and the libraries that it names, not headscope. What it
printed:
"""
_DIFFERENCES = """
## Differences

Every other head, what the engine computes, and where that was read.
"""


_RUNS = """
## Runs

Each class whose small copy an engine took, next to Transformers {transformers}, in float32: classes that score texts
or tokens with {labels} named labels, and some that score texts with one. `same` and `other` count heads, `explained`
those of the others that one variant explains. `no scores`: the engine refuses the class. `open`: no small copy can be
made, the engine can't be started with it, or the scores can't be compared.

| engine | version | last run | classes | same | other | explained | no scores | open |
|---|---|---|---|---|---|---|---|---|
"""
_OTHER_HEADS = """
Heads and inputs that differ. ONNX Runtime runs FNet's head as it is; below it, its Fourier transform of 768 numbers is
some 200 times less exact than one of 512 or 1,024 (`reproduce_onnx_runtime.py`), so scores differ by 1e-4 of the
largest.

| engine | class | computes | what differs |
|---|---|---|---|
"""
_KINDS = ("texts", "texts, one label", "tokens")
_KEPT = Path(__file__).resolve().parent / "engine_runs"
_SCRIPTS = Path(__file__).resolve().parent / "engine_reproducers"


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    facts = [facts_on(name) for name in engine_names()]
    lines = [_INTRO.rstrip("\n")]
    lines += [
        f"| {item.title} | `{item.versions}` | {item.read_at[:12]} | {_cell(item.dtype)} | {_cell(item.logits)} |"
        for item in facts
    ]
    lines += [_TABLE, *_classes(facts), *_run_lines(facts), _DIFFERENCES, *_differences(facts), *_reproducers()]
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
            rows[tuple(_shown_in_run(item, entry.class_name) or _told(item, served) for item in facts)].append(
                entry.class_name
            )
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


@cache
def _runs_of(engine: str) -> dict[str, Any]:
    """What is kept of an engine's runs; empty for one that wasn't run."""
    file = _KEPT / f"{engine.replace('-', '_')}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"classes": {}}
    return found


def _shown_in_run(facts: EngineFacts, class_name: str) -> str:
    """The cell of a class that was run; "" where a run shows nothing."""
    row = _runs_of(facts.engine)["classes"].get(class_name, {"ran": False})
    if not row["ran"]:
        return ""
    if not row["runs"]:
        return "**none**"
    function = {"none": "logits", None: "?"}.get(row["activation"], row["activation"])
    return f"**{_CELLS[row['same_head']]}, {function}**"


def _run_lines(facts: list[EngineFacts]) -> Iterator[str]:
    """The counts of each engine's runs, then every difference."""
    kept = [(item, _runs_of(item.engine)) for item in facts if _runs_of(item.engine)["classes"]]
    if not kept:
        return
    yield _RUNS.format(transformers=kept[0][1]["transformers"], labels=_LABELS).rstrip("\n")
    for item, runs in kept:
        for kind in _KINDS:
            rows = [row for name, row in runs["classes"].items() if _kind(name) == kind]
            if rows:
                counts = " | ".join(map(str, _counts(rows)))
                yield f"| {item.title} | {runs['version']} | {runs['run_on']} | {kind} | {counts} |"
    yield _OTHER_HEADS.rstrip("\n")
    for item, runs in kept:
        for name, row in runs["classes"].items():
            notes = [] if not row["ran"] or not row["runs"] else [note for note in row["notes"] if "differ by" in note]
            if row["ran"] and row["runs"] and (row["same_head"] is False or notes):
                formula = f"`{row['formula']}`" if row["formula"] else "the same head" if row["same_head"] else "?"
                told = _cell(" ".join([row["reason"], *notes]).strip())
                yield f"| {item.title} | `{name}` | {formula} | {told} |"


def _kind(name: str) -> str:
    """Which of the kinds a class was run as."""
    if name.endswith(ONE_LABEL):
        return "texts, one label"
    return "tokens" if "ForTokenClassification" in name else "texts"


def _counts(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    """The columns of the table of runs."""
    ran = [row for row in rows if row["ran"]]
    other = [row for row in ran if row["runs"] and row["same_head"] is False]
    return (
        sum(bool(row["runs"] and row["same_head"]) for row in ran),
        len(other),
        sum(bool(row["formula"]) for row in other),
        sum(row["runs"] is False for row in ran),
        len(rows) - len(ran) + sum(bool(row["runs"]) and row["same_head"] is None for row in ran),
    )


def _reproducers() -> Iterator[str]:
    """The scripts for the maintainers of engines, and what they printed."""
    yield _REPRODUCERS.rstrip("\n")
    for script in sorted(_SCRIPTS.glob("*.py")):
        said = script.with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n").replace("$ python", "python")
        code = script.read_text(encoding="utf-8").rstrip("\n")
        yield f"\n### {script.name}\n\n```text\n{said}\n```\n\n```py\n{code}\n```"


def _differences(facts: list[EngineFacts]) -> Iterator[str]:
    yield "| engine | classes | computes | why | read in |"
    yield "|---|---|---|---|---|"
    for item in facts:
        for row in item.heads:
            if row["runs"] and row.get("same_head") is False:
                names = ", ".join(f"`{name}`" for name in row["architectures"])
                where = f"`{row['file']}`, line {row['line']}"
                yield f"| {item.title} | {names} | `{row['formula']}` | {_cell(row['reason'])} | {where} |"
