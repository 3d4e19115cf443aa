"""Targets that do to a worker what checkpoints can do to it; workers import them by name."""

import os
import signal
import sys
import time
from typing import NoReturn

from headscope.examination.base.request import Request
from headscope.fleet.target import Target


class Hangs(Target):
    """Never comes back."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        while True:
            time.sleep(1)


class Dies(Target):
    """Takes the process with it, as a fault in compiled code does."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


class Leaves(Target):
    """Ends the process without a word."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        os._exit(7)


class Fills(Target):
    """Takes memory until there is none."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        taken = []
        while True:
            taken.append(bytearray(50_000_000))


class Slow(Target):
    """Takes a while."""

    __slots__ = ()

    def request(self, template: Request) -> Request:
        time.sleep(1)
        return Target.request(self, template)


class Raises(Target):
    """Raises what nobody foresaw."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        raise ZeroDivisionError("seven")


class Told(Target):
    """Tells in its row what the worker has imported so far."""

    __slots__ = ()

    def request(self, template: Request) -> NoReturn:
        raise RuntimeError(" ".join(name for name in ("torch", "transformers") if name in sys.modules) or "neither")
