"""`headscope verify MODEL`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from headscope.cli.commands.check import Written, exit_code, rules_option
from headscope.cli.completion import complete_checkpoint, complete_severity
from headscope.cli.options import ModelClass, NumLabels, Reach, check_num_labels, given_words, model_argument, option
from headscope.cli.output import write_screen, write_text
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from headscope.facts.results.verification import VerifyResult

_SERVER = "A running server, or an engine"
BOTH = "sentence-transformers"
"""Name of both a loader and an engine."""

WithWeights = Annotated[str, model_argument("weight file, or PEFT adapter")]


@dataclass(frozen=True)
class Compare:
    """Options for the loader, and for the checkpoint to compare with."""

    loader: Annotated[
        str | None,
        option(
            "--with",
            "What loads MODEL: transformers, peft, sentence-transformers, trl, setfit, or MODULE:FUNCTION (default: "
            "peft for an adapter, otherwise transformers); or an engine that gives scores for texts, such as vllm.",
            "LOADER",
        ),
    ] = None
    against: Annotated[
        str | None,
        option(
            "--against",
            "The checkpoint to compare with (default: MODEL). --adapter belongs to it.",
            "MODEL",
            autocompletion=complete_checkpoint,
        ),
    ] = None
    head: Annotated[bool, option("--head", "Compare only the tensors of the head and those of an adapter.")] = False
    all: Annotated[bool, option("--all", "Compare every tensor and buffer (the default).")] = False
    num_labels: NumLabels = None
    model_class: ModelClass = None


@dataclass(frozen=True)
class Asked:
    """Options for the rules that run and what fails."""

    select: Annotated[str | None, rules_option("--select", "Run only these rules.")] = None
    ignore: Annotated[str | None, rules_option("--ignore", "Rules whose findings don't fail the verification.")] = None
    fail_on: Annotated[
        str,
        option("--fail-on", "error, warning or note.", "SEVERITY", panel="Rules", autocompletion=complete_severity),
    ] = "error"


@dataclass(frozen=True)
class Server:
    """Options for a running server, and for the texts that it scores."""

    url: Annotated[
        str | None,
        option(
            "--url", "Compare the scores of a server, such as http://localhost:8000, instead.", "URL", panel=_SERVER
        ),
    ] = None
    text: Annotated[
        list[str] | None,
        option("--text", "A text to score; repeatable (default: 16 short texts).", "TEXT", panel=_SERVER),
    ] = None
    text_pair: Annotated[
        list[str] | None, option("--text-pair", "The second text of a pair; repeatable.", "TEXT", panel=_SERVER)
    ] = None
    data: Annotated[
        str | None,
        option(
            "--data", "Texts to score: csv, tsv, jsonl, parquet, or a saved dataset's folder.", "FILE", panel=_SERVER
        ),
    ] = None
    text_column: Annotated[
        list[str] | None, option("--text-column", "Column of the texts; repeat it for pairs.", "COLUMN", panel=_SERVER)
    ] = None
    split: Annotated[str | None, option("--split", "Split of a saved dataset.", "NAME", panel=_SERVER)] = None
    limit: Annotated[
        int, option("--limit", "Largest number of rows to use; of more, a seeded sample.", "N", panel=_SERVER)
    ] = 200
    logits: Annotated[
        bool, option("--logits", "Ask for logits instead of the scores that are the default.", panel=_SERVER)
    ] = False
    protocol: Annotated[
        str | None,
        option(
            "--protocol",
            "vllm, vllm-pooling, tei, sglang, llama-cpp, infinity, inputs or kserve (default: found).",
            "NAME",
            panel=_SERVER,
        ),
    ] = None
    served_model: Annotated[
        str, option("--served-model", "The model's name on a server that has several.", "NAME", panel=_SERVER)
    ] = ""
    server_token: Annotated[
        str | None,
        option(
            "--server-token",
            "Access token; prefer setting HEADSCOPE_SERVER_TOKEN.",
            "TOKEN",
            panel=_SERVER,
            envvar="HEADSCOPE_SERVER_TOKEN",
            show_envvar=False,
        ),
    ] = None
    server_timeout: Annotated[
        float, option("--server-timeout", "Total time limit for requests to the server.", "SECONDS", panel=_SERVER)
    ] = 120.0
    python: Annotated[
        str | None, option("--python", "The interpreter that has the engine, for --with ENGINE.", "PATH", panel=_SERVER)
    ] = None
    batch_size: Annotated[int, option("--batch-size", "Texts in a request.", "N", panel=_SERVER)] = 16


def verify_command(  # noqa: PLR0917  Typer passes every option by name
    model: WithWeights, compare: Compare, server: Server, reach: Reach, asked: Asked, written: Written
) -> int:
    """Load a model for real and compare it with its checkpoint's bytes, or a server's scores with the checkpoint's."""
    check_num_labels(compare.num_labels, None)
    engine = _engine_of(compare, server)
    if server.url is not None or engine is not None:
        others = given_words((), replace(compare, loader=None) if engine else compare, asked)
        return _verify_served(model, engine, server, reach, written, others)
    alone = given_words((), server)
    if alone:
        raise UsageError(f"{alone} is for a running server or an engine", "add --url URL or --with ENGINE")
    if compare.head and compare.all:
        raise UsageError("--head asks for a part and --all for the whole model", "give one of them")
    rules = {name: value for name, value in vars(asked).items() if value is not None}
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope import api

        result = api.verify(
            model,
            compare.against,
            loader=compare.loader,
            head=compare.head,
            num_labels=compare.num_labels,
            model_class=compare.model_class,
            progress=tell,
            **rules,
            **reach.uncached(),
        )
    _write_result(written, result)
    return exit_code([result])


