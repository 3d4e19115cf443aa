"""Judgment of each engine on a checkpoint's head, from the facts on it; what they don't cover is not determined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headscope.core.facts import CheckpointKind, CheckpointManifest, Report, SentencePipeline
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.report import find_missing
from headscope.shared.serving.cited import (
    CHAIN,
    OTHER,
    EngineFacts,
    Served,
    engine_names,
    facts_on,
    first_that_fits,
    named_engine,
)
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead, EnginesReport

_QUANTIZED = {"quantization_config", "compression_config"}
"""Fields that engines read, even where Transformers reads only the first."""
_SAVE_FIRST = "examine the folder that the trained classifier was saved to"


def own_activation(report: Report, manifest: CheckpointManifest) -> str:
    """Names what the checkpoint's own library applies to its scores: CrossEncoder, or the pipeline of Transformers."""
    return _activation_in_library(_collect_served(report, manifest), report)


def _own_library(served: Served) -> str:
    is_own = served.is_chain or served.library == "CrossEncoder"
    return "sentence-transformers" if is_own else "transformers-pipeline"


def _activation_in_library(served: Served, report: Report) -> str:
    if report.model.activation == Activation.NOT_DETERMINED or served.is_chain:
        return report.model.activation
    if served.files is None:  # one of them may say that a CrossEncoder saved it
        return Activation.NOT_DETERMINED.value
    row, _ = first_that_fits(facts_on(_own_library(served)).scores, served)
    return Activation.NOT_DETERMINED.value if row is None or row["activation"] == OTHER else row["activation"]


def judge_engines(
    report: Report, manifest: CheckpointManifest, engine: str | None = None, limit: str = "", tokenizer: str | None = ""
) -> EnginesReport:
    """Judges what the engines, or one of them (`NAME` or `NAME@VERSION`), do with the head of a checkpoint.

    `limit` is why the facts don't cover the files that were named, "" if they do; `tokenizer` is as in `Served`. Raises
    UsageError for an unknown engine or an invalid version.
    """
    served = replace(_collect_served(report, manifest), tokenizer=tokenizer)
    limit, own = limit or _limit_of(report, manifest), _activation_in_library(served, report)
    name, version = named_engine(engine or "")
    names = engine_names() if engine is None else (name,)
    return EnginesReport(
        tool_version=tool_version(),
        reference=report.checkpoint.reference,
        architecture=served.architecture,
        model_class=report.model.class_name,
        formula=report.head.expression if report.head is not None else "",
        activation=own,
        engines=tuple(
            _judge_engine(facts_on(item), served, version, own=own, class_name=report.model.class_name, limit=limit)
            for item in names
        ),
        is_one=engine is not None,
    )


def _collect_served(report: Report, manifest: CheckpointManifest) -> Served:
    sentence, named = manifest.sentence, report.checkpoint.architectures
    module = sentence.activation if sentence is not None else ""
    architecture = named[0] if named else ""
    count, config = report.model.num_labels, manifest.config
    if manifest.kind is CheckpointKind.CLASS:  # as `save_pretrained` writes it for classes with names
        maps = {name: at for at, name in enumerate(report.model.labels)}
        config = {"id2label": {str(at): name for name, at in maps.items()}, "label2id": maps, **config}
    found = Served(architecture, config, count, _files_beside_weights(sentence), module, report.shows_chain)
    if sentence is None:
        return found
    modules, pooling = ", ".join(sentence.modules), ", ".join(sentence.pooling)
    return replace(found, modules=modules, library=sentence.library_class, pooling=pooling)


def _files_beside_weights(sentence: SentencePipeline | None) -> frozenset[str] | None:
    """Gives the files of sentence-transformers beside the weights; None where they could not be read."""
    if sentence is None:
        return frozenset()
    if sentence.reason:
        return None
    files = {"modules.json"} if sentence.modules else set()
    return frozenset(files | ({"1_Pooling/config.json"} if sentence.pooling else set()))


