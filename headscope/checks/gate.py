"""The gate over several models, with the settings that a project keeps in `[tool.headscope]` of its pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Unpack

from headscope.checks.facts import CheckResult
from headscope.checks.labeled_data import DataRequest, read_labeled
from headscope.checks.options import RunCheckpoint
from headscope.checks.rules import Ignore, Selection, select
from headscope.checks.rules.judgment import unused_ignores
from headscope.checks.run import check_one, read_baseline, read_profile
from headscope.core.facts import Gap, GapTopic, Profile
from headscope.core.facts.environment import tool_version
from headscope.core.facts.stored.states import error_line
from headscope.core.facts.verdict import Verdict
from headscope.core.source.memory.memory import Memory, Structures
from headscope.core.source.request import Progress
from headscope.core.source.storage.cache import open_cache
from headscope.errors import HeadscopeError, UsageError, did_you_mean
from headscope.shell.values import make_request

_SETTING_NAMES = ("for", "fail-on", "select", "ignore", "baseline", "models")
_IGNORE_FIELDS = ("rule", "reason", "until", "model")
_HOW_TO_IGNORE = 'write it as ignore = [{ rule = "HS202", reason = "...", until = 2030-01-31 }]'


@dataclass(frozen=True, slots=True)
class Gate:
    """Profile and rules for every model; `models` are those that the project names."""

    profile: Profile | None
    selection: Selection
    models: tuple[str, ...] = ()
    read: tuple[Path, ...] = ()
    """Files that the gate was read from."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Results of all models; `notes` are sentences on the gate itself."""

    results: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()


def run_gate(
    models: Sequence[str],
    gate: Gate,
    progress: Progress | None = None,
    data: DataRequest | None = None,
    **options: Unpack[RunCheckpoint],
) -> GateResult:
    """Checks each model, in order. Of several models, one that cannot be read gets a result: not determined.

    Raises a HeadscopeError if the only model, or the labeled data, cannot be read.
    """
    requests = [make_request(model, dict(options)) for model in models]
    labeled = read_labeled(data) if data else None
    shared = Structures() if len(requests) > 1 else None
    memory = Memory(open_cache(any(request.cache for request in requests)), shared)
    results: list[CheckResult] = []
    for request in requests:
        try:
            results.append(check_one(request, gate.profile, gate.selection, progress, labeled=labeled, memory=memory))
        except HeadscopeError as err:
            if len(requests) == 1:
                raise
            results.append(unread_result(request.reference, gate, err))
    unused = unused_ignores(gate.selection, tuple(results))
    notes = tuple(f"the ignore of {ignore.rule} was not needed: remove it" for ignore in unused)
    return GateResult(tuple(results), notes)


def unread_result(reference: str, gate: Gate, err: HeadscopeError) -> CheckResult:
    """Makes the result for a model that could not be examined."""
    return CheckResult(
        tool_version=tool_version(),
        command="check",
        reference=reference,
        profile=gate.profile or Profile.TRAINING,
        verdict=Verdict.NOT_DETERMINED,
        findings=(),
        ignored=(),
        not_determined=(Gap(GapTopic.CHECKPOINT, error_line(err, err.code)),),
        not_applicable=tuple(rule.gap("the checkpoint could not be examined") for rule in gate.selection.rules),
        rules=tuple(rule.id for rule in gate.selection.rules),
    )


def read_gate(
    folder: Path,
    *,
    profile: str | None = None,
    select_rules: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    fail_on: str | None = None,
    baseline: Path | None = None,
) -> Gate:
    """Reads the gate from the nearest pyproject.toml at or above `folder`; arguments take precedence over it.

    Raises UsageError for invalid settings.
    """
    settings, place = _project_settings(folder)
    given = settings.get("ignore", [])
    if not isinstance(given, list):
        raise UsageError(f"ignore in {place} is not a list", _HOW_TO_IGNORE)
    ignores = (*(_read_ignore(item, place) for item in given), *(Ignore(name) for name in ignore or ()))
    rules = select_rules if select_rules is not None else _texts_setting(settings, "select", place, "HS101")
    models = tuple(
        _resolve_model(name, folder, place.parent) for name in _texts_setting(settings, "models", place, "roberta-base")
    )
    named = _text_setting(settings, "baseline", place) if baseline is None else None
    file = baseline if named is None else place.parent / named
    selection = select(rules, ignores, fail_on or _text_setting(settings, "fail-on", place) or "error")
    if file is not None:
        try:
            known = read_baseline(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as err:
            raise UsageError(f"the baseline {file} cannot be read: {err}", "write one with --write-baseline") from err
        selection = replace(selection, baseline=known)
    read = (place, *map(Path, models), *([] if file is None else [file]))
    return Gate(read_profile(profile or _text_setting(settings, "for", place)), selection, models, read)


def _resolve_model(name: str, folder: Path, home: Path) -> str:
    """Gives the reference of a model that a project names."""
    # A path is relative to the project's folder, wherever the command runs; what isn't a file there may be a Hub ID.
    is_path = folder != home and not Path(name).is_absolute() and (home / name).exists()
    return str(home / name) if is_path else name


def _project_settings(folder: Path) -> tuple[dict[str, Any], Path]:
    """Reads `[tool.headscope]` of the nearest pyproject.toml that has it; gives the settings and the file."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("headscope")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as err:  # `tool = 1` has no get
            raise UsageError(f"{file} cannot be read: {err}", "correct it, or run in another folder") from err
        if isinstance(found, dict):
            _check_names(found, _SETTING_NAMES, f"[tool.headscope] in {file}")
            return found, file
        if found is not None:
            raise UsageError(f"tool.headscope in {file} is not a table", "write it as [tool.headscope]")
    return {}, folder / "pyproject.toml"


def _check_names(found: dict[str, Any], known: Sequence[str], where: str) -> None:
    """Checks the names of settings, as a misspelled one would have no effect. Raises UsageError."""
    for name in found:
        if name not in known:
            hint = did_you_mean(name, known, f"known: {', '.join(known)}")
            raise UsageError(f"{where} has the unknown setting {name}", hint)


def _text_setting(settings: dict[str, Any], name: str, place: Path) -> str | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} in {place} is not a string", f'write it as {name} = "..."')
    return value


def _texts_setting(settings: dict[str, Any], name: str, place: Path, example: str) -> tuple[str, ...]:
    value = settings.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{name} in {place} is not a list of strings", f'write it as {name} = ["{example}"]')
    return tuple(value)


def _read_ignore(item: Any, place: Path) -> Ignore:
    """Reads an ignore of a project: a rule's ID, or a table with `rule`, `reason`, `until` (a date) and `model`."""
    if isinstance(item, str):
        return Ignore(item)
    if not isinstance(item, dict) or not isinstance(item.get("rule"), str):
        raise UsageError(f"an ignore in {place} names no rule", _HOW_TO_IGNORE)
    _check_names(item, _IGNORE_FIELDS, f"an ignore in {place}")
    until = item.get("until")
    if until is not None and type(until) is not date:  # not isinstance: TOML's datetime is a date too
        raise UsageError(f"until of the ignore of {item['rule']} in {place} is not a date", _HOW_TO_IGNORE)
    return Ignore(item["rule"], str(item.get("reason", "")), until, str(item.get("model", "*")))