def _engine_of(compare: Compare, server: Server) -> str | None:
    """Gives the engine that --with names; None if it names a loader."""
    # A name of both is the loader, which compares tensors, unless there are texts to score.
    from headscope.serving.running.process import runner_names

    if compare.loader not in runner_names() or (compare.loader == BOTH and not (server.text or server.data)):
        return None
    return compare.loader


def _verify_served(  # noqa: PLR0917  what Typer passed
    model: str, engine: str | None, server: Server, reach: Reach, written: Written, others: str
) -> int:
    """Compares scores. Raises UsageError for `others`: the options that only the comparison of tensors has."""
    what = "--url" if engine is None else f"--with {engine}"
    if others or reach.adapter is not None:
        raise UsageError(f"{others or '--adapter'} doesn't go with {what}", "leave it out")
    if engine is not None and server.url is not None:
        raise UsageError(f"--url and {what} were given", "give one of them")
    if written.kind not in ("text", "json"):
        raise UsageError(f"--format {written.kind} shows findings, and {what} gives none", "use text or json")
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope import api

        place = reach.uncached()
        del place["adapter"]
        options = {name: value for name, value in vars(server).items() if name != "url"}
        result = api.verify_served(model, server.url, engine=engine, progress=tell, **options, **place)
    if written.kind == "json":
        from headscope.render.text.document import json_text

        write_text(written.output, json_text(result.to_dict()), quiet=written.quiet)
    else:
        from headscope.render.screens.served import served_screen, served_verdict

        screen = served_verdict if written.quiet else served_screen
        write_screen(written.output, screen(result), quiet=written.quiet)
    codes = {True: ExitCode.OK, False: ExitCode.FINDINGS, None: ExitCode.UNDETERMINED}
    return codes[result.served.same]


def _write_result(written: Written, result: "VerifyResult") -> None:
    if written.kind == "text":
        from headscope.render.screens.verification import verification_screen, verification_verdict

        screen = verification_verdict if written.quiet else verification_screen
        write_screen(written.output, screen(result), quiet=written.quiet)
    else:
        write_text(written.output, _render_result(written.kind, result), quiet=written.quiet)


def _render_result(kind: str, result: "VerifyResult") -> str:
    if kind == "json":
        from headscope.render.text.document import json_text

        return json_text(result.to_dict())
    from headscope.checks import RULES
    from headscope.render.pages.ci import CI_FORMATS
    from headscope.render.screens.verification import as_check

    return CI_FORMATS[kind]([as_check(result)], tuple((name, RULES[name].title) for name in result.rules))
