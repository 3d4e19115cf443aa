"""The table: number formats x the ways in which a head, a base, a tokenizer or an adapter can be unable to answer.

Nothing here says what is broken: `truth.py` loads and runs each. A case that a way leaves able to answer, such as a
format that can't hold what the way writes, counts as healthy.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import save_file
from tokenizers.processors import BertProcessing

from tests.scorers import word_tokenizer
from tests.verdicts.models import FAMILIES, PAD, TEXTS, WORDS, Trained, config_of, state_of, trained

State = dict[str, torch.Tensor]
Edit = Callable[[State, dict[str, Any]], None]
Beside = Callable[[Path], None]
FORMATS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
_HEADS = ("classifier", "score", "qa_outputs", "out_proj")


@dataclass(frozen=True)
class Case:
    """A checkpoint to write. `is_whole` says that it must answer as the trained model did, to rounding."""

    name: str
    family: str
    edit: Edit | None = None
    beside: Beside | None = None
    store: str = "safetensors"
    classes: int = 3
    is_whole: bool = True
    adapter: Callable[[Trained, Path], None] | None = None

    @property
    def made(self) -> Trained:
        """The trained classifier that the case starts from."""
        return trained(self.family, self.classes)

    def write(self, folder: Path) -> Path:
        """Writes the checkpoint and returns what to name."""
        state, config = state_of(self.made), config_of(self.made)
        if self.edit is not None:
            self.edit(state, config)
        place = folder / "base" if self.adapter else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        _STORES[self.store](state, place)
        if self.beside is not None:
            self.beside(place)
        if self.adapter is None:
            return place
        self.adapter(self.made, folder / "adapter")
        return folder / "adapter"


def _as_safetensors(state: State, file: Path) -> None:
    save_file({name: value.contiguous() for name, value in state.items()}, file, {"format": "pt"})


def _as_shards(state: State, place: Path) -> None:
    names = list(state)
    parts = {f"model-0000{at + 1}-of-00002.safetensors": names[at::2] for at in range(2)}
    for file, keys in parts.items():
        _as_safetensors({key: state[key] for key in keys}, place / file)
    index = {"metadata": {}, "weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


_STORES: dict[str, Callable[[State, Path], None]] = {
    "safetensors": lambda state, place: _as_safetensors(state, place / "model.safetensors"),
    "torch": lambda state, place: torch.save(state, place / "pytorch_model.bin"),
    "sharded": _as_shards,
}


def last_of(state: State) -> tuple[str, str]:
    """The names of the last weight and of its bias."""
    names = [name for name in state if name.endswith(".weight") and any(part in name.split(".") for part in _HEADS)]
    return names[-1], names[-1].removesuffix("weight") + "bias"


def _of_head(
    weight: Callable[[torch.Tensor], torch.Tensor], bias: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Edit:
    def edit(state: State, config: dict[str, Any]) -> None:
        name, other = last_of(state)
        state[name] = weight(state[name].double())
        if other in state:
            state[other] = (bias or (lambda value: value))(state[other].double())

    return edit


def _filled(at: tuple[Any, ...], value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[at] = value
        return changed

    return fill


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


_NAN, _INF = float("nan"), float("inf")
_OF_HEAD: dict[str, Edit] = {
    "equal-rows": _of_head(lambda weight: weight[:1].expand_as(weight).clone()),
    "zeros": _of_head(torch.zeros_like, torch.zeros_like),
    "zero-weight": _of_head(torch.zeros_like),
    "nan": _of_head(_filled((...,), _NAN)),
    "nan-in-last-row": _of_head(_filled((-1, -1), _NAN)),
    "infinite-weight": _of_head(_filled((0, 0), _INF)),
    "infinite-bias": _of_head(_same, _filled((0,), _INF)),
    "nan-bias": _of_head(_same, _filled((-1,), _NAN)),
    "all-1e300": _of_head(lambda weight: weight * 1e300),
    "all-1e-300": _of_head(lambda weight: weight * 1e-300),
    "all-1e-40": _of_head(lambda weight: weight * 1e-40),
    "all-1e-12": _of_head(lambda weight: weight * 1e-12),
    "all-1e38": _of_head(lambda weight: weight.sign() * 3e38),
    "bias-1e30": _of_head(_same, _filled((0,), 1e30)),
    "as-it-is": _of_head(_same),
    "times-100": _of_head(lambda weight: weight * 100),
}
_ROTATION = ("bert", "gpt2", "roberta", "distilbert", "llama", "electra", "vit", "tokens")


def _in_format(edit: Edit, dtype: torch.dtype) -> Edit:
    def changed(state: State, config: dict[str, Any]) -> None:
        edit(state, config)
        for name in last_of(state):
            if name in state:
                state[name] = state[name].to(dtype)
        if dtype.is_floating_point and dtype.itemsize == 2:
            config["dtype"] = str(dtype).removeprefix("torch.")

    return changed


def heads() -> Iterator[Case]:
    """Number formats x ways in which a head can't answer."""
    at = 0
    for (name, dtype), (way, edit) in product(FORMATS.items(), _OF_HEAD.items()):
        if dtype.is_floating_point or not ("nan" in way or "inf" in way or "1e" in way):
            family = _ROTATION[at % len(_ROTATION)]
            at += 1
            store = "torch" if at % 5 == 0 else "sharded" if at % 7 == 0 else "safetensors"
            case = f"head {way} {name} {family} {store}"
            yield Case(case, family, _in_format(edit, dtype), store=store, is_whole=False)


