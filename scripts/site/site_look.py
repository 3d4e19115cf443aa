"""What the page "Look at a checkpoint" looks up: the shipped structures in small files, each with its answers.

    python -m scripts.site.site_look FOLDER

Everything is made with the functions of the command, at several sizes and numbers of classes, with names and without:
from what they say come templates of the same kind as the shipped facts are (see `template_fitting`), and the page fills
in names and numbers. `words.json.gz` holds what all structures share, `index/` the rules and tensors of the structures
of a family, `structures/` the answers on one of them in one form of its tensors.
With HEADSCOPE_LOOK_SAMPLE set, only some structures are there, and those that the page links to: for tests.
"""

import gzip
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from transformers import AutoConfig

from headscope.checks.findings import findings_of, likely_profile
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.facts.environment import package_version, tool_version
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.labels import placeholders
from headscope.core.model.classes.reduced_config import DEPTHS
from headscope.core.source.memory.shipped_structures import (
    ABSENT,
    LABEL_FIELDS,
    ClassCount,
    answer_of_form,
    examination_in,
    hold,
    symbols_of_config,
)
from headscope.core.source.memory.templates import Symbols, changed, filled
from headscope.core.source.request import Request
from headscope.core.source.storage.shipped import PLACE, SOURCES
from headscope.core.source.structure import Structure, renewed
from headscope.core.words.plain_words import article_of, plain_words
from headscope.core.words.tokens import legend_of, token_rows
from headscope.facts import CheckpointKind, CheckpointManifest, Report, TensorHeader, WeightFile, WeightsFormat
from headscope.shared.report.documents import inspect_document, inspect_markdown
from headscope.shared.report.findings import next_of_inspect
from headscope.shared.report.report_facts import (
    brief_label_facts,
    brief_pooling_facts,
    formula_facts,
    loss_facts,
    quantized_facts,
    score_head_facts,
)
from headscope.shared.report.verdict import tell_verdict
from headscope.slices.diagram.layout import NARROW, WIDTH
from headscope.slices.diagram.picture import BoxKind, Picture, picture_of
from headscope.slices.diagram.svg import color_variables, drawing_rules, svg_text
from scripts.pages.shipped_sizes import SIZES
from scripts.shipped.template_fitting import Unfit, changes_between, fitted

ROOT = Path(__file__).resolve().parents[2]
IS_SAMPLE = bool(os.environ.get("HEADSCOPE_LOOK_SAMPLE"))
CACHE = ROOT / ".cache" / "look" / ("sample" if IS_SAMPLE else "whole")
REFERENCE, COMMAND = "zr/zr", "zc-model"
"""What stands for the checkpoint in texts, and for what is typed behind `headscope inspect`."""
_NAME = "zq{}qz"
_FILE = "model.safetensors"
_OWN = ("reference", "kind", "revision", "commit", "bytes_read", "bytes_total", "requests")
"""What the page itself knows of a checkpoint."""
PROBLEMS = (None,) if IS_SAMPLE else (None, "single_label_classification")
"""The problem types of which the page has answers."""
MOST = 9_999
"""Up to which number of classes the page has answers."""
_MANY = (1_301, 2_057, 3_005, 4_123, 29)
"""The numbers of classes that the answer on many is made from; with the last, of a small model, it is compared."""
_TRIES, _APART = 500, 5
_SAMPLED = ("bert", "roberta", "distilbert", "gpt2", "vit", "t5")
"""The families in a sample, which has no answers in float16 or with a problem type."""
_ARTICLE = re.compile(r"\b([Aa])n? (?=\d)")
_MARKED_NUMBER = re.compile("([\x01\x02])(\\d[\\d,]*)")
_DTYPE_MARK = "\x03"
"""What is in texts for `a ` or `an `, `A ` or `An ` before a number, and for the dtype of the weights."""


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
    names = "site/site_look", "shipped/template_fitting", "pages/shipped_sizes"
    own = [ROOT / "scripts" / f"{name}.py" for name in names]
    found = hashlib.sha256(f"{package_version('transformers')} {tool_version()}".encode())
    for path in (PLACE, *own, *sorted((ROOT / "headscope").rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _write(folder: Path) -> None:
    for name in ("index", "structures"):
        (folder / name).mkdir(parents=True)
    with ZipFile(PLACE) as whole:
        sources = json.loads(whole.read(SOURCES))
        families = structures_of_families(whole, is_sample=IS_SAMPLE)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_write_family, folder, name, entries, sources) for name, entries in families.items()]
        counts = [job.result() for job in jobs]
    light, dark = color_variables()
    words = {
        "headscope": tool_version(),
        "transformers": sources["transformers"],
        "reserved": sources["reserved"],
        "most": MOST,
        "an": [number for number in range(1_000) if article_of(number) == "an"],
        "dtypes": SAFETENSORS,
        "families": list(families),
        "style": {"light": f"svg {{ {light} }}", "dark": f"svg {{ {dark} }}", "rules": drawing_rules()},
        "marks": {"reference": REFERENCE, "command": COMMAND},
        "structures": sum(map(len, families.values())),
        "answers": sum(answers for answers, _ in counts),
        "without": sum(without for _, without in counts),
    }
    _write_json(folder / "words.json.gz", words)


