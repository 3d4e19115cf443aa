"""What the page "Look at a checkpoint" looks up: the shipped structures in small files, each with its answers.

    python scripts/site_look.py FOLDER

Everything is made with the functions of the command, for one, two and many classes, with names and without: the page
fills in names and numbers, and computes nothing. `words.json.gz` holds what all structures share, `index/` the
configurations and tensors of the structures of a family with one number of tensors, `structures/` the answers on one.
With HEADSCOPE_LOOK_SAMPLE set, only the first structure of each class with each set of answers is there, and those that
the page links to: for tests.
"""

import gzip
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from look_templates import MORE_SAMPLES, MOST, SAMPLES, Unfit, proven_template, with_an
from shipped_sizes import PUBLISHED
from template_fitting import changes_between
from transformers import AutoConfig

from headscope.checkpoints import bundled_snapshots, read_manifest
from headscope.checkpoints.formats.dtypes import SAFETENSORS
from headscope.examination.base.request import Request
from headscope.examination.base.shipped import PLACE, SOURCES
from headscope.examination.checkpoint.findings import findings_of, likely_profile
from headscope.examination.checkpoint.shipped_structures import (
    ABSENT,
    LABEL_FIELDS,
    ClassCount,
    examination_in,
    hold,
    member_of,
    symbols_of_config,
)
from headscope.examination.checkpoint.structure import Remembered, Structure, renewed
from headscope.examination.checkpoint.templates import filled
from headscope.facts import CheckpointKind, CheckpointManifest, Report, TensorHeader, WeightFile, WeightsFormat
from headscope.facts.results.environment import package_version, tool_version
from headscope.facts.stored.location import HubOptions, Location
from headscope.model.classes.labels import placeholders
from headscope.render.diagram.layout import NARROW, WIDTH
from headscope.render.diagram.picture import Picture, picture_of
from headscope.render.diagram.svg import color_variables, drawing_rules, svg_text
from headscope.render.parts.findings import next_of_inspect
from headscope.render.parts.report_facts import (
    brief_label_facts,
    brief_pooling_facts,
    formula_facts,
    loss_facts,
    quantized_facts,
    score_head_facts,
)
from headscope.render.parts.verdict import tell_verdict
from headscope.render.screens.inspect import inspect_document, inspect_markdown
from headscope.render.text.plain_words import plain_words
from headscope.render.text.tokens import legend_of, token_rows

ROOT = Path(__file__).resolve().parent.parent
IS_SAMPLE = bool(os.environ.get("HEADSCOPE_LOOK_SAMPLE"))
CACHE = ROOT / ".cache" / "look" / ("sample" if IS_SAMPLE else "whole")
REFERENCE, COMMAND = "zr/zr", "zc-model"
"""What stands for the checkpoint in texts, and for what is typed behind `headscope inspect`."""
_NAME = "zq{}qz"
_FILE = "model.safetensors"
_OWN = ("reference", "kind", "revision", "commit", "bytes_read", "bytes_total", "requests")
"""What the page itself knows of a checkpoint."""
PROBLEMS = (None, "single_label_classification")
"""The problem types of which the page has answers."""


def main(arguments: Sequence[str]) -> int:
    """Writes the files into a folder, and prints how many structures are in them."""
    folder = Path(arguments[0])
    write_look(folder)
    told = json.loads(gzip.decompress((folder / "words.json.gz").read_bytes()))
    print(f"{told['structures']} structures, {told['answers']} answers, {told['without']} without a template")
    return 0


def write_look(folder: Path) -> None:
    """Writes all files, or copies those that were made of the same sources before."""
    made = CACHE / _digest()
    if not made.is_dir():
        with tempfile.TemporaryDirectory(dir=_made_folder(CACHE)) as unfinished:
            _write(Path(unfinished, "look"))
            with suppress(OSError):  # another process has made them
                Path(unfinished, "look").rename(made)
        for older in CACHE.glob("*"):
            if older != made and not older.name.startswith("tmp"):
                shutil.rmtree(older, ignore_errors=True)
    shutil.copytree(made, folder, dirs_exist_ok=True)


