"""What the callback costs at each save of BERT-base (440 MB), beside the save itself, in one process.

The save is what a trainer writes: `save_pretrained`, and the state of AdamW (880 MB). The weights alone are shown too.
By default the callback reads the weights back whole, which are a third of what was written.
"""

import json
import statistics
import subprocess
import tempfile

from benchmarks.goals import Goal, Ratio, print_goals
from benchmarks.timing import PYTHON, ROOT, WORK

ROUNDS = 5
CHILD = """
import json, logging, shutil, sys, time
from pathlib import Path
import torch
from safetensors import safe_open
from transformers import BertConfig, BertForSequenceClassification, TrainerControl, TrainerState, TrainingArguments
import headscope
out, rounds = Path(sys.argv[1]), int(sys.argv[2])
model = BertForSequenceClassification(BertConfig())
optimizer = torch.optim.AdamW(model.parameters())
for item in model.parameters():
    moments = {name: torch.ones_like(item) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[item] = {"step": torch.tensor(1.0), **moments}
callbacks = [headscope.HeadscopeCallback(on_fail="warn", verify_saves=saves) for saves in (True, "head")]
arguments, state, control = TrainingArguments(str(out), report_to=[], use_cpu=True), TrainerState(), TrainerControl()
begun = time.perf_counter()
callbacks[0].on_train_begin(arguments, state, control, model=model, optimizer=None)
begin = time.perf_counter() - begun
callbacks[1].on_train_begin(arguments, state, control, model=model, optimizer=None)
times = []
for step in range(1, rounds + 2):
    state.global_step, folder = step, out / f"checkpoint-{step}"
    begun = time.perf_counter()
    model.save_pretrained(folder)
    written = time.perf_counter()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    saved = time.perf_counter()
    callbacks[0].on_save(arguments, state, control, model=model)
    compared = time.perf_counter()
    callbacks[1].on_save(arguments, state, control, model=model)
    done = time.perf_counter()
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert all(torch.equal(file.get_tensor(name), value) for name, value in model.state_dict().items())
    times.append((written - begun, saved - begun, compared - saved, done - compared, time.perf_counter() - done))
    shutil.rmtree(folder)
for callback in callbacks:
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
    weights, saves, whole, head, plain = zip(*times, strict=True)
    weight, saved, compared, of_head, read = (
        1000 * statistics.median(item) for item in (weights, saves, whole, head, plain)
    )
    print(
        f"The callback at a save of BERT-base\n  the save {saved:,.0f} ms, its weights {weight:,.0f} ms; "
        f"comparing it {compared:,.0f} ms, the head alone {of_head:,.1f} ms; "
        f"a plain reading and torch.equal {read:,.0f} ms; "
        f"once, before the first step, {1000 * begin:,.0f} ms"
    )
    goals = [
        Goal("the callback at a save, over the save of a trainer to memory", _share(whole, saves), 0.5),
        Goal('... with verify_saves="head"', _share(head, saves), 0.05),
        Goal("the callback at a save, over the save of the weights alone", _share(whole, weights)),
        Goal("the callback at a save, over a plain reading and torch.equal", _share(whole, plain)),
    ]
    print_goals(goals)
    return goals


def _share(ours: tuple[float, ...], saves: tuple[float, ...]) -> Ratio:
    shares = [own / save for own, save in zip(ours, saves, strict=True)]
    return Ratio(statistics.median(ours) / statistics.median(saves), min(shares), max(shares))
