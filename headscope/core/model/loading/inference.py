"""Real models and inputs: weights on a device; texts, pictures and sounds through the checkpoint's own tools."""

import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import ScoreHead
from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.stored.location import Location
from headscope.core.facts.stored.sentence import SentencePipeline
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.module_chain import child_name
from headscope.core.model.quiet import quiet
from headscope.errors import HeadscopeError, NotFound, Unsupported, UsageError, first_line


def check_device(name: str, *, runs_weights: bool = False) -> torch.device:
    """Opens the device called `name`. Raises UsageError for an unknown one, Unsupported for one that is not there.

    With `runs_weights`, `meta` counts as unknown: it holds no weights.
    """
    try:
        device = torch.device(name or "no name")
    except RuntimeError as err:
        raise _no_device_error(name, runs_weights) from err
    if device.type == "meta" and (runs_weights or name != "meta"):
        raise _no_device_error(name, runs_weights)
    try:
        torch.empty(0, device=device)
    except Exception as err:  # each kind of device that is not there raises another
        raise Unsupported(f"PyTorch {torch.__version__} finds no device {name}", "use cpu") from err
    return device


def _no_device_error(name: str, runs_weights: bool) -> UsageError:
    known = "" if runs_weights else "meta, "
    return UsageError(f"no such device: {name or repr(name)}", f"devices: {known}cpu, cuda, cuda:0, mps")


