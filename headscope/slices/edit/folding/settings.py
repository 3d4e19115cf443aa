"""Settings of the base model in a chain, which sentence-transformers reads beside config.json: what a fold loses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headscope.copies.facts import FoldKind
from headscope.core.checkpoints.contents.sentence import settings_of_module
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.local import Folder
from headscope.core.facts.stored.sentence import SentencePipeline
from headscope.slices.edit.folding.arithmetic import DoesNotFold

BASE_SETTINGS = "sentence_bert_config.json"
_OLDER_FILES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_OLDER_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_GROUPS = {*_OLDER_NAMES.values(), "processing_kwargs", "modality_config"}
_OF_PLACE = {"subfolder", "token", "cache_dir", "revision", "local_files_only", "trust_remote_code"}
"""Keys of a group that the library replaces at every load."""
_WITHOUT_EFFECT = {
    # The output is judged with the modules that read it; the lengths and the expansion are for queries of a search.
    "module_output_name", "modality_config.text.method_output_name", "query_length", "document_length",
    "query_expansion", "backend", "unpad_inputs", "model_kwargs.attn_implementation", "model_kwargs.device_map",
    "model_kwargs.low_cpu_mem_usage", "model_kwargs.use_safetensors", "config_kwargs.use_cache",
    "processor_kwargs.padding_side", "processor_kwargs.use_fast",
}  # fmt: skip
_PLAIN: dict[str, tuple[Any, ...]] = {
    "do_lower_case": (False, None),
    "max_seq_length": (None,),
    "tokenizer_name_or_path": (None,),
    "modality_config.text.method": ("forward",),
    "model_kwargs.dtype": ("auto", "float32", None),
    "processing_kwargs": (None,),
    "processing_kwargs.common.return_tensors": ("pt",),
    "processing_kwargs.text.padding": (True, "longest"),
    "processing_kwargs.text.truncation": (True, "longest_first"),
}
"""Values that change no score: those that the library has without the setting, or more precise ones."""
_OF_TOKENIZER = ("do_lower_case", "tokenizer_name_or_path", "processor_kwargs.")
_SAVED_ELSEWHERE = (*_OF_TOKENIZER, "max_seq_length", "config_kwargs.", "model_kwargs.dtype")
"""Settings that a save of the library puts into the tokenizer, config.json or the weights."""
_LONGEST = 60
"""How much of a value a refusal shows."""
_TASKS = {FoldKind.CLASS: ("sequence-classification",), FoldKind.SETFIT: ("feature-extraction",)}


def check_base_settings(
    pipeline: SentencePipeline, folder: Path, config: Mapping[str, Any], kind: FoldKind, *, asks: bool
) -> None:
    """Raises DoesNotFold for a setting that changes the scores of the source and that the result has no place for.

    `asks` is true for a language model that the library asks in a prompt, which stays with the caller.
    """
    first = next((part for part in pipeline.parts[:1] if part.name == "Transformer"), None)
    files = (BASE_SETTINGS, *(f"sentence_{family}_config.json" for family in _OLDER_FILES))
    if first is None:
        return
    for file in files:
        is_there = (folder / first.folder / file).is_file()
        if not (is_there and (settings := settings_of_module(Folder(folder), first.folder, file))):
            continue  # the library looks further, too
        stored = _settings_in_files(folder / first.folder, config)
        most = pipeline.max_length if kind is not FoldKind.CLASS and file == BASE_SETTINGS else None
        if most is not None:  # of both kinds of length, the fold carries this one
            stored |= {"max_seq_length": most, "processor_kwargs.model_max_length": most}
        for key, value in _flatten_settings(settings):
            if not _is_kept(key, value, stored, kind, asks=asks):
                step = "take it out in a copy of the folder, if other scores will do"
                if key.startswith(_SAVED_ELSEWHERE):
                    step = "save it again with sentence-transformers, which puts this into the model's own files"
                raise DoesNotFold(
                    f"{file} has {key}: {json.dumps(value)[:_LONGEST]}, which the fold would lose",
                    f"{step}, and fold that",
                )
        return


def _settings_in_files(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Gives what the model's own files say, under the names of the settings that could say something else."""
    file = folder / "tokenizer_config.json"
    tokenizer = parse_object(file.read_bytes(), file.name) if file.is_file() else {}
    found = {f"config_kwargs.{key}": value for key, value in config.items()}
    found |= {f"processor_kwargs.{key}": value for key, value in tokenizer.items()}
    dtype = config.get("dtype", config.get("torch_dtype"))
    return found | {"model_kwargs.dtype": dtype, "max_seq_length": tokenizer.get("model_max_length")}


def _flatten_settings(settings: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings, those of a group under dotted names; of groups in it, too, where it is one of modalities."""
    for key, value in settings.items():
        if group:
            name = f"{group}.{'dtype' if key == 'torch_dtype' else key}"
            is_group = group in {"processing_kwargs", "modality_config"} and key not in _OF_PLACE
        else:
            name = _OLDER_NAMES.get(key, key)
            is_group = name in _GROUPS
        if is_group and isinstance(value, dict):
            yield from _flatten_settings(value, name)
        else:
            yield name, value


def _is_kept(key: str, value: Any, stored: Mapping[str, Any], kind: FoldKind, *, asks: bool) -> bool:
    """True if the result does what a setting makes the source do."""
    group, _, rest = key.partition(".")
    if key == "transformer_task":
        tasks = ("text-generation", "any-to-any") if asks else _TASKS.get(kind, ("feature-extraction",))
        return value in tasks
    if key in _WITHOUT_EFFECT or value in _PLAIN.get(key, ()) or (key in stored and stored[key] == value):
        return True
    if kind is FoldKind.SETFIT and key.startswith((*_OF_TOKENIZER, "processing_kwargs.", "modality_config.message.")):
        return True  # the library saves the base model again, with its tokenizer and these settings
    if group in ("processing_kwargs", "modality_config"):
        modality = rest.partition(".")[0]
        # Of a chat template, the fold of a language model leaves the call to the caller.
        return modality not in ("text", "common", "message") or (asks and modality == "message")
    return group in _GROUPS and rest in _OF_PLACE
