"""Pipelines of spaCy, also with spacy-transformers: components, architectures and labels, from their text files.

The layout is that of spaCy 3 (`Language.to_disk`): `meta.json`, `config.cfg` and a folder for each component, whose
weights (`COMPONENT/model`) are in Thinc's format and are not read.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.checkpoints.contents.weights import FileStorage
from headscope.checkpoints.foreign.values import ForeignLabels, listed_labels, mapping, text
from headscope.checkpoints.formats.config_file import parse_object
from headscope.errors import HeadscopeError
from headscope.facts import Gap, GapTopic
from headscope.facts.counting import few_of
from headscope.facts.exports.export import ExportHead, HeadBasis, Inventoried, Setting, contents_of

KNOWLEDGE = "meta.json and config.cfg of the pipeline; its weights are in Thinc's format, which headscope doesn't read"
_META, _CONFIG = "meta.json", "config.cfg"
_CLASSIFIERS = ("textcat", "textcat_multilabel")
_SECTION = re.compile(r"\[components\.(?P<name>[^\]\n]{1,100})\]")
_VALUE = re.compile(r'(?P<key>@architectures|factory|name)\s{0,9}=\s{0,9}"(?P<value>[^"\n]{0,200})"')
_MOST = 100


@dataclass(frozen=True, slots=True)
class _Component:
    """One component of the pipeline: the factory that makes it, the architecture of its model, and its labels."""

    name: str
    factory: str
    architecture: str
    labels: ForeignLabels

    @property
    def is_classifier(self) -> bool:
        """Whether it gives scores to whole texts."""
        return self.factory in _CLASSIFIERS


def refuse_spacy(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Inventoried, with the classifier of the pipeline, for a folder of spaCy."""
    if _META not in names or _CONFIG not in names:
        return
    meta = parse_object(storage.read_text(_META), _META)
    if "spacy_version" not in meta and "pipeline" not in meta:
        return
    sections = _sections(storage)
    components = tuple(_components(meta, sections))
    listed = few_of(item.name for item in components) or "no components"
    raise Inventoried(
        f"{reference} is a pipeline of spaCy ({listed}), not a checkpoint of Transformers",
        f"load it with that library: pip install spacy; spacy.load({reference!r})",
        contents_of(
            reference,
            f"spaCy {text(meta.get('spacy_version'), '(no version named)')}, {text(meta.get('lang'), 'xx')}",
            (),
            format_name="spacy",
            bytes_read=0,
            settings=tuple(_settings(components, sections)),
            head=_head(components),
        ),
    )


def _sections(storage: FileStorage) -> dict[str, dict[str, str]]:
    """The names in the sections of the components in `config.cfg`; {} where it cannot be read."""
    try:
        lines = storage.read_text(_CONFIG).decode("utf-8", "replace").splitlines()
    except HeadscopeError:
        return {}
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in lines:
        section, value = _SECTION.fullmatch(line.strip()), _VALUE.fullmatch(line.strip())
        if section is not None:
            current = found.setdefault(section["name"], {})
        elif line.startswith("["):
            current = {}
        elif value is not None:
            current[value["key"]] = value["value"]
    return found


def _components(meta: Mapping[str, Any], sections: Mapping[str, Mapping[str, str]]) -> Iterator[_Component]:
    pipeline = meta.get("pipeline")
    labels = mapping(meta.get("labels"))
    for name in pipeline[:_MOST] if isinstance(pipeline, list) else ():
        if not isinstance(name, str):
            continue
        factory = sections.get(name, {}).get("factory", name)
        architecture = sections.get(f"{name}.model", {}).get("@architectures", "")
        yield _Component(text(name), factory, architecture, listed_labels(labels.get(name), f"labels of {text(name)}"))


def _settings(components: Sequence[_Component], sections: Mapping[str, Mapping[str, str]]) -> Iterator[Setting]:
    for item in components:
        yield Setting(item.name, item.architecture or item.factory)
        base = sections.get(f"{item.name}.model", {}).get("name", "")
        if base:
            yield Setting(f"{item.name}, base model", base)


def _head(components: Sequence[_Component]) -> ExportHead | None:
    """The classifier of whole texts, the first of several; None for a pipeline without one."""
    found = [item for item in components if item.is_classifier]
    if not found:
        return None
    one, *others = found
    gaps = [
        Gap(
            GapTopic.HEAD,
            f"the weights of {one.name} ({one.name}/model) are in Thinc's format, which headscope doesn't read",
        ),
        Gap(GapTopic.POOLING, f"it is that of {one.architecture or 'an architecture that config.cfg does not name'}"),
    ]
    gaps += [Gap("labels", one.labels.reason)] if one.labels.reason else []
    notes = [f"the classifier is {one.name} ({one.architecture or one.factory})"]
    notes += [f"{few_of(item.name for item in others)} beside it not shown"] if others else []
    sharing = next((item.name for item in components if item.factory in {"transformer", "curated_transformer"}), "")
    notes += [f"it reads the vectors of {sharing}, a model of Transformers inside the pipeline"] if sharing else []
    return ExportHead(
        basis=HeadBasis.CONFIG,
        pooling=None,
        pooling_rule="",
        steps=(),
        tensors=(),
        classes=len(one.labels.names) or None,
        labels=one.labels.names,
        knowledge=KNOWLEDGE,
        notes=tuple(notes),
        labels_from=_META,
        not_determined=tuple(gaps),
    )
