"""The structures of `write_shipped.py`: the checkpoints that people use most, examined for any number of classes."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import save
from transformers import AutoConfig
from write_shipped import folders_of_model, folders_of_type

from headscope.checkpoints import read_manifest
from headscope.checkpoints.contents.tokenizer_file import FirstToken
from headscope.checkpoints.formats.dtypes import SAFETENSORS
from headscope.examination.base import tracing
from headscope.examination.base.default_class import read_default_class
from headscope.examination.base.request import Request
from headscope.examination.base.tracing import Traced, padding_effects, trace_checkpoint
from headscope.examination.checkpoint.examining import examine_manifest
from headscope.examination.checkpoint.shipped_structures import (
    LABEL_FIELDS,
    SILENT_FIELDS,
    ClassCount,
    filled,
    member_of,
    stored_as,
)
from headscope.examination.checkpoint.structure import Remembered
from headscope.facts import CheckpointKind, CheckpointManifest, PaddingEffect, TensorHeader, WeightFile, WeightsFormat
from headscope.facts.plain import store
from headscope.facts.stored.location import HubOptions, Location
from headscope.model.classes.labels import placeholders
from headscope.model.classes.model_request import Choice
from headscope.model.quiet import quiet
from headscope.model.tokenizers import special_tokens_of
from headscope.upstream.torch import on_meta

MANY = (3, 5, 12)
"""The class counts that the rule of any number is made from: a straight line through the first two has to hold."""
_HEADS = ("sequence_classification", "token_classification", "image_classification", "audio_classification")
_FILE = "model.safetensors"
_LANGUAGE_MODELS = ("pretraining", "masked_lm", "causal_lm", "seq_to_seq_causal_lm")
_MOST_LANGUAGE_MODELS = 2
Answer = tuple[list[Any], Any]


class Unfit(Exception):
    """What depends on the number of classes in a way that no rule tells."""


def structures_of(size: tuple[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The parts and entries of one configuration: its base model, its language models, and its classifiers."""
    model_type, fields = size[0], dict(size[1])
    dtype = getattr(torch, fields.pop("dtype", "float32"))
    make = partial(AutoConfig.for_model, model_type, **fields)
    found: list[tuple[str, dict[str, Any]]] = []
    _TRACES.clear()
    _EFFECTS.clear()
    language_models = _classes(make(), _LANGUAGE_MODELS)[:_MOST_LANGUAGE_MODELS]
    for cls in dict.fromkeys((*_classes(make(), ("model",)), *language_models)):
        found += _entries([partial(_manifest, cls, make, dtype)], asked=True)
    for cls in _classes(make(), _HEADS):
        found += _entries([partial(_manifest, cls, make, dtype)])
        for problem in (None, "single_label_classification"):
            if problem is None or "TokenClassification" not in cls.__name__:
                saved = partial(_manifest, cls, make, dtype, problem=problem)
                counts = [count for count in (1, 2, *MANY) if problem is None or count > 1]
                found += _entries([partial(saved, count=count) for count in counts])
    return found


def structures_of_snapshot(reference: str) -> list[tuple[str, dict[str, Any]]]:
    """The part and the entry of a bundled snapshot."""
    manifest = replace(read_manifest(Location(reference, hub=HubOptions(offline=True))), notices=())
    config = AutoConfig.for_model(str(manifest.config["model_type"]))
    with quiet(), on_meta():
        folders = folders_of_model(_classes(config, ("model",))[0](config)) | folders_of_type(config.model_type)
    _TRACES.clear()
    return list(_entries([lambda: (manifest, folders)], asked="id2label" not in manifest.config))


def classes_of_family(names: Sequence[str]) -> dict[str, Any]:
    """The entries of classes in their default configuration, by their names; those that can't be traced have none."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            request = Request(Location(name), prove=True)
            manifest = read_default_class(request)
            answers = list(_answers("stated", {_stated_count(manifest): _examined(manifest, request, None)}, None))
            model_type = str(manifest.config["model_type"])
            with quiet(), on_meta():
                model = getattr(transformers, name)(AutoConfig.for_model(model_type))
        except Exception:  # whatever a class raises that can't be made by default
            continue
        own = {field: value for field, value in manifest.config.items() if field not in (*LABEL_FIELDS, *SILENT_FIELDS)}
        found[name] = {
            "labels": [field in manifest.config for field in LABEL_FIELDS],
            "config": own,
            "rest": {field: value for field, value in manifest.config.items() if field not in own},
            "by_default": [],
            "notices": manifest.notices,
            "stored": stored_as(manifest),
            "tensors": [],
            "folders": sorted(folders_of_model(model) | folders_of_type(model_type)),
            "base": answers[0][1],
            "answers": [{"for": key, "changes": []} for key, _ in answers],
        }
    return found


def _stated_count(manifest: CheckpointManifest) -> int | None:
    return len(manifest.config["id2label"]) if "id2label" in manifest.config else None


def _classes(config: Any, mappings: Sequence[str]) -> list[Any]:
    """The class of each of Transformers' mappings for a configuration, each once."""
    found: dict[Any, None] = {}
    for name in mappings:
        mapping = getattr(transformers, "MODEL_MAPPING" if name == "model" else f"MODEL_FOR_{name.upper()}_MAPPING")
        item = mapping.get(type(config), None)
        for cls in item if isinstance(item, tuple) else (item,):
            if cls is not None:
                found[cls] = None
    return list(found)


