"""Decision models of Transformers (since 5.23): the files that say what each row of their head scores."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.core.checkpoints.checkpoint_files import FileReader
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts.counting import few_of, verb
from headscope.core.facts.stored.checkpoint import DecisionHead, architectures_in
from headscope.errors import Malformed

_DECISION_TYPE = "jev"
_HEAD_FILES = ("head.safetensors", "readout.safetensors")
_CODES, _JUDGE, _CALIBRATION = "decision_config.json", "judge_config.json", "calibration.json"
_OWN_SETTINGS = "decision.json"
_TYPES = ("noul", "score", "choice")
"""The types of questions that Transformers knows (`Question.questions_types`)."""
_DEFAULT_OFFSETS, _DEFAULT_ROWS, _MOST_ROWS = {"noul": 0, "score": 2, "choice": 8}, 24, 100_000


@dataclass(frozen=True)
class _Layout:
    """Contents of the files of one layout.

    `ranges` gives the rows of each type of questions: the first, and the one behind the last.
    """

    ranges: Mapping[str, tuple[int, int]]
    rows: Any
    softcap: Any
    options: Mapping[str, list[Any]]
    temperatures: Mapping[str, Any]
    files: Mapping[str, Any]
    faults: tuple[str, ...] = ()


def read_decision_head(files: FileReader, config: Mapping[str, Any]) -> DecisionHead | None:
    """Reads the decision head of a folder, in its class's own layout or beside a language model; None without one."""
    names = files.names()
    is_own = config.get("model_type") == _DECISION_TYPE
    if not is_own and not ({_CODES, _JUDGE}.intersection(names) and set(_HEAD_FILES).intersection(names)):
        return None
    found = _layout_of_class(files, config) if is_own else _layout_beside_weights(files)
    if found is None or type(found.rows) is not int or not 0 < found.rows <= _MOST_ROWS:
        return None
    numbers = {kind: _decimal_of(value) for kind, value in found.temperatures.items()}
    return DecisionHead(
        offsets=tuple(sorted(((kind, start) for kind, (start, _) in found.ranges.items()), key=lambda item: item[1])),
        rows=found.rows,
        labels=_labels_of_rows(found),
        softcap=_decimal_of(found.softcap),
        temperatures=tuple((kind, value) for kind, value in numbers.items() if value is not None),
        faults=(*found.faults, *_faults_of_rows(found), *_faults_of_temperatures(found)),
        files=found.files,
    )


def refuse_decision_files(files: FileReader, config: Mapping[str, Any]) -> None:
    """Raises Malformed for a head beside a language model whose files don't describe it, as Transformers does."""
    names = set(files.names())
    beside, settings = names.intersection(_HEAD_FILES), names.intersection((_JUDGE, _CODES))
    is_language_model = any(
        name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures_in(config)
    )
    if beside and settings and not config.get("auto_map") and is_language_model:
        raise Malformed(
            f"{few_of(sorted(settings))} beside {few_of(sorted(beside))} describes no decision head: there are no "
            "codes, and no slots with ranges and num_slots",
            "restore the file, or name the class that you want to train: --task sequence-classification",
        )


def _layout_of_class(files: FileReader, config: Mapping[str, Any]) -> _Layout:
    """Reads the layout that `save_pretrained` of the class writes."""
    settings = _object_in(files, _OWN_SETTINGS)
    rows, offsets = config.get("num_verbalizers", _DEFAULT_ROWS), config.get("offsets")
    starts = _DEFAULT_OFFSETS if offsets is None else _dict_in(offsets)
    known = {kind: start for kind, start in starts.items() if kind in _TYPES and type(start) is int and start >= 0}
    # The settings give only where each type begins: it ends where the next one begins, or with the last row.
    ends = sorted({*known.values(), rows if type(rows) is int else 0})
    ranges = {kind: (start, next((end for end in ends if end > start), start)) for kind, start in known.items()}
    unread = files.has(_OWN_SETTINGS) and settings is None
    return _Layout(
        ranges, rows, config.get("softcap"), _lists_in((settings or {}).get("labels")),
        _dict_in((settings or {}).get("temperature")), {}, (f"{_OWN_SETTINGS} is not a JSON object",) if unread else (),
    )  # fmt: skip