def load_model(
    choice: Choice, place: Location, device: torch.device, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Loads the model with its real weights on `device`, in the checkpoint's dtype or another.

    Raises Unsupported where they cannot be loaded.
    """
    try:
        with quiet():
            loaded: Any = choice.cls.from_pretrained(
                place.reference,
                config=choice.config,
                # As `inspect` does: a head of another shape is reported, and its scores are those of new weights.
                ignore_mismatched_sizes=True,
                variant=place.variant,
                dtype="auto" if dtype is None else dtype,
                **place.keywords(),
            )
            if choice.chain is not None:
                _fill_chain(loaded, choice.chain, place)
            fill_head(loaded, choice, place)
        model: PreTrainedModel = loaded.to(device).train(False)
        return model
    except HeadscopeError:
        raise
    except Exception as err:
        raise Unsupported(
            f"the weights of {place.reference} cannot be loaded into {choice.cls.__name__}: "
            f"{type(err).__name__}: {err}",
            "run `headscope diff-weights` to see which weights don't fit",
        ) from err


def _fill_chain(model: PreTrainedModel, chain: SentencePipeline, place: Location) -> None:
    """Loads the modules of a chain from their own files, as strictly as sentence-transformers does."""
    for part in chain.chain[1:]:
        module = model.get_submodule(child_name(part))
        if module.state_dict():
            module.load_state_dict(_load_weight_file(f"{part.folder}/{part.file or 'model.safetensors'}", place))


def fill_head(model: nn.Module, choice: Choice, place: Location) -> None:
    """Loads a value head from a separate file, if it has one there: beside the weights, or beside an adapter."""
    head = choice.head
    file = Path(place.reference) / (place.subfolder or "") / head.file if isinstance(head, ScoreHead) else Path()
    if not isinstance(head, ScoreHead) or not head.file or not file.is_file():
        return
    try:
        stored = _load_weight_file(head.file, place)
        model.load_state_dict({key: stored[key] for key in head.tensors}, strict=False)
    except Exception as err:  # whatever a damaged file raises
        raise Unsupported(f"the head in {head.file} cannot be loaded: {first_line(err)}", "save it again") from err


def _load_weight_file(name: str, place: Location) -> dict[str, torch.Tensor]:
    """Loads the tensors of a weight file of a checkpoint, by their names."""
    from safetensors.torch import load_file
    from transformers.utils.hub import cached_file

    found: Any = cached_file(place.reference, name, **place.keywords())
    is_safe = str(found).endswith(".safetensors")
    return load_file(found) if is_safe else torch.load(found, map_location="cpu", weights_only=True)


def encode_texts(place: Location, texts: tuple[str, ...], pairs: tuple[str, ...]) -> Mapping[str, Any]:
    """Encodes texts, or pairs of texts, as a padded batch of the checkpoint's own tokenizer.

    `input_ids` is [texts, tokens]. Raises UsageError for another number of second texts.
    """
    if pairs and len(pairs) != len(texts):
        raise UsageError(f"{len(pairs)} --text-pair for {len(texts)} --text", "give one --text-pair for each --text")
    tokenizer = open_tokenizer(place)
    if tokenizer.pad_token is None and len(texts) > 1:
        raise Unsupported(
            f"the tokenizer has no pad token, so {len(texts)} texts of different lengths cannot be one batch",
            "give one --text at a time, or set the tokenizer's pad_token and the config's pad_token_id "
            "(often to the eos token) and save both",
        )
    options = {"padding": True, "truncation": True} if tokenizer.pad_token is not None else {}
    return dict(tokenizer(list(texts), list(pairs) or None, return_tensors="pt", **options))


def open_tokenizer(place: Location, *, may_be_empty: bool = False) -> Any:
    """Loads the checkpoint's own tokenizer. Raises Unsupported where there is none.

    With `may_be_empty`, it accepts what Transformers makes where there is none: a vocabulary of special tokens.
    """
    tokenizer = _load_auto_class("AutoTokenizer", place, "a", "tokenizer")
    if may_be_empty:
        return tokenizer
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # Transformers makes an empty one where there is none
        raise Unsupported(
            f"{place.reference} has no tokenizer with a vocabulary",
            "save it beside the model: tokenizer.save_pretrained(FOLDER)",
        )
    return tokenizer


def open_processor(place: Location, input: str) -> Any:
    """Loads what makes the tensors of an input: for `text` a tokenizer, for `image` and `audio` a processor.

    Raises Unsupported where there is none.
    """
    if input == "text":
        return open_tokenizer(place)
    name, article, what = _PROCESSORS[input]
    return _load_auto_class(name, place, article, what)


_PROCESSORS = {
    "image": ("AutoImageProcessor", "an", "image processor"),
    "audio": ("AutoFeatureExtractor", "a", "feature extractor"),
}


NO_LIMIT = 1_000_000
"""Tokenizers without a limit report a huge one."""


def predict_texts(
    choice: Choice, place: Location, device: torch.device, texts: Sequence[tuple[str, ...]]
) -> torch.Tensor:
    """Computes the scores of each text, or pair of texts, in float32 on the CPU: a row for each.

    Raises Unsupported where the weights or the tokenizer cannot be loaded, or the forward fails.
    """
    tokenizer, model = open_tokenizer(place), load_model(choice, place, device)
    limit_length(tokenizer, model)
    return score_texts(model, list(encode_batches(tokenizer, model, texts, 16)))


def encode_batches(
    tokenizer: Any, model: PreTrainedModel, texts: Sequence[tuple[str, ...]], size: int
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Yields texts, or pairs of texts, in padded batches of at most `size`; of one where the model has no pad token.

    Texts that are longer than the tokenizer's limit are truncated. `input_ids` and `attention_mask` are [texts,
    tokens].
    """
    # A decoder needs its pad token to find the last token of each text: without it, only single texts are safe.
    can_batch = tokenizer.pad_token is not None and getattr(model.config, "pad_token_id", None) is not None
    size = size if can_batch else 1
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        pairs = [item[1] for item in batch if len(item) > 1]
        with quiet():
            yield dict(
                tokenizer(
                    [item[0] for item in batch], pairs or None, return_tensors="pt",
                    padding=tokenizer.pad_token is not None, truncation=tokenizer.model_max_length < NO_LIMIT,
                )
            )  # fmt: skip


def score_texts(model: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]) -> torch.Tensor:
    """Computes the scores of encoded batches in float32 on the CPU: a row for each text, or each token."""
    rows = []
    for encoded in batches:
        given = {name: value.to(model.device) for name, value in encoded.items()}
        logits = run_texts(model, given).logits.detach().float().cpu()
        is_of_tokens = logits.dim() == 3 and logits.shape[:2] == encoded["input_ids"].shape
        rows.append(logits[encoded["attention_mask"].bool()] if is_of_tokens else logits)
    return torch.cat(rows)


def run_texts(
    model: PreTrainedModel, encoded: Mapping[str, torch.Tensor], input: Input = Input.TEXT, /, **options: bool
) -> Any:
    """Runs a model on encoded texts, images or sounds, without gradients, and returns its output.

    Raises Unsupported where the model fails on them, with the model's own error as its cause.
    """
    try:
        with quiet(), torch.inference_mode():
            return model(**encoded, **options)
    except Exception as err:  # whatever a model raises on these inputs
        raise Unsupported(
            f"{type(model).__name__} fails on the {input.noun}s: {type(err).__name__}: {first_line(err)}",
            f"run `headscope forward --{input.value}` with one of them",
        ) from err


