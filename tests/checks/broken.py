"""Checkpoints that are built broken, each with the rule that must find it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import headscope
import headscope.errors
from headscope.checks.facts import CheckResult
from headscope.facts import Severity
from tests.edits import State, edit_json, edit_tensors
from tests.families import FAMILIES, Family
from tests.model.loading.test_quantized import save as save_packed
from tests.saving import save_safetensors

LABELS = {"0": "no", "1": "maybe", "2": "yes"}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
ENDS = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
    }
}
BYTES = {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}
NO_ENDS = {"<pad>": 1, "</s>": 2}
RIGHT = {"padding_side": "right", "pad_token": "<pad>", "eos_token": "</s>"}

Build = Callable[[Path], Path]
Edit = Callable[[State], State | None]
Change = Callable[[torch.Tensor], torch.Tensor]


def words(count: int, special: dict[str, int], **parts: Any) -> dict[str, Any]:
    """A `tokenizer.json` of that many ordinary words, whose special tokens have the given ids."""
    vocabulary = {f"w{number}": number for number in range(count) if number not in special.values()} | special
    added = [{"id": number, "content": token, "special": True} for token, number in special.items()]
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w8"}
    return {"version": "1.0", "added_tokens": added, "model": model} | parts


@dataclass(frozen=True)
class Case:
    """A checkpoint with what the rules are to say of it: the ids at warning or above, or at all for notes."""

    name: str
    build: Build
    profile: str
    expected: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path) -> CheckResult:
        """The result of the rules on what is built in the folder."""
        return self.check(self.build(folder))

    def check(self, place: Path) -> CheckResult:
        """The result of the rules."""
        return headscope.check(str(place), self.profile, offline=True, **self.options)

    def found(self, result: CheckResult) -> set[str]:
        """The ids that count: graver than a note, and those that were seeded; no head of the corpus was trained."""
        grave = {item.id for item in result.findings if item.severity is not Severity.NOTE} - {"HS502"}
        return grave | ({item.id for item in result.findings} & self.expected)


def saved(
    family: str,
    *,
    of: str = "classifier",
    config: dict[str, Any] | None = None,
    edit: Edit | None = None,
    tokenizer: dict[str, Any] | None = None,
    vocabulary: dict[str, Any] | None = None,
    save: Callable[..., None] = save_safetensors,
    **changes: Any,
) -> Build:
    """A builder: a small model is saved, then its tensors, configuration and tokenizer are changed."""

    def build(folder: Path) -> Path:
        chosen: Family = FAMILIES[family]
        labels = {} if of != "classifier" or "id2label" in changes or "num_labels" in changes else named(LABELS)
        model = chosen.build(getattr(chosen, of), **(chosen.pad_token | labels | changes))
        save(model, folder)
        if edit:
            edit_tensors(folder / "model.safetensors", edit)
        if config is not None:
            edit_json(folder / "config.json", config)
        if tokenizer is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        if vocabulary is not None:
            (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        return folder

    return build


def named(labels: dict[str, str]) -> dict[str, Any]:
    """The two label maps of a configuration."""
    return {
        "id2label": {int(key): name for key, name in labels.items()},
        "label2id": {name: int(key) for key, name in labels.items()},
    }


def padded_otherwise(family: str, configured: int, used: int) -> Build:
    """A tokenizer that pads with another id than the configuration names."""
    files = {"tokenizer": PLAIN | RIGHT, "vocabulary": words(60, {"<pad>": used, "</s>": 2})}
    return saved(family, config={"pad_token_id": configured}, **files)


def contradicted(**parts: Any) -> Build:
    """A `tokenizer.json` that pads or cuts otherwise than `tokenizer_config.json`."""
    settings = PLAIN | RIGHT | {"truncation_side": "right"}
    return saved("bert", tokenizer=settings, vocabulary=words(60, {"<pad>": 0, "</s>": 2}, **parts))


def fault(rule: str, name: str, build: Build, profile: str = "inference", *also: str, **options: Any) -> Case:
    """A seeded fault of one rule; `also` are the rules that are true of it too."""
    return Case(f"{rule}-{name}", build, profile, frozenset({rule, *also}), options)


HEADS = ("classifier", "score", "classification_head", "logits_proj", "sequence_summary", "pre_class")


def trained(state: State) -> None:
    """Heads as training leaves them: larger than their initialization, with a bias."""
    for key, value in state.items():
        if key.startswith(HEADS):
            state[key] = value * 3 + 0.01 * torch.arange(value.numel()).reshape(value.shape) / value.numel()


def served(rule: str, family: str, engine: str, *also: str) -> Case:
    """A healthy checkpoint that an engine serves in another way."""
    return fault(rule, f"{engine}-{family}", saved(family, edit=trained), "inference", *also, engine=engine)


def put(at: int | tuple[int, ...], value: float) -> Change:
    """A change of a tensor: another number, or a row of it."""

    def change(numbers: torch.Tensor) -> torch.Tensor:
        numbers[at] = value
        return numbers

    return change


def scaled(factor: float, dtype: torch.dtype = torch.float32) -> Change:
    """A change of a tensor: its numbers times another, in a dtype."""
    return lambda numbers: (numbers.double() * factor).to(dtype)


def changed(name: str, change: Change) -> Edit:
    """An edit that changes one tensor."""
    return lambda state: state | {name: change(state[name].clone())}


def filled(*names: str, value: float) -> Edit:
    """An edit that sets every element of some tensors."""
    return lambda state: state | {name: torch.full_like(state[name], value) for name in names}


def resized(name: str, *shape: int) -> Edit:
    """An edit that puts zeros of another shape in the place of a tensor."""
    return lambda state: state | {name: torch.zeros(shape)}


def dropped(start: str) -> Edit:
    """An edit that leaves some tensors out."""
    return lambda state: {key: value for key, value in state.items() if not key.startswith(start)}


def prefixed(prefix: str) -> Edit:
    """An edit that puts a prefix before every key."""
    return lambda state: {f"{prefix}{key}": value for key, value in state.items()}


def emptied(start: str) -> Edit:
    """An edit that leaves the placeholders of DeepSpeed ZeRO-3 in place of some tensors."""
    return lambda state: {
        key: torch.empty(0) if key.startswith(start) and value.is_floating_point() else value
        for key, value in state.items()
    }


def renamed(old: str, new: str) -> Edit:
    """An edit that gives some tensors another name."""
    return lambda state: {key.replace(old, new): value for key, value in state.items()}


def added(*names: str) -> Edit:
    """An edit that puts tensors beside those of the model, which no class has."""
    return lambda state: state | {name: torch.ones(4, 4) for name in names}


def fresh(state: State) -> None:
    """A classifier as it was before training."""
    for name in {"classifier.weight", "score.weight"} & state.keys():
        state[name] = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(3)) * 0.02
    if "classifier.bias" in state:
        state["classifier.bias"] = torch.zeros_like(state["classifier.bias"])


def adapter(family: str, edit: dict[str, Any] | None = None, **settings: Any) -> Build:
    """A LoRA adapter with its base model beside it; `edit` changes its configuration afterwards."""

    def build(folder: Path) -> Path:
        import peft
        import transformers

        chosen = FAMILIES[family]
        chosen.build(chosen.base, **chosen.pad_token).save_pretrained(folder / "base")
        model = getattr(transformers, chosen.classifier).from_pretrained(folder / "base", **named(LABELS))
        config = peft.LoraConfig(task_type="SEQ_CLS", r=2, **settings)
        peft.get_peft_model(model, config).save_pretrained(folder / "adapter")
        edit_json(folder / "adapter" / "adapter_config.json", (edit or {}))
        return folder / "adapter"

    return build


def quantized(packing: str, **settings: Any) -> Build:
    """A checkpoint whose layers are packed."""

    def build(folder: Path) -> Path:
        place = save_packed(folder, packing, **settings)
        changes = {"id2label": LABELS, "label2id": {}, "pad_token_id": 0}
        edit_json(place / "config.json", changes)
        return place

    return build


def heard(family: str, **settings: Any) -> Build:
    """A small classifier of sounds, of the classes whose forward always computes CrossEntropyLoss."""
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
        "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 12, "use_weighted_layer_sum": True,
        "num_feat_extract_layers": 2,
    }  # fmt: skip

    def build(folder: Path) -> Path:
        import transformers

        config = getattr(transformers, f"{family}Config")(**(sizes | settings))
        getattr(transformers, f"{family}ForSequenceClassification")(config).save_pretrained(folder)
        return folder

    return build


def with_dense(family: str, settings: dict[str, Any], shape: tuple[int, ...] = ()) -> Build:
    """A classifier with a Dense layer of sentence-transformers behind it, whose file may be missing or differ."""

    def build(folder: Path) -> Path:
        saved(family)(folder)
        modules = [
            {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"path": "1_Dense", "type": "sentence_transformers.base.modules.dense.Dense"},
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Dense").mkdir()
        (folder / "1_Dense" / "config.json").write_text(json.dumps(settings | {"bias": False}))
        if shape:
            save_file({"linear.weight": torch.zeros(shape)}, folder / "1_Dense" / "model.safetensors")
        return folder

    return build


def with_decision_head(**heats: float) -> Build:
    """A language model with a decision head beside it, and temperatures for some types of questions."""

    def build(folder: Path) -> Path:
        saved("qwen2", of="language_model")(folder)
        generator = torch.Generator().manual_seed(1)
        head = {"proj.weight": torch.randn(8, 32, generator=generator), "proj.bias": torch.ones(8)}
        save_file(head, folder / "head.safetensors")
        ranges = {"noul": [0, 2], "score": [2, 4], "choice": [4, 8]}
        slots = {"num_slots": 8, "ranges": ranges, "verbalizers": list("abcdefgh")}
        (folder / "judge_config.json").write_text(json.dumps({"slots": slots}))
        (folder / "calibration.json").write_text(json.dumps({"per_kind": heats}))
        return folder

    return build


def with_score_head(family: str, name: str) -> Build:
    """A language model with a head of two layers beside it, between which no file says what is computed."""
    more = {f"{name}.0.weight": torch.ones(8, 32), f"{name}.2.weight": torch.ones(1, 8)}
    return saved(family, of="language_model", edit=lambda state: state | more)