def structures_of_families(whole: ZipFile, *, is_sample: bool) -> dict[str, list[dict[str, Any]]]:
    """The shipped structures by their families; for a sample, those of some families, each class once."""
    names = (name for name in whole.namelist() if name.startswith("structures/"))
    found = {entries[0]["config"]["model_type"][1]: entries for entries in (json.loads(whole.read(n)) for n in names)}
    if not is_sample:
        return found
    return {family: _first_of_each_class(entries) for family, entries in found.items() if family in _SAMPLED}


def _first_of_each_class(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        found.setdefault(json.dumps(entry["config"]["architectures"]), entry)
    return list(found.values())


def _write_family(folder: Path, family: str, entries: Sequence[Any], sources: Any) -> tuple[int, int]:
    """Writes the files of the structures of a family; how many answers are there, and how many have no template."""
    listed, answers, without = [], 0, 0
    for number, entry in enumerate(entries):
        forms: list[dict[str, Any]] = []
        known: dict[str, Any] = {}
        for place in range(len(entry["forms"])):
            found, lacking = _answers(_Said(entry, place, sources), known)
            answers, without = answers + len(found), without + lacking
            one = f"{family}-{number}-{place}"
            forms.append({"id": one, "tensors": entry["forms"][place]["tensors"], "answers": list(found)})
            _write_json(folder / "structures" / f"{one}.json.gz", _as_changes(found))
        rules = {name: entry[name] for name in ("labels", "config", "absent", "defaults", "relations", "dtypes")}
        listed.append({**rules, "classes": entry["default_classes"], "forms": forms})
    _write_json(folder / "index" / f"{family}.json.gz", listed)
    return answers, without


def _answers(said: "_Said", known: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The answers on a structure in one form by their keys, and how many have no template.

    `known` are those of the structure's first form and tokens: the others are tried with what the first one changes.
    """
    found: dict[str, Any] = {}
    without = 0
    for group, drawn in said.drawn().items():
        own: dict[str, Any] = {}
        for asked in said.kinds():
            key = " ".join(map(str, asked))
            first = next(iter(own), "")
            told = _alike(known.get(first), own.get(first), known.get(key))
            try:
                is_told = told is not None and said.holds(told, drawn[-1], _MANY[-1], asked)
                own[key] = told if is_told else said.template(drawn, asked)
            except Unfit:
                without += 1
        found |= {f"{key} {group}": told for key, told in own.items()}
        if not known:
            known.update(own)
    return found, without


def _alike(one: Any, other: Any, known: Any) -> Any:
    """What is known of one form, changed as the answers of two forms differ; None where that can't be."""
    if one is None or other is None or known is None:
        return None
    try:
        return changed(known, list(changes_between(one, other)))
    except (IndexError, KeyError, TypeError):  # another answer has no such place
        return None


def _write_json(path: Path, value: Any) -> None:
    """Compressed, the same bytes for the same value; the page decompresses it, whatever its server does."""
    path.write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0))


# ---- the answers on a structure


def pattern_of_ids(config: Mapping[str, Any]) -> str:
    """Which special tokens a configuration gives no number, or the number of another: findings may depend on it."""
    names = sorted(name for name in config if name.endswith("_token_id"))
    values = [json.dumps(config[name]) for name in names]
    first = ("-" if value == "null" else "*" if value[0] == "[" else str(values.index(value)) for value in values)
    return ",".join(f"{name.removesuffix('_token_id')}:{place}" for name, place in zip(names, first, strict=True))


def _namings(form: str, kind: str) -> tuple[str, ...]:
    return ("named", "placeholders") if form == "stated" and kind != "default" else ("placeholders",)


