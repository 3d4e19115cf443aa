"""`repair`: a copy of a checkpoint without the states in which a tool left it, with a proof."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Unpack

from headscope.core.source.request import Progress, is_in_memory
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import ClassOptions
from headscope.shell.shown import Shown, fields_of
from headscope.shell.values import make_request, options_of, read_labels
from headscope.slices.repair.facts import RepairReport
from headscope.slices.repair.options import RepairOptions


class RepairedCopy(Shown, RepairReport):
    """The result of `repair`."""

    __slots__ = ()


@use_case
def repair(
    reference: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[RepairOptions],
) -> RepairedCopy:
    """Writes a copy of a checkpoint without the states that `inspect` reports (HS802 to HS809), and proves it.

    What is carried out is what the report prints: keys without the names of a wrapper, weights out of a file of a
    training run, parts of DeepSpeed or torch.distributed.checkpoint put together, an adapter merged, a configuration
    written. Pickles are read without running code. A separate process then reads both from disk: Transformers' loader
    finds what the source holds, and every tensor is that of the source, byte by byte. A result that isn't proven isn't
    written. With the code of a checkpoint, it is run only if you trust it.

    Args:
        reference: A local folder, or one file of weights in it.
        output: The folder to write. It must not exist, or be empty. A dry run needs none.
        options: See `RepairOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The states, what was given, and the proof. The verdict is `clean` where there is nothing to repair,
        `incomplete` where a load isn't whole (a head without stored weights, a layer that the class has no place for),
        and `not_determined` where several models may be meant: their state names them for `take`.

    Raises:
        UsageError: An option doesn't fit, or the output exists.
        HeadscopeError: The checkpoint can't be read, or its state needs something that wasn't given.

    Example:
        >>> import headscope
        >>> try:
        ...     headscope.repair("my-checkpoint", "repaired")
        ... except headscope.errors.HeadscopeError as err:
        ...     print(err.code)
        usage
    """
    from headscope.slices.repair.repaired_copy import repair_checkpoint
    from headscope.slices.repair.steps import RepairWish

    if is_in_memory(reference):
        raise UsageError("repair takes a checkpoint, not a model in memory", "give the folder that it was saved to")
    settings = options.get("settings") or {}
    for name in settings:
        if not str(name).isidentifier():
            raise UsageError(f"{name!r} is not the name of a setting", "write settings={'lora_alpha': 16}")
    take = options.get("take") or ()
    config = fspath(options.get("config") or "")
    if config and Path(config).exists():
        config = str(Path(config).absolute())  # processes that run in another folder read it too
    wish = RepairWish(
        config=config,
        settings=settings,
        labels=read_labels(options.get("labels")),
        takes_defaults=options.get("defaults", False),
        take=(take,) if isinstance(take, str) else tuple(take),
        link=options.get("link", False),
        dry_run=options.get("dry_run", False),
    )
    request = make_request(reference, {**options_of(ClassOptions, options), "offline": True})
    if output is None and not wish.dry_run:
        raise UsageError("the result needs a place", "give -o DIR, or --dry-run, which writes nothing")
    found = repair_checkpoint(
        request, None if output is None else Path(output), wish, progress or (lambda sentence: None)
    )
    return RepairedCopy(**fields_of(found))
