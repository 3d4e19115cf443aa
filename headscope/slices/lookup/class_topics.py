"""Topics of `explain` for classes: a model class with its head, a module with the code of its forward."""

import re

from headscope.core.facts import Report
from headscope.core.facts.counting import list_of
from headscope.core.facts.heads.atlas import ClassSource
from headscope.core.words.plain_words import plain_words
from headscope.core.words.words import POOLING, reads_decoder
from headscope.shared.topics import Topic

_GROUP = "classes"
_MOST_LINES = 30
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def module_topic(source: ClassSource) -> Topic:
    """Explains a class by its source file, the beginning of its docstring, and its `forward`."""
    package = {"torch": "PyTorch", "transformers": "Transformers"}[source.file.partition("/")[0]]
    words = " ".join(_ROLE.sub(r"\1", source.docstring).split("\n\n")[0].split()).replace("`", "")
    text = f"Defined in `{source.file}`, line {source.line}. {words}".strip()
    lines = source.forward.rstrip().splitlines()
    if lines:
        left = [f"# {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        text += "\n\nWhat it computes:\n\n```python\n" + "\n".join([*lines[:_MOST_LINES], *left]) + "\n```"
    return Topic(_GROUP, source.name, (), f"A class of {package}", text)


def model_class_topic(report: Report) -> Topic:
    """Explains a model class by the head of its default configuration; no checkpoint is read."""
    name, head = report.model.class_name, report.head
    parts = [f"{report.model.task.value}, in its default configuration; no checkpoint was read."]
    if head is not None:
        weights = list_of((item.name for item in head.parameters if item.live), 6)
        parts += [f"```text\n{head.formula}\n```"] if head.formula else []
        parts += [f"{words}."] if (words := plain_words(report)) else []
        place = ", of the decoder" if reads_decoder(head.pooling) else ""
        parts += [
            f"**Pooling.** `{head.pooling.kind.value}`: {head.pooling.rule or POOLING[head.pooling.kind]}{place}."
        ]
        parts += [f"**Weights of the head.** {weights}."] if weights else []
    parts += [f"`headscope inspect {name}` shows every operation, `headscope diagram {name}` draws it."]
    return Topic(_GROUP, name, (), "A class of Transformers", "\n\n".join(parts))
