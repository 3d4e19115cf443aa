"""What a repair would give, in a sentence, and the code of a repair, line by line."""

from collections.abc import Iterator

from rich.text import Text

from headscope.facts import Finding, Repaired
from headscope.facts.counting import counted, few_of
from headscope.render.text.fold import fold_keys
from headscope.render.text.palette import STRONG, TONE, Tone
from headscope.render.text.safe import label, safe


def repaired_sentence(repaired: Repaired) -> Text:
    """The checkpoint as the repair would make it, beside what `from_pretrained` does with it."""
    weights = repaired.weights
    lacking = (*weights.new, *(item.parameter for item in weights.mismatched))
    total = weights.loaded + len(weights.tied) + len(lacking)
    text = label(f"read as if {repaired.change}; from_pretrained does not do this. ")
    text.append(f"Then {counted(weights.loaded, 'tensor')} of {total:,} would be loaded, ", STRONG)
    if lacking:
        text.append(f"new: {safe(few_of(fold_keys(lacking)))}", TONE[Tone.WARNING])
    else:
        text.append("none new", TONE[Tone.GOOD])
    if weights.unused:
        text.append(f"; unused: {safe(few_of(fold_keys(weights.unused)))}")
    return text


def code_of(finding: Finding) -> Iterator[Text]:
    """The lines of the code that does what a finding's remedy says; none where there is no code."""
    for line in finding.code.splitlines():
        text = label(f"    {line}")
        text.no_wrap, text.overflow = True, "ignore"
        yield text
