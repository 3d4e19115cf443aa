"""Whole commands timed side by side in one run: wall-clock and processor seconds, and peak memory of each process."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "benchmarks" / ".work"
KIB, MIB = 2**10, 2**20
PYTHON = sys.executable


@dataclass(frozen=True, slots=True)
class Command:
    """What is timed: a name for the table, and the arguments of the process."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One finished process: seconds from start to exit and of processor time, largest resident set in bytes."""

    seconds: float
    processor: float
    peak: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All runs of one command; `failure` says why there are none."""

    name: str
    runs: tuple[Run, ...]
    failure: str = ""

    @property
    def seconds(self) -> tuple[float, ...]:
        """The wall-clock seconds, in the order of the runs."""
        return tuple(run.seconds for run in self.runs)

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)

    @property
    def processor(self) -> float:
        """The median of the processor seconds, which other work on the machine disturbs less."""
        return statistics.median(run.processor for run in self.runs)

    @property
    def peak(self) -> float:
        """The median of the peak memory in bytes."""
        return statistics.median(run.peak for run in self.runs)


class CommandFailed(Exception):
    """A timed command did not exit with 0."""


def headscope(*arguments: str) -> Command:
    """`python -m headscope ARGUMENTS` on the interpreter that every baseline uses too."""
    return module(f"headscope {arguments[0]}", "headscope", *arguments)


def module(name: str, target: str, *arguments: str) -> Command:
    """`python -m TARGET ARGUMENTS`, under a name for the table."""
    return Command(name, (PYTHON, "-m", target, *arguments))


def python(name: str, code: str, *arguments: str) -> Command:
    """`python -c CODE ARGUMENTS`, under a name for the table."""
    return Command(name, (PYTHON, "-c", code, *arguments))


def measure(commands: Sequence[Command], rounds: int, warm: bool = True) -> tuple[Sample, ...]:
    """Runs the commands in turn (A B A B ...), if `warm` after one discarded run of each that warms the caches.

    A command that fails once is left out of the further rounds.
    """
    runs: dict[str, list[Run]] = {command.name: [] for command in commands}
    failures: dict[str, str] = {}
    for round_ in range(0 if warm else 1, rounds + 1):
        for command in commands:
            if command.name in failures:
                continue
            _tell(f"{command.name}, {round_ or 'warm-up'} of {rounds}")
            try:
                run = run_once(command)
            except CommandFailed as err:
                failures[command.name] = str(err)
                continue
            if round_:
                runs[command.name].append(run)
    _tell("")
    return tuple(
        Sample(name, () if name in failures else tuple(done), failures.get(name, "")) for name, done in runs.items()
    )


def _tell(sentence: str) -> None:
    """Progress on one line that erases itself; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{sentence}", end="", file=sys.stderr, flush=True)


def run_once(command: Command) -> Run:
    """One process, from start to exit. Raises CommandFailed with the end of its stderr.

    The peak is what the kernel accounts to the child alone. A child begins as a copy of this process, which must
    therefore stay small: it imports neither torch nor transformers.
    """
    with tempfile.TemporaryFile() as errors:
        begun = time.perf_counter()
        with subprocess.Popen(
            command.arguments,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as process:
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise CommandFailed(_reason(process.returncode, _tail(errors.fileno())))
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else KIB))


def environment() -> dict[str, str]:
    """Bytecode may be cached, as for an installed package; nothing asks the network; progress bars are off.

    Reports are not cached, unless a benchmark names the place (`HEADSCOPE_CACHE`). No model is run, unless a command
    asks for it.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, (str(ROOT), str(WORK), kept.get("PYTHONPATH"))))
    if "HEADSCOPE_CACHE" not in kept:
        kept["HEADSCOPE_NO_CACHE"] = "1"
    kept.setdefault("HEADSCOPE_NO_RUN", "1")
    return {**kept, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def _reason(code: int, tail: str) -> str:
    return f"killed by signal {-code} (9: out of memory)" if code < 0 else f"exit code {code}: {tail}"


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 500, max(0, size - 500)).decode(errors="replace").strip()