def _manifest(
    cls: Any, make: Callable[[], Any], dtype: torch.dtype, count: int | None = None, problem: str | None = None
) -> tuple[CheckpointManifest, set[str]]:
    """What `save_pretrained` writes of a class, without numbers, and the folders of its sources."""
    import transformers.modeling_utils as saving

    config = make()
    if count is not None:
        # the default names of the default count would not be written
        names = placeholders(count) if count != config.num_labels else map("class {}".format, range(count))
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in config.id2label.items()}
    if problem is not None:
        config.problem_type = problem
    written: dict[str, torch.Tensor] = {}

    def keep(tensors: dict[str, torch.Tensor], filename: str, metadata: Any = None) -> None:
        if written or Path(filename).name != _FILE:
            raise ValueError("more than one file")
        written.update(tensors)

    with quiet(), on_meta():
        model = cls(config).to(dtype)
    with quiet(), tempfile.TemporaryDirectory() as folder, patch.object(saving, "safe_save_file", keep):
        model.save_pretrained(folder)
        parsed = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    header = _header_in_order(written)
    return CheckpointManifest(
        reference="shipped",
        kind=CheckpointKind.LOCAL,
        format=WeightsFormat.SAFETENSORS,
        parsed_config=parsed,
        tensors=tuple(TensorHeader(key, kind, shape, _FILE) for key, kind, shape in header),
        files=(WeightFile(_FILE, 1),),
    ), folders_of_model(model) | folders_of_type(config.model_type)


