"""Words for a stage of the head path, and for its beginning and end: the same on all screens and in pictures."""

import re
from pathlib import PurePosixPath

from rich.style import Style
from rich.text import Text

from headscope.core.facts import Carried, Head, HeadParameter, ParameterStatus, Shape, Stage, UnusedModule
from headscope.core.words.console import QUIET, STRONG
from headscope.core.words.safe import safe
from headscope.core.words.words import axes_of, reads_decoder, size_of

GUIDE = 4
"""The cells that the guides of a tree take before a stage."""

BY_ADAPTER = {Carried.SAVED: "from the adapter", Carried.ADAPTED: "changed by the adapter"}
"""What a PEFT adapter did to a parameter."""
BY_ADAPTER_IN_SHORT = {Carried.SAVED: "adapter", Carried.ADAPTED: "adapted"}
"""The same where the line of a stage has little room."""


def operation_of(stage: Stage) -> str:
    """Writes the operation with its arguments: `dropout p=0.1`."""
    return f"{stage.operation} {stage.detail}".rstrip()


def module_of(stage: Stage) -> str:
    """Names the module that is the operation, or that calls it: `classifier`, `in bert.pooler`."""
    if not stage.functional:
        return stage.module or "(the model)"
    return f"in {stage.module}" if stage.module else "in forward"


def shapes_of(stage: Stage) -> str:
    """Writes the shapes of inputs and output: `[batch, 768] -> [batch, 3]`."""
    return f"{', '.join(map(axes_of, stage.input_shapes))} -> {axes_of(stage.output_shape)}".lstrip()


def source_of(stage: Stage) -> str:
    """Writes file name and line: `modeling_bert.py:460`; "" if no source is known."""
    return f"{PurePosixPath(stage.file).name}:{stage.line}" if stage.file else ""


def common_file(head: Head) -> str:
    """Gives the name of the source file that all stages share; "" if they come from several."""
    files = {stage.file for stage in head.stages}
    return PurePosixPath(files.pop()).name if len(files) == 1 else ""


def pooling_stage(head: Head) -> int | None:
    """Gives the index of the last stage among the pooling's evidence."""
    seen = {(item.operation, item.module, item.file, item.line) for item in head.pooling.evidence}
    marked = (s.index for s in head.stages if (s.operation, s.module, s.file, s.line) in seen)
    return max(marked, default=None)


def own_parameters(head: Head, stage: Stage) -> tuple[HeadParameter, ...]:
    """Gives the parameters and buffers that a stage uses, with their status."""
    by_name = {item.name: item for item in head.tensors}
    return tuple(by_name[name] for name in (*stage.parameters, *stage.buffers) if name in by_name)


def weight_size(parameter: HeadParameter) -> str:
    """Writes the shape of a parameter: `3x768`; if the checkpoint's differs, both: `2x768 -> 3x768`."""
    if parameter.status is ParameterStatus.MISMATCHED and parameter.checkpoint_shape is not None:
        return f"{size_of(parameter.checkpoint_shape)} -> {size_of(parameter.shape)}"
    return size_of(parameter.shape)


def weight_status(parameter: HeadParameter) -> str:
    """Writes the status as a word: `new`; `loaded, not used` for one with no path to the logits."""
    return parameter.status.value if parameter.live else f"{parameter.status.value}{NOT_USED}"


NOT_USED = ", not used"


def logits_shape(head: Head) -> Shape:
    """Gives the shape of the logits, which the last stage makes; without stages, the hidden states are the logits."""
    return head.stages[-1].output_shape if head.stages else head.hidden_shape


def path_root(head: Head, model_type: str, file: str, room: int) -> Text:
    """Writes the beginning of the path: `hidden states [batch, sequence, 768] of bert  modeling_bert.py`; those that a
    decoder made are `of the bart decoder`. In too little room the second line begins with `of`: the file isn't alone.
    """
    root = Text.assemble(("hidden states ", STRONG), axes_of(head.hidden_shape), overflow="fold")
    family = safe(model_type)
    of_decoder = f"of the {family} decoder".replace("  ", " ")
    maker = of_decoder if reads_decoder(head.pooling) else f"of {family}" if family else ""
    source = Text(f"  {safe(file)}" if file else "", QUIET)
    is_wide = root.cell_len + 1 + len(maker) + source.cell_len > room
    return Text.assemble(root, ("\n" if is_wide else " ") if maker else "", maker, source, overflow="fold")


def path_end(head: Head, result: str) -> Text:
    """Writes the end of the path: `logits [batch, 3]`, or what else the head gives."""
    return Text.assemble((f"{result} ", STRONG), axes_of(logits_shape(head)), overflow="fold")


def fate_of(module: UnusedModule) -> str:
    """Says if a module beside the head path was executed."""
    return "executed, does not reach the logits" if module.executed else "never executed"


_SOURCES = "https://github.com/huggingface/transformers/blob/v{version}/src/{file}#L{line}"
_RELEASE = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?")
_SOURCE = re.compile(r"transformers/[\w/]+\.py")  # Rich writes a link into HTML as it is


def source_url(file: str, line: int, version: str) -> str:
    """Gives the page of a line in that release of Transformers; "" for other code and for development versions."""
    # The repository has a tag for every release; a development version would link to lines that have moved.
    is_known = _SOURCE.fullmatch(file) and _RELEASE.fullmatch(version)
    return _SOURCES.format(version=version, file=file, line=line) if is_known else ""


def linked_source(stage: Stage, version: str, *, short: bool) -> Text:
    """Writes the line of a stage, as a link where there are links; `short` leaves out the file."""
    words = f":{stage.line}" if short and stage.file else source_of(stage)
    url = source_url(stage.file, stage.line, version)
    style = Style.parse(QUIET) + Style(link=url) if url else Style.parse(QUIET)
    return Text(safe(words), style, overflow="fold")
