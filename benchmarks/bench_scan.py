"""Many checkpoints: what one more costs, whether its structure is known or new, how that grows, and what workers add.

The costs of one checkpoint are processor seconds in one process, after warm-up. Structures are those of BERT-base.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, Ratio, exact, print_goals, ratio_of_rounds
from benchmarks.timing import PYTHON, ROOT, WORK

ROUNDS = 3
ALLOWED = 0.015  # seconds of processor for a checkpoint whose structure is known
_ALIKE = 12
_SIZES = (100, 1_000, 10_000)
_WORKERS = (1, 2)
_FOLDERS = 400

_ONE_MORE = """
import json, sys, time
from headscope.shell.values import make_request
from headscope.core.source.storage.cache import Cache
from headscope.core.source.checkpoint import examine
from headscope.checks.findings import with_findings
from headscope.core.source.memory.memory import Memory, Structures
from transformers import AutoModelForSequenceClassification

def inspected(folder, memory):
    request = make_request(folder, {})
    return with_findings(examine("inspect", request, None, memory))

def cost(act, folders):
    begun = time.process_time()
    for folder in folders:
        act(folder)
    return (time.process_time() - begun) / len(folders)

folders = sys.argv[2:]
memory = Memory(Cache(None), Structures())
inspected(folders[0], memory)
inspected(folders[0], None)
found = {"known": cost(lambda folder: inspected(folder, memory), folders)}
found["new"] = cost(lambda folder: inspected(folder, Memory(Cache(None), Structures())), folders[:4])
found["loop"] = cost(lambda folder: inspected(folder, None), folders[:4])
load = AutoModelForSequenceClassification.from_pretrained
load(folders[0], output_loading_info=True)
found["load"] = cost(lambda folder: load(folder, output_loading_info=True), folders[:4])
json.dump(found, open(sys.argv[1], "w"))
"""

_GROWTH = """
import json, resource, sys, time
import headscope
from headscope.shell.values import make_request
from headscope.slices.fleet.run import scan

folder, sizes = sys.argv[2], list(map(int, sys.argv[3:]))
list(scan([f"{folder}/0.json"], workers=0))
found = []
for size in sizes:
    begun, rows = time.process_time(), 0
    for row in scan((f"{folder}/{number}.json" for number in range(size)), workers=0):
        rows += row.verdict is not None
    assert rows == size
    found.append([size, time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])
