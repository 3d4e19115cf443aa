"""Parts that every written module has: its constants, its settings, `save` and `load`, training, an example."""

from collections.abc import Iterator
from dataclasses import dataclass
from string import Template

from headscope.core.facts.heads.head import PoolingKind
from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.facts.data import Loading
from headscope.slices.probe.facts.result import Problem, Vector
from headscope.slices.probe.screen.source import LINE_LENGTH, assignment, literal

_SETTINGS = '''\
SETTINGS: dict[str, Any] = {
    "checkpoint": CHECKPOINT,
    "loading": LOADING,
    "pooling": "$pooling",
    "layer": $layer,
    "problem": "$problem",
    "max_tokens": $tokens,
    "labels": LABELS,
    "dtype": "float32",
}


def read_settings(folder: Path | None) -> dict[str, Any]:
    """The settings above, or those of a folder, which must mean the same scores."""
    if folder is None:
        return SETTINGS
    saved = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
    for name in ("pooling", "layer", "problem", "max_tokens"):
        if saved[name] != SETTINGS[name]:
            raise ValueError(f"{folder}: {name} is {saved[name]}, not {SETTINGS[name]}")
    return saved

'''
_KEEPING = '''
    def save(self, folder: str | Path) -> None:
        """Writes the classifier to a new folder, from which `load` reads it.

        All weights are kept, those of the base model too, whether they were trained or
        not, with the $tool and the labels. `load` $needs.
        The folder is put in place at the end, if it loads again with the same weights.
        """
        target = Path(folder)
        if target.exists():
            raise FileExistsError(f"{target} exists already: name a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as beside:
            made = Path(beside) / "classifier"
            $weights
            self.$tool.save_pretrained(made)
            dtype = str(next(self.parameters()).dtype).removeprefix("torch.")
            settings = SETTINGS | {"labels": self.labels, "dtype": dtype}
            (made / "classifier.json").write_text(json.dumps(settings, indent=2))
            with torch.random.fork_rng(devices=[]):  # training goes on as if unsaved
                loaded = self.load(made).state_dict()
            for name, value in self.state_dict().items():
                pair = (value.cpu().reshape(-1), loaded[name].reshape(-1))
                if not torch.equal(*(one.view(torch.uint8) for one in pair)):
                    raise ValueError(f"{target} is not written: {name} would change")
            made.rename(target)

    @classmethod
    def load(cls, folder: str | Path) -> "Classifier":
        """What `save` wrote, for scoring; a weight that doesn't fit is an error."""
        return cls(Path(folder)).eval()

'''
_TRAINING = '''
def train(
    model: Classifier,
    $data,
    labels: Sequence[Any],
    epochs: int = 3,
    batch: int = 16,
    rate: float = 2e-5,
) -> float:
    """Trains all weights and returns the last loss; $hint."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    loss = torch.tensor(float("nan"))
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            targets = torch.tensor([labels[row] for row in rows]$numbers)
$loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    return loss.item()


if __name__ == "__main__":
    classifier = Classifier().eval()
$shown
    if sys.argv[1:2] == ["--save"]:  # trains one step, saves, and loads again
        train(classifier, $rows, [$target] * len($count), epochs=1)
        classifier.save(sys.argv[2])
        loaded = Classifier.load(sys.argv[2])
        with torch.no_grad():
            pairs = [(classifier(**one), loaded(**one)) for one in batches]
        same = all(torch.equal(one["logits"], other["logits"]) for one, other in pairs)
        print(f"saved to {sys.argv[2]}; loaded again, its scores are the same: {same}")
'''
_TEXTS = {
    "tool": "tokenizer",
    "data": "columns: Sequence[Sequence[str]]",
    "hint": "`columns` are as for `encode`",
    "loss": """\
            texts = ([column[row] for row in rows] for column in columns)
            loss = model(**encode(model.tokenizer, *texts), labels=targets)["loss"]""",
    "shown": """\
    batches = [encode(classifier.tokenizer, EXAMPLE)]
    with torch.no_grad():
        shape = tuple(classifier(**batches[0])["logits"].shape)
    print(f"Classifier: the scores have the shape {shape}; `train` trains it")""",
    "rows": "[EXAMPLE]",
    "count": "EXAMPLE",
}
_FILES = {
    "tool": "processor",
    "data": "paths: Sequence[str]",
    "hint": "`paths` are those of files",
    "loss": """\
            loss, done = torch.tensor(0.0), 0
            for inputs in encode(model.processor, [paths[row] for row in rows]):
                count = len(next(iter(inputs.values())))
                some = model(**inputs, labels=targets[done : done + count])["loss"]
                loss, done = loss + some * count / len(rows), done + count""",
    "shown": """\
    paths = sys.argv[3:] if sys.argv[1:2] == ["--save"] else sys.argv[1:]
    batches = encode(classifier.processor, paths)
    with torch.no_grad():
        for inputs in batches:
            print(classifier(**inputs)["logits"]$answer.tolist())
    print("Classifier: the arguments are paths of files; `train` trains it")""",
    "rows": "paths",
    "count": "paths",
}
INPUT_WORDS = {Input.TEXT: _TEXTS, Input.IMAGE: _FILES, Input.AUDIO: _FILES}
"""What differs from input to input; `tool` is what encodes them."""
_ANSWERS = {Problem.SINGLE_LABEL: ".softmax(-1)", Problem.MULTI_LABEL: ".sigmoid()", Problem.REGRESSION: ""}
"""What the module prints as a program: probabilities, or the numbers themselves."""
_LOSSES = {
    Problem.SINGLE_LABEL: "nn.functional.cross_entropy",
    Problem.MULTI_LABEL: "nn.functional.binary_cross_entropy_with_logits",
    Problem.REGRESSION: "nn.functional.mse_loss",
}
_NUMBERS = """, dtype=torch.float32)
            targets = targets.reshape(len(rows), -1"""


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Facts that a module is written from: `origin` is its first sentence, `what` the vector in words.

    `layer` is the index of the hidden states, negative from the end; `size` None is measured when the module is built.
    `classifier` is the last layer of the class's own head, where the vector is the input of that head, and `pooling`
    says how that head pools; None if that is not known. `weights` is the file of a fitted classifier, "" for none.
    """

    origin: str
    what: str
    vector: Vector
    loading: Loading
    labels: tuple[str, ...]
    problem: Problem
    layer: int = -1
    size: int | None = None
    max_tokens: int | None = None
    classifier: str = ""
    pooling: PoolingKind | None = None
    weights: str = ""


def module_start(facts: ModuleFacts, names: tuple[str, ...], *, has_layer: bool) -> Iterator[str]:
    """Writes the first sentence, the imports (of Transformers `names`), the constants, and `read_settings`."""
    loading, is_text, is_own = facts.loading, facts.loading.input is Input.TEXT, facts.vector is Vector.HEAD
    yield f'"""{facts.origin}"""\n\nimport json\nimport sys\nimport tempfile\n'
    yield "import wave\n" if loading.input is Input.AUDIO else ""
    yield "from collections.abc import Sequence\nfrom inspect import signature\nfrom pathlib import Path\n"
    yield "from typing import Any\n\nimport torch\n"
    yield "from PIL import Image\n" if loading.input is Input.IMAGE else ""
    yield (
        ""
        if is_own
        else f"from safetensors.torch import {'load_file, ' if facts.weights else ''}load_model, save_model\n"
    )
    flat = f"from transformers import {', '.join(sorted(names))}"
    if len(flat) > LINE_LENGTH:
        flat = "from transformers import (\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")"
    yield f"from torch import nn\n{flat}\n\n"
    given = {"revision": loading.revision, "subfolder": loading.subfolder}
    code = {"trust_remote_code": True} if loading.remote_code else {}
    yield assignment("CHECKPOINT", loading.reference)
    yield assignment("LOADING: dict[str, Any]", {name: value for name, value in given.items() if value} | code)
    yield assignment("SAVED: dict[str, Any]", code)
    yield assignment("LABELS", facts.labels or ("value",))
    yield f"MAX_TOKENS: int | None = {facts.max_tokens}\n" if is_text else ""
    yield 'EXAMPLE = ["A first text.", "A second, longer text."]\n' if is_text else ""
    part = f"# The part that makes the hidden states.\nBASE = {literal(loading.base)}\n"
    yield part if loading.base and not (is_text or is_own) else ""
    yield f"LAYER = {facts.layer}  # 0: the embeddings; -1: the last\n" if has_layer else ""
    yield f"LAST_LAYER = {literal(facts.classifier)}\n" if is_own else ""
    yield f"LOSS = {_LOSSES[facts.problem]}\n"
    named = {"layer": "LAYER" if has_layer else None, "tokens": "MAX_TOKENS" if is_text else None}
    yield Template(_SETTINGS).substitute(named, pooling=facts.vector.value, problem=facts.problem.value)


def module_end(facts: ModuleFacts) -> str:
    """Writes the methods that save and load the classifier, its training, and what the module does as a program."""
    one = facts.problem is Problem.SINGLE_LABEL
    needs, weights = "needs no checkpoint", "self.model.save_pretrained(made)"
    if facts.vector is not Vector.HEAD:
        needs = "runs the checkpoint's code" if facts.loading.remote_code else needs
        file = 'made / "classifier.safetensors"'
        weights = f"self.config.save_pretrained(made)\n            save_model(self, str({file}))"
    filled = Template(_KEEPING + _TRAINING).substitute(
        INPUT_WORDS[facts.loading.input],
        needs=needs,
        weights=weights,
        numbers="" if one else _NUMBERS,
        target="0" if one else "[1.0] * len(LABELS)",
    )
    return filled.replace("$answer", _ANSWERS[facts.problem])
