"""`edit`: a changed copy of a checkpoint, with a proof of what the change does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from headscope.checks.labeled_data import DataRequest
from headscope.copies.facts import HEAD_DTYPES, PROBLEM_TYPES, EditReport, FitKind
from headscope.core.source.request import Progress, is_in_memory
from headscope.errors import ExitCode, Unsupported, UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import ClassOptions
from headscope.shell.shown import Shown, fields_of
from headscope.shell.values import make_request, options_of, read_labels, read_names, read_path
from headscope.slices.edit.options import EditOptions

if TYPE_CHECKING:
    from headscope.slices.edit.plan import LabelChanges
    from headscope.slices.edit.wish import FitWish


class Edited(Shown, EditReport):
    """The result of `edit`."""

    __slots__ = ()


@use_case
def edit(
    reference: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[EditOptions],
) -> Edited:
    """Writes a changed copy of a checkpoint, and proves what the change does to its scores.

    Rows of the last layer are kept, dropped, copied or added as the classes change; all other tensors stay as they are,
    byte by byte. A separate process then reads both from disk: the loader finds what it found before, kept rows are
    equal, and on random hidden states the scores are those that the change promises. A result that isn't proven isn't
    written.

    Args:
        reference: A local folder, or a Hub ID whose files are in the local cache.
        output: The folder to write. It must not exist, or be empty.
        options: See `EditOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The classes and where each row comes from, what holds exactly and what only approximately, and the proof.

    Raises:
        UsageError: A change can't be made, or the output exists.
        HeadscopeError: The checkpoint can't be read, can't be edited so, or can't be written.

    Example:
        >>> import headscope
        >>> try:
        ...     headscope.edit("my-checkpoint", "smaller", drop="NEUTRAL")
        ... except headscope.errors.HeadscopeError as err:
        ...     print(err.code)
        offline
    """
    from headscope.slices.edit.adapter_head import write_adapter_head
    from headscope.slices.edit.checkpoint_edit import edit_checkpoint
    from headscope.slices.edit.classes import refused_report
    from headscope.slices.edit.wish import EditWish

    if is_in_memory(reference):
        raise UsageError("edit takes a checkpoint, not a model in memory", "save it, and give the folder")
    given = options_of(ClassOptions, options)
    if options.get("architecture") is not None:
        if given.get("model_class") not in (None, options["architecture"]):
            raise UsageError("model_class and architecture name two classes", "leave one of them out")
        given["model_class"] = options["architecture"]
    tokens = options.get("tokens")
    if options.get("as_class") is None and (tokens is not None or options.get("scores") is not None):
        raise UsageError("tokens are scores of a language model only in a fold", "add --as auto, or leave them out")
    request = make_request(reference, {**given, "offline": True, "tokens": tokens})
    wish = EditWish(
        changes=_read_label_changes(options),
        temperature=options.get("temperature", 1.0),
        settings=_read_config_settings(options),
        merge_adapter=options.get("merge_adapter", False),
        as_class=options.get("as_class") or "",
        scores=options.get("scores"),
        dtype=_read_head_dtype(options),
        order_from=_read_order_data(options),
        fit=_read_fit_wish(options),
        seed=_read_seed(options),
        texts=_read_texts(options, "texts"),
        link=options.get("link", False),
        in_place=options.get("in_place", False),
        dry_run=options.get("dry_run", False),
    )
    folder, tell = None if output is None else Path(output), progress or (lambda sentence: None)
    head = read_path(options.get("adapter_head"), "adapter_head")
    # Any field of the wish that isn't a default is another change.
    is_alone = folder is not None and wish == EditWish(dry_run=wish.dry_run) and options.get("model_class") is None
    if head is not None and not is_alone:
        raise UsageError("an adapter gets a head in a new folder, without another change", "give -o DIR alone")
    try:
        if head is not None and folder is not None:
            return Edited(**fields_of(write_adapter_head(request, folder, head, tell, dry_run=wish.dry_run)))
        if wish.as_class:
            from headscope.slices.edit.folding.fold import fold_checkpoint  # imports PyTorch, which names don't need

            return Edited(**fields_of(fold_checkpoint(request, folder, wish, tell)))
        # Rows are read and computed with a model that is built; names need only what is known of its structure.
        return Edited(**fields_of(edit_checkpoint(replace(request, cache=wish.only_renames), folder, wish, tell)))
    except Unsupported as err:
        if err.exit_code is not ExitCode.FINDINGS:  # a refusal is a result; what can't be found out is an error
            raise
        return Edited(**fields_of(refused_report(reference, output, wish, err)))


def _read_label_changes(options: Mapping[str, Any]) -> LabelChanges:
    """Joins the changes in the file with those given as options. Raises UsageError for a change that both have."""
    from headscope.slices.edit.plan import LabelChanges, read_changes_file, read_numbers

    found: dict[str, Any] = {}
    named, file = options.get("labels"), read_path(options.get("labels_file"), "labels_file")
    # A file given as labels is meant for labels_file: its name would become the name of a class.
    if isinstance(named, PathLike) or (isinstance(named, str) and named.endswith(".json") and Path(named).is_file()):
        raise UsageError(
            f"--labels names the classes, and {named} is a file", "--labels-file (labels_file) reads changes from it"
        )
    if file is not None:
        found = read_changes_file(Path(file))
    given = {item.name: options[item.name] for item in fields(LabelChanges) if options.get(item.name) is not None}
    both = sorted(found.keys() & given.keys())
    if both:
        raise UsageError(f"{both[0]} is given, and {file} has it too", "give it once")
    found |= given
    if "labels" in found:
        found["labels"] = read_labels(found["labels"])
    for name in found.keys() & {"drop", "keep", "order"}:
        found[name] = _read_classes(found[name], name)
    if "add" in found and not isinstance(found["add"], Mapping):
        found["add"] = dict.fromkeys(read_names(found["add"], "add"), "zero")
    for name in found.keys() & {"bias", "threshold"}:
        found[name] = read_numbers(found[name], name)
    if "merge" in found:
        found["merge"] = {name: _read_classes(parts, "merge") for name, parts in found["merge"].items()}
    return LabelChanges(**found)


def _read_classes(given: Any, option: str) -> tuple[str, ...]:
    # A text is split and not stripped: a class may have blanks around its name.
    return tuple(given.split(",")) if isinstance(given, str) else read_names(given, option)


def _read_order_data(options: Mapping[str, Any]) -> DataRequest | None:
    """Reads which labeled data give the order of the classes; None if no file was given."""
    file = read_path(options.get("order_from"), "order_from")
    return None if file is None else DataRequest(file, _read_texts(options, "label_column"), split=options.get("split"))


_FIT_DEFAULTS: dict[str, Any] = {"limit": 2000, "device": "cpu"}
"""Defaults of options that only a fit uses."""
_SEED_LIMIT = 2**63


def _read_seed(options: Mapping[str, Any]) -> int:
    """Reads the seed. Raises UsageError for a number that a generator doesn't take."""
    found: int = options.get("seed", 0)
    if not 0 <= found < _SEED_LIMIT:
        raise UsageError(f"{found!r} is not a seed", f"give a whole number from 0 to {_SEED_LIMIT - 1}")
    return found


def _read_fit_wish(options: Mapping[str, Any]) -> FitWish | None:
    """Reads what to fit to which texts; None without a fit. Raises UsageError if one of the two is missing."""
    from headscope.slices.edit.wish import FitWish

    kind, file = options.get("fit"), read_path(options.get("data"), "data")
    alone = {"text_column", "split", "label_column", "limit", "device"}
    # The order of the classes is read from labeled data too, with these two options.
    alone -= {"split", "label_column"} if options.get("order_from") is not None else set()
    idle = sorted(name for name in alone if options.get(name) not in (None, _FIT_DEFAULTS.get(name)))
    if kind is None and file is None and idle:
        raise UsageError(f"{idle[0]} has no effect without a fit", "add --fit temperature and --data FILE")
    if (kind is None) != (file is None):
        raise UsageError("a fit needs what is fitted and labeled texts", "add --fit temperature and --data FILE")
    if kind is None or file is None:
        return None
    given = {**_FIT_DEFAULTS, **options}
    if given["limit"] < 1:
        raise UsageError(f"a limit of {given['limit']} texts leaves none", "give at least 40")
    data = DataRequest(
        file, _read_texts(options, "label_column"), _read_texts(options, "text_column"), options.get("split"),
        given["limit"], given["device"],
    )  # fmt: skip
    return FitWish(FitKind(kind), data)


def _read_head_dtype(options: Mapping[str, Any]) -> str:
    found = options.get("dtype") or ""
    if found and found not in HEAD_DTYPES:
        raise UsageError(f"{found!r} is not a number format of a last layer", f"formats: {', '.join(HEAD_DTYPES)}")
    return str(found)


def _read_texts(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given = options.get(name)
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _read_config_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields of config.json to set. Raises UsageError for a value that no class of Transformers takes."""
    found = {name: options[name] for name in ("pad_token_id", "problem_type") if options.get(name) is not None}
    if options.get("architecture") is not None:
        found["architectures"] = [options["architecture"]]
    kind, pad = found.get("problem_type", PROBLEM_TYPES[0]), found.get("pad_token_id", 0)
    if kind not in PROBLEM_TYPES:
        raise UsageError(f"{kind!r} is not a problem type", f"problem types: {', '.join(PROBLEM_TYPES)}")
    if pad < 0:
        raise UsageError(f"{pad!r} is not the ID of a token", "give a number such as 0")
    return found
