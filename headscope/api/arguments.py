"""The keyword arguments that use cases share, each with its meaning, and the decorator that makes them explicit.

A use case takes them as `**options: Unpack[...]`: type checkers and editors know every name, and at run time its
signature and docstring list them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar

from headscope.errors import HeadscopeError, UsageError, did_you_mean
from headscope.examination.base.environment import default_torch
from headscope.facts import Severity
from headscope.upstream.python import check_folder, fault_of_process

if TYPE_CHECKING:
    from headscope.checks import Ignore

ProfileName = Literal["training", "inference"]
"""The values of `facts.Profile`."""
SeverityName = Literal["error", "warning", "note"]
"""The values of `facts.Severity`."""
DrawingName = Literal["text", "mermaid", "dot", "svg", "html"]
"""The formats of a picture."""
DeviceName = Literal[
    "meta", "cpu", "mps", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"
]
"""The devices of `forward` that a type checker accepts; PyTorch may know others."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class OfflineOption(TypedDict, total=False):
    """Option for working without the network."""

    offline: Annotated[bool, "Make no network requests: use local files, the Hub's cache and the bundled snapshots."]


class CacheOptions(OfflineOption, total=False):
    """Options for reaching the Hub."""

    cache_dir: Annotated[str | PathLike[str] | None, "The Hub's cache folder (default: `$HF_HUB_CACHE`)."]
    token: Annotated[
        str | None, "Access token for gated and private repositories (default: `$HF_TOKEN` or the stored login)."
    ]
    timeout: Annotated[
        float | None, "Total time limit for the Hub requests of a checkpoint, in seconds (default: 120)."
    ]


class RevisionOption(TypedDict, total=False):
    """Option for the state of a repository."""

    revision: Annotated[str | None, "Branch, tag or commit on the Hub (default: `main`)."]


class PlaceOptions(CacheOptions, RevisionOption, total=False):
    """Options for the files of a repository or folder."""

    subfolder: Annotated[str | None, "Folder inside the repository or the local folder."]
    variant: Annotated[str | None, "Variant of the weight files, such as `fp16` for `model.fp16.safetensors`."]


class AdapterOption(TypedDict, total=False):
    """Option for an adapter on a checkpoint."""

    adapter: Annotated[str | PathLike[str] | None, "A PEFT adapter (Hub ID or folder) to put on the checkpoint."]


class TaskOption(TypedDict, total=False):
    """Option for the task of a model."""

    task: Annotated[
        str | None, "A task such as `sequence-classification` or `token-classification` (default: from the checkpoint)."
    ]


class LabelOptions(TaskOption, total=False):
    """Options for the task and the names of its classes."""

    labels: Annotated[str | Iterable[str] | None, 'Class names in order, several or one text `"A,B,C"`.']


class CountOption(TypedDict, total=False):
    """Option for the number of classes."""

    num_labels: Annotated[int | None, "Number of classes (default: from the config); 1 means regression."]


class ModelClassOption(TypedDict, total=False):
    """Option for the model class."""

    model_class: Annotated[
        str | None,
        "A class of Transformers, such as `BertForSequenceClassification`; or your own, `file.py:Class` or "
        "`package.module:Class`, whose code runs.",
    ]


class ClassOptions(ModelClassOption, total=False):
    """Options for the model class and its code."""

    trust_remote_code: Annotated[bool, "Run model code that comes with the checkpoint."]


class CheckpointOptions(CountOption, LabelOptions, ClassOptions, PlaceOptions, AdapterOption, total=False):
    """Options for the class, the labels and the files of a checkpoint."""

    tokens: Annotated[
        str | Iterable[str] | None,
        'Tokens of a causal language model whose logits are the scores, such as `"no,yes"` of a reranker.',
    ]


class ReportCacheOption(TypedDict, total=False):
    """Option for the report cache."""

    cache: Annotated[bool, "Read and write the report cache."]


class CachedOptions(CheckpointOptions, ReportCacheOption, total=False):
    """Options for a checkpoint whose result is cached."""