def _every(part: str, change: Callable[[torch.Tensor], torch.Tensor], end: str = "") -> Edit:
    def edit(state: State, config: dict[str, Any]) -> None:
        found = [name for name in state if part in name and name.endswith(end)]
        assert found, (part, list(state))
        for name in found:
            state[name] = change(state[name])

    return edit


def first(part: str, at: tuple[Any, ...], value: float, dtype: torch.dtype | None = None) -> Edit:
    """Other numbers in the first tensor with this part in its name."""

    def edit(state: State, config: dict[str, Any]) -> None:
        name = next(name for name in state if part in name)
        state[name] = _filled(at, value)(state[name].to(dtype or state[name].dtype))

    return edit


def inner_heads() -> Iterator[Case]:
    """Layers of the head before the last."""
    dense = {
        "bert": "pooler.dense",
        "roberta": "classifier.dense",
        "distilbert": "pre_classifier",
        "electra": "classifier.dense",
        "deberta": "pooler.dense",
        "mpnet": "classifier.dense",
        "modernbert": "head.dense",
    }
    for family, part in dense.items():
        yield Case(f"dense zeros {family}", family, _every(part, torch.zeros_like), is_whole=False)
        yield Case(f"dense nan {family}", family, first(f"{part}.weight", (-1, -1), _NAN), is_whole=False)
        if family != "modernbert":
            low = _every(f"{part}.bias", lambda bias: torch.full_like(bias, -1e9))
            yield Case(f"dense bias -1e9 {family}", family, low, is_whole=False)
    yield Case("norm zeros modernbert", "modernbert", _every("head.norm", torch.zeros_like), is_whole=False)


_BASES = {  # the layers, the embeddings, and norms whose scales can be lost
    "bert": ("encoder.layer", "word_embeddings", "output.LayerNorm"),
    "roberta": ("encoder.layer", "word_embeddings", "layer.1.output.LayerNorm"),
    "gpt2": ("transformer.h.", "wte", "ln_f"),
    "llama": ("model.layers", "embed_tokens", "model.norm"),
    "distilbert": ("transformer.layer", "word_embeddings", "norm"),
    "vit": ("layer", "patch_embeddings", "layernorm"),
}


def bases() -> Iterator[Case]:
    """Values of the base model."""
    for at, (family, (layers, embeddings, norms)) in enumerate(_BASES.items()):
        store = ("safetensors", "torch", "sharded")[at % 3]
        ways = {
            "base one nan": first(layers, (-1,), _NAN),
            "base infinity": first(layers, (0,), _INF),
            "base 1e300": first(layers, (0,), 1e300, torch.float64),
            "base all zeros": _zero_base,
            "base scales zeros": _every(norms, torch.zeros_like, "weight"),
            "embeddings nan": _every(embeddings, lambda value: value * _NAN, "weight"),
            "embeddings zeros": _every(embeddings, torch.zeros_like),
        }
        for way, edit in ways.items():
            yield Case(f"{way} {family} {store}", family, edit, store=store, is_whole=False)


def _zero_base(state: State, config: dict[str, Any]) -> None:
    for name in state:
        if not any(part in name.split(".") for part in (*_HEADS, "pooler", "pre_classifier")):
            state[name] = torch.zeros_like(state[name])


def with_settings(**settings: Any) -> Edit:
    """Other fields of the configuration."""

    def edit(state: State, config: dict[str, Any]) -> None:
        config.update(settings)

    return edit


def dropped() -> Iterator[Case]:
    """Tensors of the base model that the configured class doesn't take."""
    for family in ("bert", "roberta", "electra", "gpt2", "llama", "qwen", "distilbert", "vit", "opt"):
        field = {"gpt2": "n_layer", "distilbert": "n_layers"}.get(family, "num_hidden_layers")
        yield Case(f"dropped layer {family}", family, with_settings(**{field: 1}))
    for field in ("attention_bias", "mlp_bias"):
        yield Case(f"dropped by {field} llama", "llama-biases", with_settings(**{field: False}))
        yield Case(f"dropped by {field} modernbert", "modernbert-biases", with_settings(**{field: False}))
    yield Case("dropped by qkv_bias vit", "vit", with_settings(qkv_bias=False))
    yield Case("dropped by relative_attention", "deberta-relative", with_settings(relative_attention=False))
    yield Case("mask token that no score needs", "dinov2-mask", with_settings(use_mask_token=False))
    yield Case("dropped weights of a position", "bert", with_settings(max_position_embeddings=12))


