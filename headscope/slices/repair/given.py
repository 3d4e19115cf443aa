"""Options that a person gives for a repair: whether they are enough, and which step uses which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.states.peft_keys import MergePeft
from headscope.core.facts import StateKind
from headscope.core.facts.counting import list_of
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.core.facts.stored.location import Location
from headscope.core.facts.stored.states import take_options
from headscope.core.source.reading.without_config import WriteConfig
from headscope.errors import NotFound, Unsupported, UsageError

if TYPE_CHECKING:
    from headscope.core.source.request import Request
    from headscope.slices.repair.steps import RepairStep, RepairWish


_CONFIG_HINT = "give the configuration: --config FOLDER_OR_ID of a model of the same kind"
_ADAPTER_HINT = "give --config FOLDER, with the adapter_config.json of the training"
_ALPHA_HINT = ", or --set lora_alpha=N; add --set use_rslora=true if you trained with it, and set lora_alpha to 0 if " \
    "merge_adapter() ran before the save"  # fmt: skip
_MOST_NAMED = 30


def given_options(wish: RepairWish) -> dict[str, str]:
    """Gives the options that were set, as a report shows them, by their names."""
    found = {"--config": f"config={wish.config}"} if wish.config else {}
    found |= {f"--set {name}": f"{name}={json.dumps(value)}" for name, value in wish.settings.items()}
    found |= {f"--take {name}": f"take={name}" for name in wish.take}
    found |= {"--labels": f"labels={','.join(wish.labels)}"} if wish.labels else {}
    return found | ({"--defaults": "defaults"} if wish.takes_defaults else {})


def taken_options(step: RepairStep, wish: RepairWish) -> set[str]:
    """Names the options that a step uses."""
    settings = {f"--set {name}" for name in wish.settings}
    found: set[str] = set()
    for state in step.states:
        action = state.repair.action if state.repair else None
        found |= {f"--take {name}" for name in wish.take if any(item.is_called(name) for item in state.candidates)}
        if state.kind is StateKind.NO_CONFIG:
            found |= {"--labels", *({"--config"} if wish.config else {"--defaults", *settings})}
        elif isinstance(action, MergePeft):
            found |= {"--config"} if config_of_adapter(action, wish) else settings
    return found


def later_options(step: RepairStep, wish: RepairWish) -> set[str]:
    """Names the options that may be for a state that only the result of this step shows."""
    if step.report is not None:
        return set()
    takes = {f"--take {name}" for name in wish.take}
    if step.writes_config:
        alone = not wish.config or "lora_alpha" not in wish.settings
        return takes if alone else takes | {f"--set {name}" for name in wish.settings}
    return {*given_options(wish)}


def check_taken(wish: RepairWish, taken: set[str]) -> None:
    """Raises UsageError for an option that no step takes."""
    for option, shown in given_options(wish).items():
        if option not in taken:
            raise UsageError(f"{shown} is given, and the repair doesn't take it", f"leave out {option}")


def taken_models(step: RepairStep, wish: RepairWish) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Gives the names in `take` that a step carries out, and the groups of weights that its repairs leave out."""
    models = [state.candidates[0] for state in step.states if state.repair and state.candidates]
    names = (name for name in wish.take if any(model.is_called(name) for model in models))
    return tuple(names), tuple(group for model in models for group in model.left_out)


def reason_against(step: RepairStep, wish: RepairWish, taken: set[str]) -> str:
    """Gives the reason why nothing can be written whatever is given; "" if there is none.

    Reasons are several possible models, or a source that contradicts itself. Raises UsageError for a name in `take`
    that is none of the models and that no step before has `taken`.
    """
    taken = taken | taken_options(step, wish)
    for state in step.states:
        seen = f"{state.sentence} {state.seen()}"
        if state.is_ambiguous:
            for name in wish.take:
                if f"--take {name}" not in taken:
                    hint = f"name one: {take_options(state.candidates, ', ')}"
                    raise UsageError(f"{name} is none of the models here", hint)
            return seen
        if state.repair is None and state.remedy:
            return f"{seen} {state.remedy}"
        if state.kind is StateKind.HALF_DOWNLOAD and state.repair:
            return f"{seen} {state.repair.sentence} {state.repair.code}"
    return ""


