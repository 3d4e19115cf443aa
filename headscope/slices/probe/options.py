"""The options of `probe`: the model, the labeled texts, how vectors are scored, and what is written."""

from functools import partial
from typing import Annotated, Literal

from headscope.checks.options import TextColumnOptions
from headscope.shell.options.checkpoint import AnyPath, CachedOptions, ClassOptions, PlaceOptions
from headscope.shell.options.option import DeviceName, Option, Writes

_data = partial(Option, panel="Data")
_scores = partial(Option, panel="Scores")
_run = partial(Option, panel="The pass over the texts")


class ModelOptions(ClassOptions, PlaceOptions, total=False):
    """Options for the model that is run."""


class ProbeOptions(ModelOptions, TextColumnOptions, total=False):
    """Options of `probe`."""

    image_column: Annotated[
        str | None,
        _data(
            "Instead of texts, the column of images: paths relative to the data, or files in the cells.",
            metavar="COLUMN",
        ),
    ]
    audio_column: Annotated[str | None, _data("Instead of texts, the column of 16-bit WAV files.", metavar="COLUMN")]
    problem_type: Annotated[
        Literal["single-label", "multi-label", "regression"] | None,
        _data("`single-label`, `multi-label` or `regression` (default: from the labels).", metavar="TYPE"),
    ]
    limit: Annotated[
        int,
        _data(
            "Largest number of rows to use; of more, a sample with the same share of each class.",
            2000,
            metavar="N",
        ),
    ]
    folds: Annotated[int, _scores("Number of folds of the cross-validation.", 5, metavar="N")]
    seed: Annotated[
        int,
        _scores("Seed of the sample, the folds, the bootstrap, the tests, and weights that are new.", 0, metavar="N"),
    ]
    device: Annotated[
        DeviceName,
        _run(
            "Where the model runs: `cpu`, `cuda`, `cuda:0` or `mps`.", "cpu", metavar="DEVICE", typed=str, is_main=True
        ),
    ]
    batch_size: Annotated[int, _run("Number of texts that run together.", 32, metavar="N")]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _run(
            "`float32`, `bfloat16` or `float16`; `auto` is float32 on the CPU, and elsewhere the checkpoint's half "
            "precision if it changes no vector of sample texts.",
            "auto",
            metavar="DTYPE",
        ),
    ]
    features: Annotated[
        AnyPath | None,
        _run(
            "Folder that keeps the vectors, as `.npy` files (default: a temporary folder).",
            in_python="The next run uses them if the checkpoint, the texts, the options and the versions are the same.",
            metavar="DIR",
            writes=Writes.FOLDER,
        ),
    ]
    write_head: Annotated[
        AnyPath | None,
        Option(
            "Folder for a classifier fitted on all rows: a checkpoint of the class, or a Python module with weights.",
            in_python="A separate process proves its scores.",
            metavar="DIR",
            panel="Output",
            is_main=True,
            writes=Writes.FOLDER,
        ),
    ]


class CodeOptions(CachedOptions, total=False):
    """Options of `code`."""

    pooling: Annotated[
        str,
        Option(
            "The vector to classify: `head`, which the class itself reads, or for texts `mean`, `cls`, `last`, `max`, "
            "`mean_and_max`, `first_last_mean`, `last_four_concat` or `last_four_average`.",
            "head",
            metavar="VECTOR",
            is_main=True,
            completes="vector",
        ),
    ]
    layer: Annotated[
        int | None,
        Option("Index of the hidden states; 0 is the embeddings (default: the last).", metavar="N", is_main=True),
    ]
