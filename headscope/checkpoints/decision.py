"""Decision models of Transformers (since 5.23): the files that say what each row of their head scores."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.checkpoints.checkpoint_files import FileReader
from headscope.checkpoints.formats.config_file import parse_object
from headscope.facts.stored.checkpoint import DecisionHead

MODEL_TYPE = "jev"
_FILES = ("decision_config.json", "judge_config.json", "calibration.json")
_SETTINGS = "decision.json"
_TYPES = ("noul", "choice", "score")
_MOST_ROWS = 100_000


@dataclass(frozen=True)
class _Settings:
    """What the files of one layout say: the first row of each type of questions, their options, and temperatures."""

    offsets: Mapping[str, int]
    rows: Any
    softcap: Any
    labels: Mapping[str, list[Any]]
    temperature: Any


def read_decision_head(files: FileReader, config: Mapping[str, Any]) -> DecisionHead | None:
    """The decision head of a folder: its class's own layout, or files beside a language model; None without one.

    Raises Malformed for a file that isn't a JSON object.
    """
    held = {name.removesuffix(".json"): _object_of(files, name) for name in _FILES if files.has(name)}
    is_own = config.get("model_type") == MODEL_TYPE
    found = _of_class(files, config) if is_own else _beside_weights(held)
    if found is None or not isinstance(found.rows, int) or not 0 < found.rows <= _MOST_ROWS:
        return None
    given = found.temperature if isinstance(found.temperature, dict) else {}
    heats = tuple((str(kind), float(value)) for kind, value in given.items() if isinstance(value, int | float))
    places = tuple(sorted(found.offsets.items(), key=lambda item: (item[1], item[0])))
    cap = float(found.softcap) if isinstance(found.softcap, int | float) else None
    faults = tuple(_faults(found.offsets, found.rows, heats))
    return DecisionHead(places, found.rows, _labels(found), cap, heats, faults, {} if is_own else held)


def _of_class(files: FileReader, config: Mapping[str, Any]) -> _Settings:
    """The layout that `save_pretrained` of the class writes."""
    settings = _object_of(files, _SETTINGS) if files.has(_SETTINGS) else {}
    offsets = _numbers_in(config.get("offsets")) or {"noul": 0, "score": 2, "choice": 8}
    labels = _lists_in(settings.get("labels"))
    rows = config.get("num_verbalizers", 24)
    return _Settings(offsets, rows, config.get("softcap"), labels, settings.get("temperature"))


def _beside_weights(held: Mapping[str, dict[str, Any]]) -> _Settings | None:
    """The two layouts of files beside a language model: one code for each option, or ranges of rows."""
    decision, judge = held.get("decision_config", {}), held.get("judge_config", {})
    codes, slots = decision.get("codes"), judge.get("slots")
    if isinstance(codes, list):
        one = dict.fromkeys(_TYPES, decision.get("temperature"))
        return _Settings(dict.fromkeys(_TYPES, 0), len(codes), None, dict.fromkeys(_TYPES, codes), one)
    ranges = _lists_in(slots.get("ranges")) if isinstance(slots, dict) else {}
    if not isinstance(slots, dict) or not ranges or not all(map(_is_range, ranges.values())):
        return None
    words = slots.get("verbalizers")
    labels = {kind: words[start:stop] for kind, (start, stop) in ranges.items()} if isinstance(words, list) else {}
    offsets = {kind: start for kind, (start, _) in ranges.items()}
    heat = held.get("calibration", {}).get("per_kind")
    return _Settings(offsets, slots.get("num_slots"), judge.get("softcap"), labels, heat)


def _is_range(value: list[Any]) -> bool:
    return len(value) == 2 and all(type(item) is int and item >= 0 for item in value)


def _labels(found: _Settings) -> tuple[str, ...]:
    """What each row scores: the type of questions and the option; the option alone where all types share the rows."""
    names = [f"row {at}" for at in range(found.rows)]
    is_shared = len(set(found.offsets.values())) == 1
    for kind, start in sorted(found.offsets.items(), key=lambda item: item[1]):
        stop = min((other for other in found.offsets.values() if other > start), default=found.rows)
        own = found.labels.get(kind, [])
        for at in range(start, min(stop, found.rows)):
            word = own[at - start] if at - start < len(own) else at - start
            names[at] = str(word) if is_shared else f"{kind} {word}"
    return tuple(names)


def _faults(offsets: Mapping[str, int], rows: int, heats: tuple[tuple[str, float], ...]) -> Iterator[str]:
    """How the rows and the temperatures contradict the types of questions."""
    for kind, start in offsets.items():
        if start >= rows:
            yield f"the options of {kind} begin at row {start}, and the head has {rows}"
    for kind, value in heats:
        if kind not in offsets:
            yield f"there is a temperature for {kind}, which is not a type of questions"
        if not 0 < value < math.inf:
            yield f"the temperature of {kind} is {value:g}"
    lacking = [kind for kind in offsets if kind not in dict(heats)] if heats else []
    if lacking:
        yield f"{', '.join(lacking)} has no temperature, while other types have one: it counts as 1"


def _object_of(files: FileReader, name: str) -> dict[str, Any]:
    with files.reaching():
        return parse_object(files.storage.read_text(name), name)


def _numbers_in(value: Any) -> dict[str, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): number for name, number in items if type(number) is int and number >= 0}


def _lists_in(value: Any) -> dict[str, list[Any]]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): list(item) for name, item in items if isinstance(item, list)}
