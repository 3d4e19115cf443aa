"""Configurations of a family with other sizes, of which its classes can be built and traced."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import transformers
from transformers import AutoConfig

from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.labels import are_placeholders
from headscope.core.model.classes.reduced_config import DEPTHS
from headscope.core.source.memory.shipped_structures import hold
from headscope.core.source.memory.templates import Symbols
from headscope.core.source.request import Request
from scripts.shipped.examined_documents import examined
from scripts.shipped.saved_manifests import parameter_names, saved_manifest
from scripts.shipped.template_fitting import Unfit

DRAWN = 6
"""How many configurations a template is made from; the first are those of the family itself, and of few layers."""
_HEADS = ("sequence_classification", "token_classification", "image_classification", "audio_classification")
_LANGUAGE_MODELS = ("pretraining", "masked_lm", "causal_lm", "seq_to_seq_causal_lm", "speech_seq_2_seq")
_MOST_LANGUAGE_MODELS = 2
_TRIES, _LEGAL = 300, 18
"""How many configurations are drawn for one that can be built, and how many of those tell what sizes have in common."""
_LITERAL = {
    "whisper": ("max_source_positions", "classifier_proj_size"),  # the formula of others may be too large to be proven
    "phi3": ("original_max_position_embeddings",),  # stated among the parameters of the rotation too
    "gpt_neo": ("num_layers",),  # as many as its kinds of attention say
    "mobilebert": ("num_feedforward_networks",),  # a factor of the number of tensors, beside that of layers
}
"""Sizes that are not symbols."""
_OF_ONE_SIZE = ("convnext", "convnextv2", "resnet", "swin", "segformer", "beit", "mobilevit", "mobilenet_v2")
"""Families with a size for each stage: no template tells others, as lists aren't symbols, and none is tried."""
_SHARE = 0.3
"""Fractions below it are dropouts, and spreads of initial weights; larger ones choose how something is computed."""
_MOST_LAYERS = 48
_DEPTHS_DRAWN = ((11, 14), *[(2, 6)] * 4, (2, 48))
"""How many layers the configurations have; names of two digits come first, which sort otherwise."""
_ACCEPTED: dict[str, tuple[dict[str, list[Any]], set[str]]] = {}
"""By family: values of fields that changed nothing in the classes so far, and the fields that were tried."""


