"""What the callback costs at each save of BERT-base (440 MB), beside the save itself, in one process.

The save is what a trainer writes: `save_pretrained`, and the state of AdamW (880 MB). The weights alone are shown too.
"""

import json
import statistics
import subprocess
import sys
import tempfile

from benchmarks.goals import Goal, Ratio, print_goals, run_alone
from benchmarks.timing import PYTHON, ROOT, WORK

ROUNDS = 5
CHILD = """
import json, logging, shutil, sys, time
from pathlib import Path
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainerControl, TrainerState, TrainingArguments
import headscope
out, rounds = Path(sys.argv[1]), int(sys.argv[2])
model = BertForSequenceClassification(BertConfig())
optimizer = torch.optim.AdamW(model.parameters())
for item in model.parameters():
    moments = {name: torch.ones_like(item) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[item] = {"step": torch.tensor(1.0), **moments}
callback = headscope.HeadscopeCallback(on_fail="warn")
arguments, state, control = TrainingArguments(str(out), report_to=[], use_cpu=True), TrainerState(), TrainerControl()
begun = time.perf_counter()
callback.on_train_begin(arguments, state, control, model=model, optimizer=None)
begin = time.perf_counter() - begun
times = []
for step in range(1, rounds + 2):
    state.global_step, folder = step, out / f"checkpoint-{step}"
    begun = time.perf_counter()
    model.save_pretrained(folder)
    written = time.perf_counter()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    saved = time.perf_counter()
    callback.on_save(arguments, state, control, model=model)
    times.append((written - begun, saved - begun, time.perf_counter() - saved))
    shutil.rmtree(folder)
assert len(callback.saves) == rounds + 1 and all(not item.findings for item in callback.saves), callback.saves
print(json.dumps([begin, times[1:]]))
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        command = [PYTHON, "-c", CHILD, folder, str(rounds)]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    begin, times = json.loads(finished.stdout.splitlines()[-1])
    weights, saves, ours = zip(*times, strict=True)
    weight, saved, read = (statistics.median(item) for item in (weights, saves, ours))
    print(
        f"The callback at a save of BERT-base\n  the save {saved * 1000:,.0f} ms, its weights {weight * 1000:,.0f} ms; "
        f"reading it back {read * 1000:,.1f} ms; once, before the first step, {begin * 1000:,.0f} ms"
    )
    goals = [
        Goal("the callback at a save, over the save of a trainer", _share(ours, saves), 0.01),
        Goal("the callback at a save, over the save of the weights alone", _share(ours, weights)),
    ]
    print_goals(goals)
    return goals


def _share(ours: tuple[float, ...], saves: tuple[float, ...]) -> Ratio:
    shares = [own / save for own, save in zip(ours, saves, strict=True)]
    return Ratio(statistics.median(ours) / statistics.median(saves), min(shares), max(shares))


if __name__ == "__main__":
    sys.exit(run_alone(measure_goals, ROUNDS))
