"""Seconds and memory of a piece of code, and of every hostile case: `python -m tests.hostile.measure`."""

import io
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MOST_MEGABYTES = 150
"""What one case may take beyond a process that has examined something: a header at its limit, as objects."""


@dataclass
class Measured:
    """`megabytes` is the peak beyond what was there before; 0 where the system does not tell."""

    seconds: float = 0.0
    megabytes: float = 0.0


@contextmanager
def measured() -> Iterator[Measured]:
    """Measures its block; on Linux the kernel's own peak is set back before."""
    found = Measured()
    before, began = _reset(), time.monotonic()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - began
        found.megabytes = max(0.0, _kilobytes("VmHWM") - before) / 1000 if before else 0.0


def _reset() -> float:
    """Sets the peak back and returns the memory that is held; 0 where that cannot be done."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return 0.0
    return _kilobytes("VmRSS")


def _kilobytes(name: str) -> float:
    lines = _STATUS.read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Runs every case through the command line and prints what the groups took."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from headscope.shell import main as headscope
    from hostile.corpus import GROUPS

    run(["inspect", "bert-base-uncased", "--offline", "-q"], headscope)
    print(f"{'group':<12}{'cases':>6}{'worst seconds':>15}  {'case':<45}{'worst MB':>9}  case")
    for name, cases in GROUPS.items():
        taken = []
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                arguments = case.build(Path(folder))
                with measured() as found:
                    run(arguments, headscope)
            taken.append((case.id, found))
        slow, large = max(taken, key=lambda item: item[1].seconds), max(taken, key=lambda item: item[1].megabytes)
        print(
            f"{name:<12}{len(cases):>6}{slow[1].seconds:>15.2f}  {ascii(slow[0])[:44]:<45}"
            f"{large[1].megabytes:>9.0f}  {ascii(large[0])[:60]}"
        )


def run(arguments: list[str], headscope: object) -> None:
    """One command whose output nobody reads."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        headscope(arguments)  # type: ignore[operator]


if __name__ == "__main__":
    main()
