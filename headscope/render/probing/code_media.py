"""The parts of the module that `probe` advises for images and sounds: the processor, the vectors, the training."""

from collections.abc import Iterator

from headscope.facts.probing.data import Input
from headscope.facts.probing.result import Problem, Vector

_FIRST = '''
def first(state: torch.Tensor) -> torch.Tensor:
    """The first position of each input."""
    return state[:, 0]
'''
_POSITIONS = '''
def positions(state: torch.Tensor) -> torch.Tensor:
    """A row for each position: patches, frames, or the places of a map with the channels first."""
    return state.flatten(2).transpose(1, 2) if state.dim() == 4 else state
'''
_MEAN = '''
def mean(state: torch.Tensor) -> torch.Tensor:
    """The mean over all positions."""
    return positions(state).mean(1)
'''
_MAXIMUM = '''
def maximum(state: torch.Tensor) -> torch.Tensor:
    """The maximum over all positions."""
    return positions(state).amax(1)
'''
_BODIES = {
    Vector.FIRST_TOKEN: ((_FIRST,), "first(states[LAYER])"),
    Vector.MASKED_MEAN: ((_POSITIONS, _MEAN), "mean(states[LAYER])"),
    Vector.MAX: ((_POSITIONS, _MAXIMUM), "maximum(states[LAYER])"),
    Vector.MEAN_AND_MAX: (
        (_POSITIONS, _MEAN, _MAXIMUM),
        "torch.cat([mean(states[LAYER]), maximum(states[LAYER])], -1)",
    ),
    Vector.FIRST_LAST_MEAN: ((_POSITIONS, _MEAN), "(mean(states[1]) + mean(states[-1])) / 2"),
    Vector.LAST_FOUR_CONCAT: ((_FIRST,), "torch.cat([first(state) for state in states[-4:]], -1)"),
    Vector.LAST_FOUR_AVERAGE: ((_FIRST,), "torch.stack([first(state) for state in states[-4:]]).mean(0)"),
}
_IMAGES = '''
def load_processor() -> Any:
    """The checkpoint's image processor."""
    return AutoImageProcessor.from_pretrained(CHECKPOINT, **LOADING)


def read(processor: Any, path: str) -> dict[str, torch.Tensor]:
    """The tensors of one image."""
    with Image.open(path) as image:
        return dict(processor(images=image.convert("RGB"), return_tensors="pt"))
'''
_SOUNDS = '''
def load_processor() -> Any:
    """The checkpoint's feature extractor."""
    return AutoFeatureExtractor.from_pretrained(CHECKPOINT, **LOADING)


def read(processor: Any, path: str) -> dict[str, torch.Tensor]:
    """The tensors of a 16-bit WAV file; its channels are averaged."""
    with wave.open(path) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        needed = getattr(processor, "sampling_rate", rate)
        if file.getsampwidth() != 2 or rate != needed:
            raise ValueError(f"{path} must have 16-bit samples at {needed} Hz")
        data = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16)
    samples = data.reshape(-1, channels).float().mean(1) / 32768
    return dict(processor(samples.numpy(), sampling_rate=rate, return_tensors="pt"))
'''
_ENCODE = '''

def encode(processor: Any, paths: Sequence[str]) -> list[dict[str, torch.Tensor]]:
    """Files as batches, in order: a new batch begins where the tensors have another shape. There is no padding."""
    batches: list[list[dict[str, torch.Tensor]]] = []
    for path in paths:
        made = {name: value for name, value in read(processor, path).items() if isinstance(value, torch.Tensor)}
        if batches and all(made[name].shape == value.shape for name, value in batches[-1][0].items()):
            batches[-1].append(made)
        else:
            batches.append([made])
    return [{name: torch.cat([one[name] for one in batch]) for name in batch[0]} for batch in batches]
'''
_RUN = '''
    def run(self, inputs: dict[str, torch.Tensor], **options: bool) -> Any:
        """What the base model returns."""
        known = signature(self.base.forward).parameters
        return self.base(**{name: value for name, value in inputs.items() if name in known}, **options)

    def forward(self, labels: torch.Tensor | None = None, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The scores, and with labels the loss."""
        logits = self.classifier(self.features(**inputs))
        return {"logits": logits} if labels is None else {"loss": LOSS(logits, labels), "logits": logits}
'''
_FEATURES = '''
    def features(self, **inputs: torch.Tensor) -> torch.Tensor:
        """{title}"""
'''
_STATES = "        states = self.run(inputs, output_hidden_states=True).hidden_states\n        return {call}\n"
_POOLER = "        return self.run(inputs).pooler_output.flatten(1)\n"
OWN_MEDIA_FORWARD = '''
    def forward(self, labels: torch.Tensor | None = None, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The scores, and with labels the loss; some classes for sounds know the loss for single labels only."""
        known = signature(self.model.forward).parameters
        logits = self.model(**{name: value for name, value in inputs.items() if name in known}).logits
        return {"logits": logits} if labels is None else {"loss": LOSS(logits, labels), "logits": logits}
'''
"""The forward of a module with the checkpoint's own class."""
_MAIN = '''
def train(
    model: Classifier, paths: Sequence[str], labels: Sequence[Any], epochs: int = 3, batch: int = 16,
    rate: float = 2e-5,
) -> float:
    """Trains all weights on labeled files and returns the loss of the last batch."""
    processor, optimizer = load_processor(), torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    loss = torch.tensor(float("nan"))
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            targets, done = TARGETS, 0
            loss = torch.tensor(0.0)
            for inputs in encode(processor, [paths[row] for row in rows]):
                count = len(next(iter(inputs.values())))
                some = model(**inputs, labels=targets[done : done + count])["loss"]
                loss, done = loss + some * count / len(rows), done + count
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    return loss.item()


if __name__ == "__main__":
    classifier = Classifier().eval()
    with torch.no_grad():
        for inputs in encode(load_processor(), sys.argv[1:]):
            print(ANSWERS.tolist())
    print(f"{type(classifier).__name__}: the arguments are paths of files; `train` trains it")
'''


