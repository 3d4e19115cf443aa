"""Additions of other libraries to a model of Transformers: value and reward heads, heads of adapters, class names."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.core.checkpoints.foreign.adapter_hub import heads_in_config
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts.counting import list_of
from headscope.core.facts.stored.checkpoint import ScoreHead, TensorHeader
from headscope.core.facts.stored.weights import layer_numbers
from headscope.errors import HeadscopeError

if TYPE_CHECKING:
    from headscope.core.checkpoints.checkpoint_files import FileReader

_NAMED = re.compile(r"^(?:[A-Za-z_]+\.){0,2}(?P<name>v_head|value_head|reward_head)\.")
"""At the top or inside a wrapper, not in a layer: Funnel calls a matrix of its attention `v_head`."""
_ROWS_OF_TOKENS = re.compile(r"(?P<name>lm_head)\.(weight|bias)")
_MOST_ANSWERS = 1000
"""The rows up to which an output layer is one of answers: a vocabulary that was made smaller has more."""
VALUE_HEAD_FILES = ("value_head.safetensors", "value_head.bin")
"""Where LlamaFactory saves a value head, beside the weights or an adapter."""


def score_heads_of(tensors: Iterable[TensorHeader], config: Mapping[str, Any] | None = None) -> tuple[ScoreHead, ...]:
    """Finds the heads among the tensors of a checkpoint, by the names that training libraries or `config` give them.

    The shape of a matrix gives the number of scores; a name without any matrix is not taken for a head.
    """
    found: dict[str, list[TensorHeader]] = {}
    config, tensors = config or {}, tuple(tensors)
    own = tuple(f"heads.{name}" for name in heads_in_config(config))
    # The most rows of an output layer of answers. If no table has a row for each token, it is that of a vocabulary, or
    # of an alphabet, that the configuration misstates.
    words = config.get("vocab_size")
    is_whole = type(words) is int and any(len(item.shape) == 2 and item.shape[0] == words for item in tensors)
    most = min(words // 2, _MOST_ANSWERS) if is_whole and isinstance(words, int) else 0
    for tensor in tensors:
        match = _NAMED.search(tensor.key)
        if match is None and tensor.shape and 0 < tensor.shape[0] <= most:
            match = _ROWS_OF_TOKENS.fullmatch(tensor.key)
        if match is not None:
            name = tensor.key[: match.end("name")]
        else:  # the longest: one head's name can begin like another's
            name = max((name for name in own if tensor.key.startswith(f"{name}.")), key=len, default="")
        if name:
            found.setdefault(name, []).append(tensor)
    heads = (_build_score_head(name, tuple(held)) for name, held in found.items())
    return tuple(head for head in heads if head is not None)


_SETTINGS = "model_args.json"


def labels_notice(files: "FileReader", config: Mapping[str, Any]) -> str:
    """Names the classes in simpletransformers' own file that config.json doesn't have; "" if there are none."""
    if not files.has(_SETTINGS):
        return ""
    try:
        names = parse_object(files.storage.read_text(_SETTINGS), _SETTINGS).get("labels_list")
    except HeadscopeError:
        return ""
    own = config.get("id2label")
    known = list(own.values()) if isinstance(own, dict) else []
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        return ""
    # LABEL_0, LABEL_1 and so on are the names that Transformers makes up: nobody chose them.
    if names in (known, [f"LABEL_{at}" for at in range(len(names))]):
        return ""
    fits = not known or len(known) == len(names)
    # The option separates names by commas.
    is_plain = fits and len(names) <= _FEW and not any("," in name for name in names)
    labels = shlex.quote(",".join(names)) if is_plain else "NAMES"
    return (
        f"{_SETTINGS} (simpletransformers) names the classes {list_of(names, _FEW)}, and config.json, which "
        f"Transformers reads, doesn't: `headscope edit FOLDER -o DIR --labels {labels}`"
    )


_FEW = 6


def _build_score_head(name: str, tensors: tuple[TensorHeader, ...]) -> ScoreHead | None:
    matrices = [tensor for tensor in tensors if len(tensor.shape) == 2]
    if not matrices:
        return None
    # The highest number comes last; without numbers, the matrix that makes the fewest.
    last = max(matrices, key=lambda tensor: (layer_numbers(tensor.key), -tensor.shape[0]))
    found = ScoreHead(name, last.shape[0], last.key, tuple(tensor.key for tensor in tensors))
    path, _, kind = last.key.rpartition(".")
    beside = {tensor.key: tensor.shape for tensor in tensors if tensor is not last}
    # Only a single linear layer can be rebuilt from its shape; heads of adapters have activations between their layers.
    is_linear = kind == "weight" and beside in ({}, {f"{path}.bias": last.shape[:1]}) and not name.startswith("heads.")
    if not is_linear:
        return found
    file = last.file if last.file in VALUE_HEAD_FILES else ""
    return replace(found, input_size=last.shape[1], has_bias=bool(beside), file=file)