def _layout_beside_weights(files: FileReader) -> _Layout | None:
    """Reads the two layouts of files beside a language model: one code for each option, or ranges of rows."""
    codes, judge = _object_in(files, _CODES) or {}, _object_in(files, _JUDGE) or {}
    calibration = _object_in(files, _CALIBRATION)
    held = {"decision_config": codes, "judge_config": judge, "calibration": calibration}
    held = {name: value for name, value in held.items() if value}
    if isinstance(words := codes.get("codes"), list):
        ranges = dict.fromkeys(_TYPES, (0, len(words)))
        lacking = () if "temperature" in codes else (f"{_CODES} has no temperature, and Transformers wants one",)
        heat = dict.fromkeys(_TYPES, codes["temperature"]) if not lacking else {}
        return _Layout(ranges, len(words), None, dict.fromkeys(_TYPES, words), heat, held, lacking)
    slots = _dict_in(judge.get("slots"))
    ranges = {
        kind: (place[0], place[1])
        for kind, place in _lists_in(slots.get("ranges")).items()
        if len(place) == 2 and all(type(item) is int and item >= 0 for item in place)
    }
    if not ranges:
        return None
    words = slots.get("verbalizers")
    options = {kind: words[start:stop] for kind, (start, stop) in ranges.items()} if isinstance(words, list) else {}
    heats = (calibration or {}).get("per_kind")
    lacking = () if isinstance(heats, dict) else (f"{_CALIBRATION} gives no temperatures (per_kind)",)
    return _Layout(ranges, slots.get("num_slots"), judge.get("softcap"), options, _dict_in(heats), held, lacking)


def _labels_of_rows(found: _Layout) -> tuple[str, ...]:
    """Names what each row scores: the type of questions and the option, or the option if types share rows."""
    names = [f"row {at}" for at in range(found.rows)]
    # In the layout with codes every type of questions uses the same rows, so naming a type would mislead.
    is_shared = len({start for start, _ in found.ranges.values()}) == 1
    for kind in _TYPES:
        start, stop = found.ranges.get(kind, (0, 0))
        options = found.options.get(kind, [])
        for at in range(start, min(stop, found.rows)):
            word = options[at - start] if at - start < len(options) else at - start
            names[at] = str(word)[:_LONGEST] if is_shared else f"{kind} {str(word)[:_LONGEST]}"
    return tuple(names)


_LONGEST = 80


def _faults_of_rows(found: _Layout) -> Iterator[str]:
    """Finds types of questions that Transformers lacks or misses, and rows that the head doesn't have."""
    yield from _unknown_types(found.ranges, "rows")
    lacking = [kind for kind in _TYPES if kind not in found.ranges]
    if lacking:
        yield f"{few_of(lacking)} {verb(len(lacking), 'has', 'have')} no rows, and Transformers looks for them"
    for kind in _TYPES:
        start, stop = found.ranges.get(kind, (0, 0))
        if kind in found.ranges and not start < stop <= found.rows:
            yield f"the rows of {kind} are {start} to {stop - 1}, and the head has {found.rows}"
    if _decimal_of(found.softcap) is None and found.softcap is not None:
        yield f"the soft cap is {str(found.softcap)[:_LONGEST]!r}, not a number"
    elif _decimal_of(found.softcap) == 0:
        yield "the soft cap is 0, which makes every score 0"


def _faults_of_temperatures(found: _Layout) -> Iterator[str]:
    """Finds temperatures of unknown types, missing ones, and those that nothing can be divided by."""
    yield from _unknown_types(found.temperatures, "a temperature")
    for kind, value in found.temperatures.items():
        number = _decimal_of(value)
        if kind in _TYPES and (number is None or not 0 < number < math.inf):
            yield f"the temperature of {kind} is {str(value)[:_LONGEST]!r}, not a positive number"
    lacking = [kind for kind in _TYPES if kind not in found.temperatures] if found.temperatures else []
    if lacking:
        yield f"{few_of(lacking)} {verb(len(lacking), 'has', 'have')} no temperature, and other types have one"


def _unknown_types(kinds: Collection[str], what: str) -> Iterator[str]:
    unknown = [kind[:_LONGEST] for kind in kinds if kind not in _TYPES]
    if unknown:
        yield f"{few_of(unknown)} {verb(len(unknown), 'has', 'have')} {what}, which Transformers doesn't know"


def _object_in(files: FileReader, name: str) -> dict[str, Any] | None:
    """Reads the JSON object in a file; None without the file, and for a file that holds none."""
    try:
        with files.reaching():
            return parse_object(files.storage.read_text(name), name) if files.has(name) else None
    except Malformed:
        return None


def _decimal_of(value: Any) -> float | None:
    """Converts a number to a float, infinite if it is too large for one; None for anything else."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        # JSON can hold an integer of any length.
        return math.inf


def _dict_in(value: Any) -> dict[str, Any]:
    return {str(name): item for name, item in value.items()} if isinstance(value, dict) else {}


def _lists_in(value: Any) -> dict[str, list[Any]]:
    return {name: item for name, item in _dict_in(value).items() if isinstance(item, list)}