def config_of_adapter(action: MergePeft, wish: RepairWish) -> str:
    """Gives the folder with PEFT's configuration; "" if settings replace it."""
    return "" if action.rank and "lora_alpha" in wish.settings else wish.config


def assumed_settings(step: RepairStep, wish: RepairWish) -> tuple[str, ...]:
    """Lists the settings that a step takes from the defaults of the class."""
    actions = [] if wish.config else [action for action in step.actions if isinstance(action, WriteConfig)]
    return tuple(
        f"{name}={json.dumps(value)}" for action in actions for name, value in _unset_settings(action, wish).items()
    )


def _unset_settings(action: WriteConfig, wish: RepairWish) -> dict[str, Any]:
    """Gives the settings that no shape determines and that weren't given."""
    return {name: value for name, value in action.assumed if name not in wish.settings}


def check_given(step: RepairStep, wish: RepairWish) -> None:
    """Raises Unsupported if a state can't be repaired here, or if something isn't given that the checkpoint lacks.

    Raises UsageError for an unknown setting, and the errors of `given_config`.
    """
    # States without a repair come first: no option helps with the others as long as there is one.
    for state in sorted(step.states, key=lambda state: state.repair is not None):
        repair = state.repair
        action = repair.action if repair else None
        seen = f"{state.sentence} {state.seen()}".strip()
        if state.kind is StateKind.NO_CONFIG:
            _check_config(step.request, action, wish, seen)
        elif action is None:
            how = f"{repair.sentence} `{repair.code}`" if repair else state.remedy or "nothing on this machine can"
            raise Unsupported(f"headscope can't carry out the repair of {state.rule}: {seen}", how)
        elif isinstance(action, MergePeft):
            for name in action.read_settings & wish.settings.keys():
                raise UsageError(f"{name} is read from the file's keys and shapes", f"leave out --set {name}")
            check_trust(action, trusts=step.request.trust_remote_code)
            if not (config_of_adapter(action, wish) or (action.rank and "lora_alpha" in wish.settings)):
                hint = _ADAPTER_HINT + (_ALPHA_HINT if action.rank else "")
                raise Unsupported(f"{seen} The file doesn't hold the settings of the adapter", hint)


def check_trust(action: MergePeft, *, trusts: bool) -> None:
    """Raises Unsupported for a merge that would run the checkpoint's code without permission."""
    if action.trust and not trusts:
        raise Unsupported(
            "the merge would run the code that config.json names in auto_map",
            "add --trust-remote-code if you trust it",
        )


def _check_config(request: Request, action: object, wish: RepairWish, seen: str) -> None:
    if wish.config:
        given_config(wish.config, request)
        return
    if not isinstance(action, WriteConfig):
        raise Unsupported(seen, _CONFIG_HINT)
    import transformers

    fields = getattr(transformers, action.config_class)().to_dict()
    known = {*fields, *dict(action.fields), *dict(action.assumed)}
    for name in wish.settings:
        if name not in known:
            raise UsageError(
                f"{name} is not a setting of {action.config_class}", f"it has {list_of(sorted(known), 100)}"
            )
    lacking = _unset_settings(action, wish)
    if not wish.takes_defaults and (lacking or not wish.settings):
        hint, defaults = f"{_CONFIG_HINT}; or, as --set NAME=VALUE, the settings that no shape tells", ""
        if lacking:
            hint += f": {list_of(list(lacking), _MOST_NAMED)}"
            defaults = ": " + list_of([f"{name}={json.dumps(value)}" for name, value in lacking.items()], _MOST_NAMED)
        raise Unsupported(seen, f"{hint}; or --defaults if those of the class are right{defaults}")


def given_config(reference: str, request: Request) -> dict[str, Any]:
    """Reads the config.json of a folder, a file or a repository in the local cache.

    Raises NotFound where there is none, Malformed for anything but an object of JSON.
    """
    from headscope.core.checkpoints.checkpoint_files import open_sidecar

    path = Path(reference)
    if path.is_file():
        return parse_object(path.read_bytes(), CONFIG)
    found = open_sidecar(Location(reference, hub=request.location.hub))
    if found is None:
        raise NotFound(f"there is no {reference} here or in the local cache", "give a folder with a config.json")
    with found.reaching():
        return parse_object(found.storage.read_text(CONFIG), CONFIG)
