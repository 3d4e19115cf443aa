"""Use cases that answer from reports made by hand, and note what they were asked."""

from dataclasses import replace
from typing import Any

from reports import REPORTS

from headscope.facts import CheckpointKind, CheckpointManifest, Report, WeightsFormat


class FakeApi:
    """Answers with the report of the name asked for, raises what it is told to, and remembers the options."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.options: dict[str, Any] = {}

    def inspect(self, reference: str, **options: Any) -> Report:
        self.options = options
        if self.error is not None:
            raise self.error
        options["progress"]("reading")
        return REPORTS[reference]()

    def diff_weights(self, reference: str, **options: Any) -> Report:
        return replace(self.inspect(reference, **options), command="diff-weights", head=None)

    def snapshot(self, reference: str, output: str, **options: Any) -> CheckpointManifest:
        self.inspect(reference, **options)
        return CheckpointManifest(reference, CheckpointKind.HUB, WeightsFormat.SAFETENSORS, {}, (), ())
