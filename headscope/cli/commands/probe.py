"""`headscope probe MODEL --data FILE`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headscope.cli.commands.check import Split, TextColumns
from headscope.cli.options import (
    CacheDir,
    ModelClass,
    NoNetwork,
    Output,
    Revision,
    Subfolder,
    Timeout,
    Token,
    TrustRemoteCode,
    Variant,
    Writes,
    check_timeout,
    model_argument,
    option,
)
from headscope.cli.output import write_report, write_text
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from headscope.facts.probing.result import ProbeResult

_LABELED = "Labeled data"
_SCORES = "Scores"
_RUN = "The pass over the texts"
_OTHER_PICTURES = ("png", "pdf", "jpg", "jpeg", "gif", "webp", "eps", "ps")


class PrecisionName(StrEnum):
    """Number formats that the model can run in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class LabelNames(StrEnum):
    """Kinds of labels."""

    single = "single-label"
    multi = "multi-label"
    regression = "regression"


@dataclass(frozen=True)
class LabeledGroup:
    """Options for the labeled data that vectors are scored on."""

    data: Annotated[
        str | None,
        option(
            "--data",
            "Labeled texts: csv, tsv, jsonl, parquet, or a folder that `datasets` saved.",
            "FILE",
            panel=_LABELED,
        ),
    ] = None
    text_column: TextColumns = None
    image_column: Annotated[
        str | None,
        option(
            "--image-column",
            "Instead of texts: the column of images, as paths relative to FILE or as `datasets` saved them.",
            "COLUMN",
            panel=_LABELED,
        ),
    ] = None
    audio_column: Annotated[
        str | None,
        option("--audio-column", "Instead of texts: the column of 16-bit WAV files.", "COLUMN", panel=_LABELED),
    ] = None
    label_column: Annotated[
        list[str] | None,
        option(
            "--label-column",
            "The column of the labels; repeat it for columns of 0 and 1, one for each class.",
            "COLUMN",
            panel=_LABELED,
        ),
    ] = None
    problem_type: Annotated[
        LabelNames | None,
        option(
            "--problem-type",
            "What the labels are (default: lists and several columns are multi-label, numbers with fractions are "
            "regression).",
            panel=_LABELED,
        ),
    ] = None
    split: Split = None
    limit: Annotated[
        int,
        option(
            "--limit",
            "Largest number of rows to use; of more, a sample drawn with the seed, with the same share of each class.",
            "N",
            panel=_LABELED,
        ),
    ] = 2000

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api. Raises UsageError without data or their columns."""
        for name, value in (
            ("--data FILE", self.data),
            ("--text-column COLUMN", self.text_column or self.image_column or self.audio_column),
            ("--label-column COLUMN", self.label_column),
        ):
            if not value:
                raise UsageError(f"{name.split()[0]} is missing: probe scores vectors on labeled data", f"add {name}")
        problem_type = self.problem_type.value if self.problem_type else None
        return vars(self) | {"text_column": self.text_column or (), "problem_type": problem_type}


@dataclass(frozen=True)
class ScoringGroup:
    """Options for reading and scoring the vectors."""

    folds: Annotated[int, option("--folds", "Number of folds of the cross-validation.", "N", panel=_SCORES)] = 5
    seed: Annotated[
        int, option("--seed", "Seed of the sample, the folds, the bootstrap and the tests.", "N", panel=_SCORES)
    ] = 0
    device: Annotated[str, option("--device", "Where the model runs: cpu, cuda, ...", "DEVICE", panel=_RUN)] = "cpu"
    batch_size: Annotated[int, option("--batch-size", "Number of texts that run together.", "N", panel=_RUN)] = 32
    dtype: Annotated[
        PrecisionName,
        option(
            "--dtype",
            "Number format of the model. auto: float32 on the CPU; elsewhere the checkpoint's half precision, if it "
            "changes no vector of sample texts.",
            panel=_RUN,
        ),
    ] = PrecisionName.auto
    features: Annotated[
        Path | None,
        option(
            "--features", "Keep the vectors in DIR, as .npy files (default: a temporary folder).", "DIR", panel=_RUN
        ),
        Writes.FOLDER,
    ] = None
    write_head: Annotated[
        Path | None,
        option(
            "--write-head",
            "Fit a classifier on all rows and write it: a checkpoint of the class, or a Python module with weights.",
            "DIR",
            panel="Output",
        ),
        Writes.FOLDER,
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api."""
        return vars(self) | {"dtype": self.dtype.value}


@dataclass(frozen=True, kw_only=True)
class PlaceGroup:
    """Options for the checkpoint and how to reach it."""

    model: Annotated[str, model_argument("or weight file")]
    model_class: ModelClass = None
    trust_remote_code: TrustRemoteCode = False
    revision: Revision = None
    subfolder: Subfolder = None
    variant: Variant = None
    cache_dir: CacheDir = None
    token: Token = None
    offline: NoNetwork = False
    timeout: Timeout = None

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api. Raises UsageError for an invalid time limit."""
        check_timeout(self.timeout)
        return {name: value for name, value in vars(self).items() if name != "model"}


Code = Annotated[bool, option("--code", "Write a Python module with a classifier on the best vector.", panel="Output")]


def probe_command(  # noqa: PLR0917  Typer passes them by name
    place: PlaceGroup,
    labeled: LabeledGroup,
    scores: ScoringGroup,
    output: Output,
    details: Annotated[
        bool,
        option(
            "--details",
            "Show everything: every vector, the curve over the layers, rows that may be labeled wrongly, the reasons.",
        ),
    ] = False,
    code: Code = False,
) -> int:
    """Score every vector that a classifier could read on labeled texts, and name the best."""
    texts = labeled.keywords()
    drawing = _picture_format_of(output.output)
    # stdout or FILE takes one form of the answer, so two are a contradiction.
    kinds = [
        kind
        for kind, is_asked in (("--code", code), ("JSON", output.is_json), (f"-o {output.output}", drawing))
        if is_asked
    ]
    if len(kinds) > 1:
        raise UsageError(f"{kinds[0]} and {kinds[1]} are different formats", "leave one of them out")
    with telling_progress(output.quiet) as tell:
        from headscope import api

        result = api.probe(place.model, progress=tell, **texts, **scores.keywords(), **place.keywords())
    _write_result(result, output, code=code, drawing=drawing, details=details)
    if result.written is not None and result.written.failure:
        return ExitCode.FINDINGS
    return ExitCode.UNDETERMINED if result.not_determined else ExitCode.OK


def _picture_format_of(path: Path | None) -> str:
    """Gives the picture format for the suffix of a file, "" for text. Raises UsageError for other pictures."""
    suffix = path.suffix.lower().removeprefix(".") if path is not None else ""
    if suffix in _OTHER_PICTURES:
        raise UsageError(f"-o {path}: probe draws .svg and .html", "give the file one of these endings")
    return {"svg": "svg", "html": "html", "htm": "html"}.get(suffix, "")


def _write_result(result: "ProbeResult", output: Output, *, code: bool, drawing: str, details: bool) -> None:
    """Writes the answer as text, JSON, a module, or a picture in the format `drawing`."""
    if code:
        from headscope.render.probing.code import probe_code

        write_text(output.output, probe_code(result), quiet=output.quiet)
        return
    if drawing:
        from headscope.render.probing.picture import probe_picture

        write_text(output.output, probe_picture(result, drawing), quiet=output.quiet)
        return
    from headscope.render.probing.screen import probe_document, probe_screen, probe_verdict

    write_report(
        output,
        lambda: probe_verdict(result) if output.quiet else probe_screen(result, details=details),
        lambda: probe_document(result),
    )
