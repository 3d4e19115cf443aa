"""The structures of `write_shipped.py`: checkpoints that people use, examined for any sizes and numbers of classes."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from transformers import AutoConfig

from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
from headscope.core.facts.stored.location import Location
from headscope.core.model.tokenizers import special_tokens_of
from headscope.core.source.memory.shipped_structures import (
    ABSENT,
    LABEL_FIELDS,
    SILENT_FIELDS,
    ClassCount,
    by_layer,
    hold,
)
from headscope.core.source.memory.templates import Symbols, filled
from headscope.core.source.reading.default_class import read_default_class
from headscope.core.source.request import Request
from headscope.core.source.structure import Remembered
from headscope.facts import CheckpointManifest
from scripts.pages.shipped_sizes import LEFTOVERS, SIZES
from scripts.shipped.examined_documents import TRACES, code_of, document_of, examined, proof_of, variant
from scripts.shipped.recording import Record, recorded
from scripts.shipped.saved_manifests import parameter_names, saved_manifest, tensor_forms
from scripts.shipped.shipped_families import Family, relations_of
from scripts.shipped.shipped_rules import ENOUGH, Tried, loosened
from scripts.shipped.template_fitting import Unfit, fitted

_PROBLEMS = (None, "single_label_classification", "multi_label_classification", "regression")
_DTYPES = ("float32", "bfloat16", "float16")
_COUNTS = (3, 5, 203, 12, 57, 8)
"""The class counts of the configurations that a template is made from."""


class Layout:
    """How a class saves checkpoints of some configuration, whatever its sizes."""

    def __init__(self, cls: Any, family: Family, *, has_labels: bool) -> None:
        self.cls, self.family, self.has_labels = cls, family, has_labels
        self.config = family.config

    def entries(self) -> Iterator[dict[str, Any]]:
        """Gives the entry of the layout, and one for each number format that its template doesn't know.

        An entry is of one size where no template tells others. Raises Unfit where none does.
        """
        found = self._entry_of_any(_DTYPES)
        yield found
        for dtype in _DTYPES:
            if dtype not in found["dtypes"]:
                with suppress(Unfit):
                    yield self._entry_of_any((dtype,))

    def _entry_of_any(self, dtypes: Sequence[str]) -> dict[str, Any]:
        """An entry of the first few number formats that have a template, or of the first alone. Raises Unfit."""
        TRACES.clear()
        first = self._manifest(self.config, _COUNTS[0], dtypes[0])
        with recorded() as record:
            found = examined(first, self._request(_COUNTS[0]), None)
        names = [name for name in self.family.names if name in record.fields]
        shares = [name for name in names if isinstance(getattr(self.config, name), float)]
        same = list(self.family.of_same_size(shares, len(_COUNTS)))
        reason = Unfit()
        for fields, legal in ((names, None), (shares, same)):
            for count in range(len(dtypes), 0, -1):
                try:
                    return self._entry(record, found, fields, legal or self._legal(), dtypes[:count])
                except Unfit as err:
                    reason = err
                    print(f"{self.cls.__name__}: {len(fields)} symbols, {dtypes[:count]}: {str(err)[:300]}", flush=True)
        raise reason

    def _entry(
        self,
        record: Record,
        found: Remembered,
        names: Sequence[str],
        legal: Sequence[Any],
        dtypes: Sequence[str],
    ) -> dict[str, Any]:
        drawn = [
            (self._symbols(config, names, count, dtype), self._manifest(config, count, dtype), config)
            for (_, config), count, dtype in zip(legal, _COUNTS, itertools.cycle(dtypes), strict=False)
        ]
        forms = self._forms(drawn)
        self._prove_tensors(forms[0]["tensors"], names, legal[len(drawn) :], dtypes[0])
        label_forms = self._label_forms(drawn[0][1], document_of(found, is_plain=True))
        tried = [Tried(manifest, self._request(int(env["classes"]))) for env, manifest, _ in drawn]
        relations = self.family.needed(relations_of([self._symbols(config, names, 0, "") for _, config in legal]))
        rules = self._rules(record, names, tried, legal, relations)
        return {
            "labels": label_forms,
            **rules,
            "relations": relations,
            "dtypes": list(dtypes),
            "default_classes": self.config.num_labels,
            "sizes": {name: getattr(self.config, name) for name in names},
            **code_of(record, found),
            **proof_of(drawn[0][1], self._request(_COUNTS[0])),
            "forms": forms,
        }

    def _legal(self) -> list[Any]:
        """The drawn configurations with which this class has the same parameters, but for their numbers."""
        own, found = parameter_names(self.cls, self.config), []
        for values, config in self.family.drawn:
            with suppress(Exception):  # whatever a constructor raises for sizes that don't fit
                if parameter_names(self.cls, config) == own:
                    found.append((values, config))
        if len(found) < len(_COUNTS):
            raise Unfit(self.cls.__name__, "no other sizes can be built")
        return found

    def _forms(self, drawn: Sequence[Any]) -> list[dict[str, Any]]:
        """What is known of each form in which a checkpoint of the class was saved: today, and by older libraries."""
        each = [tensor_forms(self.cls, self.family, config, manifest) for _, manifest, config in drawn]
        found: list[dict[str, Any]] = []
        for name in each[0]:
            made = [
                (env, replace(manifest, tensors=forms[name]), config)
                for (env, manifest, config), forms in zip(drawn, each, strict=True)
            ]
            documents = [
                (env, document_of(examined(item, self._request(int(env["classes"])), None), is_plain=True))
                for env, item, _ in made
            ]
            base = fitted(documents)
            found.append({
                "tensors": fitted([(env, _rows(item.tensors)) for env, item, _ in made]),
                "base": base,
                "answers": [self._answers(made, base, name, found), self._answers_by_token(made, base)],
            })  # fmt: skip
        return found

    def _prove_tensors(self, template: Any, names: Sequence[str], legal: Sequence[Any], dtype: str) -> None:
        """Compares a template with the tensors of configurations that it wasn't made from. Raises Unfit."""
        for _, config in legal:
            rows = _rows(self._manifest(config, _COUNTS[0], dtype).tensors)
            if filled(template, self._symbols(config, names, _COUNTS[0], dtype)) != rows:
                raise Unfit(self.cls.__name__, "other tensors at other sizes")

    def _request(self, count: int | None, *, is_stated: bool = False) -> Request:
        asked = None if self.has_labels or is_stated else count
        return Request(Location("shipped"), num_labels=asked)

    def _manifest(
        self, config: Any, count: int | None, dtype: str, problem: str | None = None, *, is_stated: bool = False
    ) -> CheckpointManifest:
        stated = count if self.has_labels or is_stated else None
        return saved_manifest(self.cls, config, dtype, stated, problem, are_named=True)

    def _symbols(self, config: Any, names: Sequence[str], count: int, dtype: str) -> Symbols:
        return {**{name: getattr(config, name) for name in names}, "classes": count, "dtype": dtype}

    def _label_forms(self, first: CheckpointManifest, expected: Any) -> list[list[bool]]:
        """Which of the two maps of labels may be there."""
        if not self.has_labels:
            return [[False, False], [True, True]]
        plain = replace(first, config={name: value for name, value in first.config.items() if name != "label2id"})
        found = document_of(examined(plain, self._request(None), None), is_plain=True)
        return [[True, True], *([[True, False]] if found == expected else [])]

    def _rules(
        self,
        record: Record,
        names: Sequence[str],
        tried: Sequence[Tried],
        legal: Sequence[Any],
        relations: Sequence[Any],
    ) -> dict[str, Any]:
        """The rules of the fields that are read, and what a field means that is left out."""
        first = tried[0].manifest
        plain = json.loads(json.dumps(type(self.config)().to_dict(), default=str))
        written = [json.loads(json.dumps(config.to_dict(), default=str)) for _, config in legal]
        aliases = getattr(self.config, "attribute_map", {})
        wanted = record.fields | record.words() | set(aliases) | {"model_type", "architectures"}
        wanted -= {*LABEL_FIELDS, *SILENT_FIELDS}
        rules: dict[str, Any] = {}
        defaults = {}
        symbols = [self._symbols(config, names, 0, "") for _, config in legal]
        for name in sorted(wanted):
            if name in names:
                rules[name] = ["f" if type(getattr(self.config, name)) is float else "n"]
                with suppress(Unfit):
                    defaults[name] = self._default(name, symbols, legal, relations)
            elif name == "problem_type":
                rules[name] = ["=", *_PROBLEMS, ABSENT]
                defaults[name] = None
            elif aliases.get(name) in names:  # another name of a size
                rules[name] = ["=", ABSENT, {"+": [[1, aliases[name]]]}]
            elif name in first.config or name in plain:
                made = [config.get(name) for config in written]
                if all(item == made[0] for item in made):
                    rules[name] = ["=", first.config.get(name, made[0])]
                    if name in plain and name not in {"model_type", "architectures"}:
                        defaults[name] = self._derived(name)
                else:  # derived from others
                    defaults[name] = fitted(list(zip(symbols, made, strict=True)))
                    rules[name] = ["=", defaults[name]]
            elif name in LEFTOVERS:
                rules[name] = ["=", ABSENT]
            elif name.startswith("_") and all(_is_idle_copy(name, one) for one in tried[:ENOUGH]):
                copied = fitted([(env, config.get(name[1:])) for env, config in zip(symbols, written, strict=True)])
                rules[name] = ["=", ABSENT, copied]
        rules = loosened(rules, tried, self.family)
        return {"config": rules, "absent": sorted(wanted - rules.keys()), "defaults": defaults}

    def _derived(self, name: str) -> Any:
        """What a field is that is left out of the family's configuration, as JSON."""
        fields = {key: value for key, value in self.family.fields.items() if key != name}
        config = AutoConfig.for_model(self.family.model_type, **fields).to_dict()
        return json.loads(json.dumps(config.get(name), default=str))

    def _default(self, name: str, symbols: Sequence[Symbols], legal: Sequence[Any], relations: Sequence[Any]) -> Any:
        """A template for a number that is left out. Raises Unfit where none is known."""
        made, refused = [], []
        for env, (values, _) in zip(symbols, legal, strict=True):
            others = {key: value for key, value in env.items() if key != name}
            try:
                made.append((others, self._left_out(name, values)))
            except Unfit:
                refused.append(others)
        if len(made) < 4:
            raise Unfit(name, "has to be there")
        template = fitted(made)
        for env in refused:  # what a configuration refuses has to have no value here either
            with suppress(ValueError):
                if hold(relations, {**env, name: filled(template, env)}):
                    raise Unfit(name, "can't be left out")
        return template

    def _left_out(self, name: str, values: dict[str, Any]) -> Any:
        """What a field is where it is left out of a configuration. Raises Unfit where it has to be there."""
        own = {key: getattr(self.config, key) for key in self.family.names} | values
        try:
            config = AutoConfig.for_model(self.family.model_type, **{
                key: value for key, value in {**self.family.fields, **own}.items() if key != name
            })  # fmt: skip
        except Exception as err:  # whatever a configuration raises that needs the field
            raise Unfit(name, err) from err
        value = getattr(config, name, None)
        if type(value) not in (int, float):
            raise Unfit(name, value)
        return value

    def _answers(self, made: Sequence[Any], base: Any, form: str, others: Sequence[Any]) -> list[dict[str, Any]]:
        """The changes for other kinds of counts, and for each problem type; those of another form where they hold."""
        env, _, config = made[0]
        own = "stated" if self.has_labels else "asked"
        found = [{"for": [own, "many", None], "changes": []}]
        wanted: list[tuple[str, int | None, str | None]] = [
            (own, count, problem)
            for count in (1, 2, _COUNTS[0])
            for problem in (_PROBLEMS if self.has_labels else (None,))
        ]
        wanted += [("stated", None, problem) for problem in _PROBLEMS]
        if not self.has_labels:
            wanted += [("stated", count, None) for count in (1, 2, _COUNTS[0])]
        for kind_of, count, problem in wanted:
            kind = ClassCount(kind_of, count).kind
            if (kind_of, kind, problem) == (own, "many", None):
                continue
            known = [
                item for other in others for item in other["answers"][0] if item["for"] == [kind_of, kind, problem]
            ]
            if known and len(found) > 2:  # what changes doesn't hang on the form, as the first two have shown
                found.append(known[0])
                continue
            is_stated = kind_of == "stated" and count is not None
            item = self._manifest(config, count, env["dtype"], problem, is_stated=is_stated)
            item = replace(item, tensors=tensor_forms(self.cls, self.family, config, item).get(form, ()))
            classes = config.num_labels if count is None else count
            own_answer = self._answer([kind_of, kind, problem], item, count, {**env, "classes": classes}, base)
            others = others if not known or own_answer == known[:1] else ()
            found += own_answer
        return found

    def _answer(
        self, key: list[Any], manifest: CheckpointManifest, count: int | None, env: Symbols, base: Any
    ) -> list[dict[str, Any]]:
        try:
            document = document_of(
                examined(manifest, self._request(count, is_stated=key[0] == "stated"), None), is_plain=True
            )
            return [{"for": key, "changes": variant(base, env, document)}]
        except Exception:  # a class that doesn't take this count or problem type, or an answer that holds sizes
            return []

    def _answers_by_token(self, made: Sequence[Any], base: Any) -> list[dict[str, Any]]:
        """The changes where the first token is the family's own."""
        env, manifest, _ = made[0]
        own = FirstToken(special_tokens_of(str(manifest.config["model_type"])).first)
        document = document_of(examined(manifest, self._request(int(env["classes"])), own), is_plain=True)
        return [{"for": None, "changes": []}, {"for": [own.token], "changes": variant(base, env, document)}]


