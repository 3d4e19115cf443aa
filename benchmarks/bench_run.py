"""What running the model costs in `check --run`: BERT-base, ViT-base, and a decoder of 1.5 billion parameters."""

import subprocess
import time
from dataclasses import dataclass

import psutil

from benchmarks.goals import Goal, exact
from benchmarks.timing import MIB, PYTHON, ROOT, WORK, environment

ROUNDS = 3
_SECONDS = 5.0
"""How much longer than the load a check with a run may take, for BERT-base on two cores."""
_MAKE = {
    "bert": "transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3))",
    "vit": "transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=3))",
    "decoder": "transformers.Qwen2ForSequenceClassification(transformers.Qwen2Config(vocab_size=151936,"
    " hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,"
    " num_labels=3, pad_token_id=0)).to(torch.bfloat16)",
}
_TOOLS = """
import sys, transformers
from tokenizers.pre_tokenizers import ByteLevel
from headscope.shared.trial.inputs import SENTENCES
folder, kind = sys.argv[1:3]
letters = sorted(ByteLevel.alphabet())
words = {word for text in SENTENCES for word in text.lower().split()}
if kind == "vit":
    made = transformers.ViTImageProcessor()
elif kind == "bert":
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters), *words]
    made = transformers.BertTokenizer(vocab={name: at for at, name in enumerate(names)}, model_max_length=512)
else:
    merges, names = [], ["<|endoftext|>", *letters]
    for word in sorted({part for text in SENTENCES for part in text.replace(" ", " \\u0120").split()}):
        for end in range(2, len(word) + 1):
            if word[:end] not in names:
                names.append(word[:end])
                merges.append((word[:end - 1], word[end - 1]))
    made = transformers.Qwen2Tokenizer(vocab={name: at for at, name in enumerate(names)}, merges=merges,
                                       pad_token="<|endoftext|>", model_max_length=512)
made.save_pretrained(folder)
"""
_USE = """
import sys, torch, transformers
kind, calls = sys.argv[2:4]
auto = "AutoModelForImageClassification" if kind == "vit" else "AutoModelForSequenceClassification"
model = getattr(transformers, auto).from_pretrained(sys.argv[1])
tool = transformers.AutoImageProcessor if kind == "vit" else transformers.AutoTokenizer
tool = tool.from_pretrained(sys.argv[1])
if calls == "call":
    with torch.no_grad():
        model(**tool("The film was good, and I would see it again.", return_tensors="pt")) if kind != "vit" else (
            model(pixel_values=torch.rand(1, 3, 224, 224)))
"""
"""Loads a checkpoint and its tokenizer or processor; with `call`, classifies one input, which reads every weight."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of a command, and the largest memory of its processes together, in bytes."""

    seconds: float
    peak: int


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    goals = []
    for kind in ("bert", "vit", "decoder"):
        folder = _checkpoint(kind)
        check = (PYTHON, "-m", "headscope", "check", folder, "--for", "inference", "--no-values", "--no-cache", "-q")
        commands = {
            "load": (PYTHON, "-c", _USE, folder, kind, "load"),
            "use": (PYTHON, "-c", _USE, folder, kind, "call"),
            "files": (*check, "--no-run"),
            "run": (*check, "--run"),
        }
        found = {name: _cost(command, rounds) for name, command in commands.items()}
        for name, cost in found.items():
            print(f"{kind:<8} {name:<6} {cost.seconds:7.1f} s  {cost.peak / MIB:8.0f} MiB")
        in_time = found["run"].seconds / (found["load"].seconds + _SECONDS)
        grown = (found["run"].peak - found["files"].peak) / found["use"].peak
        goals += [
            Goal(f"{kind}: check --run, over the load and 5 s", exact(in_time), 1.0 if kind == "bert" else None),
            Goal(f"{kind}: memory beyond check --no-run, over that of a load and a call", exact(grown), 1.2),
        ]
    for goal in goals:
        print(goal)
    return goals


def _checkpoint(kind: str) -> str:
    """The folder of a checkpoint with what belongs to it, made once."""
    folder = WORK / f"run-{kind}"
    if not (folder / "config.json").is_file():
        make = f"import sys, torch, transformers\n{_MAKE[kind]}.save_pretrained(sys.argv[1])"
        subprocess.run([PYTHON, "-c", make, str(folder)], check=True, cwd=ROOT)
    if not {"tokenizer.json", "preprocessor_config.json"} & {path.name for path in folder.iterdir()}:
        subprocess.run([PYTHON, "-c", _TOOLS, str(folder), kind], check=True, cwd=ROOT)
    return str(folder)


def _cost(command: tuple[str, ...], rounds: int) -> Cost:
    """The fewest seconds of some runs of a command, and the largest memory in one more."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        _start(command).wait()
        seconds.append(time.perf_counter() - begun)
    return Cost(min(seconds), _peak(_start(command)))


def _start(command: tuple[str, ...]) -> psutil.Popen:
    return psutil.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _peak(process: psutil.Popen) -> int:
    """The largest memory of a process and those that it started, looked at fifty times a second, which slows it."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory(process))
        time.sleep(0.02)
    return peak


def _memory(process: psutil.Process) -> int:
    """What the process and those that it started hold together, each page once."""
    try:
        return sum(item.memory_full_info().pss for item in (process, *process.children(recursive=True)))
    except psutil.Error:  # one ended meanwhile
        return 0