def _limit_of(report: Report, manifest: CheckpointManifest) -> str:
    """Gives the reason why the facts don't cover a checkpoint, whatever the engine; "" if they do."""
    named, own = report.checkpoint.architectures, report.model.class_name
    missing, is_class = find_missing(report), manifest.kind is CheckpointKind.CLASS
    limits = {
        "the facts don't cover PEFT adapters": report.adapter is not None,
        "the facts don't cover quantized checkpoints": report.model.quantization is not None
        or not _QUANTIZED.isdisjoint(manifest.config),
        "the facts don't cover remote code, which auto_map in config.json names": "auto_map" in manifest.config,
        f"config.json names several classes: {', '.join(named)}": len(named) > 1,
        f"config.json names {named[0] if named else ''}, which is what engines load: {_SAVE_FIRST}": bool(named)
        and named[0] != own
        and not report.shows_chain,
        "the facts don't cover damaged weight files": report.needs_repair,
        "headscope doesn't know which weights of the model the checkpoint holds": not is_class
        and (not report.is_compared or bool(report.unknown)),
        "the checkpoint doesn't hold all the weights of the model, and engines differ in what they do then": bool(
            not is_class and (missing.head or missing.elsewhere or report.weights.mismatched)
        ),
    }
    return next((reason for reason, holds in limits.items() if holds), "")


def is_for_resolution(report: Report, manifest: CheckpointManifest) -> bool:
    """True if an engine's resolution of config.json holds on any machine: no adapter, quantization or remote code."""
    special = {*_QUANTIZED, "auto_map"}
    return report.adapter is None and report.model.quantization is None and special.isdisjoint(manifest.config)


def _judge_engine(
    facts: EngineFacts, served: Served, requested: str, *, own: str, class_name: str, limit: str
) -> EngineHead:
    version = requested or facts.installed_version() or facts.read_at
    given = _row_for(facts, served, version, limit)
    score, _ = first_that_fits(facts.scores, served) if given.get("runs") else (None, "")
    score = score if score is not None and facts.holds(score, version) else None
    activation = score["activation"] if score is not None and score["activation"] != OTHER else None
    is_open = activation is None or own == Activation.NOT_DETERMINED
    is_constant = activation == Activation.SOFTMAX and served.num_labels == 1
    reason = given.get("reason", "")
    if given.get("same_head") and is_open:
        reason = "the head is the same; the function that it applies to the scores could not be compared"
    return EngineHead(
        engine=facts.engine,
        title=facts.title,
        version=version,
        runs=given.get("runs"),
        same_head=given.get("same_head"),
        formula=given.get("formula", ""),
        activation=activation,
        same_activation=None if is_open else activation == own,
        logits=facts.logits,
        positions=given.get("positions", ""),
        reads_padding=given.get("reads_padding", False),
        drops=tuple(given.get("drops", ())),
        dtype=facts.dtype,
        float32_becomes=facts.float32_becomes(class_name),
        evidence=EngineEvidence.CITED if "file" in given else None,
        source=facts.source_of(given, version) if "file" in given else "",
        reason=f"{reason} One score under a softmax is always 1.0.".strip() if is_constant else reason,
        notes=tuple(note["says"] for note in facts.notes) if given.get("runs") else (),
        not_looked_at=facts.not_looked_at,
        own_activation=own,
        is_constant=is_constant,
        is_reference=facts.engine == _own_library(served),
    )


_EMBEDS = (
    "it is an embedding model, which has no class scores. Compare the engine's embeddings with those of "
    "SentenceTransformer.encode; for class scores, train a classifier on them (`headscope explain HS401`)"
)


def _row_for(facts: EngineFacts, served: Served, version: str, limit: str) -> Mapping[str, Any]:
    """Gives the row of an engine's facts that a checkpoint falls under, or the reason why there is none."""
    row, reason = first_that_fits(facts.heads, served)
    conditions = row.get("when", {}) if row is not None else {}
    if served.is_chain and CHAIN not in conditions:
        uncovered = "the facts don't cover chains of sentence-transformers, whose modules have their own files"
        row, reason = None, uncovered if served.num_labels else _EMBEDS
    unread = next((name for name in facts.unread if served.config.get(name) and name not in conditions), "")
    if row is not None and row["runs"] and unread:
        row, reason = None, f"config.json sets {unread}, and whether the engine reads it isn't known for this class"
    if limit:
        row, reason = None, limit
    elif row is None and not facts.covers(version):
        reason = f"{reason} (as of {facts.read_at})"
    elif row is not None and not facts.holds(row, version):
        head = "the same head" if row.get("same_head") else row.get("formula") or "another head"
        reason = f"{head if row['runs'] else 'no scores'} as of {facts.read_at}, not checked for {version}"
        row = None
    return {"reason": reason} if row is None else row