class LoadedFromOption(TypedDict, total=False):
    """Option for the checkpoint of a model in memory."""

    loaded_from: Annotated[
        str | PathLike[str] | None,
        "The checkpoint that the module was loaded from, if its config doesn't name it. For a module only.",
    ]


class LoadedOptions(LabelOptions, OfflineOption, LoadedFromOption, total=False):
    """Facts on a model in memory that it does not carry itself."""

    loading_info: Annotated[
        Mapping[str, Any] | None,
        "What `from_pretrained(..., output_loading_info=True)` returned: replaces reading the checkpoint. For a module "
        "only.",
    ]


class RunOptions(TypedDict, total=False):
    """Options for running a model in memory."""

    example_inputs: Annotated[
        Any,
        "What the module's `forward` takes: a mapping of arguments, a tensor, or several in order, with a batch axis "
        "of at least 1. Models of Transformers don't need it. For a module only.",
    ]
    output: Annotated[str | None, "Name of the scores to examine if `forward` returns several. For a module only."]


class ModuleOptions(LoadedOptions, RunOptions, total=False):
    """Options for a model in memory that is run."""


class RuleOptions(TypedDict, total=False):
    """Options for the rules that run and what fails."""

    select: Annotated[
        str | Iterable[str],
        'Rules to run (default: all): IDs, names or beginnings of IDs, several or one text `"HS101,HS2"`.',
        (),
    ]
    ignore: Annotated[
        str | Iterable[str | Ignore],
        "Rules whose findings don't fail the result, written as in `select`; an `Ignore` can also have a reason, a "
        "last day and a pattern of models.",
        (),
    ]
    fail_on: Annotated[
        Severity | SeverityName, "The lowest severity that fails: `error`, `warning` or `note`.", "error"
    ]


class DataOptions(TypedDict, total=False):
    """Labeled data to compare with the classes."""

    data: Annotated[
        str | PathLike[str] | None,
        "Labeled data to compare with the classes: a csv, tsv, jsonl or parquet file, or a folder that `datasets` "
        "saved.",
    ]
    label_column: Annotated[
        str | Iterable[str] | None, "The column of the labels; several if each is one class, with cells of 0 and 1."
    ]
    text_column: Annotated[
        str | Iterable[str] | None, "The column of the texts; two for pairs. Needed for `predict` only."
    ]
    split: Annotated[str | None, "The split of a folder that holds several."]


class PredictOptions(DataOptions, total=False):
    """Options for labeled data on which the weights of a checkpoint can be run."""

    predict: Annotated[
        int | None,
        "Number of rows to predict with the real weights, to measure the order of the classes. For a checkpoint only.",
    ]
    device: Annotated[
        DeviceName | None, "Where to predict: `cpu` (default), `cuda`, `cuda:0` or `mps`. For a checkpoint only."
    ]


class TextOptions(TypedDict, total=False):
    """Texts to score."""

    text: Annotated[
        str | Iterable[str] | None,
        "One text or several (default: 16 short English texts, in pairs for a server that takes only pairs).",
    ]
    text_pair: Annotated[str | Iterable[str] | None, "The second text of each pair, as many as `text`."]
    data: Annotated[
        str | PathLike[str] | None,
        "A csv, tsv, jsonl or parquet file, or a folder that `datasets` saved, instead of texts.",
    ]
    text_column: Annotated[str | Iterable[str] | None, "The column of the texts in `data`; two for pairs."]
    split: Annotated[str | None, "The split of a folder that holds several."]
    limit: Annotated[int, "Largest number of texts to use from `data`; of more, a seeded sample.", 200]


