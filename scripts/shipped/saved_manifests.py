"""What checkpoints of a class hold, as Transformers saves it today and as older libraries saved it."""

import json
import re
import tempfile
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save

from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.model.classes.labels import placeholders
from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightFile, WeightsFormat

_FILE = "model.safetensors"
_LAYER = re.compile(r"\.\d+(?=\.|$)")
_WITHOUT_NAMES = 2
"""The count of classes whose names a configuration leaves out where they are those of `placeholders`."""
_BARE = ("gpt2", "bloom")
"""Families whose published language models are saved without the name of the base model before their keys."""


def saved_manifest(
    cls: Any,
    config: Any,
    dtype: str,
    count: int | None = None,
    problem: str | None = None,
    *,
    are_named: bool = False,
) -> CheckpointManifest:
    """What `save_pretrained` writes of a class, without values; with `are_named`, its classes have other names.

    Default names are not written for the default count, and those of two classes by no family.
    """
    import transformers.modeling_utils as saving

    config = deepcopy(config)
    if count is not None:
        are_named = are_named or count == config.num_labels
        names = map("class {}".format, range(count)) if are_named else placeholders(count)
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
        model = cls(config).to(getattr(torch, dtype))
    with quiet(), tempfile.TemporaryDirectory() as folder, patch.object(saving, "safe_save_file", keep):
        model.save_pretrained(folder, max_shard_size="9999GB")
        parsed = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    header = _header_in_order(written)
    return CheckpointManifest(
        reference="shipped",
        kind=CheckpointKind.LOCAL,
        format=WeightsFormat.SAFETENSORS,
        config=parsed,
        tensors=tuple(TensorHeader(key, kind, shape, _FILE) for key, kind, shape in header),
        files=(WeightFile(_FILE, 1),),
    )


def _header_in_order(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Key, dtype and shape of tensors in the order in which safetensors writes them, asked with empty ones."""
    blob = save({key: torch.empty(0, dtype=value.dtype) for key, value in tensors.items()})
    names = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    return [
        (key, SAFETENSORS[names[key]["dtype"]][0], tuple(tensors[key].shape)) for key in names if key != "__metadata__"
    ]


def parameter_names(cls: Any, config: Any) -> set[str]:
    """Names the tensors of a class, of each layer alike. Raises whatever the constructor raises."""
    return {_LAYER.sub(".#", key) for key in model_on_meta(cls, config).state_dict()}


def model_on_meta(cls: Any, config: Any) -> Any:
    with quiet(), on_meta():
        return cls(deepcopy(config))


def tensor_forms(
    cls: Any, family: Any, config: Any, manifest: CheckpointManifest
) -> dict[str, tuple[TensorHeader, ...]]:
    """The tensors of a checkpoint by the form in which it was saved.

    Older versions of Transformers kept buffers that are made again today, the first BERTs were converted with `gamma`
    and `beta`, and published language models hold what was trained beside their class (a pooler). The names of two
    classes are left out of a configuration where they are `LABEL_0` and `LABEL_1`, also by families whose default is
    another count: https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/configuration_utils.py#L1199
    """
    own = manifest.tensors
    keys = {tensor.key for tensor in own}
    kind = next(tensor.dtype for tensor in own if "float" in tensor.dtype)
    model = model_on_meta(cls, config)
    buffers = (
        _causal_masks(cls, family, config, kind)
        if family.model_type == "gpt2"
        else tuple(
            TensorHeader(name, "int64", tuple(buffer.shape), _FILE)
            for name, buffer in model.named_buffers()
            if name not in keys and name.endswith("position_ids")
        )
    )
    found = {"": own}
    if cls in family.language_models:
        found["whole"] = _with_others(family, config, manifest, model)
        if family.model_type in _BARE:
            prefix = f"{model.base_model_prefix}."
            found["bare"] = tuple(replace(tensor, key=tensor.key.removeprefix(prefix)) for tensor in own)
            buffers_bare = tuple(replace(tensor, key=tensor.key.removeprefix(prefix)) for tensor in buffers)
            found["bare, buffers"] = (*found["bare"], *buffers_bare)
    for name, tensors in [item for item in found.items() if "bare" not in item[0]] if buffers else ():
        found[f"{name}, buffers"] = (*tensors, *buffers)
    for name, tensors in list(found.items()) if family.model_type == "bert" else ():
        found[f"{name}, gamma"] = tuple(replace(item, key=_as_first_converted(item.key)) for item in tensors)
    distinct = {frozenset(tensor.key for tensor in tensors): name for name, tensors in reversed(found.items())}
    found = {name: found[name] for name in found if name in distinct.values()}
    if cls in family.heads and config.num_labels != _WITHOUT_NAMES:
        found["two classes"] = saved_manifest(cls, config, kind, _WITHOUT_NAMES).tensors
    return found


def _causal_masks(cls: Any, family: Any, config: Any, kind: str) -> tuple[TensorHeader, ...]:
    """The buffers of GPT-2's attentions."""
    before = "" if cls in family.bases else "transformer."
    shape = (1, 1, config.n_positions, config.n_positions)
    return tuple(TensorHeader(f"{before}h.{at}.attn.bias", kind, shape, _FILE) for at in range(config.n_layer))


def _as_first_converted(key: str) -> str:
    return key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _with_others(family: Any, config: Any, manifest: CheckpointManifest, model: Any) -> tuple[TensorHeader, ...]:
    """The tensors of a language model with those of the family's base model and other language models."""
    found = {tensor.key: tensor for tensor in manifest.tensors}
    kind = next(tensor.dtype for tensor in manifest.tensors if "float" in tensor.dtype)
    for other in (*family.bases, *family.language_models):
        prefix = f"{model.base_model_prefix}." if other in family.bases else ""
        with suppress(Exception):  # a class that can't be built with these sizes adds nothing
            for tensor in saved_manifest(other, config, kind).tensors:
                found.setdefault(prefix + tensor.key, replace(tensor, key=prefix + tensor.key))
    return tuple(found.values())
