"""The options on what loads or serves a checkpoint: those of `verify`, `verify_served`, `verify_save` and `engines`."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal, TypedDict

from headscope.checks.options import RuleOptions, TextColumnOptions
from headscope.shared.serving.options import InterpreterOption, server_option
from headscope.shell.options.checkpoint import (
    AdapterOption,
    AnyPath,
    CountOption,
    LoadedFromOption,
    ModelClassOption,
    OfflineOption,
    PlaceOptions,
    RunOptions,
)
from headscope.shell.options.option import Option

_texts = partial(Option, panel="Data")


class TextOptions(TextColumnOptions, total=False):
    """Texts to score."""

    text: Annotated[
        str | Iterable[str] | None,
        _texts(
            "A text to score, or several (default: 16 short English texts, in pairs for a server that takes only "
            "pairs).",
            metavar="TEXT",
            is_repeatable=True,
        ),
    ]
    text_pair: Annotated[
        str | Iterable[str] | None,
        _texts("The second text of each pair, in order.", metavar="TEXT", is_repeatable=True),
    ]
    data: Annotated[
        AnyPath | None,
        _texts(
            "Texts to score: a csv, tsv, jsonl or parquet file, or a folder that `datasets` saved.",
            metavar="FILE",
        ),
    ]
    limit: Annotated[
        int, _texts("Largest number of texts to use from the data; of more, a seeded sample.", 200, metavar="N")
    ]


class ServerOptions(TypedDict, total=False):
    """Options for requesting scores from a running server."""

    protocol: Annotated[
        str | None,
        server_option(
            "How scores are requested: `vllm`, `vllm-pooling`, `tei`, `sglang`, `llama-cpp`, `infinity`, `inputs` or "
            "`kserve` (default: found by harmless requests).",
            metavar="NAME",
        ),
    ]
    served_model: Annotated[str, server_option("Name of the model on a server that has several.", "", metavar="NAME")]
    server_token: Annotated[
        str | None,
        server_option(
            "Access token for the server, sent to its origin only.",
            in_terminal="Prefer setting HEADSCOPE_SERVER_TOKEN.",
            metavar="TOKEN",
            variable="HEADSCOPE_SERVER_TOKEN",
        ),
    ]
    server_timeout: Annotated[
        float, server_option("Total time limit for the requests to the server, in seconds.", 120.0, metavar="SECONDS")
    ]
    server_ca: Annotated[
        AnyPath | None,
        server_option(
            "Certificates to trust for https, in PEM, such as the server's own.", metavar="FILE", flags="--ca"
        ),
    ]
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        server_option("The precision that the server computes in, as its settings say (default: what it tells)."),
    ]
    batch_size: Annotated[int, server_option("Texts in a request.", 16, metavar="N")]


ASKED_OPTIONS = frozenset(ServerOptions.__annotations__) - {"dtype"}
"""Options that mean nothing without a server to ask."""


class LogitsOption(TypedDict, total=False):
    """Option for scores without the function on them."""

    logits: Annotated[
        bool, server_option("Ask for logits, and compare those, instead of the scores that are the default.")
    ]


class ScoringOptions(TextOptions, ServerOptions, InterpreterOption, LogitsOption, total=False):
    """Options of `verify_served` for texts, and for what scores them."""


class ServedOptions(ScoringOptions, PlaceOptions, total=False):
    """Options of `verify_served`."""


class CardOptions(TextOptions, PlaceOptions, total=False):
    """Options of `write_card`."""


class GivenScoresOption(TypedDict, total=False):
    """Option for scores that an engine has given."""

    scores: Annotated[
        AnyPath | None,
        server_option("Scores for the inputs of the card: JSON or JSON lines, a row for each.", metavar="FILE"),
    ]


class ComparedOptions(GivenScoresOption, ServerOptions, LogitsOption, total=False):
    """Options of `verify_card`."""


class HeadOnlyOption(TypedDict, total=False):
    """Option for a comparison of the head alone."""

    head: Annotated[bool, Option("Compare the tensors of head and adapter alone.", is_main=True)]


class LoaderOptions(CountOption, total=False):
    """Options for loading a checkpoint."""

    loader: Annotated[
        str | None,
        Option(
            "What loads the model: `transformers`, `peft`, `sentence-transformers`, `trl`, `setfit`, or "
            "`MODULE:FUNCTION` (default: `peft` for an adapter, otherwise `transformers`).",
            in_python="The function is called with the path or Hub ID. For a checkpoint only.",
            in_terminal="Or an engine that gives scores for texts, such as vllm.",
            metavar="LOADER",
            flags="--with",
            is_main=True,
        ),
    ]


class StoredOptions(PlaceOptions, AdapterOption, ModelClassOption, total=False):
    """Options for the place of the checkpoint to compare with."""


class ModuleVerification(RuleOptions, HeadOnlyOption, StoredOptions, total=False):
    """Options of `verify` for a model in memory."""


class VerifyOptions(LoaderOptions, ModuleVerification, total=False):
    """Options of `verify` for a checkpoint."""


class SaveOptions(RuleOptions, RunOptions, LoadedFromOption, OfflineOption, total=False):
    """Options of `verify_save`."""
