"""Examinations as documents to make templates of, and how two of them differ."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
from headscope.core.facts.plain import store
from headscope.core.model.classes.model_request import Choice
from headscope.core.source.checkpoint import without_measures
from headscope.core.source.loading import examine_manifest
from headscope.core.source.memory.templates import Symbols, changed, filled
from headscope.core.source.reading.tracing import Traced, trace_checkpoint
from headscope.core.source.request import Request
from headscope.core.source.structure import Remembered
from headscope.core.upstream.sources import code_digest, source_file
from headscope.facts import CheckpointManifest
from scripts.shipped.recording import Record, recorded
from scripts.shipped.template_fitting import Unfit, changes_between


def examined(manifest: CheckpointManifest, request: Request, first: FirstToken | None) -> Remembered:
    tracer = partial(_traced, first)
    found = examine_manifest("inspect", request, manifest, tracer, None)
    return Remembered(found.report, found.built, verified=False)


TRACES: dict[Any, Traced] = {}
"""The traces of a layout: the form in which a checkpoint was saved is nothing to them."""


def _traced(first: FirstToken | None, skeleton: Any, choice: Choice) -> Traced:
    key = (choice.cls.__name__, skeleton.config.to_json_string(use_diff=False), first)
    if key not in TRACES:
        TRACES[key] = trace_checkpoint(skeleton, choice, first)
    return TRACES[key]


def document_of(found: Remembered, *, is_plain: bool = False) -> Any:
    """What is stored of an examination: without what is each checkpoint's own, and without what follows from shapes."""
    document = store(found)
    if is_plain:  # the ids are those of the configuration
        document["built"] |= {"eos_token_ids": None, "token_ids": None}
    report = document["report"]
    report |= dict.fromkeys(("tool_version", "command", "environment", "checkpoint"))
    report["model"]["parameters"] |= {"total": 0, "base": 0, "head": 0, "live_head": 0}
    head = report["head"] or {"parameters": [], "buffers": [], "stages": [], "verification": None}
    for item in (*report["weights"]["parameters"], *head["parameters"], *head["buffers"]):
        item["count"] = 0
    _keep_places(head)
    report["model"] |= {"labels": [], "labels_are_placeholders": False}
    return document


def _keep_places(value: Any) -> None:
    """Puts, for each line of a file of Transformers, the node that is there."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _keep_places(item)
    if isinstance(value, dict) and type(value.get("line")) is int:
        place = _place(value["file"], value["line"])
        value["line"] = value["line"] if place is None else {"@": [*place, value["line"]]}


def _places_in(value: Any) -> Iterator[tuple[str, str]]:
    """The files and functions of the lines of a document."""
    if isinstance(value, dict) and "@" in value:
        yield value["@"][0], value["@"][1]
    else:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from _places_in(item)


def _place(path: str, line: int) -> tuple[str, str, int] | None:
    """A line of Transformers as the file, its function, and which of its nodes it is."""
    name = path.removeprefix("transformers/")
    file = source_file(name) if name != path else None
    found = None if file is None else file.place_of(line)
    return None if found is None else (name, *found)


def code_of(record: Record, found: Remembered) -> dict[str, Any]:
    """The functions that ran outside the base model's forward, and those on the path of the head, with digests.

    If the report names a parameter that the base model puts at a position, the base model's functions are included.
    """
    own = record.code()
    head = found.report.head
    if head is not None and any(part.positions.parameter for part in head.pooling.parts):
        for path, names in record.code(of_base=True).items():
            own[path] = sorted({*own.get(path, ()), *names})
    for path, name in _places_in(document_of(found)["report"]["head"]):
        own[path] = sorted({*own.get(path, ()), name})
    family = found.report.checkpoint.model_type
    own["conversion_mapping.py"] = [f"[{name}]" for name in (family, found.report.model.class_name)]
    return {"code": _digested(own)}


def _digested(functions: Mapping[str, Sequence[str]]) -> list[Any]:
    """Lists functions by file, with their digest."""
    return [[path, names, code_digest(path, names)] for path, names in functions.items() if names]


def variant(base: Any, env: Symbols, document: Any) -> list[Any]:
    """The changes that make a template give another document. Raises Unfit where they hold sizes."""
    changes = [[path, value] for path, value in changes_between(filled(base, env), document)]
    sizes = {value for value in env.values() if type(value) is int and value > 2}
    for path, value in changes:
        if not _is_fixed(base, path) or sizes & set(_numbers_in(value)):
            raise Unfit(path, value)
    if filled(changed(base, changes), env) != document:
        raise Unfit("a variant of", changes)
    return changes


def _is_fixed(template: Any, path: Sequence[Any]) -> bool:
    """Whether a path leads to the same place in a template as in what it gives."""
    for at in path:
        if isinstance(template, list) and any(isinstance(item, dict) and "*" in item for item in template):
            return False
        if isinstance(template, dict) and at not in template:
            return False
        template = template[at]
    return True


def _numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(item)
    elif type(value) is int:
        yield value


def proof_of(manifest: CheckpointManifest, request: Request) -> dict[str, Any]:
    """What is stored of a proof: without positions, which depend on the lengths of the texts, and how much changes."""
    with recorded() as record:
        report = examine_manifest("inspect", request, manifest, partial(trace_checkpoint, prove=True), None).report
    proof = report.head.verification if report.head is not None else None
    if proof is None:
        return {"proof": None, "code_of_base": []}
    return {"proof": store(without_measures(proof)), "code_of_base": _digested(record.code(of_base=True))}
