"""Classes that Transformers doesn't have, as people write them: a backbone of Transformers, and a head of their own.

`python -m tests.verdicts.own_classes` saves each with `save_pretrained`, loads and runs it by its own code and as a
stock class, and prints where `check`, `scan` or `verify` say something else than the scores do.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

import headscope
from tests.verdicts.runs import small_model
from tests.verdicts.surfaces import Said, _said, _scanned

BACKBONES = {
    "Bert": "BertModel", "Roberta": "RobertaModel", "DistilBert": "DistilBertModel", "DebertaV2": "DebertaV2Model",
    "Electra": "ElectraModel", "GPT2": "GPT2Model", "ModernBert": "ModernBertModel", "Albert": "AlbertModel",
    "ViT": "ViTModel", "Wav2Vec2": "Wav2Vec2Model",
}  # fmt: skip
_TASKS = {"ViT": "ImageClassification"}
_STOCK = {"GPT2": "score"}
"""The name of the stock classifier, where it isn't `classifier`."""


Parts = Callable[[int, int], dict[str, Any]]
Scores = Callable[[Any, Any], torch.Tensor]


def _first(model: Any, states: Any) -> torch.Tensor:
    return states[0][:, 0]


def _random_norm(size: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(size)
    norm.weight.data.normal_(1, 0.5)
    return norm


_HEADS: dict[str, tuple[Parts, Scores]] = {
    "LSTM": (
        lambda size, labels: {"lstm": nn.LSTM(size, size // 2, bidirectional=True, batch_first=True)},
        lambda m, s: m.head(m.lstm(s[0])[0][:, 0]),
    ),
    "GRU": (
        lambda size, labels: {"gru": nn.GRU(size, size, batch_first=True)},
        lambda m, s: m.head(m.gru(s[0])[0][:, -1]),
    ),
    "MLP": (
        lambda size, labels: {"mlp": nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))},
        lambda m, s: m.head(m.mlp(_first(m, s))),
    ),
    "MeanPooling": (lambda size, labels: {}, lambda m, s: m.head(s[0].mean(1))),
    "MultiSampleDropout": (
        lambda size, labels: {},
        lambda m, s: sum(m.head(nn.functional.dropout(_first(m, s), 0.5, m.training)) for _ in range(4)) / 4,
    ),
    "Conv": (
        lambda size, labels: {"conv": nn.Conv1d(size, size, 3, padding=1)},
        lambda m, s: m.head(m.conv(s[0].transpose(1, 2)).amax(2)),
    ),
    "AttentionPooling": (
        lambda size, labels: {"attention": nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1))},
        lambda m, s: m.head((m.attention(s[0]).softmax(1) * s[0]).sum(1)),
    ),
    "WeightedLayers": (
        lambda size, labels: {"layer_weights": nn.Parameter(torch.randn(8))},
        lambda m, s: m.head(
            sum(w * h[:, 0] for w, h in zip(m.layer_weights.softmax(0), s.hidden_states, strict=False))
        ),
    ),
    "ExtraNorm": (
        lambda size, labels: {"norm_of_pooled": _random_norm(size)},
        lambda m, s: m.head(m.norm_of_pooled(_first(m, s))),
    ),
    "TwoHeads": (
        lambda size, labels: {"second_classifier": nn.Linear(size, labels)},
        lambda m, s: m.head(_first(m, s)) + m.second_classifier(s[0].mean(1)),
    ),
    "Features": (
        lambda size, labels: {"feature_embedding": nn.Embedding(5, size)},
        lambda m, s: m.head(_first(m, s) + m.feature_embedding.weight.mean(0)),
    ),
    "Normalized": (
        lambda size, labels: {"mean": nn.Buffer(torch.tensor([0.5])), "std": nn.Buffer(torch.tensor([2.0]))},
        lambda m, s: (m.head(_first(m, s)) - m.mean) / m.std,
    ),
    "CRF": (
        lambda size, labels: {
            "crf": nn.ParameterDict(
                {"transitions": torch.randn(labels, labels), "start_transitions": torch.randn(labels)}
            )
        },
        lambda m, s: m.head(s[0]) + m.crf.start_transitions + m.crf.transitions.sum(0),
    ),
}
"""What a head has beside the last layer, and the scores of a model on its hidden states."""
_OF_TOKENS = ("CRF",)


