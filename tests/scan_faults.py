"""Targets that do to a worker what checkpoints can do to it; workers import them by name."""

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from headscope.core.source.request import Request
from headscope.slices.fleet.target import Target


class Hangs(Target):
    """Never comes back."""

    def request(self, template: Request) -> NoReturn:
        while True:
            time.sleep(1)


class Dies(Target):
    """Takes the process with it, as a fault in compiled code does."""

    def request(self, template: Request) -> NoReturn:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


class Leaves(Target):
    """Ends the process without a word."""

    def request(self, template: Request) -> NoReturn:
        os._exit(7)


class Fills(Target):
    """Takes memory until there is none."""

    def request(self, template: Request) -> NoReturn:
        taken = []
        while True:
            taken.append(bytes(50_000_000))


class Slow(Target):
    """Takes a while."""

    def request(self, template: Request) -> Request:
        time.sleep(1)
        return Target.request(self, template)


class Raises(Target):
    """Raises what nobody foresaw."""

    def request(self, template: Request) -> NoReturn:
        raise ZeroDivisionError("seven")


class Imports(Target):
    """Imports a module of Transformers from a file of its own, whose path is its reference."""

    def request(self, template: Request) -> NoReturn:
        import transformers

        place = Path(self.reference)
        transformers.__path__.append(str(place.parent))
        import_module(f"transformers.{place.stem}")
        raise ZeroDivisionError("imported")


class Grows(Target):
    """Takes 1 GB, and imports a module that takes 1 GB, three times; its reference is that of `Imports`."""

    def request(self, template: Request) -> NoReturn:
        import transformers

        place = Path(self.reference)
        transformers.__path__.append(str(place.parent))
        own = []
        for name in ("one", "two", "three"):
            own.append(bytes(10**9))  # address space, which nobody fills
            import_module(f"transformers.{place.stem}_{name}")
        raise ZeroDivisionError("imported")


class Told(Target):
    """Tells in its row what the worker has imported so far."""

    def request(self, template: Request) -> NoReturn:
        raise RuntimeError(" ".join(name for name in ("torch", "transformers") if name in sys.modules) or "neither")