def without(part: str) -> Edit:
    """The tensors with this part in their names are lost."""

    def edit(state: State, config: dict[str, Any]) -> None:
        gone = [name for name in state if part in name]
        assert gone
        for name in gone:
            del state[name]

    return edit


def missing() -> Iterator[Case]:
    """Tensors that the checkpoint doesn't give."""
    for family, part in {
        "bert": "classifier",
        "roberta": "classifier.out_proj",
        "gpt2": "score",
        "llama": "score",
        "vit": "classifier",
        "electra": "classifier.dense",
    }.items():
        yield Case(f"missing {part} {family}", family, without(part))
    yield Case("missing bias of the head", "bert", without("classifier.bias"))
    yield Case("missing pooler", "bert", without("pooler"))
    yield Case("missing layer", "bert", without("layer.1."))
    yield Case("another class count", "bert", with_settings(num_labels=5))
    yield Case("missing embeddings", "roberta", without("word_embeddings"))


def _tokenizer(words: int = WORDS, pad: int = PAD, side: str = "right") -> Beside:
    def write(place: Path) -> None:
        special = {pad: "[PAD]", 0: "[UNK]", 2: "[CLS]", 3: "[SEP]"}
        made = word_tokenizer((special.get(at, f"w{at}") for at in range(words)), padding_side=side)
        made.backend_tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        made.save_pretrained(place)

    return write


def tokenizers() -> Iterator[Case]:
    """Tokenizers that fit, and that don't."""
    for family in TEXTS:
        if family != "qwen":  # its class has rules of its own for texts
            classes = 2 if family == "answers" else 3
            yield Case(f"tokenizer that fits {family}", family, beside=_tokenizer(), classes=classes)
    for family in ("gpt2", "llama", "mistral", "opt"):
        yield Case(f"tokenizer pads with another id {family}", family, beside=_tokenizer(pad=6))
        short = _tokenizer(pad=5, side="left" if family == "opt" else "right")
        yield Case(f"tokenizer pads with another id, short {family}", family, beside=short)
    for family in ("bert", "roberta", "gpt2", "llama", "distilbert", "electra"):
        yield Case(f"tokenizer with too many words {family}", family, beside=_tokenizer(words=120))


def all_broken() -> tuple[Case, ...]:
    """Every case that a way meant to break; what `truth.py` finds able to answer is weighed as healthy."""
    from tests.verdicts.adapted import broken_adapters

    return (
        *heads(),
        *inner_heads(),
        *bases(),
        *dropped(),
        *missing(),
        *(case for case in tokenizers() if "fits" not in case.name),
        *broken_adapters(),
    )


def _cast(dtype: torch.dtype) -> Edit:
    def edit(state: State, config: dict[str, Any]) -> None:
        for name, value in state.items():
            if value.is_floating_point():
                state[name] = value.to(dtype)
        config["dtype"] = str(dtype).removeprefix("torch.") if dtype.itemsize < 8 else "float32"

    return edit


def _extra_rows(state: State, config: dict[str, Any]) -> None:
    """A vocabulary padded to a multiple, as people do for speed."""
    name = next(name for name in state if "word_embeddings" in name or "wte" in name or "embed_tokens" in name)
    state[name] = torch.cat([state[name], torch.zeros(32, state[name].shape[1])])
    config["vocab_size"] = 128


def all_healthy() -> tuple[Case, ...]:
    """Checkpoints that work."""
    from tests.verdicts.adapted import healthy_adapters

    return (
        *_formats_of_healthy(),
        *_counts_of_healthy(),
        *(case for case in tokenizers() if "fits" in case.name),
        *healthy_adapters(),
    )


def _formats_of_healthy() -> Iterator[Case]:
    for family in FAMILIES:
        classes = 2 if family == "answers" else 3
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            for store in _STORES:
                name = f"{family} {str(dtype).removeprefix('torch.')} {store}"
                yield Case(name, family, _cast(dtype), store=store, classes=classes)


def _counts_of_healthy() -> Iterator[Case]:
    for family in FAMILIES:
        if family != "answers":
            for classes in (1, 2, 5) if family != "tokens" else (2, 5):
                yield Case(f"{family} with {classes} classes", family, classes=classes)
    for family in ("bert", "gpt2", "llama", "roberta"):
        yield Case(f"{family} with a padded vocabulary", family, _extra_rows, beside=_tokenizer())


class Named(Protocol):
    """A case of any of the tables."""

    @property
    def name(self) -> str: ...


NamedCase = TypeVar("NamedCase", bound=Named)


def sampled(cases: Sequence[NamedCase], every: int, seed: int = 0) -> tuple[NamedCase, ...]:
    """One of every so many, the same ones in each run."""
    return tuple(case for case in cases if zlib.crc32(f"{seed}{case.name}".encode()) % every == 0)