def _labels(count: int | None, naming: str) -> tuple[str, ...]:
    if count is None:
        return ()
    return placeholders(count) if naming == "placeholders" else tuple(map(_NAME.format, range(count)))


def _face(report: Report, *, is_default: bool) -> dict[str, Any]:
    """All that the page shows, with the names of classes left out. Raises Unfit where a text depends on them."""
    document = inspect_document(report)
    labels, document["model"]["labels"] = document["model"]["labels"], []
    document["summary"] |= {"reference": "", "labels": []}
    document["checkpoint"] = {name: value for name, value in document["checkpoint"].items() if name not in _OWN}
    del document["environment"]
    is_named = bool(labels) and not report.model.labels_are_placeholders
    told = {name: body.plain for name, body in brief_label_facts(report)}["labels"]
    lines = [[name, body.plain] for section in _SECTIONS for name, body in section(report)]
    markdown = inspect_markdown(report)
    if is_named and _NAME.format(0) in told:
        markdown = "\n".join("| labels |" if line.startswith("| labels |") else line for line in markdown.split("\n"))
        told = ""
    face = {
        "report": document,
        "default": labels if is_default else [],
        "words": plain_words(report),
        "tone": tell_verdict(report).tone.value,
        "lines": lines,
        "labels": told,
        "tokens": _tokens(report),
        "svg": _drawing(_picture(report), WIDTH),
        "narrow": _drawing(_with_counts_below(_picture(report)), NARROW),
        "markdown": markdown.split("\n"),
        "next": [list(step) for step in next_of_inspect(report, COMMAND, details=False)],
    }
    if is_named and _NAME.format("")[:2] in json.dumps(face).replace(REFERENCE, "").replace(COMMAND, ""):
        raise Unfit
    return face


_SECTIONS = (brief_pooling_facts, formula_facts, loss_facts, quantized_facts, score_head_facts)


@dataclass(frozen=True)
class _Drawn:
    """A configuration of a structure, and its sizes."""

    config: Mapping[str, Any]
    symbols: Symbols


_Asked = tuple[str, str, str, str]
"""How a number of classes is meant, which, how the classes are named, and the problem type, which may be ""."""


