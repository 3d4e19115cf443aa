"""Ray: its quiet start, and the causes of its failures.

It is an extra, and imported only where a scan asks for it.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from headscope.errors import HeadscopeError, UsageError, first_line

_SILENT = logging.CRITICAL + 1
_SETTINGS = {
    "enable_progress_bars": False,
    "print_on_execution_start": False,
    # One checkpoint may take longer than Ray Data lets pass without a result.
    "execution_no_progress_timeout_s": -1,
    # A node may be lost while an actor begins on it.
    "max_consecutive_actor_init_deaths": 10,
}


def imported() -> Any:
    """Imports the package, with Ray Data in it. Raises UsageError where it is not installed."""
    try:
        import ray
        import ray.data
    except ImportError as err:
        name = err.name or "ray"
        raise UsageError(
            f"the executor ray needs Ray Data, which is not installed ({name} is missing)",
            'pip install "headscope[ray]", or leave out --executor ray',
        ) from err
    return ray


@contextmanager
def running() -> Iterator[Any]:
    """Connects to Ray as it reads RAY_ADDRESS, or starts it here; what this started, this ends.

    Ray writes to its log files only. Raises UsageError where Ray is not installed or can't be reached.
    """
    ray = imported()
    started = not ray.is_initialized()
    with _silenced_ray_data(ray):
        if started:
            _start_ray(ray)
        try:
            yield ray
        finally:
            if started:
                ray.shutdown()


_QUIET = {
    # Ray would print a paragraph on what it reports to its makers.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Its core writes to stderr itself, past every logger.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


def _start_ray(ray: Any) -> None:
    before = dict(os.environ)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        with _dropped_stderr():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=_SILENT)
    except (OSError, RuntimeError, ValueError) as err:
        address = before.get("RAY_ADDRESS")
        where = f"the Ray cluster at {address} can't be reached" if address else "Ray can't be started on this machine"
        raise UsageError(
            f"{where}: {first_line(err)}", "set RAY_ADDRESS to a running cluster, or unset it to start Ray here"
        ) from err
    finally:
        for name in _QUIET.keys() - before.keys():
            os.environ.pop(name, None)


@contextmanager
def _dropped_stderr() -> Iterator[None]:
    """Drops what compiled code writes to stderr: Ray's core reports there that its log is off."""
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # it is closed
        yield
        return
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _silenced_ray_data(ray: Any) -> Iterator[None]:
    """Runs Ray Data with our settings, and without its lines on stderr; its log files keep them."""
    context = ray.data.DataContext.get_current()
    before = {name: getattr(context, name) for name in _SETTINGS if hasattr(context, name)}
    screens = [one for one in logging.getLogger("ray.data").handlers if isinstance(one, logging.StreamHandler)]
    levels = [screen.level for screen in screens]
    try:
        for name in before:
            setattr(context, name, _SETTINGS[name])
        for screen in screens:
            screen.setLevel(_SILENT)
        # A thread of Ray prints the loss of a node to stdout, where the report belongs.
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        for screen, level in zip(screens, levels, strict=True):
            screen.setLevel(level)


@contextmanager
def failing_as(hint: str) -> Iterator[None]:
    """Raises HeadscopeError for whatever Ray raises inside, with the cause that it names and `hint`.

    A HeadscopeError of a task is raised as it was: Ray's own error is of that class too, but without its fields.
    """
    import ray.exceptions

    try:
        yield
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as err:
        cause = root(err)
        if isinstance(cause, HeadscopeError):
            raise cause from err
        raise HeadscopeError(f"Ray could not finish the scan: {first_line(cause)}", hint) from err


def root(err: BaseException) -> BaseException:
    """Finds what a task raised, below the errors in which Ray wraps it."""
    while (cause := getattr(err, "cause", None) or err.__cause__) is not None and cause is not err:
        err = cause
    return err


def nodes(ray: Any) -> tuple[str, ...]:
    """Gives the IDs of the nodes that are alive."""
    return tuple(node["NodeID"] for node in ray.nodes() if node["Alive"])


def on_node(ray: Any, function: Any, node: str, *arguments: object) -> Any:
    """Calls `function` on one node; returns a reference to its result."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*arguments)