_LACKED = ("cannot allocate memory", "can't allocate memory", "not enough memory", "out of memory")
"""What the operating system, PyTorch's allocator for processors and CUDA say; the first also as an OSError."""


def lacked_memory(err: BaseException) -> bool:
    """True if an error, or the one behind it, says that the device has too little memory."""
    cause = err.__cause__ or err
    if isinstance(cause, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(cause, RuntimeError | OSError) and any(words in str(cause).lower() for words in _LACKED)


def fault_of_checkpoint(err: HeadscopeError) -> Exception | None:
    """Gives the library's error behind a failed load if the checkpoint causes it; None if packages or memory lack.

    Transformers raises other errors than ImportError too where a package is missing, and says how to install it.
    """
    cause = err.__cause__
    is_outside = isinstance(cause, ImportError | HeadscopeError) or lacked_memory(err) or "pip install" in str(cause)
    return cause if isinstance(cause, Exception) and not is_outside else None


def limit_length(tokenizer: Any, model: PreTrainedModel) -> None:
    """Sets the model's own limit for a tokenizer that names none."""
    most = getattr(model.config, "max_position_embeddings", None)
    # RoBERTa's positions begin behind the pad token, so two of them hold no token; two less is safe everywhere.
    if tokenizer.model_max_length >= NO_LIMIT and isinstance(most, int) and most > 2:
        tokenizer.model_max_length = most - 2


def image_encoder(place: Location) -> Callable[[str], Mapping[str, Any]]:
    """Makes a function from a picture's path to its tensors. Raises Unsupported without Pillow or a processor."""
    try:
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError as err:
        raise Unsupported("reading a picture needs Pillow, which is not installed", "pip install pillow") from err
    processor = open_processor(place, "image")

    def encode(path: str) -> Mapping[str, Any]:
        try:
            picture = Image.open(path).convert("RGB")
        except OSError as err:
            raise NotFound(f"{path} is not a picture that can be read: {err}", "give a PNG or JPEG file") from err
        return dict(processor(images=picture, return_tensors="pt"))

    return encode


def audio_encoder(place: Location) -> Callable[[str], Mapping[str, Any]]:
    """Makes a function from the path of a WAV file of 16-bit samples to its tensors; channels are averaged.

    Raises Unsupported without a feature extractor.
    """
    extractor = open_processor(place, "audio")

    def encode(path: str) -> Mapping[str, Any]:
        samples, rate = read_wave(path)
        wanted = getattr(extractor, "sampling_rate", rate)
        if wanted != rate:
            raise Unsupported(
                f"{path} has {rate} samples per second, and the model needs {wanted}", "resample the file"
            )
        return dict(extractor(samples.numpy(), sampling_rate=rate, return_tensors="pt"))

    return encode


def count_frames(path: str) -> int:
    """Counts the frames of a WAV file. Raises NotFound for a file that is not one."""
    try:
        with wave.open(str(Path(path))) as file:
            return int(file.getnframes())
    except (OSError, EOFError, wave.Error) as err:
        raise NotFound(f"{path} is not a WAV file: {err}", "give a 16-bit WAV file") from err


def read_wave(path: str) -> tuple[torch.Tensor, int]:
    """Reads the samples of a 16-bit WAV file, between -1 and 1, and how many there are in a second.

    Raises NotFound for a file that can't be read, and Unsupported for other samples.
    """
    try:
        with wave.open(str(Path(path))) as file:
            if file.getsampwidth() != 2:
                raise Unsupported(f"{path} has samples of {8 * file.getsampwidth()} bits", "give a 16-bit WAV file")
            data = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16)
            return data.reshape(-1, file.getnchannels()).float().mean(1) / 32768, file.getframerate()
    except (OSError, EOFError, wave.Error) as err:
        raise NotFound(f"{path} is not a WAV file that can be read: {err}", "give a 16-bit WAV file") from err


def _load_auto_class(auto_class: str, place: Location, article: str, what: str) -> Any:
    try:
        with quiet():
            return getattr(transformers, auto_class).from_pretrained(place.reference, **place.keywords())
    except Exception as err:
        raise Unsupported(
            f"{place.reference} has no {what} that can be loaded: {first_line(err)}",
            f"add {article} {what} to the checkpoint, or leave out its input",
        ) from err
