"""What a configuration says: as it is written, as Transformers builds it, and what it says the checkpoint is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from headscope.core.facts import CheckpointManifest
from headscope.core.facts.built import BuiltFacts, ConfigFacts

if TYPE_CHECKING:
    from torch import nn

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""The special tokens of tokenizers and configurations, in the order in which a tokenizer appends missing ones."""
_LANGUAGE_MODELS = ("MaskedLM", "CausalLM", "LMHeadModel", "ForConditionalGeneration", "ForPreTraining")


def with_purpose(built: BuiltFacts, manifest: CheckpointManifest, *, is_reranker: bool = False) -> BuiltFacts:
    """Adds what the checkpoint was made for; a reranker's language-model head counts as its classifier."""
    from headscope.core.model.classes.catalog import task_of_class

    name = _first_architecture(manifest)
    is_own_head = name is not None and manifest.adapter is None  # an adapter's head is not its base model's
    if is_reranker and manifest.sentence is not None and manifest.sentence.token_ids:
        built = replace(built, padding_side="left")  # sentence-transformers pads its language models on the left
    return replace(
        built,
        kind=None if is_reranker else _kind_of(manifest),
        trained_for=task_of_class(name or "") if is_own_head else None,
    )


def _first_architecture(manifest: CheckpointManifest) -> str | None:
    found = manifest.config.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


def _kind_of(manifest: CheckpointManifest) -> str | None:
    """Names what the checkpoint was made for; None for a classifier, or if the checkpoint doesn't say.

    A class that Transformers does not have can be anything, also a classifier.
    """
    from headscope.core.model.classes.catalog import gives_other_scores, is_known_class, other_mappings, task_of_class

    name = _first_architecture(manifest)
    if name is None or task_of_class(name) is not None or "Classification" in name or manifest.adapter is not None:
        return None
    if _has_own_scores(manifest):
        return None
    sentence = manifest.sentence
    if sentence is not None and (sentence.library_class == "SparseEncoder" or "SpladePooling" in sentence.modules):
        return "sparse encoder"
    if name.endswith(_LANGUAGE_MODELS):
        return "language model"
    if sentence is not None:
        return "sentence embedder"
    known = "base model" if is_known_class(name) else None
    is_other = gives_other_scores(name) or name in other_mappings(str(manifest.config.get("model_type")))
    return "model for a task that headscope doesn't know" if is_other else known


def _has_own_scores(manifest: CheckpointManifest) -> bool:
    """True if the checkpoint holds a scoring head that no class of Transformers loads."""
    from headscope.core.checkpoints.score_heads import score_heads_of

    sentence = manifest.sentence
    is_scored = sentence is not None and (
        sentence.library_class == "CrossEncoder"
        or bool(sentence.classifier)
        or any(part.scores for part in sentence.parts)
    )
    return is_scored or bool(score_heads_of(manifest.tensors, manifest.config))


def built_facts(config: Any) -> BuiltFacts:
    """Reads the facts from a configuration that Transformers has built."""
    from headscope.core.model.tokenizers import padding_side_of
    from headscope.core.trace.batch.probe_batch import most_positions
    from headscope.core.upstream.transformers import text_config_of

    text = text_config_of(config)
    eos, by_role = special_ids({f"{role}_token_id": getattr(text, f"{role}_token_id", None) for role in ROLES})
    spread = getattr(config, "initializer_range", None)
    return BuiltFacts(
        num_labels=int(getattr(config, "num_labels", 0) or 0),
        vocab_size=_int_or_none(getattr(text, "vocab_size", None)),
        pad_token_id=_int_or_none(getattr(text, "pad_token_id", None)),
        eos_token_ids=eos,
        initializer_range=float(spread) if isinstance(spread, int | float) else None,
        padding_side=padding_side_of(str(getattr(config, "model_type", ""))),
        token_ids=by_role,
        positions=most_positions(config),
    )


def special_ids(fields: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """Reads the ids of end tokens, and those of special tokens by their roles, from a configuration's fields."""
    eos = fields.get("eos_token_id")
    stated = ((role, fields.get(f"{role}_token_id")) for role in ROLES)
    # There may be several end tokens: the first one counts.
    by_role = ((role, item[0] if isinstance(item, list) and item else item) for role, item in stated)
    # `isinstance` would take True for 1.
    return (
        tuple(item for item in (eos if isinstance(eos, list) else [eos]) if type(item) is int),
        tuple((role, number) for role, number in by_role if type(number) is int),
    )


def with_tables(built: BuiltFacts, model: nn.Module) -> BuiltFacts:
    """Adds the rows of the word embeddings, and subtracts the positions that padding reserves (RoBERTa)."""
    from torch import nn

    try:
        found = model.get_input_embeddings()  # type: ignore[operator]  # a module of Transformers has it
    except Exception:  # a class of several inputs, or of hashes, has no such table
        found = None
    tables = [item for name, item in model.named_modules() if "position" in name and isinstance(item, nn.Embedding)]
    reserved = max((item.padding_idx + 1 for item in tables if item.padding_idx is not None), default=0)
    return replace(
        built,
        embedding_rows=found.num_embeddings if isinstance(found, nn.Embedding) else None,
        # RoBERTa counts positions from padding_idx + 1, so these rows of its table are never positions of a text.
        positions=None if built.positions is None else built.positions - reserved,
    )


def _int_or_none(value: Any) -> int | None:
    # `isinstance` would take True for 1.
    return value if type(value) is int else None


def config_facts(config: Mapping[str, Any]) -> ConfigFacts:
    """Reads the labels in a parsed `config.json`; what is not a map or a number counts as absent."""
    count = config.get("num_labels")
    problem = config.get("problem_type")
    numbers: dict[str, Any] = config["label2id"] if isinstance(config.get("label2id"), dict) else {}
    return ConfigFacts(
        num_labels=count if type(count) is int else None,
        id2label=_sorted_pairs(config.get("id2label")),
        label2id=_sorted_pairs(config.get("label2id")),
        # Names whose id is a text, such as "0".
        ids_as_text=tuple(str(name) for name, item in numbers.items() if isinstance(item, str)),
        problem_type=problem if isinstance(problem, str | None) else json.dumps(problem),
        has_auto_map=isinstance(config.get("auto_map"), dict),
        is_decoder=config.get("is_decoder") is True,
    )


def _sorted_pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Lists the items of a map as texts, sorted by the length of the key, then by the key: 2 comes before 10."""
    if not isinstance(value, dict):
        return ()
    keys = list(map(str, value))
    ordered = sorted(zip(map(len, keys), keys, map(str, value.values()), strict=True))
    return tuple(map(itemgetter(1, 2), ordered))
