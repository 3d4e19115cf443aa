"""Vectors that probe takes of small checkpoints, the module written of one, and probes of labeled rows."""

import importlib.util
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from labeled.trained import texts, write_csv
from probing import media, tiny

import headscope
from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.stored.location import Location
from headscope.core.model.loading.inference import audio_encoder, image_encoder
from headscope.slices.probe.data.media import Media
from headscope.slices.probe.facts.data import HeadInput, Loading
from headscope.slices.probe.facts.result import ProbeResult, Vector
from headscope.slices.probe.hidden.candidates import Vectors, classifier_of_model, list_vectors
from headscope.slices.probe.hidden.features import Reader, extract_features
from headscope.slices.probe.hidden.store import Features
from headscope.slices.probe.screen.code import probe_code
from tests.edits import edit_json, edit_tensors

TEXTS = tiny.texts(23)
LINES = [text for (text,) in TEXTS]
NAMES = ("negative", "neutral", "positive")
ROWS = [(text, NAMES[place]) for text, place in texts(3, 90)]
LABELS = ("a", 'b"\n', "\u202e")


@dataclass(frozen=True)
class Extracted:
    """A checkpoint, and the vectors of texts or files."""

    loading: Loading
    classifier: str
    features: Features

    @property
    def layers(self) -> int:
        return self.features.seen.layers - 1

    def vector(self, wanted: Vector | str) -> Vectors:
        """That of the last layer, of a kind or of a name."""
        return [item for item in list_vectors(self.features) if wanted in (item.pooling, item.name)][-1]

    def result(self, item: Vectors, **changes: Any) -> ProbeResult:
        """A result that advises a vector."""
        pooling = "first_token" if self.loading.input is Input.TEXT else "mean"
        head = HeadInput(self.loading.model_class, pooling, self.classifier)
        return replace(tiny.advised(item, self.layers, LABELS, head, self.loading), **changes)

    def module(self, wanted: Vectors | Vector | str, **changes: Any) -> Any:
        """The module that is written of it, imported."""
        item = wanted if isinstance(wanted, Vectors) else self.vector(wanted)
        folder = Path(self.loading.reference).parent
        place = folder / f"module{len(list(folder.glob('module*.py')))}.py"
        return imported(probe_code(self.result(item, **changes)), place)


def extracted(name: str, folder: Path, size: int = 8, given: Any = TEXTS) -> Extracted:
    """The vectors of texts."""
    model, tokenizer = tiny.load(folder, name)
    loading = Loading(str(folder), None, None, type(model).__name__, model.config.is_encoder_decoder)
    return _extracted(loading, Reader(model, tokenizer, torch.device("cpu")), given, size)


def extracted_files(name: str, folder: Path, paths: list[str], size: int = 4) -> Extracted:
    """The vectors of images or sounds."""
    class_name = type((media.IMAGES | media.SOUNDS)[name]()).__name__
    model = getattr(transformers, class_name).from_pretrained(folder).eval()
    kind, encoder = (Input.IMAGE, image_encoder) if name in media.IMAGES else (Input.AUDIO, audio_encoder)
    base = media.BASES.get(name, model.base_model_prefix)
    loading = Loading(str(folder), None, None, class_name, input=kind, base=base)
    read = Media(kind, encoder(Location(str(folder))))
    reader = Reader(model, None, torch.device("cpu"), media=read)
    return _extracted(loading, reader, [(path,) for path in paths], size)


def _extracted(loading: Loading, reader: Reader, given: Any, size: int) -> Extracted:
    classifier = classifier_of_model(headscope.inspect(loading.reference).head)
    assert isinstance(classifier, str)
    reader.classifier = classifier
    place = Path(tempfile.mkdtemp(prefix="features", dir=Path(loading.reference).parent))
    features = extract_features(reader, given, place, batch_size=size, tell=lambda step: None)
    return Extracted(loading, classifier, features)


def imported(text: str, place: Path) -> Any:
    """The module of a text, which is written to this place."""
    place.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configured(folder: Path, **fields: Any) -> Path:
    edit_json(folder / "config.json", fields)
    return folder


def add(folder: Path, key: str, number: float | torch.Tensor) -> Path:
    """The checkpoint after the number, or one for each place, was added to a tensor."""
    edit_tensors(folder / "model.safetensors", lambda state: state | {key: state[key] + number})
    return folder


def keep_tensors(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """A checkpoint that lacks all other tensors."""
    edit_tensors(folder / "model.safetensors", lambda state: {name: state[name] for name in state if is_kept(name)})


def keep_base_model(folder: Path) -> None:
    """The checkpoint of BERT as its base model alone is saved, under names without a prefix, and without a pooler."""
    base = transformers.BertModel.from_pretrained(folder)
    kept = {name: value for name, value in base.state_dict().items() if "pooler" not in name}
    base.save_pretrained(folder, state_dict=kept)


WORDS = {"pos": 20, "neg": 40, "mid": 60}


def rows_file(folder: Path) -> Path:
    """Texts whose words give their class away."""
    draw, rows = random.Random(0), []
    for _ in range(60):
        label, first = draw.choice(list(WORDS.items()))
        words = [f"w{draw.randrange(first, first + 25)}" for _ in range(draw.randint(3, 9))]
        rows.append((" ".join(words), label))
    return write_csv(folder / "rows.csv", rows)


def probed(model: Any, data: Path, **options: Any) -> ProbeResult:
    """`probe` of the columns `text` and `label`."""
    given = {"text_column": "text", "label_column": "label", "folds": 3} | options
    return headscope.probe(model, data=data, **given)


def command(model: Path, data: Path, *more: str) -> list[str]:
    """The words that ask for the same."""
    columns = ["--text-column", "text", "--label-column", "label", "--folds", "3"]
    return ["probe", str(model), "--data", str(data), *columns, *more]


def probed_files(model: Any, data: Path, input: str = "image", **options: Any) -> ProbeResult:
    """`probe` of the columns `file` and `label`."""
    given = {f"{input}_column": "file", "label_column": "label", "folds": 2} | options
    return headscope.probe(model, data=data, **given)