def media_imports(input: Input, auto: str, *, is_fitted: bool = False) -> str:
    """The imports of a module for images or sounds; `auto` is the class of the model."""
    beside, fitted = (
        ("from pathlib import Path\n", "from safetensors.torch import load_file\n") if is_fitted else ("", "")
    )
    tool = "AutoImageProcessor" if input is Input.IMAGE else "AutoFeatureExtractor"
    reader = "from PIL import Image\n" if input is Input.IMAGE else ""
    wave = "import wave\n" if input is Input.AUDIO else ""
    return (
        f"\nimport sys\n{wave}from collections.abc import Sequence\nfrom inspect import signature\n"
        f"{beside}from typing import Any\n\nimport torch\n{reader}{fitted}from torch import nn\n"
        f"from transformers import {', '.join(sorted((tool, auto)))}\n\n"
    )


def media_reading(input: Input) -> str:
    """From paths of files to batches of tensors."""
    return f"{_IMAGES if input is Input.IMAGE else _SOUNDS}{_ENCODE}"


def media_functions(vector: Vector) -> Iterator[str]:
    """The functions that the vector is made with."""
    yield from _BODIES.get(vector, ((), ""))[0]


def media_features(vector: Vector, title: str) -> str:
    """The methods that make the vector of each input from its tensors."""
    _, call = _BODIES.get(vector, ((), ""))
    body = _POOLER if vector is Vector.POOLER else _STATES.format(call=call)
    return f"{_FEATURES.format(title=title)}{body}{_RUN}"


_ANSWERS = {
    Problem.SINGLE_LABEL: 'classifier(**inputs)["logits"].softmax(-1)',
    Problem.MULTI_LABEL: 'classifier(**inputs)["logits"].sigmoid()',
    Problem.REGRESSION: 'classifier(**inputs)["logits"]',
}
"""What the module prints as a program: probabilities, or the numbers themselves."""


def media_main(problem: Problem, targets: str) -> str:
    """The training, and what the module does as a program; `targets` makes the labels of the rows of a batch."""
    return _MAIN.replace("TARGETS", targets).replace("ANSWERS", _ANSWERS[problem])


def reads_layer(vector: Vector) -> bool:
    """Whether the vector is made of one layer, which the module names."""
    return "LAYER" in _BODIES.get(vector, ((), ""))[1]
