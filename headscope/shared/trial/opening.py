"""A checkpoint opened as its user opens it: the model in its own dtype, its tokenizer or processor, its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.core.checkpoints.checkpoint_files import holds_tokenizer
from headscope.core.facts import GapTopic, Task
from headscope.core.facts.stored.location import Location
from headscope.core.facts.trial import RaisedError, RunScope, RunStep, RunTrial
from headscope.core.model.loading.inference import (
    NO_LIMIT,
    fault_of_checkpoint,
    fill_head,
    load_model,
    open_processor,
    open_tokenizer,
)
from headscope.core.model.quiet import quiet
from headscope.core.source.loading import choose_class, load_checkpoint
from headscope.core.source.reading.reading import base_of_adapter, in_local_folder, loadable, read_checkpoint
from headscope.core.upstream.optional.sentence_transformers import check_library
from headscope.errors import HeadscopeError, Unsupported
from headscope.shared.trial.encoded import Encoded
from headscope.shared.trial.inputs import (
    TASKS_OF_PAIRS,
    TextInput,
    encode_text,
    encoder_of_media,
    long_text,
    text_inputs,
    with_other_content,
    with_other_middle,
)
from headscope.shared.trial.observing import RunSubject, call_model, error_words, observe

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.facts import CheckpointManifest
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.source.request import Request

_MEDIA = {
    Task.IMAGE_CLASSIFICATION: ("image", "image"),
    Task.VIDEO_CLASSIFICATION: ("image", "video"),
    Task.AUDIO_CLASSIFICATION: ("audio", "sound"),
    Task.AUDIO_FRAME_CLASSIFICATION: ("audio", "sound"),
    Task.AUDIO_XVECTOR: ("audio", "sound"),
}
"""The tool that makes the tensors of a task without texts, and what an input is."""
_PIPELINES = {
    Task.SEQUENCE_CLASSIFICATION: "text-classification",
    Task.TOKEN_CLASSIFICATION: "token-classification",
    Task.IMAGE_CLASSIFICATION: "image-classification",
    Task.AUDIO_CLASSIFICATION: "audio-classification",
}
_PROCESSORS = frozenset({"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"})
_LONG_WORK = 60_000_000_000
"""The multiplications of the longest text that is tried: about two seconds on two cores."""
_LONG_ATTENTION = 200_000_000
"""The numbers in one layer's attention of that text: 0.8 GB in single precision."""
_LONGEST_WITHOUT_LIMIT = 512


def open_checkpoint(request: Request, device: str) -> RunSubject:
    """Opens the model of a request with its weights on a device, and its inputs.

    Raises a HeadscopeError if weights, tokenizer or processor can't be loaded, or headscope has no such inputs.
    """
    import torch

    from headscope.core.upstream.peft import check_filled

    manifest = read_checkpoint(request, None)
    choice = choose_class(request, manifest)
    if choice.chain is not None and choice.chain.unknown:
        raise Unsupported(f"headscope doesn't know what a module computes: {choice.chain.unknown}", "")
    place = loadable(request, manifest)
    _check_config(place, trusts=request.trust_remote_code)
    if manifest.adapter is None:
        model: Any = load_model(choice, place, torch.device(device))
        subject = subject_of_model(model, choice, place)
        return _with_library(subject, choice, place) if choice.chain is not None and request.run else subject
    choice, loaded = load_checkpoint(request, manifest, lambda sentence: None)
    model, place = load_adapted(request, manifest, choice, device)
    if any(gap.topic == GapTopic.ADAPTER_FIT for gap in loaded.diff.gaps):
        check_filled(model, [item.key for item in manifest.adapter.tensors])
    return subject_of_model(model, choice, place)


def load_adapted(request: Request, manifest: CheckpointManifest, choice: Choice, device: str) -> tuple[Any, Location]:
    """Loads a base model with its adapter on a device, as PEFT does; also gives where its tokenizer is.

    Raises a HeadscopeError if one of them can't be loaded.
    """
    import torch

    from headscope.core.upstream.optional.peft_prompts import caller_of
    from headscope.core.upstream.peft import model_with_adapter

    assert manifest.adapter is not None
    base_place = in_local_folder(base_of_adapter(request, manifest)).location
    folder = adapter_folder(request, manifest)
    try:
        model: Any = load_model(choice, base_place, torch.device(device))
    except Unsupported as err:
        if Path(base_place.reference).is_dir():
            raise
        raise Unsupported(f"its base model could not be had: {err.message}", "download it") from None
    fill_head(model, choice, Location(str(folder)))
    with quiet():
        model = model_with_adapter(model, folder, manifest.adapter.config).to(device)
    if (caller := caller_of(model)) is not None:
        caller.set_first_task()
    has_own = any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json"))
    return model, Location(str(folder)) if has_own else base_place


