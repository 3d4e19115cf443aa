"""A scan on a Ray cluster: Ray Data maps the checkpoints over actors, and hands their rows to this process.

Placement, retries and the loss of nodes are Ray's. Each actor examines its checkpoints in one worker process with
limits, as the local pool does, so one that hangs, crashes or fills the memory costs itself alone here too.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.core.upstream.optional import ray as upstream
from headscope.slices.fleet.facts import ScanRow
from headscope.slices.fleet.pool import Crew, Limits, Work
from headscope.slices.fleet.target import Target

if TYPE_CHECKING:
    import pyarrow

# Two actors a CPU, as some wait for the network. Together they ask for half of it: where half of the nodes are lost,
# there is room on the others to start all actors again.
_A_CPU = 2
_CPUS = 0.25
# What is done again where an actor is lost.
_MOST_A_BLOCK = 100


def scan_on_ray(targets: Sequence[Target], work: Work, workers: int | None, limits: Limits) -> Generator[ScanRow]:
    """Gives the rows of checkpoints as they are done, from the cluster that Ray is connected to, or this machine.

    `workers` is the number of actors. Raises UsageError without Ray, and HeadscopeError where Ray gives up.
    """
    if not targets:  # no cluster is started for nothing
        return
    with upstream.running() as ray, _folder_name(ray) as name:
        count = workers or max(1, int(_A_CPU * ray.cluster_resources().get("CPU", 1)))
        with upstream.failing_as("see Ray's logs; --resume continues a table"):
            done = ray.data.from_arrow(_split_into_blocks(targets, count)).map_batches(
                Scanner,
                batch_format="pyarrow",
                batch_size=None,
                compute=ray.data.ActorPoolStrategy(size=count),
                num_cpus=_CPUS,
                fn_constructor_args=(Job(work, limits, name),),
            )
            for block in done.iter_batches(batch_format="pyarrow", batch_size=None):
                yield from map(pickle.loads, block["row"].to_pylist())


def _split_into_blocks(targets: Sequence[Target], actors: int) -> list[pyarrow.Table]:
    """Splits the checkpoints into tables, several for each actor."""
    import pyarrow

    size = max(1, min(_MOST_A_BLOCK, -(-len(targets) // (actors * 4))))
    parts = (targets[start : start + size] for start in range(0, len(targets), size))
    # Pickled, as Arrow has no type for a target.
    return [pyarrow.table({"target": [pickle.dumps(one) for one in part]}) for part in parts]


class Job:
    """Arguments of an actor. Ray writes their `repr` to logs, so it shows no token."""

    def __init__(self, work: Work, limits: Limits, name: str) -> None:
        self.work, self.limits, self.name = work, limits, name

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class Scanner:
    """An actor: examines blocks of checkpoints in a separate worker process."""

    def __init__(self, job: Job) -> None:
        folder = _scan_folder(job.name)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._crew = Crew(job.work.sharing(folder), job.limits)
        self._thread = ThreadPoolExecutor(1)  # a crew has a worker for each thread, and Ray may change threads

    def __call__(self, block: pyarrow.Table) -> pyarrow.Table:
        """Scans the checkpoints of a block and gives their rows."""
        import pyarrow

        rows = self._thread.map(self._crew.scan, map(pickle.loads, block["target"].to_pylist()))
        return pyarrow.table({"row": [pickle.dumps(row) for row in rows]})


def _scan_folder(name: str) -> Path:
    """Gives the folder of one scan on a node, in which its actors share structures and the Hub's request budget."""
    return Path(tempfile.gettempdir(), name)


def _remove_scan_folder(name: str) -> None:
    shutil.rmtree(_scan_folder(name), ignore_errors=True)


@contextmanager
def _folder_name(ray: Any) -> Iterator[str]:
    """Gives the name of a scan's folders, and removes them from every node at its end."""
    name = f"headscope-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(Exception):  # a cluster that is gone leaves nothing to clean, and was reported already
            ends = [upstream.on_node(ray, _remove_scan_folder, node, name) for node in upstream.nodes(ray)]
            # With a limit: a node that was lost never answers.
            ray.wait(ends, num_returns=len(ends), timeout=15)
