"""The recognizers of states: each finds the state of a place with files; the surest come first."""

from collections.abc import Callable

from headscope.core.checkpoints.states.deepspeed import find_deepspeed, without_deepspeed
from headscope.core.checkpoints.states.distributed import find_distributed
from headscope.core.checkpoints.states.files import find_half_download, find_other_format, find_pointers
from headscope.core.checkpoints.states.folders import find_megatron, find_megatron_core, find_trainer_output
from headscope.core.checkpoints.states.place import Found, StatePlace, found_between
from headscope.core.checkpoints.states.training_file import SEVERAL_SETS, find_training_file
from headscope.core.facts import CheckpointState
from headscope.errors import HeadscopeError, NotFound

_OF_A_TRAINING = (find_distributed, find_training_file, find_trainer_output)


def find_models(place: StatePlace) -> Found | None:
    """Finds the state of a place with the weights of a training: of DeepSpeed, distributed, in files, or in folders.

    If there are several of these, no loader prefers one.
    """
    rest = without_deepspeed(place)
    looks = ((find_deepspeed, place), *((find, rest) for find in _OF_A_TRAINING))
    found = [item for find, where in looks if (item := find(where)) is not None]
    if len(found) < 2:
        return next(iter(found), None)
    options = [
        (model.take, Found(model.state or item.state, model.headers or None, left_out=model.left_out))
        for item in found
        for model in item.state.candidates
    ]
    return found_between(options, SEVERAL_SETS)


_Recognizer = Callable[[StatePlace], Found | None]
_OF_FOLDERS: tuple[_Recognizer, ...] = (
    find_pointers, find_megatron_core, find_megatron, find_half_download, find_models, find_other_format,
)  # fmt: skip
_OF_BAD_FILES: tuple[_Recognizer, ...] = (find_pointers, find_half_download, find_training_file)
_OF_FILES_HERE: tuple[_Recognizer, ...] = (find_pointers, find_half_download)
"""Not for a repository of the Hub: there are no pointers in it, and its files are as long as the Hub says."""


def recognize(place: StatePlace, *, is_stored: bool = False, is_bad_file: bool = False) -> Found | None:
    """Finds the state of a place without weights that `from_pretrained` reads; None if no recognizer knows it.

    If it `is_stored`, it is a repository of the Hub, and few requests are made. With `is_bad_file`, it has a weight
    file that is not what its name says.
    """
    recognizers = _OF_BAD_FILES if is_bad_file else _OF_FOLDERS
    wanted = [find for find in recognizers if not (is_stored and find in _OF_FILES_HERE)]
    return next((found for find in wanted if (found := find(place)) is not None), None)


def as_error(reference: str, state: CheckpointState, kind: type[HeadscopeError] = NotFound) -> HeadscopeError:
    """Builds the error for a checkpoint that cannot be examined in this state: what it is, and what repairs it."""
    hint = state.repair.advice() if state.repair else state.remedy
    error = kind(f"{reference}: {state.sentence} {state.seen()}", hint)
    error.state, error.reference = state, reference
    return error