def _with_library(subject: RunSubject, choice: Choice, place: Location) -> RunSubject:
    """Gives the subject of a chain a call of sentence-transformers, instead of Transformers' pipeline."""
    assert choice.chain is not None
    name = choice.chain.chain_class
    if find_spec("sentence_transformers") is None:
        return replace(subject, left_out=f"sentence-transformers is not installed, so {name} was not called")

    def score(features: Encoded) -> Any:
        taken = signature(subject.model.forward).parameters
        given = {key: value for key, value in features.items() if key in taken}
        return call_model(subject.model, given, next(iter(subject.model.parameters())).device).cpu()

    texts = [item.parts for item in subject.inputs[:2]]
    return replace(subject, library=name, pipeline=lambda: check_library(place.reference, name, texts, score))


def run_checkpoint(request: Request, device: str) -> RunTrial | str:
    """Runs the model of a request, or says why it could not be called, if that isn't its own fault.

    A checkpoint that Transformers can't load is a run that failed; a package that is missing, or too little memory, is
    a reason.
    """
    try:
        return observe(open_checkpoint(request, device))
    except HeadscopeError as err:
        fault = fault_of_checkpoint(err)
        if fault is None:
            return err.message
        return RunTrial(
            RunScope(0, 0, 0, device), raised=(RaisedError("loading", error_words(fault), step=RunStep.LOADING),)
        )


def adapter_folder(request: Request, manifest: CheckpointManifest) -> Path:
    """Finds the folder of an adapter on this machine. Raises Unsupported if it isn't one."""
    folder = Path(in_local_folder(request).reference if request.adapter is None else request.adapter)
    if not folder.is_dir():
        raise Unsupported(f"the adapter {manifest.reference} is not a folder on this machine", "download it")
    return folder


def _check_config(place: Location, *, trusts: bool) -> None:
    """Raises Unsupported if Transformers can't read config.json, which headscope reads more patiently."""
    import transformers

    if trusts or not (Path(place.reference) / "config.json").is_file():
        return
    try:
        with quiet():
            transformers.PreTrainedConfig.get_config_dict(place.reference, local_files_only=True)
    except Exception as err:  # whatever Transformers raises
        raise Unsupported(f"Transformers can't read config.json: {err}", "save it again as UTF-8 JSON") from err


def _check_tool(place: Location, *, is_of_texts: bool) -> None:
    """Raises Unsupported for a folder without the files of what makes inputs: Transformers would invent or miss it."""
    folder = Path(place.reference)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    if names is None or (holds_tokenizer(names) if is_of_texts else not _PROCESSORS.isdisjoint(names)):
        return
    tool = "tokenizer" if is_of_texts else "processor"
    consequence = ", and Transformers would make an empty one" if is_of_texts else ""
    raise Unsupported(f"it holds no {tool}{consequence}", f"save it beside the model: {tool}.save_pretrained(FOLDER)")