def _header_in_order(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Key, dtype and shape of tensors in the order in which safetensors writes them, asked with empty ones."""
    blob = save({key: torch.empty(0, dtype=value.dtype) for key, value in tensors.items()})
    names = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    return [
        (key, SAFETENSORS[names[key]["dtype"]][0], tuple(tensors[key].shape)) for key in names if key != "__metadata__"
    ]


def _entries(makers: Sequence[Any], *, asked: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entry of one saved checkpoint, or of its saves with several class counts; none where nothing can be said."""
    made = [make() for make in makers]
    manifests = [manifest for manifest, _ in made]
    first, folders = made[0]
    counts = list(map(_stated_count, manifests))
    own = FirstToken(special_tokens_of(str(first.config["model_type"])).first)
    answers: list[Answer] = []
    for token in (None, own):
        few = (1, 2, *(MANY if token is None else MANY[:2]))
        stated = [_examined(item, Request(Location("shipped"), prove=True), token) for item in manifests]
        answers += _answers("stated", dict(zip(counts, stated, strict=True)), token)
        if asked and counts == [None]:
            asked_for = {
                count: _examined(first, Request(Location("shipped"), prove=True, num_labels=count), token)
                for count in few
            }
            answers += _answers("asked", asked_for, token)
    try:
        tensors = _fitted(
            {
                count or 0: [[tensor.key, tensor.dtype, list(tensor.shape)] for tensor in item.tensors]
                for count, item in zip(counts, manifests, strict=True)
            }
        )
    except Unfit:
        return
    usual = [key[:2] for key, _ in answers if key[2] is None]
    answers = [item for item in answers if item[0][:2] in usual]  # two counts alone prove no rule
    if not answers:
        return
    base = answers[0][1]
    yield (
        member_of(str(first.config["model_type"]), len(first.tensors)),
        {
            "labels": [name in first.config for name in LABEL_FIELDS],
            **_config_entry(first),
            "stored": stored_as(first),
            "folders": sorted(folders),
            "tensors": tensors,
            "base": base,
            "answers": [{"for": key, "changes": list(_changes(base, answer))} for key, answer in answers],
        },
    )


def _examined(manifest: CheckpointManifest, request: Request, first: FirstToken | None) -> Remembered:
    found = examine_manifest("inspect", request, manifest, partial(_traced, first), None)
    return Remembered(found.report, found.built, verified=True)


_TRACES: dict[str, Traced] = {}
_EFFECTS: dict[str, tuple[PaddingEffect, ...]] = {}


def _traced(first: FirstToken | None, skeleton: Any, choice: Choice) -> Traced:
    """The trace of a class, once for a configuration: it is the same for the base model and the language model."""
    fields = {name: value for name, value in choice.config.to_dict().items() if name != "architectures"}
    key = json.dumps([choice.cls.__name__, fields, first and [first.token]], sort_keys=True, default=str)
    if key not in _TRACES:
        measured = partial(_padding_effects, json.dumps([choice.cls.__name__, fields], sort_keys=True, default=str))
        with patch.object(tracing, "padding_effects", measured):
            _TRACES[key] = trace_checkpoint(skeleton, choice, first, prove=True)
    return _TRACES[key]


def _padding_effects(key: str, choice: Choice) -> tuple[PaddingEffect, ...]:
    """The effect of padding, measured once for a configuration: what the first token is called doesn't matter."""
    if key not in _EFFECTS:
        _EFFECTS[key] = padding_effects(choice)
    return _EFFECTS[key]


def _answers(form: str, found: dict[int | None, Remembered], first: FirstToken | None) -> Iterator[Answer]:
    """The answers by kind of count, as templates."""
    groups: dict[str, dict[int, Any]] = {}
    for count, item in found.items():
        groups.setdefault(ClassCount(form, count).kind, {})[count or 0] = _document(item, is_default=count is None)
    for kind, documents in groups.items():
        if kind == "many" and len(documents) < len(MANY[:2] if first else MANY):
            continue
        for is_verified in (True, False):
            wanted = documents if is_verified else {count: _unverified(item) for count, item in documents.items()}
            try:
                yield [form, kind, None if first is None else [first.token]], _fitted(wanted)
                break
            except Unfit:
                continue


_REPORT, _VERIFIED, _HEAD, _MODEL, _LABELS, _PROOF, _PADDING = 0, 2, 6, 4, 3, 7, "padding"


def _document(found: Remembered, *, is_default: bool) -> list[Any]:
    """What is stored of an examination, without what is each checkpoint's own: no labels but those of the class."""
    document: list[Any] = store(found)
    document[_REPORT][:4] = [None] * 4
    if found.report.model.labels_are_placeholders or not is_default:
        document[_REPORT][_MODEL][_LABELS] = []
    return document


def _unverified(document: list[Any]) -> list[Any]:
    """The document without its proof, which holds what was measured with random numbers."""
    document = json.loads(json.dumps(document))
    document[_VERIFIED] = False
    if document[_REPORT][_HEAD] is not None:
        document[_REPORT][_HEAD][_PROOF] = None
    return document


def _config_entry(manifest: CheckpointManifest) -> dict[str, Any]:
    """The configuration, and which of its fields may be left out: what is built from the rest must be the same."""
    config = manifest.config
    cls = type(AutoConfig.for_model(config["model_type"]))
    own = {name: value for name, value in config.items() if name not in (*LABEL_FIELDS, *SILENT_FIELDS)}
    labels = {name: config[name] for name in LABEL_FIELDS if name in config}
    built = cls.from_dict({**own, **labels})
    every = {
        name: value
        for name, value in json.loads(json.dumps(built.to_dict(), default=str)).items()
        if name not in (*LABEL_FIELDS, *SILENT_FIELDS)
    }
    whole = {**every, **own}
    wanted = _built(cls, {**whole, **labels})
    free = [
        name
        for name in whole
        if name not in ("model_type", "architectures", "dtype")
        and _built(cls, {**{key: value for key, value in whole.items() if key != name}, **labels}) == wanted
    ]
    if _built(cls, {**{key: value for key, value in whole.items() if key not in free}, **labels}) != wanted:
        free = []
    request = Request(Location("shipped"))
    without = {name: value for name, value in config.items() if name != "dtype"}
    reports = [
        examine_manifest("inspect", request, replace(manifest, parsed_config=item), trace_checkpoint, None).report
        for item in (config, without)
    ]
    return {"config": whole, "by_default": [*free, *(["dtype"] if reports[0] == reports[1] else [])]}


def _built(cls: Any, fields: dict[str, Any]) -> str:
    """What a configuration class makes of fields; "" where it refuses them."""
    try:
        return json.dumps(cls.from_dict(fields).to_dict(), sort_keys=True, default=str)
    except Exception:  # a class checks what fits what in its own way
        return ""


def _fitted(documents: dict[int, Any]) -> Any:
    """One template for documents by class count. Raises Unfit where there is none."""
    template = _common(list(documents), list(documents.values()))
    if any(filled(template, count) != document for count, document in documents.items()):
        raise Unfit
    return template


def _common(counts: list[int], values: list[Any]) -> Any:
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if all(type(value) is int for value in values):
        return _line(counts, values)
    if all(isinstance(value, str) for value in values):
        parts = [re.split(r"(\d+)", value) for value in values]
        if len({tuple(item[::2]) for item in parts}) > 1:
            raise Unfit
        rows = [[int(text) if at % 2 else text for at, text in enumerate(item)] for item in parts]
        return {"": [_common(counts, [row[at] for row in rows]) for at in range(len(rows[0]))]}
    if all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1:
        return [_common(counts, [value[at] for value in values]) for at in range(len(first))]
    raise Unfit


def _line(counts: list[int], values: list[int]) -> dict[str, list[int]]:
    each, rest = divmod(values[1] - values[0], counts[1] - counts[0])
    more = values[0] - each * counts[0]
    if rest or any(each * count + more != value for count, value in zip(counts, values, strict=True)):
        raise Unfit
    return {"+": [each, more]}


def _changes(base: Any, other: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[list[int], Any]]:
    """The places where a nested list differs from another, with what is there."""
    if base == other and type(base) is type(other):
        return
    if isinstance(base, list) and isinstance(other, list) and len(base) == len(other):
        for at, (one, two) in enumerate(zip(base, other, strict=True)):
            yield from _changes(one, two, (*path, at))
        return
    yield [*path], other
