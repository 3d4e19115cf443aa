"""Folders of open_clip: a zero-shot model, whose scores come from texts and not from a matrix of classes.

The layout is that of open_clip 3.3 (`push_to_hf_hub.py`): `open_clip_config.json`, with `open_clip_model.safetensors`
or `open_clip_pytorch_model.bin`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headscope.checkpoints.contents.weights import FileStorage, read_weight_file
from headscope.checkpoints.foreign.values import mapping, text, whole
from headscope.checkpoints.formats.config_file import parse_object
from headscope.facts import Gap, GapTopic, TensorHeader
from headscope.facts.exports.export import ExportHead, ExportStep, HeadBasis, Inventoried, Setting, contents_of

KNOWLEDGE = "open_clip_config.json and the tensors' headers; nothing was run"
_CONFIG = "open_clip_config.json"
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_SCALE, _SHIFT = "logit_scale", "logit_bias"
_PROJECTIONS = ("visual.proj", "text_projection", "text.text_projection", "visual.head.proj.weight")


def refuse_open_clip(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Inventoried, with what makes the scores, for a folder of open_clip."""
    if _CONFIG not in names:
        return
    model = mapping(parse_object(storage.read_text(_CONFIG), _CONFIG).get("model_cfg"))
    file = next((name for name in _WEIGHTS if name in names), None)
    weights = read_weight_file(storage, file) if file is not None else None
    tensors = weights.tensors if weights is not None else ()
    width = whole(model.get("embed_dim"))
    raise Inventoried(
        f"{reference} is a zero-shot model of open_clip: it compares images with texts, and holds no matrix of classes",
        "load it with that library: pip install open_clip_torch; open_clip.create_model_and_transforms("
        f"{f'local-dir:{reference}'!r}). The texts that you encode are the classes",
        contents_of(
            reference,
            f"open_clip, embeddings of {width:,}" if width is not None else "open_clip",
            tensors,
            format_name=weights.format.value if weights is not None else "none",
            bytes_read=weights.bytes_read if weights is not None else 0,
            settings=tuple(_settings(model)),
            head=read_zero_shot(model, tensors, file or ""),
        ),
    )


def _settings(model: Mapping[str, Any]) -> Iterator[Setting]:
    width = whole(model.get("embed_dim"))
    if width is not None:
        yield Setting("embed_dim", str(width))
    for name in ("vision_cfg", "text_cfg"):
        part = mapping(model.get(name))
        found = text(part.get("timm_model_name")) or text(part.get("hf_model_name"))
        if found:
            yield Setting(name, found)


def read_zero_shot(model: Mapping[str, Any], tensors: tuple[TensorHeader, ...], file: str) -> ExportHead:
    """How the scores of a zero-shot model come about, with the tensors that scale them."""
    by_key = {item.key: item for item in tensors}
    used = tuple(by_key[name] for name in (_SCALE, _SHIFT) if name in by_key)
    steps = [ExportStep("normalize"), ExportStep("matmul", detail="of the image's vector with the vector of each text")]
    steps += [ExportStep("mul", (_SCALE,), "by its exponential")] if _SCALE in by_key else []
    steps += [ExportStep("add", (_SHIFT,))] if _SHIFT in by_key else []
    projections = tuple(by_key[name] for name in _PROJECTIONS if name in by_key)
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=None,
        pooling_rule="that of the image and the text encoder",
        steps=tuple(steps),
        tensors=(*used, *projections),
        classes=None,
        labels=(),
        knowledge=KNOWLEDGE,
        notes=("zero-shot: each text that you give is a class, so the checkpoint holds no class matrix and no labels",),
        not_determined=tuple(_gaps(model, by_key, projections, file)),
    )


def _gaps(
    model: Mapping[str, Any], by_key: Mapping[str, TensorHeader], projections: tuple[TensorHeader, ...], file: str
) -> Iterator[Gap]:
    yield Gap(GapTopic.POOLING, "open_clip's code was not traced")
    width = whole(model.get("embed_dim"))
    if width is None:
        yield Gap("embed_dim", f"{_CONFIG} names none")
    if not file:
        yield Gap("weights", f"the folder holds neither {' nor '.join(_WEIGHTS)}")
        return
    if _SCALE not in by_key:
        yield Gap(_SCALE, f"{file} holds no tensor named {_SCALE}")
    for item in projections:
        if width is not None and len(item.shape) == 2 and width not in item.shape:
            sizes = " x ".join(f"{size:,}" for size in item.shape)
            yield Gap("embed_dim", f"{_CONFIG} says {width:,}, and {item.key} is {sizes}")
