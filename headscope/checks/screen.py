"""Screen of `check`: a verdict for each model, its findings with their remedies, and what was not looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headscope.checks.facts import CheckResult
from headscope.core.facts import CheckpointKind, Gap, Profile, Severity
from headscope.core.facts.counting import counted, few_of, list_of, shortened, verb
from headscope.core.facts.plain import to_dict
from headscope.core.facts.verdict import Verdict, verdict_on_all
from headscope.core.words.console import QUIET, STRONG, VERDICT
from headscope.core.words.document import Document, opening
from headscope.core.words.fold import few_keys
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.shared.labeled.facts import Accuracy, DataFacts, LabelKind, Order, Predictions
from headscope.shared.loaded.facts import VerifyResult
from headscope.shared.report.findings import FindingLines, repaired_sentence
from headscope.shared.report.report_facts import remarks_of

_MARGIN = 12
WORDS = {Verdict.PASSED: "Passed", Verdict.FAILED: "Failed", Verdict.NOT_DETERMINED: "Not determined"}
"""Verdicts as words."""


def check_screen(results: Sequence[CheckResult], notes: Sequence[str] = (), *, details: bool = False) -> RenderableType:
    """Shows the results of all models, for several also a table at the end; `details` shows every message in full."""
    parts: list[RenderableType] = []
    for result in results:
        parts += [*_result_lines(result, details=details), Text()]
    if len(results) > 1:
        parts += [_verdict_table(results)]
    parts += [Paragraph(label(note, "yellow")) for note in notes]
    return Group(*(parts[:-1] if parts and isinstance(parts[-1], Text) else parts))


def check_verdicts(results: Sequence[CheckResult]) -> RenderableType:
    """Shows one line for each model, which is all that `-q` shows."""
    return Group(*(Paragraph(_check_headline(result)) for result in results))


def verdict_words(result: CheckResult) -> str:
    """Writes the verdict in one sentence: `Failed for inference: 1 error, 2 warnings; ran on 14 texts`."""
    why = f" ({result.profile_reason})" if result.profile_reason else ""
    profile, tally, not_run = f"for {result.profile.value}{why}", tally_words(result), result.scope.run_reason
    # A pass without the run that was requested must not read like a pass with it.
    if not_run and result.verdict is Verdict.PASSED:
        return f"{WORDS[result.verdict]} on its files; not run: {not_run}; {profile}: {tally}"
    run = f"; not run: {not_run}" if not_run else ""
    if result.trial is not None and result.trial.scope.inputs:
        more = f", and in {result.trial.library}" if result.trial.library else ""
        more += f" ({result.trial.left_out})" if result.trial.left_out else ""
        run = f"; ran on {counted(result.trial.scope.inputs, result.trial.noun)}{more}"
    return f"{WORDS[result.verdict]} {profile}: {tally}{run}"


def tally_words(result: CheckResult) -> str:
    """Counts what was found, and names what could not be read: `1 error, 2 warnings; not determined: HS203`."""
    counts = {level: sum(item.severity is level for item in result.findings) for level in Severity}
    tally = ", ".join(counted(number, level.value) for level, number in counts.items() if number) or "no findings"
    open_topics = few_of(dict.fromkeys(gap.topic for gap in result.not_determined))
    gaps = f"; not determined: {open_topics}" if open_topics else ""
    ignored = f"; {counted(len(result.ignored), 'finding')} ignored" if result.ignored else ""
    unread = ""
    if result.report is not None and result.report.checkpoint.kind is CheckpointKind.SNAPSHOT:
        unread = "" if result.scope.run_reason else "; weights not read (snapshot)"  # the reason is in the same line
    elif result.not_read and result.profile is Profile.INFERENCE:
        unread = f"; not read: {' and '.join(result.not_read)}"
    return f"{tally}{gaps}{ignored}{unread}"


def _check_headline(result: CheckResult) -> Text:
    """Writes the model and its verdict in one line."""
    text = label(verdict_words(result), VERDICT[result.verdict])
    return Text.assemble((f"{safe(result.reference)}  ", STRONG), text)


def _result_lines(result: CheckResult, *, details: bool) -> Iterator[RenderableType]:
    yield Paragraph(_check_headline(result))
    yield Text()
    yield from finding_lines(result, whole=details)
    if result.report is not None and result.report.repaired is not None:
        yield Paragraph(repaired_sentence(result.report.repaired), Text("repaired", STRONG), _MARGIN)
    if result.data is not None:
        yield Paragraph(label(_data_sentence(result.data)), Text("data", STRONG), _MARGIN)
    if result.data is not None and result.data.predictions is not None:
        yield Paragraph(label(_predictions_sentence(result.data.predictions)), Text("predicted", STRONG), _MARGIN)
    yield from open_lines(result)
    if result.not_applicable and (details or not result.asked):
        by_reason: dict[str, list[str]] = {}
        for gap in result.not_applicable:
            by_reason.setdefault(gap.reason, []).append(gap.rule)
        words = "; ".join(f"{_rule_names(names, result)}: {reason}" for reason, names in by_reason.items())
        yield Paragraph(label(words, QUIET), Text("skipped", QUIET), _MARGIN)
    skipped = f", {len(result.not_applicable)} skipped" if result.not_applicable else ""
    body = f"{len(result.asked)} checked{skipped}; more: {'' if details else '--details, '}`headscope explain ID`"
    yield Paragraph(label(body, QUIET), Text("rules", QUIET), _MARGIN)
    yield from _remark_lines(result.notices)


def finding_lines(result: CheckResult | VerifyResult, *, whole: bool = True) -> Iterator[RenderableType]:
    """Shows the findings of a result, each with its remedy and the code that carries it out; a remedy only once."""
    shown = set[str]()
    for finding in result.findings:
        yield FindingLines(replace(finding, remedy="") if finding.remedy in shown else finding, whole)
        shown.add(finding.remedy)


def open_lines(result: CheckResult | VerifyResult) -> Iterator[RenderableType]:
    """Lists what was ignored, and what could not be determined."""
    for item in result.ignored:
        body = label(f"{item.finding.id} {item.finding.title} ({item.reason})", QUIET)
        yield Paragraph(body, Text("ignored", QUIET), _MARGIN)
    yield from _remark_lines((), result.not_determined)


def _remark_lines(notices: Sequence[str], gaps: Sequence[Gap] = ()) -> Iterator[RenderableType]:
    return (Paragraph(body, Text(word, STRONG), _MARGIN) for word, body in remarks_of(notices, gaps))


def _rule_names(names: Sequence[str], result: CheckResult) -> str:
    """Writes a list of rules; no list of names if it holds all of them."""
    if 1 < len(names) == len(result.rules):
        return f"all {counted(len(names), 'rule')}"
    # `HS301 to HS309` must not claim a rule between them that was checked.
    first = result.rules.index(names[0])
    is_run = len(names) > 3 and tuple(names) == result.rules[first : first + len(names)]
    return f"{names[0]} to {names[-1]}" if is_run else ", ".join(names)


_CLASSES = 12


def _data_sentence(data: DataFacts) -> str:
    columns = list_of(data.label_columns, _CLASSES)
    told = f"{data.file}, {verb(len(data.label_columns), 'column', 'columns')} {columns}: {counted(data.rows, 'row')}"
    if data.kind is LabelKind.NUMBERS and data.lowest is not None and data.highest is not None:
        return f"{told}; numbers from {data.lowest:g} to {data.highest:g}"
    named, shown = data.names if data.kind is not LabelKind.COLUMNS else (), list[str]()
    for item in data.classes:
        has_name = item.label.isdecimal() and item.label.isascii() and int(item.label) < len(named)
        text = f"{item.label} ({named[int(item.label)]})" if has_name else item.label
        shown.append(f"{shortened(text)} {item.rows:,}")
    return f"{told}; {counted(len(data.classes), 'label')}: {list_of(shown, _CLASSES)}"


_ORDERS = {
    Order.SAME: "they fit the order of the classes as given",
    Order.PERMUTED: "they fit another order of the classes",
    Order.NEITHER: "they fit no order of the classes better than chance",
    Order.FOUND: "they fit one order of the classes",
    Order.NONE: "numbers have no order",
    Order.NOT_DETERMINED: "the order of the classes is not determined",
}


def _predictions_sentence(found: Predictions) -> str:
    parts = [f"{counted(found.rows, 'row')} on {found.device}: {_ORDERS[found.order]}"]
    parts += [f"right as given {_share_words(found.given)}"] if found.given else []
    parts += [f"in the best order {_share_words(found.best)}"] if found.best and found.best != found.given else []
    if found.correlation is not None and found.scale is not None and found.offset is not None:
        parts.append(
            f"correlation {found.correlation:.2f}, prediction about {found.scale:.3g} times the label plus "
            f"{found.offset:.3g}"
        )
    return "; ".join(parts)


def _share_words(share: Accuracy) -> str:
    return f"{share.value:.0%} (95% interval {share.low:.0%} to {share.high:.0%})"


def _verdict_table(results: Sequence[CheckResult]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=STRONG)
    for name in ("verdict", "findings", "model"):
        table.add_column(name, overflow="fold")
    for result in results:
        verdict = Text(WORDS[result.verdict].lower(), VERDICT[result.verdict])
        table.add_row(verdict, tally_words(result), label(result.reference))
    return table


def verdict_line(result: CheckResult) -> str:
    """Writes the verdict on a model in one line: `headscope: roberta-base: Failed for training: 1 error`."""
    return safe(f"headscope: {result.reference}: {verdict_words(result)}")


def failure_sentence(result: CheckResult) -> str:
    """Writes a result in a few lines: the verdict, the findings, the worst first, and what was new after the load."""
    new = result.report.weights.new if result.report else ()
    lines = [f"{item.severity.value} {item.id}: {item.message} {item.remedy}" for item in result.findings]
    gaps = dict.fromkeys(f"{gap.rule} {gap.reason}".strip() for gap in result.not_determined)
    lines += [f"not determined: {gap}" for gap in gaps]
    lines += [f"new after the load: {few_keys(new, 8)}"] if new else []
    return "\n".join((verdict_line(result), *map(safe, lines)))


def check_document(results: Sequence[CheckResult]) -> Document:
    """Builds the document of `check`: the verdict on all models, and for each its result and the facts it judges."""
    verdict = verdict_on_all(result.verdict for result in results)
    each = [{**(to_dict(result.report) if result.report is not None else {}), **result.to_dict()} for result in results]
    return {**opening("check"), "verdict": verdict.value, "results": each}


def shown_screen(result: CheckResult) -> RenderableType:
    """Renders a result as Python shows it."""
    return check_screen([result], details=True)


def shown_line(result: CheckResult) -> str:
    """Writes a result in one line."""
    return f"check of {safe(result.reference)}: {safe(verdict_words(result))}"
