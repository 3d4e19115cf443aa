"""`headscope probe MODEL --data FILE` and `headscope code MODEL`."""

from typing import TYPE_CHECKING, Annotated

from headscope.checks.options import LabeledOptions
from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import Model, Output, OutputFile, Quiet, details_option, model_argument
from headscope.shell.output import write_report, write_text
from headscope.shell.progress import telling_progress
from headscope.slices.probe.options import CodeOptions, ProbeOptions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from headscope.slices.probe.facts.result import ProbeResult

_OTHER_PICTURES = ("png", "pdf", "jpg", "jpeg", "gif", "webp", "eps", "ps")


def probe_command(
    model: Annotated[str, model_argument("or weight file")],
    labeled: LabeledOptions,
    options: ProbeOptions,
    output: Output,
    details: Annotated[
        bool,
        details_option("everything: every vector, the curve over the layers, rows that may be labeled wrongly."),
    ] = False,
) -> int:
    """Score every vector that a classifier could read on labeled texts; -o FILE.py writes code for the best."""
    data, label_column = _read_labeled(labeled, options)
    suffix = output.output.suffix.lower().removeprefix(".") if output.output is not None else ""
    if suffix in _OTHER_PICTURES:
        raise UsageError(f"-o {output.output}: probe draws .svg and .html", "give the file one of these endings")
    form = {"svg": "svg", "html": "html", "htm": "html", "py": "py"}.get(suffix, "")  # "" for text
    if form and output.is_json:
        raise UsageError(f"JSON and -o {output.output} are different formats", "leave one of them out")
    with telling_progress(output.quiet) as tell:
        from headscope.slices.probe.run import probe

        result = probe(model, data=data, label_column=label_column, progress=tell, **options)
    _write_result(result, output, form=form, details=details)
    if result.written is not None and result.written.failure:
        return ExitCode.FINDINGS
    return ExitCode.UNDETERMINED if result.not_determined else ExitCode.OK


def _read_labeled(labeled: LabeledOptions, options: ProbeOptions) -> "tuple[str | PathLike[str], str | Iterable[str]]":
    """Gives the file and the column of the labels. Raises UsageError without them, or the column of the inputs."""
    inputs = [options.get(name) for name in ("text_column", "image_column", "audio_column")]
    for name, value in (
        ("--data FILE", labeled.get("data")),
        ("--text-column COLUMN", any(inputs)),
        ("--label-column COLUMN", labeled.get("label_column")),
    ):
        if not value:
            raise UsageError(f"{name.split()[0]} is missing: probe scores vectors on labeled data", f"add {name}")
    return labeled["data"] or "", labeled["label_column"] or ()


def _write_result(result: "ProbeResult", output: Output, *, form: str, details: bool) -> None:
    """Writes the answer as text, JSON, or in the form that the file names: a module or a picture."""
    if form == "py":
        from headscope.slices.probe.screen.code import probe_code

        write_text(output.output, probe_code(result), quiet=output.quiet)
        return
    if form:
        from headscope.slices.probe.screen.picture import probe_picture

        write_text(output.output, probe_picture(result, form), quiet=output.quiet)
        return
    from headscope.slices.probe.screen.screen import probe_document, probe_screen, probe_verdict

    write_report(
        output,
        lambda: probe_verdict(result) if output.quiet else probe_screen(result, details=details),
        lambda: probe_document(result),
    )


def code_command(model: Model, options: CodeOptions, output: OutputFile = None, quiet: Quiet = False) -> int:
    """Write a Python module with a classifier that loads the checkpoint and trains, without data."""
    with telling_progress(quiet) as tell:
        from headscope.slices.probe.coding import code

        text = code(model, progress=tell, **options)
    write_text(output, text, quiet=quiet)
    return ExitCode.OK
