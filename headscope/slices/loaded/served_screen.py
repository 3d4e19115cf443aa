"""Screen of `verify --url`: if the server gives the checkpoint's scores, what it computes, class changes."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.core.words.console import QUIET, STRONG, VERDICT, plain_text
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.core.words.words import share_of_one
from headscope.shared.serving.served_facts import FROM_FILE, ServedExplanation, ServedReport


def served_verdict(report: ServedReport) -> RenderableType:
    """Shows one sentence, which is all that `-q` shows."""
    return Paragraph(label(_verdict_sentence(report), VERDICT[report.verdict]))


def _verdict_sentence(report: ServedReport) -> str:
    served, what, who = report.served, report.requested, "server" if report.url else "engine"
    if served.same is None:
        return f"Not determined: {served.reason}"
    precision = "" if served.precision == "float32" else f", within the rounding of {served.precision}"
    if served.same:
        return f"The {who} gives the checkpoint's {what}{precision} ({counted(served.texts, 'text')})"
    other = f"The {who} gives other {what} than the checkpoint"
    if served.explanation is None:
        return f"{other}: they differ by up to {served.max_difference:.3g}"
    # With the same formula, only the variant tells the difference; another formula shows it.
    own = served.explanation.formula == report.formula
    return f"{other}: it computes {_computed_formula(served.explanation, has_own_formula=own)}{precision}"


def _computed_formula(item: ServedExplanation, *, has_own_formula: bool) -> str:
    """Writes what the server computes, `softmax(classifier(h[CLS]))`, with what the formula doesn't show."""
    inner = item.formula or "logits"
    if item.scale != 1:
        inner = f"{item.scale:.4g} * {f'({inner})' if item.is_sum else inner}"
    inner = inner if not item.offset else f"{inner}{_offset_term(item)}"
    whole = inner if item.activation == Activation.NONE else f"{item.activation}({inner})"
    variant = item.variant if has_own_formula and item.variant != AS_IT_IS else ""
    return ", ".join(part for part in (whole, variant, _order_words(item)) if part)


def _offset_term(item: ServedExplanation) -> str:
    return f" {'+' if item.offset > 0 else '-'} {abs(item.offset):.4g}"


def _order_words(item: ServedExplanation) -> str:
    """Names the order of the classes; "" if it is the checkpoint's."""
    is_own = item.order == tuple(range(len(item.order)))
    return "" if is_own else f"with the classes in the order {', '.join(map(str, item.order))}"


def served_screen(report: ServedReport) -> RenderableType:
    """Shows the whole result."""
    facts = (Paragraph(label(text), label(name, STRONG), 14) for name, text in _fact_rows(report) if text)
    beside = [f"not looked at: {list_of(report.served.not_looked_at, len(report.served.not_looked_at))}"]
    return Group(served_verdict(report), Text(), *facts, Text(), *(Paragraph(label(text, QUIET)) for text in beside))


def _fact_rows(report: ServedReport) -> Iterator[tuple[str, str]]:
    served = report.served
    known = report.formula or "head not determined"
    function = "" if report.requested == "logits" else f", then {report.activation}"
    version = f" {report.engine_version}" if report.engine_version else ""
    yield "checkpoint", f"{report.reference}: {report.model_class}, {known}{function}"
    place = f" at {report.url} (protocol {report.protocol})" if report.url else " in a separate process"
    place = "" if report.protocol == FROM_FILE else place
    yield "server" if report.url else "engine", f"{report.engine}{version}{place}"
    yield "texts", f"{served.texts}, the longest of {counted(report.longest, 'token')}"
    if served.max_difference is not None:
        is_open = served.same is None and served.precision != "float32"
        counts = "may be rounding" if is_open else "counts as equal"
        equal = f"up to {served.tolerance:.2g} {counts} ({served.precision})"
        yield "difference", f"at most {served.max_difference:.3g} in a score; {equal}"
    if served.explanation is not None:
        yield "explained by", _change_words(served.explanation)
    elif served.same is False:
        yield "explained by", f"nothing: {served.reason}"
    changes = served.class_changes
    if changes is not None:
        share, low, high = map(share_of_one, (changes.share, changes.low, changes.high))
        yield "classes", f"{share} of the texts get another class (95% interval: {low} to {high})"
    for note in served.notes:
        yield "note", note


def _change_words(item: ServedExplanation) -> str:
    """Says what differs from the checkpoint's head."""
    found = [] if item.variant == AS_IT_IS else [item.variant]
    found += [_order_words(item)] if _order_words(item) else []
    if item.scale != 1 or item.offset:
        found.append(f"logits * {item.scale:.4g}{_offset_term(item) if item.offset else ''}")
    return f"{'; '.join([*found, f'{item.activation} on top'])}. Nothing else that headscope tried gives all the scores"


def shown_screen(result: ServedReport) -> RenderableType:
    """Renders a result as Python shows it."""
    return served_screen(result)


def shown_line(result: ServedReport) -> str:
    """Writes a result in one line."""
    return f"verify of {safe(result.reference)}: {plain_text(served_verdict(result)).strip()}"