def _is_idle_copy(name: str, one: Tried) -> bool:
    """Whether a field is where a property is kept, as older versions wrote it (`_out_features`), and is idle."""
    found = one.manifest.config.get(name[1:])
    return found is not None and one.is_same_with({name: found})


def _rows(tensors: Sequence[Any]) -> list[Any]:
    """Key, dtype and shape of tensors, as templates know them."""
    return [[item.key, item.dtype, list(item.shape)] for item in by_layer(tensors)]


def structures_of(model_type: str) -> list[dict[str, Any]]:
    """The entries of a family: of its base model, its language models and its classifiers, as each is configured."""
    found: list[dict[str, Any]] = []
    for family in (Family(name, dict(fields)) for name, fields in SIZES if name == model_type):
        family.find_legal()
        layouts = [Layout(cls, family, has_labels=False) for cls in (*family.bases, *family.language_models)]
        layouts += [Layout(cls, family, has_labels=True) for cls in family.heads]
        for layout in layouts:
            try:
                found += layout.entries()
            except Exception as err:  # Unfit, and whatever a class raises that can't be drawn
                print(f"{layout.cls.__name__}: no template: {type(err).__name__}: {str(err)[:300]}", flush=True)
    return found


def classes_of_family(names: Sequence[str]) -> dict[str, Any]:
    """The entries of classes in their default configuration, by their names; those that can't be traced have none."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            request = Request(Location(name))
            manifest = read_default_class(request)
            with recorded() as record:
                told = examined(manifest, request, None)
        except Exception:  # whatever a class raises that can't be made by default
            continue
        config, document = manifest.config, document_of(told)
        if not told.report.model.labels_are_placeholders:
            document["report"]["model"]["labels"] = list(told.report.model.labels)
        kind = ClassCount("stated", len(config["id2label"]) if "id2label" in config else None).kind
        own = {field: value for field, value in config.items() if field not in (*LABEL_FIELDS, *SILENT_FIELDS)}
        found[name] = {
            "config": own,
            "rest": {field: value for field, value in config.items() if field not in own},
            "notices": manifest.notices,
            **code_of(record, told),
            "default_classes": told.report.model.num_labels,
            "forms": [
                {
                    "base": document,
                    "answers": [
                        [{"for": ["stated", kind, config.get("problem_type")], "changes": []}],
                        [{"for": None, "changes": []}],
                    ],
                }
            ],
        }
    return found