class _Said:
    """What the command says of the checkpoints of one structure, in one form of their tensors."""

    def __init__(self, entry: Mapping[str, Any], place: int, sources: Mapping[str, Any]) -> None:
        self._entry = {**entry, "forms": [entry["forms"][place]]}
        self._version = sources["transformers"]
        self._draw = random.Random(json.dumps(entry["config"]))

    def kinds(self) -> Iterator[_Asked]:
        """Everything that can be asked: lists name up to four classes."""
        for form, kind, problem in (item["for"] for item in self._entry["forms"][0]["answers"][0]):
            if problem in PROBLEMS:
                for one in ("3", "4", "many") if kind == "many" else (kind,):
                    yield from ((form, one, naming, problem or "") for naming in _namings(form, kind))

    def drawn(self) -> dict[str, list[_Drawn]]:
        """Configurations with drawn sizes, by the pattern of their special tokens; float16 has other findings."""
        found: dict[str, list[_Drawn]] = {}
        dtypes = self._entry["dtypes"]
        groups = [[name for name in dtypes if (name == "float16") is is_half] for is_half in (False, not IS_SAMPLE)]
        for config, group in itertools.product(self._configs(), filter(None, groups)):
            key = f"{pattern_of_ids(config)} {group[0] if group[0] == 'float16' else ''}"
            if key not in found:
                with suppress(Unfit):
                    dtypes = itertools.islice(itertools.cycle(group), len(_MANY))
                    found[key] = self._apart(config, list(dtypes))
        return found

    def _apart(self, config: Mapping[str, Any], dtypes: Sequence[str]) -> list[_Drawn]:
        """Draws until no size is the same share of another in all of them, if they can be told apart at all."""
        last = len(dtypes) - 1
        for _ in range(_APART):
            found = [
                self._drawn_from(config, name, is_large=at < last, is_deep=at == 0) for at, name in enumerate(dtypes)
            ]
            sizes = [name for name, value in found[0].symbols.items() if type(value) is int]
            pairs = itertools.combinations(sizes, 2)
            shares = ({one.symbols[a] / max(one.symbols[b], 1) for one in found} for a, b in pairs)
            if all(len(each) > 1 for each in shares):
                break
        return found

    def _configs(self) -> Iterator[dict[str, Any]]:
        """The configuration that the structure was made from, one in which no token is another, and published ones."""
        entry = self._entry
        rules, sizes = entry["config"], entry["sizes"]
        own = {name: sizes.get(name, filled(rule[1], sizes) if rule[1:] else None) for name, rule in rules.items()}
        own = {name: value for name, value in own.items() if value != ABSENT}
        yield own
        ids = [name for name in sizes if name.endswith("_token_id")]
        yield own | {name: at for at, name in enumerate(ids, 1)}
        for family, fields in ((own["model_type"], {}), *SIZES):
            if family == own["model_type"]:
                config = json.loads(json.dumps(AutoConfig.for_model(family, **fields).to_dict(), default=str))
                yield own | {name: value for name, value in config.items() if name.endswith("_token_id")}

    def _drawn_from(self, config: Mapping[str, Any], dtype: str, *, is_large: bool, is_deep: bool) -> _Drawn:
        """One with other sizes, which nobody has published. Raises Unfit where none fits.

        Numbers of a large one are written with commas, and of a deep one that of its tensors too.
        """
        entry = self._entry
        own = symbols_of_config(entry, dict(config))
        for _ in range(_TRIES if own is not None else 0):
            ids = random.Random(self._draw.random()).sample(range(200), 200)
            symbols = {name: self._other_size(name, value, is_large=is_large) for name, value in (own or {}).items()}
            symbols |= {name: ids[symbols[name] % len(ids)] for name in symbols if name.endswith("_token_id")}
            symbols |= {name: self._draw.randint(70, 90) for name in symbols if name in DEPTHS and is_deep}
            if hold(entry["relations"], symbols | {"classes": 3}):
                found = {name: symbols.get(name, value) for name, value in config.items()}
                rules = {name: filled(rule[1], symbols) for name, rule in entry["config"].items() if rule[0] == "="}
                found |= {name: rules[name] for name in found if isinstance(found[name], list | dict) and name in rules}
                return _Drawn(found, {**symbols, "dtype": dtype})
        raise Unfit(config.get("architectures"), "no other sizes")

    def _other_size(self, name: str, own: Any, *, is_large: bool) -> Any:
        draw = self._draw
        if name.endswith("_token_id"):
            return own
        if name in DEPTHS:
            return draw.randint(2, 5)
        if isinstance(own, float):
            # One with more digits breaks the lines of the narrow picture elsewhere: no template would fit.
            other = (own * times for times in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 4.0, 5.0))
            return draw.choice([size for size in other if len(str(size)) <= len(str(own))])
        if own >= 20_000:
            return own + draw.choice([0, 3, -77])
        if is_large and own >= 100:  # in four digits, and not so large that no formula is proven
            fitting = [own * parts // 4 for parts in range(1, 150) if 1_024 <= own * parts // 4 <= 3_600]
            return draw.choice(fitting or [own])
        return draw.choice([own, 2 * own, 3 * own, max(own // 2, 1)])

    def template(self, drawn: Sequence[_Drawn], asked: _Asked) -> Any:
        """The template of the answer at any sizes and number of classes. Raises Unfit where no template tells it."""
        made = [self._told(one, many, asked) for one, many in zip(drawn, _MANY, strict=True)]
        found: dict[str, Any] = {"counts": made[0][1].pop("counts")}
        for name in made[0][1]:
            values = [(env, told[name]) for env, told in made]
            try:
                found[name] = fitted(values[:-1])
                # The narrow picture of a small model may have lines with less in them.
                if any(filled(found[name], env) != told for env, told in values[: -1 if name == "narrow" else None]):
                    raise Unfit(name)
            except Unfit:
                if name not in ("svg", "narrow"):  # a line breaks elsewhere for some sizes
                    raise
                found[name] = None
        return found

    def holds(self, template: Mapping[str, Any], one: _Drawn, many: int, asked: _Asked) -> bool:
        """Whether a template says what the command says of one configuration."""
        symbols, told = self._told(one, many, asked)
        return all(
            name == "narrow" or part is None or (part if name == "counts" else filled(part, symbols)) == told[name]
            for name, part in template.items()
        )

    def _told(self, one: _Drawn, many: int, asked: _Asked) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the page shows of a configuration, and the symbols in it."""
        form, kind, naming, problem = asked
        count = None if kind == "default" else many if kind == "many" else int(kind)
        labels = _labels(count, naming)
        manifest = self._manifest(one, count or 0 if form == "stated" else 0, labels, problem)
        report = self.report(manifest, ClassCount(form, count, labels))
        counts = _counts(answer_of_form(self._entry["forms"][0], manifest, ClassCount(form, count, labels), None))
        symbols = {**one.symbols, "classes": count or self._entry["default_classes"]}
        numbers = {name: sum(map(prod, filled(shapes, symbols))) for name, shapes in counts.items()}
        face = json.loads(json.dumps(_marked(_face(report, is_default=count is None), symbols["dtype"])))
        return {**symbols, **numbers}, {"counts": counts, **face}

    def report(self, manifest: CheckpointManifest, count: ClassCount) -> Report:
        """The report as `inspect` makes it of a checkpoint on the Hub. Raises Unfit where it would trace."""
        known = examination_in(self._entry, manifest, count)
        if known is None:
            raise Unfit(count)
        report = renewed(known, Structure("", count.labels or None), manifest, "inspect", verified=False)
        report = replace(report, environment=replace(report.environment, transformers=self._version))
        request = Request(Location(REFERENCE), num_labels=count.number if count.form == "asked" else None)
        profile = likely_profile(report)
        found = findings_of(report, profile, manifest.config, known.built, request)
        return replace(report, findings=found, profile=profile)

    def _manifest(self, one: _Drawn, stated: int, labels: tuple[str, ...], problem: str | None) -> CheckpointManifest:
        classes = stated or self._entry["default_classes"]
        names = labels[:stated]
        maps = ({str(at): name for at, name in enumerate(names)}, {name: at for at, name in enumerate(names)})
        named = dict(zip(LABEL_FIELDS, maps, strict=True)) if names else {}
        rows = filled(self._entry["forms"][0]["tensors"], {**one.symbols, "classes": classes})
        return CheckpointManifest(
            reference=REFERENCE,
            kind=CheckpointKind.HUB,
            format=WeightsFormat.SAFETENSORS,
            config={**one.config, **named, **({"problem_type": problem} if problem else {})},
            tensors=tuple(TensorHeader(key, dtype, tuple(shape), _FILE) for key, dtype, shape in rows),
            files=(WeightFile(_FILE, 1),),
        )


def _counts(answer: Any) -> dict[str, list[Any]]:
    """Templates of the shapes that are counted: of the model, of its head, and of what the scores depend on there."""
    weights, head = answer["report"]["weights"], answer["report"]["head"]
    tied = [tie["parameter"] for tie in weights["tied"]]
    own = head["parameters"] if head is not None else []
    return {
        "#model": _shapes(weights["parameters"], lambda item: not item["is_buffer"] and item["name"] not in tied),
        "#head": _shapes(own, lambda item: True),
        "#live": _shapes(own, lambda item: item["live"]),
    }


def _shapes(template: Sequence[Any], is_counted: Callable[[Any], bool]) -> list[Any]:
    """The template of shapes alone of a template of parameters."""
    found: list[Any] = []
    for item in template:
        if "*" in item:
            *range_of_layers, repeated = item["*"]
            found.append({"*": [*range_of_layers, _shapes(repeated, is_counted)]})
        elif is_counted(item):
            found.append(item["shape"])
    return found


def _marked(value: Any, dtype: str) -> Any:
    """Texts with marks for articles and the dtype. Raises Unfit where an article isn't that of its number."""
    if isinstance(value, dict):
        return {name: _marked(item, dtype) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, dtype) for item in value]
    if not isinstance(value, str):
        return value
    text = _ARTICLE.sub(lambda found: "\x01" if found[1] == "a" else "\x02", value)
    if _MARKED_NUMBER.sub(_with_article, text) != value:
        raise Unfit("article", value)
    return text.replace(dtype, _DTYPE_MARK)


def _with_article(found: re.Match[str]) -> str:
    article = article_of(int(found[2].replace(",", "")))
    return f"{article if found[1] == chr(1) else article.capitalize()} {found[2]}"


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


def _with_counts_below(picture: Picture) -> Picture:
    """The picture with the parameters of the base model on a separate line, however many digits they have."""
    base = [node for node in picture.nodes if node.kind is BoxKind.BASE]
    below = {node.id: replace(node, beside="", lines=(node.beside, *node.lines)) for node in base if node.beside}
    return replace(picture, nodes=tuple(below.get(node.id, node) for node in picture.nodes))


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
