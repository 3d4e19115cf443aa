"""What a failed command says: a sentence and a hint on stderr, and with `--json` an object on stdout."""

import sys
from collections.abc import Sequence
from itertools import pairwise

from headscope.errors import ExitCode, HeadscopeError


class Interrupted(HeadscopeError):
    """Somebody pressed Ctrl-C."""

    code = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class Bug(HeadscopeError):
    """An exception that nobody expected: ours to mend."""

    code = "internal"


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `arguments`, which may not even be valid, ask for JSON."""
    return not {"--json", "--format=json"}.isdisjoint(arguments) or ("--format", "json") in pairwise(arguments)


def report_failure(error: HeadscopeError, *, as_json: bool) -> int:
    """Says what went wrong and returns the exit code."""
    from headscope.render.safe import safe

    sys.stderr.write(f"error: {safe(error.message)}\n")
    if error.hint:
        sys.stderr.write(f"hint: {safe(error.hint)}\n")
    if as_json:
        from headscope.cli.output import write_stdout
        from headscope.render.document import error_document, json_text

        write_stdout(json_text(error_document(error)))
    return int(error.exit_code)