def _made_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest() -> str:
    """Of everything that the files are made from."""
    own = (Path(__file__), Path(__file__).with_name("look_templates.py"))
    found = hashlib.sha256(f"{package_version('transformers')} {tool_version()}".encode())
    for path in (PLACE, *own, *sorted((ROOT / "headscope").rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _write(folder: Path) -> None:
    for name in ("index", "structures"):
        (folder / name).mkdir(parents=True)
    with ZipFile(PLACE) as whole:
        sources = json.loads(whole.read(SOURCES))
        members = _members(whole)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_write_member, folder, name, entries, sources) for name, entries in members.items()]
        counts = [job.result() for job in jobs]
    light, dark = color_variables()
    words = {
        "headscope": tool_version(),
        "transformers": sources["transformers"],
        "reserved": sources["reserved"],
        "most": MOST,
        "an": _ranges(sorted(with_an())),
        "dtypes": SAFETENSORS,
        "members": list(members),
        "style": {"light": f"svg {{ {light} }}", "dark": f"svg {{ {dark} }}", "rules": drawing_rules()},
        "marks": {"reference": REFERENCE, "command": COMMAND},
        "structures": sum(map(len, members.values())),
        "answers": sum(answers for answers, _ in counts),
        "without": sum(without for _, without in counts),
    }
    _write_json(folder / "words.json.gz", words)


def sample_key(entry: Mapping[str, Any]) -> str:
    """The class of a structure, and for which numbers of classes it has answers: a sample has one of each.

    It has all of those whose family and number of tensors a checkpoint has to which the page links.
    """
    is_linked = _place_of(entry) in _linked_places()
    answers = [item["for"][:2] for item in entry["forms"][0]["answers"][0]]
    return json.dumps([entry["config"]["architectures"], answers, entry["fixed"] if is_linked else {}])


def _place_of(entry: Mapping[str, Any]) -> tuple[str, int]:
    """The family of a structure, and how many tensors it has."""
    return entry["config"]["model_type"][1], len(_tensors_of(entry, 3))


@cache
def _linked_places() -> frozenset[tuple[Any, int]]:
    bundled = (read_manifest(Location(name, hub=HubOptions(offline=True))) for name in bundled_snapshots())
    return frozenset((manifest.config["model_type"], len(manifest.tensors)) for manifest in bundled)


def of_published_sizes(whole: ZipFile) -> Iterator[dict[str, Any]]:
    """The shipped structures at the sizes that are published: every rule then names values."""
    for family, fields in PUBLISHED:
        member = member_of(family)
        config = json.loads(json.dumps(AutoConfig.for_model(family, **fields).to_dict(), default=str))
        for entry in json.loads(whole.read(member)) if member in whole.namelist() else ():
            own = {name: value for name, value in config.items() if name in entry["config"]}
            own["architectures"] = entry["config"]["architectures"][1]
            symbols = symbols_of_config(entry, own)
            if symbols is not None and hold(entry["relations"], symbols | {"classes": 3}):
                yield from _of_sizes(entry, symbols, fields.get("dtype", "float32"))


def _of_sizes(entry: Mapping[str, Any], symbols: Mapping[str, Any], dtype: str) -> Iterator[dict[str, Any]]:
    """A structure at some sizes in the form in which it is saved today, and in older ones that the page links to."""
    rules = {
        name: ["=", *([symbols[name]] if name in symbols else ()), *(filled(item, symbols) for item in allowed)]
        for name, (_, *allowed) in entry["config"].items()
    }
    one = {
        **entry, "config": rules, "defaults": filled(entry["defaults"], symbols), "fixed": symbols, "relations": [],
        "dtypes": [dtype],
    }  # fmt: skip
    for number, form in enumerate(entry["forms"]):
        found = {**one, "forms": [form]}
        if number == 0 or _place_of(found) in _linked_places():
            yield found


def _members(whole: ZipFile) -> dict[str, list[Any]]:
    """The structures by their family and number of tensors; for a sample, the first of each kind."""
    firsts: dict[str, Any] = {}
    found: dict[str, list[Any]] = {}
    for entry in of_published_sizes(whole):
        if not IS_SAMPLE or firsts.setdefault(sample_key(entry), entry) is entry:
            family, count = _place_of(entry)
            found.setdefault(f"{family}-{count}", []).append(entry)
    return found


def _tensors_of(entry: Mapping[str, Any], classes: int) -> list[Any]:
    """Key, dtype and shape of the tensors of a structure, in the order of their keys."""
    return sorted(
        filled(entry["forms"][0]["tensors"], {**entry["fixed"], "classes": classes, "dtype": entry["dtypes"][0]})
    )


