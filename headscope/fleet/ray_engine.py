"""A scan on a Ray cluster: Ray Data maps the checkpoints over actors, and its own writers write the table.

Placement, retries and the loss of nodes are Ray's. Each actor examines its checkpoints in one worker process with
limits, as the local pool does, so one that hangs, crashes or fills the memory costs itself alone here too.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from headscope.fleet.parquet import PARTITION, in_range, schema
from headscope.fleet.pool import Crew, Limits, Work
from headscope.fleet.target import Target
from headscope.upstream.optional import ray as upstream

if TYPE_CHECKING:
    import pyarrow

# Two actors a CPU, as some wait for the network. Together they ask for half of it: where half of the nodes are lost,
# there is room on the others to start all actors again.
_A_CPU = 2
_CPUS = 0.25
# What is done again where an actor is lost, and what a file holds.
_MOST_A_BLOCK = 100
_BLOCKS_AN_ACTOR = 4
_CLEANING_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Assignment:
    """A checkpoint to scan; no row is written for a commit in `known`."""

    target: Target
    known: tuple[str, ...] = ()


def require_ray() -> None:
    """Raises UsageError where Ray is not installed."""
    upstream.imported()


def write_with_ray(  # noqa: PLR0917  in the order of what happens
    wanted: Sequence[Assignment],
    work: Work,
    workers: int | None,
    limits: Limits,
    output: str,
    watched: Callable[[], None] | None = None,
) -> None:
    """Examines checkpoints on the cluster that Ray is connected to, or on this machine, and writes their rows.

    `output` is a folder on every node, or a URL as Ray takes it. `workers` is the number of actors. `watched` is called
    now and then.

    Raises UsageError without Ray, and HeadscopeError where Ray gives up.
    """
    with upstream.running() as ray, _cleaned(ray) as name, _called(watched):
        count = workers or max(1, int(_A_CPU * ray.cluster_resources().get("CPU", 1)))
        with upstream.failing_as("see Ray's logs; --resume continues a local folder"):
            ray.data.from_arrow(_blocks(wanted, count)).map_batches(
                Scanner,
                batch_format="pyarrow",
                batch_size=None,
                compute=ray.data.ActorPoolStrategy(size=count),
                num_cpus=_CPUS,
                fn_constructor_args=(Job(work, limits, name),),
            ).write_parquet(
                output, partition_cols=[PARTITION], ray_remote_args={"num_cpus": 0}, schema=schema(), compression="zstd"
            )


def _blocks(wanted: Sequence[Assignment], actors: int) -> list[pyarrow.Table]:
    """The checkpoints in tables, several for each actor."""
    import pyarrow

    size = max(1, min(_MOST_A_BLOCK, -(-len(wanted) // (actors * _BLOCKS_AN_ACTOR))))
    parts = (wanted[start : start + size] for start in range(0, len(wanted), size))
    return [pyarrow.table({"wanted": [pickle.dumps(one) for one in part]}) for part in parts]


class Job:
    """What an actor is made for. Ray writes its arguments to logs, and among these may be a token: it shows none."""

    def __init__(self, work: Work, limits: Limits, name: str) -> None:
        self.work, self.limits, self.name = work, limits, name

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class Scanner:
    """An actor: examines blocks of checkpoints in a separate worker process."""

    def __init__(self, job: Job) -> None:
        folder = _folder(job.name)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._crew = Crew(job.work.sharing(folder), job.limits)
        self._thread = ThreadPoolExecutor(1)  # a crew has a worker for each thread, and Ray may change threads

    def __call__(self, block: pyarrow.Table) -> pyarrow.Table:
        """The rows of a block."""
        import pyarrow

        wanted: list[Assignment] = [pickle.loads(one) for one in block["wanted"].to_pylist()]
        rows = self._thread.map(self._crew.scan, [one.target for one in wanted])
        kept = [row for one, row in zip(wanted, rows, strict=True) if row.commit is None or row.commit not in one.known]
        return pyarrow.Table.from_pylist([in_range(row.to_dict()) for row in kept], schema=schema())


def _folder(name: str) -> Path:
    """The folder of one scan on a node, in which its actors share structures and what the Hub allows."""
    return Path(tempfile.gettempdir(), name)


def _remove(name: str) -> None:
    shutil.rmtree(_folder(name), ignore_errors=True)


@contextmanager
def _cleaned(ray: Any) -> Iterator[str]:
    """The name of the folders of a scan, which are removed from every node at its end."""
    name = f"headscope-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(Exception):  # a cluster that is gone leaves nothing to clean, and was reported already
            ends = [upstream.on_node(ray, _remove, node, name) for node in upstream.nodes(ray)]
            ray.wait(ends, num_returns=len(ends), timeout=_CLEANING_SECONDS)


@contextmanager
def _called(function: Callable[[], None] | None, seconds: float = 1.0) -> Iterator[None]:
    """Calls a function every few seconds, from another thread."""
    if function is None:
        yield
        return
    over = Event()

    def call() -> None:
        while not over.wait(seconds):
            function()

    thread = Thread(target=call, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
