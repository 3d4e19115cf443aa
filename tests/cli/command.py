"""Commands that run in this process, with what they print."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from headscope.errors import ExitCode
from headscope.shell import main


class Printed(NamedTuple):
    """What a command wrote to both streams."""

    out: str
    err: str

    @property
    def words(self) -> str:
        """All of it in one line, however wide the terminal is."""
        return " ".join((self.out + self.err).split())


@dataclass
class Cli:
    """Runs the words of a command line, which have to end with a code."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: object, code: int = ExitCode.OK) -> Printed:
        ended = main([str(word) for word in words])
        printed = Printed(*self.capsys.readouterr())
        assert ended == code, (ended, printed)
        return printed

    def json(self, *words: object, code: int = ExitCode.OK) -> Any:
        return json.loads(self(*words, "--json", code=code).out)