class Family:
    """A configuration of a family and others with sizes drawn at random, of which classes can be built and run."""

    def __init__(self, model_type: str, fields: Mapping[str, Any]) -> None:
        self.model_type, self._fields = model_type, fields
        self.config = self.make()
        self.draw = random.Random(model_type)
        self.bases = _classes(self.config, ("model",))
        known = _classes(self.config, _LANGUAGE_MODELS)[:_MOST_LANGUAGE_MODELS]
        self.language_models = [cls for cls in known if cls not in self.bases]
        self.heads = _classes(self.config, _HEADS)
        self.accepted, self.tried = _ACCEPTED.setdefault(model_type, ({}, set()))
        self._chance: set[str] = set()
        self._tried_sizes: dict[tuple[str, int], bool] = {}
        self.names = [
            name
            for name, value in self.config.to_dict().items()
            if name not in _LITERAL.get(model_type, ())
            and (
                (type(value) is float and value < _SHARE)
                or (type(value) is int and (value > 1 or is_id(name)) and model_type not in _OF_ONE_SIZE)
            )
        ]
        self.drawn: list[tuple[dict[str, Any], Any]] = [({}, self.config)]

    @property
    def fields(self) -> dict[str, Any]:
        """What differs from the family's default; a copy, as configurations write into their dicts."""
        return deepcopy(dict(self._fields))

    def make(self, **values: Any) -> Any:
        """The configuration with some values; what the family derives from them follows."""
        fields = {**self.fields, **values}
        config = self.whole()
        for name in DEPTHS:
            is_literal = name in _LITERAL.get(self.model_type, ())
            if type(getattr(config, name, None)) is int and name in config.to_dict() and not is_literal:
                depth = fields[name] = values.get(name, min(getattr(config, name), 4))
                for other, value in self.fields.items():  # what is stated for each layer
                    if isinstance(value, list) and len(value) == getattr(config, name):
                        fields[other] = [value[at % len(value)] for at in range(depth)]
        return AutoConfig.for_model(self.model_type, **fields)

    def whole(self, **values: Any) -> Any:
        """The configuration with as many layers as it says, and some values."""
        return AutoConfig.for_model(self.model_type, **{**self.fields, **values})

    def of_same_size(self, shares: Sequence[str], count: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Gives the configuration in its own size, and then with other dropouts and spreads."""
        yield {}, self.whole()
        for _ in range(count - 1):
            values = {name: self._size(getattr(self.config, name)) for name in shares}
            yield values, self.whole(**values)

    def find_legal(self) -> None:
        """Draws configurations, of which the first few have few layers."""
        self.traced = [*self.heads, *self.bases][0]
        if not are_placeholders(tuple(self.config.id2label.values())):
            raise Unfit(self.model_type, "its classes have names by default, which no template has")
        if self.model_type in _OF_ONE_SIZE:
            return
        self.outcome = _outcome(self.traced, self.config)
        for number in range(_TRIES):
            # Sizes that are equal may have to be: but where they may differ, a template is made from such that do.
            is_aligned = len(self.drawn) >= DRAWN or number > _TRIES // 5
            values = self._values(is_aligned=is_aligned and self.draw.random() < 0.5, number_of_draw=number)
            try:
                config = self.make(**values)
                is_legal = divides_by_heads(config) and _outcome(self.traced, config) == self.outcome
            except Exception:  # whatever a configuration or a constructor raises for sizes that don't fit
                is_legal = False
            if is_legal:
                self.drawn.append((values, config))
            if len(self.drawn) > _LEGAL:
                break
        if len(self.drawn) < DRAWN:
            raise Unfit(self.model_type, "no other sizes can be built")
        unsteady = self._unsteady()
        if unsteady:
            self.names = [name for name in self.names if name not in unsteady]
            self.drawn = self.drawn[:1]
            self.find_legal()

    def _unsteady(self) -> set[str]:
        """The sizes of which some, that all relations allow, can't be built or traced: they are not symbols."""
        own = {name: getattr(self.config, name) for name in self.names}
        made = [{name: getattr(config, name) for name in own} for _, config in self.drawn]
        relations = self.needed(relations_of(made))
        return {
            name
            for name, value in own.items()
            if type(value) is int and not is_id(name) and name not in DEPTHS
            for size in (value + 1, value + 2, max(value // 2, 1), 2 * value, 3 * value)
            if hold(relations, {**own, name: size}) and not self._runs(name, size)
        }

    def needed(self, relations: Iterable[list[Any]]) -> list[list[Any]]:
        """The relations without those that drawn sizes have by chance: models of sizes that break them are tried."""
        known = list(relations)
        free = [item for item in known if item[1] != 0 and not any(is_id(str(side)) for side in item[1:])]
        own = {name: getattr(self.config, name) for name in self.names}
        for name in dict.fromkeys(name for item in free for side in item[1:] if side != 2 for name in side.split("*")):
            for size in (own[name] + 1, own[name] + 2, 3 * own[name], 3, 6, 12, 20, 24):
                broken = [item for item in free if not hold([item], {**own, name: size})]
                if any(json.dumps(item) not in self._chance for item in broken) and self._runs(name, size):
                    self._chance.update(map(json.dumps, broken))
        of_ids = [item for item in known if item not in free and (item[1] == 0 or "vocab_size" in item)]
        kept = [*of_ids, *(item for item in free if json.dumps(item) not in self._chance)]
        return [*kept, *self._unequal(kept)]

    def _unequal(self, relations: Sequence[list[Any]]) -> Iterator[list[Any]]:
        """The pairs of sizes, and of ids, that may not be equal: then the model is another, or its run is.

        A head that reads the end of a text by its token, for one, needs another token as padding.
        """
        own = {name: getattr(self.config, name) for name in self.names}
        whole = [name for name, value in own.items() if type(value) is int and name not in DEPTHS]
        pairs = [pair for pair in itertools.combinations(whole, 2) if is_id(pair[0]) is is_id(pair[1])]
        for one, two in pairs:
            is_seen = any(getattr(config, one) == getattr(config, two) for _, config in self.drawn)
            for name, size in () if is_seen else ((one, own[two]), (two, own[one])):
                if hold(relations, {**own, name: size}) and not self._runs(name, size):
                    yield ["!=", one, two]
                    break

    def _runs(self, name: str, size: int) -> bool:
        """Whether a class with another size runs as with the family's own."""
        if name in DEPTHS and size > _MOST_LAYERS:
            return False
        if (name, size) not in self._tried_sizes:
            try:
                own = {other: getattr(self.config, other) for other in self.names}
                config = self.make(**{**own, name: size})
                found = divides_by_heads(config) and _outcome(self.traced, config) == self.outcome
            except Exception:  # as in `find_legal`
                found = False
            self._tried_sizes[name, size] = bool(found)
        return self._tried_sizes[name, size]

    def _values(self, *, is_aligned: bool, number_of_draw: int = 0) -> dict[str, Any]:
        """Sizes at random; with `is_aligned`, those that are equal stay so."""
        at = self.draw.random()
        found: dict[str, float] = {}
        for name in self.names:
            own = getattr(self.config, name)
            if is_aligned:
                self.draw.seed(f"{at} {own}")
            if is_id(name):
                words = max(getattr(self.config, "vocab_size", 900) - 200, 9)
                found[name] = self.draw.randrange(0, words if number_of_draw % 2 else min(words, 200))
            elif name in DEPTHS:  # the first are traced, the others built alone
                found[name] = self.draw.randrange(*_DEPTHS_DRAWN[min(len(self.drawn), len(_DEPTHS_DRAWN)) - 1])
            else:
                found[name] = self._size(own)
        self.draw.seed(f"{at}")
        return found

    def _size(self, own: float) -> float:
        if isinstance(own, float):
            return own * self.draw.choice([0.25, 0.5, 0.75, 1.25, 1.5, 2, 2.5, 3])
        half = max(own // 2, 1) if own % 2 == 0 else own
        return self.draw.choice(
            [half, own, 2 * own, 3 * own, 4 * own] if own < 20_000 else [own + 7, own - 110, own + 1024]
        )


def relations_of(made: Sequence[Symbols]) -> Iterator[list[Any]]:
    """What all configurations have in common: one size divides another, is as large, or is not larger, or a product."""
    names = [name for name, value in made[0].items() if type(value) is int and name != "classes"]
    yield from (["<=" if is_id(name) else "<", 0, name] for name in names)
    yield from (["%", name, 2] for name in names if not is_id(name) and all(env[name] % 2 == 0 for env in made))
    for one, two, three in itertools.permutations([name for name in names if not is_id(name)], 3):
        if one < two and all(env[one] * env[two] == env[three] for env in made):
            yield ["=", three, f"{one}*{two}"]
    for one, two in itertools.permutations(names, 2):
        pairs = [(env[one], env[two]) for env in made]
        if all(a == b for a, b in pairs):
            yield ["=", one, two]
            continue
        if not is_id(one) and all(b and a % b == 0 for a, b in pairs):
            yield ["%", one, two]
        elif all(a < b for a, b in pairs):
            yield ["<", one, two]
        elif all(a <= b for a, b in pairs):
            yield ["<=", one, two]


def divides_by_heads(config: Any) -> bool:
    """Tells if the heads share the hidden size evenly; some classes build others too, with fewer columns than that."""
    size, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if getattr(config, "head_dim", None) is not None or not (isinstance(size, int) and isinstance(heads, int)):
        return True
    return size % heads == 0


def _outcome(cls: Any, config: Any) -> Any:
    """The names of a class's parameters without their numbers, and whether its head can be traced."""
    keys = parameter_names(cls, config)
    manifest = saved_manifest(cls, config, "float32")
    report = examined(manifest, Request(Location("shipped"), num_labels=config.num_labels), None).report
    return keys, report.model.loss, report.head is None


def _classes(config: Any, mappings: Sequence[str]) -> list[Any]:
    """The class of each of Transformers' mappings for a configuration, each once."""
    found: dict[Any, None] = {}
    for name in mappings:
        mapping = getattr(transformers, "MODEL_MAPPING" if name == "model" else f"MODEL_FOR_{name.upper()}_MAPPING")
        item = mapping.get(type(config), None)
        for cls in item if isinstance(item, tuple) else (item,):
            if cls is not None:
                found[cls] = None
    return list(found)


def is_id(name: str) -> bool:
    return name.endswith("_token_id")