def _write_member(folder: Path, name: str, entries: Sequence[Any], sources: Any) -> tuple[int, int]:
    """Writes the files of the structures of a member; how many answers are there, and how many have no template."""
    listed, answers, without = [], 0, 0
    for number, entry in enumerate(entries):
        found: dict[str, Any] = {}
        said = _Said(entry, sources)
        for form, kind, problem in (
            item["for"] for item in entry["forms"][0]["answers"][0] if item["for"][2] in PROBLEMS
        ):
            said.problem = problem
            for naming in _namings(form, kind):
                try:
                    found[f"{form} {kind} {naming} {problem or ''}".strip()] = _template(said, form, kind, naming)
                except Unfit:
                    without += 1
        answers += len(found)
        listed.append({"id": f"{name}-{number}", **_indexed(entry, list(found))})
        _write_json(folder / "structures" / f"{listed[-1]['id']}.json.gz", _as_changes(found))
    _write_json(folder / "index" / f"{name}.json.gz", listed)
    return answers, without


def _write_json(path: Path, value: Any) -> None:
    """Compressed, the same bytes for the same value; the page decompresses it, whatever its server does."""
    path.write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0))


def _ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers as first and last of each run."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


# ---- the index


def _indexed(entry: Mapping[str, Any], answers: list[str]) -> dict[str, Any]:
    """What a checkpoint is compared with, by the rules of `shipped_structures`."""
    few, more = _tensors_of(entry, 3), _tensors_of(entry, 4)
    varying = [at for at, (one, other) in enumerate(zip(few, more, strict=True)) if one != other]
    lines = [[[b - a, 4 * a - 3 * b] for a, b in zip(few[at][2], more[at][2], strict=True)] for at in varying]
    fixed = [[key, dtype, None if at in varying else shape] for at, (key, dtype, shape) in enumerate(few)]
    return {
        "labels": entry["labels"],
        "config": {name: allowed for name, (_, *allowed) in entry["config"].items()},
        "absent": entry["absent"],
        "defaults": entry["defaults"],
        "dtype": entry["dtypes"][0],
        "classes": entry["default_classes"],
        "tensors": digest_of(fixed),
        "varying": [[at, line] for at, line in zip(varying, lines, strict=True)],
        "answers": answers,
    }