json.dump(found, open(sys.argv[1], "w"))
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurements and returns their goals."""
    goals = [*_one_more(rounds), *_growth(), *_throughput(rounds)]
    print_goals(goals)
    return goals


def _one_more(rounds: int) -> list[Goal]:
    folders = _alike(_ALIKE)
    found = [_asked(_ONE_MORE, *map(str, folders)) for _ in range(rounds)]
    print("Processor seconds of one more checkpoint of BERT-base")
    for name, what in (
        ("known", "its structure is known"),
        ("new", "its structure is new"),
        ("loop", "inspect in a loop"),
        ("load", "from_pretrained(..., output_loading_info=True) in a loop"),
    ):
        print(f"  {statistics.median(one[name] for one in found):>8.4f} s  {what}")

    def over(name: str, other: str) -> Ratio:
        return ratio_of_rounds([one[name] / one[other] for one in found])

    allowed = ratio_of_rounds([one["known"] / ALLOWED for one in found])
    return [
        Goal(f"known structure, over the {ALLOWED} s allowed", allowed, 1.0),
        Goal("known structure, over inspect in a loop", over("known", "loop")),
        Goal("new structure, over inspect in a loop", over("new", "loop"), 1.1),
        Goal("new structure, over from_pretrained", over("new", "load")),
    ]


def _growth() -> list[Goal]:
    """The cost of N snapshots: the exponent of N that fits the three sizes, and the peak of memory."""
    found = _asked(_GROWTH, str(_snapshots(max(_SIZES))), *map(str, _SIZES))
    print("Processor seconds and peak memory of a scan of N snapshots, in one process")
    for size, seconds, peak in found:
        print(f"  {size:>6}  {seconds:>8.2f} s  {seconds / size * 1000:>6.2f} ms each  {peak / 1024:>6.0f} MiB")
    exponent = _slope([math.log(size) for size, _, _ in found], [math.log(seconds) for _, seconds, _ in found])
    peaks = [peak for _, _, peak in found]
    return [
        Goal("exponent of the cost against N", exact(exponent), 1.05),
        Goal(f"peak memory at {_SIZES[-1]:,} over {_SIZES[0]:,} snapshots", exact(peaks[-1] / peaks[0]), 1.1),
    ]


def _throughput(rounds: int) -> list[Goal]:
    """Checkpoints a second of the whole command, with one worker and with two."""
    listed = WORK / "scan-list.txt"
    folder = _snapshots(max(_SIZES))
    listed.write_text("\n".join(f"{folder}/{number}.json" for number in range(_FOLDERS)), encoding="utf-8")
    seconds: dict[int, list[float]] = {count: [] for count in _WORKERS}
    for _ in range(rounds):
        for count in _WORKERS:
            seconds[count].append(_scan(listed, count))
    print(f"Seconds of the scan of {_FOLDERS} snapshots, the start of the workers left out")
    for count, taken in seconds.items():
        middle = statistics.median(taken)
        print(f"  {count} worker{'s' if count > 1 else ''}  {middle:>7.2f} s  {_FOLDERS / middle:>6.1f}/s")
    ratios = [two / one for one, two in zip(*seconds.values(), strict=True)]
    return [Goal("two workers, over one", ratio_of_rounds(ratios))]


def _scan(listed: Path, workers: int) -> float:
    """Seconds from the first to the last row."""
    table = WORK / "scan.jsonl"
    table.unlink(missing_ok=True)
    code = (
        "import sys, time\nfrom headscope.slices.fleet.run import scan\n"
        "names = open(sys.argv[2]).read().split()\nrows = scan(names, workers=int(sys.argv[3]))\n"
        "next(rows)\nbegun = time.perf_counter()\n"
        "count = sum(1 for row in rows)\nassert count == len(names) - 1\n"
        "import json\njson.dump(time.perf_counter() - begun, open(sys.argv[1], 'w'))\n"
    )
    return float(_asked(code, str(listed), str(workers)))


def _asked(code: str, *arguments: str) -> Any:
    """What a separate process writes as JSON."""
    answer = WORK / "scan-answer.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HEADSCOPE_NO_CACHE": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [PYTHON, "-c", code, str(answer), *arguments],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(answer.read_text(encoding="utf-8"))


def _alike(count: int) -> list[Path]:
    """BERT-base classifiers that differ in the names of their labels, with one file of weights."""
    source = bert_base()
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["BertForSequenceClassification"]
    folders = []
    for number in range(count):
        folder = WORK / "alike" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        names = {str(at): f"label {at} of {number}" for at in range(3)}
        labels = {"id2label": names, "label2id": {name: int(at) for at, name in names.items()}}
        (folder / "config.json").write_text(json.dumps(config | labels), encoding="utf-8")
        weights = folder / "model.safetensors"
        if not weights.exists():
            os.link(source / weights.name, weights)
        folders.append(folder)
    return folders


def _snapshots(count: int) -> Path:
    """That many snapshots of one structure, each with its own labels."""
    folder = WORK / "snapshots"
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{count - 1}.json").exists():
        return folder
    shutil.rmtree(folder)
    folder.mkdir()
    code = (
        "import sys, headscope\nfrom transformers import BertConfig, BertForSequenceClassification\n"
        "labels = {'id2label': {0: 'A', 1: 'B'}, 'label2id': {'A': 0, 'B': 1}}\n"
        "model = BertForSequenceClassification(BertConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, "
        "intermediate_size=64, vocab_size=200, **labels))\n"
        "model.save_pretrained(sys.argv[1] + '/model')\n"
        "headscope.snapshot(sys.argv[1] + '/model', output=sys.argv[1] + '/0.json')\n"
    )
    subprocess.run([PYTHON, "-c", code, str(folder)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    text = (folder / "0.json").read_text(encoding="utf-8")
    for number in range(1, count):
        own = text.replace('"A"', f'"no {number}"').replace('"B"', f'"yes {number}"')
        (folder / f"{number}.json").write_text(own, encoding="utf-8")
    return folder


def _slope(across: list[float], up: list[float]) -> float:
    """The slope of the line through points with the least squares."""
    middle, height = sum(across) / len(across), sum(up) / len(up)
    pairs = list(zip(across, up, strict=True))
    return sum((x - middle) * (y - height) for x, y in pairs) / sum((x - middle) ** 2 for x, _ in pairs)
