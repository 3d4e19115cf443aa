"""Parts of the module that `probe` advises for images and sounds: the processor, the vectors, the training."""

from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.facts.result import Vector

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
MEDIA_BODIES = {
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
"""The functions that a vector is made with, and how."""
_LOADING = '''
def load_processor(folder: Path | None = None) -> Any:
    """What reads inputs for the checkpoint, or for what was saved to a folder."""
    source, options = (CHECKPOINT, LOADING) if folder is None else (folder, SAVED)
    return TOOL.from_pretrained(source, **options)
'''
_IMAGES = '''

def read(processor: Any, path: str) -> dict[str, torch.Tensor]:
    """The tensors of one image."""
    with Image.open(path) as image:
        return dict(processor(images=image.convert("RGB"), return_tensors="pt"))
'''
_SOUNDS = '''

def read(processor: Any, path: str) -> dict[str, torch.Tensor]:
    """The tensors of a 16-bit WAV file; its channels are averaged."""
    with wave.open(path) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        needed = getattr(processor, "sampling_rate", rate)
        if file.getsampwidth() != 2 or rate != needed:
            raise ValueError(f"{path} must have 16-bit samples at {needed} Hz")
        frames = bytearray(file.readframes(file.getnframes()))
    data = torch.frombuffer(frames, dtype=torch.int16)
    samples = data.reshape(-1, channels).float().mean(1) / 32768
    return dict(processor(samples.numpy(), sampling_rate=rate, return_tensors="pt"))
'''
_ENCODE = '''

def encode(processor: Any, paths: Sequence[str]) -> list[dict[str, torch.Tensor]]:
    """Files as batches, in order; a new one begins with another shape: nothing is padded."""
    batches: list[dict[str, list[torch.Tensor]]] = []
    for path in paths:
        made = {k: v for k, v in read(processor, path).items() if torch.is_tensor(v)}
        last = batches[-1] if batches else {}
        if not last or any(last[name][0].shape != made[name].shape for name in last):
            batches.append({name: [] for name in made})
        for name, tensor in made.items():
            batches[-1][name].append(tensor)
    return [{name: torch.cat(batch[name]) for name in batch} for batch in batches]
'''
FORWARD = '''
    def forward(
        self, labels: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The scores, and with labels the loss."""
'''
"""The beginning of a forward that takes any tensors: of the class itself, and of a new layer on files."""
TOOLS = {Input.TEXT: "AutoTokenizer", Input.IMAGE: "AutoImageProcessor", Input.AUDIO: "AutoFeatureExtractor"}
"""The classes that read inputs."""


def media_reading(input: Input) -> str:
    """Writes the code that reads files and makes batches of tensors."""
    return f"{_LOADING.replace('TOOL', TOOLS[input])}{_IMAGES if input is Input.IMAGE else _SOUNDS}{_ENCODE}"
