"""What each surface of headscope says of a case: `check`, `scan`, and `check` and `verify` of the loaded model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headscope
from headscope.errors import HeadscopeError
from tests.verdicts.cases import Case
from tests.verdicts.truth import truth_of

Said = tuple[str, str]
UNSEEN = {
    "live": ("tokenizer",),
    "verify": ("tokenizer", "embeddings zeros", "base all zeros", "base scales zeros"),
    "hub check": ("base", "embeddings"),
    "scan": ("base", "embeddings", "adapter: lora"),
    "hub scan": ("base", "embeddings", "tokenizer"),
}
"""What a surface doesn't look at, by how the names of the cases begin; its verdict has to name that."""


@dataclass(frozen=True)
class Judged:
    """The truth (why it can't be used, "" where it works) and what each surface says: a verdict and its reasons."""

    case: str
    truth: str
    surfaces: dict[str, Said]

    def is_wrong(self, surface: str) -> bool:
        """A pass of what doesn't work, anything but a pass of what works, and a traceback."""
        verdict = self.surfaces[surface][0]
        if verdict == "passed" and self.case.startswith(UNSEEN.get(surface, ("\0",))):
            return False
        return verdict == "crashed" or (verdict == "passed") == bool(self.truth)

    def wrong(self) -> Iterator[str]:
        """A line for each surface that is wrong."""
        for surface, (verdict, reason) in self.surfaces.items():
            if self.is_wrong(surface):
                truth = f"is broken: {self.truth}" if self.truth else "works"
                yield f"{surface} says {verdict} ({reason[:200]}), and it {truth}"


def judged(case: Case, folder: Path) -> Judged:
    """Writes the case, finds out whether it works, and asks every surface."""
    place = case.write(folder)
    truth = truth_of(case, place)
    surfaces = asked(str(place))
    if truth.model is not None:
        surfaces["live"] = _said(lambda: headscope.check(truth.model, "inference", loaded_from=str(place)))
        surfaces["verify"] = _said(lambda: headscope.verify(truth.model, str(place)))
    return Judged(case.name, truth.why, surfaces)


def asked(reference: str) -> dict[str, Said]:
    """What `check` and `scan` say of a checkpoint by its name."""
    return {"check": _said(lambda: headscope.check(reference, "inference")), "scan": _scanned(reference)}


def _said(ask: Callable[[], Any]) -> Said:
    try:
        result = ask()
    except HeadscopeError as err:
        return "refused", err.message
    except Exception as err:  # a traceback is neither a pass nor a verdict
        return "crashed", f"{type(err).__name__}: {err}"
    found = [f"{item.id} {item.severity.value}: {item.message}" for item in result.findings]
    gaps = [f"{gap.topic}: {gap.reason}" for gap in result.not_determined]
    return result.verdict.value, "; ".join((*found, *gaps))


def _scanned(reference: str) -> Said:
    (row,) = headscope.scan([reference], workers=0, profile="inference")
    return row.verdict.value, f"{row.findings} {row.reason}"