def digest_of(tensors: Sequence[Any]) -> str:
    """The digest of tensors as key, dtype and shape; None for a shape that depends on the number of classes."""
    text = json.dumps(tensors, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


# ---- the answers on a structure


def _namings(form: str, kind: str) -> tuple[str, ...]:
    return ("named", "placeholders") if form == "stated" and kind != "default" else ("placeholders",)


def _template(said: "_Said", form: str, kind: str, naming: str) -> Any:
    """The answer with these labels, for each number of classes. Raises Unfit where no template tells it."""

    @cache
    def face(number: int | None) -> dict[str, Any]:
        return _face(said.report(form, number, _labels(number, naming)), is_default=number is None)

    if kind != "many":
        return face(None if kind == "default" else int(kind))
    found = _template_of(lambda number: {name: value for name, value in face(number).items() if name != "narrow"})
    try:
        return found | {"narrow": _template_of(lambda number: face(number)["narrow"])}
    except Unfit:  # a line breaks elsewhere for some numbers: the page shows the wide picture
        return found | {"narrow": None}


def _template_of(value: Callable[[int], Any]) -> Any:
    try:
        return proven_template({number: value(number) for number in SAMPLES})
    except Unfit:
        return proven_template({number: value(number) for number in sorted(MORE_SAMPLES)})


def _labels(count: int | None, naming: str) -> tuple[str, ...]:
    if count is None:
        return ()
    return placeholders(count) if naming == "placeholders" else tuple(map(_NAME.format, range(count)))


def _face(report: Report, *, is_default: bool) -> dict[str, Any]:
    """All that the page shows, with the names of classes left out. Raises Unfit where a text depends on them."""
    document = inspect_document(report)
    labels, document["model"]["labels"] = document["model"]["labels"], []
    document["checkpoint"] = {name: value for name, value in document["checkpoint"].items() if name not in _OWN}
    del document["environment"]
    is_named = bool(labels) and not report.model.labels_are_placeholders
    told = {name: body.plain for name, body in brief_label_facts(report)}["labels"]
    lines = [[name, body.plain] for section in _SECTIONS for name, body in section(report)]
    markdown = inspect_markdown(report)
    if is_named and _NAME.format(0) in told:
        markdown = "\n".join("| labels |" if line.startswith("| labels |") else line for line in markdown.split("\n"))
        told = ""
    picture = _picture(report)
    face = {
        "report": document,
        "default": labels if is_default else [],
        "words": plain_words(report),
        "tone": tell_verdict(report).tone.value,
        "lines": lines,
        "labels": told,
        "tokens": _tokens(report),
        "svg": _drawing(picture, WIDTH),
        "narrow": _drawing(picture, NARROW),
        "markdown": markdown.split("\n"),
        "next": [list(step) for step in next_of_inspect(report, COMMAND, details=False)],
    }
    if is_named and _NAME.format("")[:2] in json.dumps(face).replace(REFERENCE, "").replace(COMMAND, ""):
        raise Unfit
    return face


_SECTIONS = (brief_pooling_facts, formula_facts, loss_facts, quantized_facts, score_head_facts)


class _Said:
    """What the command says of the checkpoints of one structure."""

    def __init__(self, entry: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
        self._entry = entry
        self._sources = sources
        self._known: dict[tuple[str, int | None, str | None], Remembered | None] = {}
        self.problem: str | None = None

    def report(self, form: str, number: int | None, labels: tuple[str, ...]) -> Report:
        """The report as `inspect` makes it of a checkpoint on the Hub. Raises Unfit where it would trace."""
        manifest = self._manifest(number or 0 if form == "stated" else 0, labels)
        key = form, number, self.problem
        if key not in self._known:
            self._known[key] = examination_in(self._entry, manifest, ClassCount(form, number, labels))
        known = self._known[key]
        if known is None:
            raise Unfit
        report = renewed(known, Structure("", labels or None), manifest, "inspect", verified=False)
        version = self._sources["transformers"]
        report = replace(report, environment=replace(report.environment, transformers=version))
        request = Request(Location(REFERENCE), num_labels=number if form == "asked" else None)
        profile = likely_profile(report)
        found = findings_of(report, profile, manifest.config, known.built, request)
        return replace(report, findings=found, profile=profile)

    def _manifest(self, stated: int, labels: tuple[str, ...]) -> CheckpointManifest:
        classes = stated or self._entry["default_classes"]
        config = {name: rule[1] for name, rule in self._entry["config"].items() if rule[1] != ABSENT}
        names = labels[:stated]
        maps = ({str(at): name for at, name in enumerate(names)}, {name: at for at, name in enumerate(names)})
        named = dict(zip(LABEL_FIELDS, maps, strict=True)) if names else {}
        return CheckpointManifest(
            reference=REFERENCE,
            kind=CheckpointKind.HUB,
            format=WeightsFormat.SAFETENSORS,
            parsed_config=config | named | ({"problem_type": self.problem} if self.problem else {}),
            tensors=tuple(
                TensorHeader(key, dtype, tuple(shape), _FILE) for key, dtype, shape in _tensors_of(self._entry, classes)
            ),
            files=(WeightFile(_FILE, 1),),
        )


def _tokens(report: Report) -> dict[str, Any] | None:
    """The token strip: rows of cells as text and mark."""
    if report.head is None:
        return None
    rows = token_rows(report, report.head)
    shown = [{"caption": row.caption, "cells": [[cell.text, cell.mark.value] for cell in row.cells]} for row in rows]
    return {"rows": shown, "legend": legend_of(rows)}


def _picture(report: Report) -> Picture:
    """The picture without the names of the classes, which are beside it."""
    unnamed = replace(report, model=replace(report.model, labels=()))
    subtitle = f"{report.checkpoint.model_type}, Transformers {report.environment.transformers}"
    return replace(picture_of(unnamed), subtitle=subtitle)


def _drawing(picture: Picture, width: int) -> list[str]:
    """The lines of a picture without its style, which all share."""
    text = svg_text(picture, width)
    before, _, rest = text.partition("<style>")
    return f"{before}<style></style>{rest.partition('</style>')[2]}".split("\n")


# ---- one answer, and how the others differ


def _as_changes(found: Mapping[str, Any]) -> dict[str, Any]:
    base = next(iter(found.values()), None)
    return {"base": base, "answers": {key: list(changes_between(base, value)) for key, value in found.items()}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
