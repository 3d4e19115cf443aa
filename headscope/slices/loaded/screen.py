"""Screen of `verify`: a verdict, the findings, and the tensors that are not equal bit by bit."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.checks.facts import CheckResult
from headscope.checks.screen import finding_lines, open_lines
from headscope.core.facts import Profile
from headscope.core.facts.counting import counted
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.facts.verdict import Verdict
from headscope.core.words.console import QUIET, STRONG, TONE, VERDICT, Tone, plain_text
from headscope.core.words.fold import few_keys, fold_keys
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.core.words.words import bytes_of, size_of
from headscope.shared.loaded.facts import TensorCheck, TensorStatus, VerifyResult

SAVES = "verify-save"
"""The name of `verify_save` in results."""
_MARGIN = 12
_MOST_NAMES, _FEW_NAMES = 6, 3
_WORDS = {
    Verdict.PASSED: "The loaded {} equals the checkpoint",
    Verdict.FAILED: "The loaded {} differs from the checkpoint",
    Verdict.NOT_DETERMINED: "Not determined: some tensors could not be compared",
}
_WORDS_OF_SAVES = {
    Verdict.PASSED: "The save holds the live {}",
    Verdict.FAILED: "The save does not hold the live {}",
    Verdict.NOT_DETERMINED: "Not determined: some tensors could not be compared",
}
_STYLE = {
    TensorStatus.DIFFERENT: TONE[Tone.ERROR],
    TensorStatus.RANDOM: TONE[Tone.ERROR],
    TensorStatus.DROPPED: TONE[Tone.ERROR],
    TensorStatus.PLACEHOLDER: TONE[Tone.ERROR],
    TensorStatus.RENAMED: TONE[Tone.ERROR],
    TensorStatus.UNKNOWN: TONE[Tone.WARNING],
}
_ORDER = list(reversed(TensorStatus))
_PLAIN = (TensorStatus.EQUAL, TensorStatus.TIED, TensorStatus.COMPUTED)
_WORDS_OF_TRAININGS = {
    Verdict.PASSED: "Training changed the head",
    Verdict.FAILED: "Training left the head as it was",
    Verdict.NOT_DETERMINED: "Not determined: not every tensor of the head could be watched",
}


def verification_verdict(result: VerifyResult) -> RenderableType:
    """Shows in one line the verdict, what was compared, and the tensors by status, which is all that `-q` shows."""
    return Paragraph(Text.assemble((_verdict_words(result), VERDICT[result.verdict]), _scope_of(result)))


def _verdict_words(result: VerifyResult) -> str:
    if result.command == SAVES and not result.tensors:
        return _WORDS_OF_TRAININGS[result.verdict]
    if result.verdict is Verdict.NOT_DETERMINED and {gap.topic for gap in result.not_determined} == {"class"}:
        return f"Not determined: {safe(result.saved_class or '')}, the class that was saved, is not one of Transformers"
    found = {item.status for item in result.tensors if item.status not in _PLAIN}
    if result.verdict is Verdict.FAILED and found == {TensorStatus.PLACEHOLDER}:
        return f"The {'saved' if result.command == SAVES else 'loaded'} model has tensors without usable numbers"
    words = (_WORDS_OF_SAVES if result.command == SAVES else _WORDS)[result.verdict]
    part = "head" if result.scope.head_only else "adapter" if result.scope.adapter_only else "model"
    return words.format(part)


def _scope_of(result: VerifyResult) -> str:
    """Says what was compared, behind the verdict; nothing for a training, which compares no tensors."""
    if result.command == SAVES and not result.tensors:
        return ""
    scope = result.scope
    counts = Counter(item.status.value for item in result.tensors)
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    size = f"{scope.compared:,} of {counted(scope.tensors, 'tensor')}, {bytes_of(result.bytes_read)}"
    rest = "; the rest was not compared" if scope.head_only else ""
    return f": {size} compared{f' ({told})' if told else ''}{rest}{_scores_of(result)}"


def _scores_of(result: VerifyResult) -> str:
    """Says if the scores of both models are equal, behind the counts of tensors."""
    found = result.scores
    if found is None or found.reason or not found.inputs:
        return ""
    told = "equal" if not found.differing else f"different on {found.differing}"
    return f"; scores of {counted(found.inputs, 'random input')}: {told}"


def verification_screen(result: VerifyResult) -> RenderableType:
    """Shows the whole result: verdict, tensors of the head and all that are not equal, findings, what stayed open."""
    return Group(verification_verdict(result), Text(), *_tensor_lines(result), *_fact_lines(result))


def _tensor_lines(result: VerifyResult) -> Iterator[RenderableType]:
    """Shows the tensors of the head, and all others that are not plainly equal, by status and reason."""
    groups: dict[tuple[TensorStatus, str], list[TensorCheck]] = {}
    for item in result.tensors:
        if item.is_head or item.status not in _PLAIN:
            groups.setdefault((item.status, item.reason), []).append(item)
    for (status, reason), items in sorted(groups.items(), key=_severity_key):
        word = Text(status.value, _STYLE.get(status, TONE[Tone.GOOD]))
        yield Paragraph(_group_words(items, reason), word, _MARGIN)
    if groups:
        yield Text()


def _severity_key(group: tuple[tuple[TensorStatus, str], list[TensorCheck]]) -> tuple[bool, bool, int]:
    """Sorts what is wrong first, and of that what is wrong with the head."""
    (status, _), items = group
    return status not in _STYLE, not any(item.is_head for item in items), _ORDER.index(status)


def _group_words(items: list[TensorCheck], reason: str) -> Text:
    text = label(few_keys([item.name for item in items], _MOST_NAMES, "more (--json lists all)"))
    errors = [item.max_error for item in items if item.max_error]
    shape = f"{size_of(items[0].shape)} {items[0].dtype}" if len(items) == 1 else ""
    worst = f"largest error {max(errors):.3g}" if errors else ""
    for detail in filter(None, (shape, worst, reason)):
        text.append(f"; {safe(detail)}", QUIET)
    return text


def _fact_lines(result: VerifyResult) -> Iterator[RenderableType]:
    how = "in memory" if result.loader == "memory" else f"loaded with {result.loader}"
    yield _fact_line("model", label(f"{result.model}, {how}"))
    yield _fact_line("checkpoint", label(result.reference))
    beside = [item for item in result.tensors if not item.is_head and item.status in _PLAIN]
    if beside:
        names = fold_keys([item.name for item in beside])
        such = ":" if len(names) <= _FEW_NAMES else ", such as"
        outside = " outside the head" if len(beside) < len(result.tensors) else ""
        shown = ", ".join(names[:_FEW_NAMES])
        yield _fact_line("equal", label(f"{counted(len(beside), 'tensor')}{outside}{such} {shown}"))
    yield from finding_lines(result)
    yield from open_lines(result)
    for note in result.notes:
        yield _fact_line("note", label(note))
    if result.findings:
        more = f"run `headscope explain {result.findings[0].id}` for details"
        yield Paragraph(label(more, QUIET), Text("rules", QUIET), _MARGIN)


def _fact_line(name: str, body: Text) -> Paragraph:
    return Paragraph(body, Text(name, STRONG), _MARGIN)


def save_sentence(result: VerifyResult) -> str:
    """Writes a result on a save in a few lines: the verdict, the findings, and what stayed open."""
    lines = [f"headscope: {result.reference}: {_verdict_words(result)}{_scope_of(result)}"]
    lines += [f"{item.severity.value} {item.id}: {item.message} {item.remedy}" for item in result.findings]
    lines += [f"not determined: {gap}" for gap in told_gaps(result.not_determined)]
    return "\n".join(safe(line) for line in lines)


def as_check(result: VerifyResult) -> CheckResult:
    """Converts the result for the formats of pipelines: GitHub, JUnit, SARIF, Markdown."""
    return CheckResult(
        tool_version=result.tool_version,
        command=result.command,
        reference=result.reference,
        profile=Profile.INFERENCE,
        verdict=result.verdict,
        findings=result.findings,
        ignored=result.ignored,
        not_determined=result.not_determined,
        not_applicable=(),
        rules=result.rules,
    )


def shown_screen(result: VerifyResult) -> RenderableType:
    """Renders a result as Python shows it."""
    return verification_screen(result)


def shown_line(result: VerifyResult) -> str:
    """Writes a result in one line."""
    return f"verify of {safe(result.reference)}: {plain_text(verification_verdict(result)).strip()}"