def own_class(backbone: str, head: str) -> Any:
    """A class of a backbone and a head, as a person would write it."""
    base = getattr(transformers, f"{backbone}PreTrainedModel")
    parts, scores = _HEADS[head]
    is_of_tokens = head in _OF_TOKENS
    result: Any = TokenClassifierOutput if is_of_tokens else SequenceClassifierOutput

    class Own(base):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.num_labels = config.num_labels
            setattr(self, base.base_model_prefix, getattr(transformers, BACKBONES[backbone])(config))
            size = config.hidden_size
            setattr(self, _STOCK.get(backbone, "classifier"), nn.Linear(size, config.num_labels))
            for name, part in parts(size, config.num_labels).items():
                setattr(self, name, part)
            self.post_init()

        @property
        def head(self) -> Any:
            return getattr(self, _STOCK.get(backbone, "classifier"))

    def forward(self: Any, **given: Any) -> Any:
        states = getattr(self, base.base_model_prefix)(output_hidden_states=True, **given)
        return result(logits=scores(self, states))

    def of_texts(self: Any, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **rest: Any) -> Any:
        return forward(self, input_ids=input_ids, attention_mask=attention_mask)

    def of_images(self: Any, pixel_values: Any = None, labels: Any = None, **rest: Any) -> Any:
        return forward(self, pixel_values=pixel_values)

    def of_sounds(
        self: Any, input_values: Any = None, attention_mask: Any = None, labels: Any = None, **rest: Any
    ) -> Any:
        return forward(self, input_values=input_values)

    Own.forward = {"Wav2Vec2": of_sounds, "ViT": of_images}.get(backbone, of_texts)  # type: ignore[method-assign]
    task = "TokenClassification" if is_of_tokens else _TASKS.get(backbone, "SequenceClassification")
    Own.__name__ = Own.__qualname__ = f"{backbone}{head}For{task}"
    Own.__module__ = __name__
    return Own


CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for at, backbone in enumerate(BACKBONES)
    for number, head in enumerate(_HEADS)
    if (at + number) % 2 == 0 and not (head in _OF_TOKENS and backbone in _TASKS | {"Wav2Vec2": ""})
    for cls in (own_class(backbone, head),)
}
globals().update(CLASSES)


@dataclass(frozen=True)
class OwnJudged:
    """Whether a stock load gives the class's own scores, and what each surface says, without and with its code."""

    name: str
    is_same: bool
    without: dict[str, Said]
    given: dict[str, Said]

    def wrong(self) -> Iterator[str]:
        """A line for each surface that is wrong: a pass where scores differ, anything else than one with the code."""
        for surface, (verdict, reason) in self.without.items():
            if verdict == "crashed" or (verdict == "passed" and not self.is_same):
                yield f"{self.name}: {surface} says {verdict} ({reason[:200]}); the same scores: {self.is_same}"
        for surface, (verdict, reason) in self.given.items():
            if verdict != "passed":
                yield f"{self.name}: with its code, {surface} says {verdict} ({reason[:300]})"


def write_own(name: str, folder: Path) -> Any:
    """A model of a class with random values, trained enough to tell classes apart, in a folder."""
    torch.manual_seed(len(name))
    kind = "sound" if name.startswith("Wav2Vec2") else "image" if name.startswith("ViT") else "text"
    labels = dict(enumerate(("no", "maybe", "yes")))
    back = {value: key for key, value in labels.items()}
    model = small_model(CLASSES[name], kind, id2label=labels, label2id=back)
    nn.init.normal_(model.head.bias, 0, 0.1)
    model.eval().save_pretrained(folder)
    return model


def _inputs(model: Any, name: str) -> dict[str, torch.Tensor]:
    if name.startswith("ViT"):
        return {"pixel_values": torch.randn(4, 3, 32, 32)}
    if name.startswith("Wav2Vec2"):
        return {"input_values": torch.randn(4, 4000)}
    ids = torch.randint(5, 90, (4, 9))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def judge_own(name: str, folder: Path) -> OwnJudged:
    """Saves a class, finds out what a stock load gives, and asks every surface."""
    model = write_own(name, folder)
    inputs = _inputs(model, name)
    task = name.partition("For")[2]
    auto = "AudioClassification" if name.startswith("Wav2Vec2") else task
    stock = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(folder, ignore_mismatched_sizes=True)
    with torch.no_grad():
        own, other = model(**inputs).logits, stock.eval()(**inputs).logits
    place, code = str(folder), f"{__name__}:{name}"
    without = {
        "check": _said(lambda: headscope.check(place, "inference")),
        "scan": _scanned(place),
        "live": _said(lambda: headscope.check(stock, "inference", loaded_from=place)),
        "verify": _said(lambda: headscope.verify(stock, place)),
    }
    given = {
        "check": _said(lambda: headscope.check(place, "inference", model_class=code)),
        "verify": _said(lambda: headscope.verify(model, place)),
    }
    is_same = own.shape == other.shape and torch.allclose(own, other, atol=1e-5)
    return OwnJudged(name, is_same, without, given)


if __name__ == "__main__":
    for each in sys.argv[1:] or CLASSES:
        from tests.verdicts import own_classes  # the classes as others import them, not those of __main__

        with tempfile.TemporaryDirectory() as place:
            found = own_classes.judge_own(each, Path(place))
        said = {surface: verdict for surface, (verdict, _) in found.without.items()}
        print(each, "same" if found.is_same else "other", said, *found.wrong(), sep="\n    ", flush=True)
