"""A class of Transformers where a checkpoint could be named: its name, and its default configuration as a manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from headscope.core.facts import CheckpointKind, CheckpointManifest, Task, WeightsFormat
from headscope.core.facts.counting import few_of
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import open_cache
from headscope.core.source.storage.shipped import CLASSES, shipped, shipped_class
from headscope.errors import HeadscopeError, UsageError

_LIKE_A_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*", re.ASCII)
_ANY_CASE = re.compile(r"\w*(for|model)\w*", re.IGNORECASE | re.ASCII)
_OF_CHECKPOINTS = ("revision", "subfolder", "variant")


def is_class_name(request: Request) -> bool:
    """True if a request names a class of Transformers or PyTorch; an existing path of that name comes first.

    It is looked up in their files: neither is imported.
    """
    reference = request.reference
    if not _LIKE_A_CLASS.fullmatch(reference) or os.path.lexists(reference):
        return False
    if _shipped_entry(request) is not None:
        return True
    from headscope.core.upstream.class_sources import find_class_source

    return find_class_source(reference) is not None


def read_default_class(request: Request) -> CheckpointManifest:
    """Builds the manifest of a class in its default configuration: no files, no tensors.

    Raises UsageError for a class without a head, and for options that only a checkpoint has.
    """
    name = request.reference
    _refuse_other_options(request)
    known = _shipped_entry(request)
    if known is not None:
        return _manifest_of_class(name, known["config"] | known["rest"], known["notices"])
    from headscope.core.model.classes.catalog import family_of_class, gives_other_scores, task_of_class
    from headscope.core.model.classes.defaults import default_values
    from headscope.core.model.classes.model_request import describe_other_scores

    family = family_of_class(name)
    if family is None or not (task_of_class(name) or request.task or request.tokens):
        if gives_other_scores(name):
            raise UsageError(*describe_other_scores(name))
        raise UsageError(f"{name} has no head that scores classes", _with_head(family, name))
    values, filled = default_values(family)
    notices = (f"the default configuration leaves {few_of(filled)} open; set here to run the class",) if filled else ()
    return _manifest_of_class(name, {**values, "architectures": [name]}, notices)


def _shipped_entry(request: Request) -> Any:
    # Without a cache the user wants everything examined again, so shipped facts don't count either.
    return shipped_class(request.reference) if open_cache(request.cache).is_open else None


def _manifest_of_class(name: str, config: dict[str, Any], notices: Iterable[str]) -> CheckpointManifest:
    return CheckpointManifest(
        reference=name,
        kind=CheckpointKind.CLASS,
        format=WeightsFormat.NONE,
        config=config,
        tensors=(),
        files=(),
        notices=tuple(notices),
    )


def without_checkpoint(name: str) -> UsageError:
    """Builds the error for a class where weights are needed."""
    return UsageError(
        f"{name} is a class, not a checkpoint: it has no weights to look at",
        f"give the folder or the Hub ID of a checkpoint; `headscope inspect {name}` shows the class in its default "
        "configuration",
    )


def with_nearest_class(err: HeadscopeError, reference: str) -> HeadscopeError:
    """Adds the nearest class name to the error of a reference that nothing was found for, if it looks like one."""
    if not _ANY_CASE.fullmatch(reference):
        return err
    from difflib import get_close_matches

    # A typo in a class whose facts are shipped is answered without an import of Transformers.
    names = {name.lower(): name for name in shipped(CLASSES) or ()}
    near = get_close_matches(reference.lower(), list(names), n=1, cutoff=0.9)
    if not near:
        from headscope.core.model.classes.catalog import all_classes_of_task

        names = {name.lower(): name for task in Task for _, name in all_classes_of_task(task)}
        near = get_close_matches(reference.lower(), list(names), n=1)
    if not near:
        return err
    return type(err)(f"{err.message}; Transformers has no class of that name either", f"did you mean {names[near[0]]}?")


def _refuse_other_options(request: Request) -> None:
    """Raises UsageError for an option that only a checkpoint has, or for a second class."""
    given = {name: getattr(request.location, name) for name in _OF_CHECKPOINTS} | {"adapter": request.adapter}
    lost = next((name for name, value in given.items() if value), None)
    if lost is not None:
        raise UsageError(f"{lost} doesn't apply to a class such as {request.reference}", "leave it out")
    if request.model_class not in (None, request.reference):
        raise UsageError(f"{request.reference} and {request.model_class} are two classes", "name one of them")


def _with_head(family: str | None, name: str) -> str:
    """Lists the classes of a family that have a head, or says where the class is explained."""
    from headscope.core.model.classes.catalog import classes_of_family

    found = [item.name for item in classes_of_family(family)] if family else []
    if found:
        return f"{family} has {few_of(found)}"
    return f"`headscope heads` lists the classes that have one; `headscope explain {name}` shows the code of this one"