class ServerOptions(TypedDict, total=False):
    """Options for requesting scores from a running server."""

    protocol: Annotated[
        str | None,
        "How scores are requested: `vllm`, `vllm-pooling`, `tei`, `sglang`, `llama-cpp`, `infinity`, `inputs` or "
        "`kserve` (default: found from the server's answers to harmless requests).",
    ]
    served_model: Annotated[str, "Name of the model on a server that has several.", ""]
    server_token: Annotated[str | None, "Access token for the server, sent to the origin of `url` only."]
    server_timeout: Annotated[float, "Total time limit for the requests to the server, in seconds.", 120.0]
    batch_size: Annotated[int, "Texts in a request.", 16]


class ServedOptions(TextOptions, ServerOptions, PlaceOptions, total=False):
    """Options of `verify_served` for texts, a server, and the files of the checkpoint."""


def use_case(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Puts all options of `function` into its signature and docstring.

    An unknown option is a UsageError that names the nearest one, where Python would raise a bare TypeError.
    """
    whole = full_signature(function)
    known = [item.name for item in whole.parameters.values() if item.kind is not Parameter.VAR_POSITIONAL]

    @wraps(function)
    def call(*values: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        check_names(options, known)
        with _guard_process():
            return function(*values, **options)

    call.__signature__ = whole  # type: ignore[attr-defined]  # read by inspect.signature
    call.__doc__ = _full_docstring(function)
    return call


def full_signature(function: Callable[..., Any]) -> Signature:
    """Gives the signature of a use case or an overload with every option of `**options`, and `progress` last."""
    plain = signature(function)
    own = [item for item in plain.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    last = [item for item in own if item.name == "progress"]
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, _, default) in _shared_options(function).items()
    ]
    return plain.replace(parameters=[*(item for item in own if item not in last), *shared, *last])


def with_defaults(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Gives every option of a `TypedDict`: the given value, otherwise its default."""
    return {
        name: options.get(name, _split_annotation(hint.__forward_arg__)[2])
        for name, hint in kind.__annotations__.items()
    }


def _shared_options(function: Callable[..., Any]) -> dict[str, tuple[str, str, Any]]:
    """Reads the type, the meaning and the default of each option that `**options` takes, by name."""
    written = function.__annotations__.get("options")
    if written is None:
        return {}
    # Annotations are text in this package (`from __future__ import annotations`), so their parts are read as source.
    options = function.__globals__[written.removeprefix("Unpack[").removesuffix("]")]
    return {name: _split_annotation(hint.__forward_arg__) for name, hint in options.__annotations__.items()}


def _split_annotation(annotation: str) -> tuple[str, str, Any]:
    """Splits `Annotated[type, "meaning", default]`; a missing default is False for a bool, otherwise None."""
    kind, *rest = ast.parse(annotation, mode="eval").body.slice.elts  # type: ignore[attr-defined]
    meaning, default, *_ = (*map(ast.literal_eval, rest), False if ast.unparse(kind) == "bool" else None)
    return ast.unparse(kind), meaning, default


_OPTIONS_ENTRY = "        options: "


def _full_docstring(function: Callable[..., Any]) -> str | None:
    """Gives the docstring with an entry for each option in the place of the entry `options`."""
    text = function.__doc__
    if text is None or _OPTIONS_ENTRY not in text:
        return text
    before, _, rest = text.partition(_OPTIONS_ENTRY)
    entries = [
        fill(f"{name}: {meaning}", 110, initial_indent=" " * 8, subsequent_indent=" " * 12, break_long_words=False)
        for name, (_, meaning, _) in _shared_options(function).items()
    ]
    return before + "\n".join(entries) + "\n" + rest.partition("\n")[2]


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Checks that every name is known. Raises UsageError with the nearest name."""
    for name in given:
        if name not in known:
            raise UsageError(f"no such option: {name}", did_you_mean(name, known, f"options: {', '.join(known)}"))


@contextmanager
def _guard_process() -> Iterator[None]:
    """Runs a use case with PyTorch's defaults, and raises a HeadscopeError for what the process lacks."""
    check_folder()
    try:
        with default_torch():
            yield
    except HeadscopeError:
        raise
    except Exception as err:
        fault = fault_of_process(err)
        if fault is None:  # a bug keeps its traceback
            raise
        raise fault from err