def subject_of_model(model: nn.Module, choice: Choice, place: Location) -> RunSubject:
    """Adds the inputs of its task to a model. Raises Unsupported if there are none, or no tool for them."""
    task, problem_type = choice.task, getattr(choice.config, "problem_type", None)
    rows = tuple(row.id for row in choice.rows)
    _check_tool(place, is_of_texts=task not in _MEDIA)
    if task in _MEDIA:
        tool, noun = _MEDIA[task]
        processor = open_processor(place, tool)
        inputs, encode = encoder_of_media(processor, task, choice.config)
        pipeline = _pipeline_of_media(model, task, processor, tool, inputs)
        is_gray = tool == "image" and getattr(inputs[0], "shape", ())[-1:] == (1,)
        return RunSubject(
            model, task, noun, inputs, [noun] * len(inputs), encode,
            problem_type=problem_type, changed=with_other_content, pipeline=None if is_gray else pipeline,
            left_out="Transformers' pipeline makes RGB images, and the model takes one channel" if is_gray else "",
        )  # fmt: skip
    tokenizer = open_tokenizer(place, may_be_empty=True)
    beside = next((name for name in _BESIDE_TEXT if name in signature(tokenizer.__call__).parameters), "")
    if beside:
        raise Unsupported(f"its tokenizer takes {beside}, and headscope has inputs of text alone", "")
    texts = text_inputs(tokenizer, task, takes_pairs=choice.chain is not None and bool(choice.chain.score_count))

    def longer() -> tuple[Encoded, int] | None:
        return _longest_text(model, tokenizer, task)

    make = None if rows or choice.is_composed else _maker_of_pipelines(model, task)
    return RunSubject(
        model, task, "pair" if len(texts[0].parts) > 1 else "text", texts, [item.name for item in texts],
        lambda some: encode_text(tokenizer, list(some), task), tokenizer, problem_type=problem_type,
        changed=partial(with_other_middle, tokenizer), longer=longer,
        pipeline=None if make is None else lambda: make(tokenizer=tokenizer)(texts[0].parts[0]), rows=rows,
    )  # fmt: skip


def _longest_text(model: nn.Module, tokenizer: Any, task: Task) -> tuple[Encoded, int] | None:
    """Encodes a text as long as the tokenizer allows, or as two seconds allow.

    If the tokenizer names no limit, one token more than the model has positions; None if neither has a number.
    """
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    limit = tokenizer.model_max_length
    if limit >= NO_LIMIT:
        if not isinstance(positions, int) or positions >= _most_tokens(model):
            return None
        limit = positions + 1
    tokens = min(limit, _most_tokens(model))
    if tokens < limit and not (isinstance(positions, int) and positions < tokens):
        tokens = min(tokens, _LONGEST_WITHOUT_LIMIT)
    text = long_text(tokenizer, tokens)
    parts = (_SHORT_QUESTION, text) if task in TASKS_OF_PAIRS else (text,)
    # The pipeline and the other inputs use the same tokenizer, so its limit is put back.
    before, tokenizer.model_max_length = tokenizer.model_max_length, tokens
    try:
        encoded = encode_text(tokenizer, [TextInput("long text", parts)], task)
    finally:
        tokenizer.model_max_length = before
    return encoded, int(encoded["input_ids"].shape[-1])


_BESIDE_TEXT = ("boxes", "xpaths", "table")
"""What tokenizers of documents, web pages and tables take with the words or instead of them."""


def _most_tokens(model: nn.Module) -> int:
    """Computes how many tokens a call can take in about two seconds, and an ordinary amount of memory."""
    from headscope.core.upstream.transformers import text_config_of

    config: Any = getattr(model, "config", None)
    sizes = None if config is None else text_config_of(config)
    layers, width, heads = (
        value if isinstance(value := getattr(sizes, name, None), int) else usual
        for name, usual in (("num_hidden_layers", 12), ("hidden_size", 768), ("num_attention_heads", 12))
    )
    parameters = sum(item.numel() for item in model.parameters())
    # parameters * tokens + 2 * layers * width * tokens ** 2 = work: attention holds each token against each
    square = 2 * layers * width
    by_time = (math.sqrt(parameters**2 + 4 * square * _LONG_WORK) - parameters) / (2 * max(square, 1))
    return max(int(min(by_time, math.sqrt(_LONG_ATTENTION / max(heads, 1)))), 1)


_SHORT_QUESTION = "What is it?"


def _pipeline_of_media(
    model: nn.Module, task: Task, processor: Any, tool: str, inputs: list[Any]
) -> Callable[[], object] | None:
    """Makes a call of Transformers' pipeline on an image or a sound; None if it has none for the task or the model."""
    make = _maker_of_pipelines(model, task)
    if make is None:
        return None

    def call() -> object:
        if tool == "image":
            from PIL import Image

            return make(image_processor=processor)(Image.fromarray(inputs[0]))
        return make(feature_extractor=processor)(inputs[0])

    return call


def _maker_of_pipelines(model: nn.Module, task: Task) -> Callable[..., Any] | None:
    import transformers

    name = _PIPELINES.get(task)
    if name is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    pipeline: Any = transformers.pipeline
    return partial(pipeline, name, model=model)
