"""Screen of `engines`: one line or two for each engine, differences first; with details the source of each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.heads.tasks import Activation
from headscope.core.words.console import QUIET, STRONG, TONE, Tone, plain_text
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead, EnginesReport, EngineVerdict

_MARGIN = 27
_ORDER = (EngineVerdict.DIFFERENT, EngineVerdict.NOT_DETERMINED, EngineVerdict.SAME, EngineVerdict.NO_SCORES)
_TONES = {
    EngineVerdict.SAME: Tone.GOOD,
    EngineVerdict.DIFFERENT: Tone.WARNING,
    EngineVerdict.NO_SCORES: Tone.NOTE,
    EngineVerdict.NOT_DETERMINED: Tone.WARNING,
}
"""Another head is an error, another activation is not."""
_READ = "Read in the engines' sources at the version shown. No engine was run, and no values were compared."
_ASKED = "{} resolved config.json itself, without weights; the rest was read in its source. No values were compared."
_RUN = (
    "Run on a random copy of the configuration, next to Transformers: {}. The others were read in their sources. The "
    "checkpoint's own weights were not run: `headscope verify --url` compares those of a server."
)


def engines_screen(report: EnginesReport, *, details: bool = False) -> RenderableType:
    """Shows the verdict, the head as Transformers computes it, and what each engine does."""
    parts: list[RenderableType] = [engines_verdict(report), Text()]
    known = report.formula or "head not determined"
    known += ", in its default configuration" if report.reference == report.model_class else ""
    function = "raw logits" if report.activation == Activation.NONE else report.activation
    parts.append(Paragraph(label(f"{known}, then {function}"), Text("model in Transformers", STRONG), _MARGIN))
    ordered = sorted(report.engines, key=lambda item: _ORDER.index(item.verdict))
    open_ones = [item for item in ordered if item.verdict is EngineVerdict.NOT_DETERMINED and not details]
    counts = Counter(item.reason for item in open_ones)
    for item in ordered:
        # The verdict has the sentence of a single engine, and engines that share a reason share a line.
        if details or not (report.is_one or (item in open_ones and counts[item.reason] > 1)):
            parts += _engine_lines(item, details=details)
    for reason in (reason for reason, count in counts.items() if count > 1):
        items = [item for item in open_ones if item.reason == reason]
        names = list_of([f"{item.title} ({_short_version(item.version)})" for item in items], len(items))
        told = label(f"{names}: {_without_period(reason)}", TONE[_tone_of(items[0])])
        parts.append(Paragraph(told, Text("not determined", STRONG), _MARGIN))
    parts += [Text(), Paragraph(label(_evidence_sentence(report.engines), QUIET))]
    if not details:
        parts.append(
            Paragraph(label("--details: reasons, file and line, how to get logits, precision, truncation", QUIET))
        )
    return Group(*parts)


def _evidence_sentence(engines: Sequence[EngineHead]) -> str:
    ran = [item.title for item in engines if item.evidence is EngineEvidence.RAN]
    asked = [item.title for item in engines if item.evidence is EngineEvidence.ASKED]
    if ran:
        return _RUN.format(list_of(ran, len(ran)))
    return _ASKED.format(list_of(asked, len(asked))) if asked else _READ


def engines_verdict(report: EnginesReport) -> RenderableType:
    """Shows one sentence, which is all that `-q` shows."""
    found = [item.verdict for item in report.engines]
    if report.is_one:
        item = report.engines[0]
        return Paragraph(label(f"{item.title} {item.version}: {_engine_sentence(item)}", TONE[_tone_of(item)]))
    heads = sum(item.same_head is False for item in report.engines)
    constant = sum(item.is_constant and item.same_head is not False for item in report.engines)
    counts = {
        "with a different head": heads,
        "with a score that is always 1.0": constant,
        "with a different activation": found.count(EngineVerdict.DIFFERENT) - heads - constant,
        "the same": sum(item.verdict is EngineVerdict.SAME and not item.reads_padding for item in report.engines),
        "the same but for padding at the end": sum(
            item.verdict is EngineVerdict.SAME and item.reads_padding for item in report.engines
        ),
        "without scores": found.count(EngineVerdict.NO_SCORES),
        "not determined": found.count(EngineVerdict.NOT_DETERMINED),
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    tone = Tone.ERROR if report.verdict is EngineVerdict.DIFFERENT else _TONES[report.verdict]
    return Paragraph(label(f"{counted(len(found), 'engine')}: {told}", TONE[tone]))


def _tone_of(item: EngineHead) -> Tone:
    if item.runs and item.is_fault:
        return Tone.ERROR
    return Tone.WARNING if item.is_doubtful else _TONES[item.verdict]


def _engine_lines(item: EngineHead, *, details: bool) -> Iterator[RenderableType]:
    told = label(f"{_engine_sentence(item)} ({_short_version(item.version)})", TONE[_tone_of(item)])
    yield Paragraph(told, label(item.title, STRONG), _MARGIN)
    if not details:
        return
    facts = {
        "reads": item.positions,
        "ignores": list_of(item.drops, len(item.drops)) if item.drops else "",
        "logits": item.logits if item.runs else "",
        "precision": item.dtype if item.runs else "",
        "read in": item.source,
        "not covered": list_of(item.not_looked_at, len(item.not_looked_at)) if item.runs else "",
    }
    for word, text in facts.items():
        if text:
            yield Paragraph(label(text), Text(f"  {word}", QUIET), _MARGIN)
    for note in item.notes:
        yield Paragraph(label(note), Text("  also", QUIET), _MARGIN)


def _without_period(reason: str) -> str:
    """Removes the period of a reason that becomes part of a sentence."""
    return reason.removesuffix(".")


def _short_version(version: str) -> str:
    """Writes a version, or the beginning of a commit."""
    return version if "." in version else version[:7]


def _engine_sentence(item: EngineHead) -> str:
    """Says in one sentence what an engine does."""
    function = "raw logits" if item.activation == Activation.NONE else item.activation or "an unknown function"
    head = "the same head" if item.same_head else "head not determined"
    padding = "; it reads the last token even if that is the padding token" if item.reads_padding else ""
    match item.verdict:
        case EngineVerdict.SAME:
            return f"{head}, then {function}{padding}"
        case EngineVerdict.NO_SCORES:
            return f"no scores. {_without_period(item.reason)}"
        case EngineVerdict.NOT_DETERMINED:
            return f"not determined: {_without_period(item.reason) or 'the source does not tell'}"
        case EngineVerdict.DIFFERENT if item.same_head is False:
            computed = f": {item.formula}, then {function}" if item.formula else ""
            return f"different head{computed}. {_without_period(item.reason)}"
        case EngineVerdict.DIFFERENT if item.is_constant:
            return f"{head}, then softmax. {_without_period(item.reason)}"
        case EngineVerdict.DIFFERENT:
            return f"{head}, different activation: {function} by default{padding}"
    assert_never(item.verdict)


def shown_screen(result: EnginesReport) -> RenderableType:
    """Renders a result as Python shows it."""
    return engines_screen(result, details=True)


def shown_line(result: EnginesReport) -> str:
    """Writes a result in one line."""
    return f"engines of {safe(result.reference)}: {plain_text(engines_verdict(result)).strip()}"
