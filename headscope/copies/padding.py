"""The tokenizer's padding token, where an edit names one in config.json."""

from __future__ import annotations

from pathlib import Path

from headscope.copies.writing import write_json
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.source.checkpoint import Checkpoint
from headscope.errors import HeadscopeError, UsageError


def plan_padding(checkpoint: Checkpoint, token_id: int) -> tuple[str, list[str]]:
    """Finds what a new padding token of the model asks of the tokenizer beside it.

    Returns the text that tokenizer_config.json has to name, "" if the file stays as it is, and sentences on the scores.
    Raises UsageError for a token that the model has no embedding of.
    """
    size = checkpoint.built.embedding_rows or checkpoint.built.vocab_size
    if size is not None and token_id >= size:
        raise UsageError(f"token {token_id:,} is not in the vocabulary of {size:,} tokens", "give the ID of a token")
    from headscope.core.model.loading.inference import open_tokenizer  # imports torch, which a change of names doesn't

    sentences = ["The padding token decides what is masked or read: scores of padded texts may change."]
    try:
        tokenizer = open_tokenizer(checkpoint.location)
        token = tokenizer.convert_ids_to_tokens(token_id)
    except (HeadscopeError, IndexError, OverflowError):  # no tokenizer, or none with such a token
        token = None
    if not isinstance(token, str):
        unknown = f"No tokenizer beside the weights has token {token_id:,}: whoever makes batches has to pad with it."
        return "", [*sentences, unknown]
    if tokenizer.pad_token is None:
        return token, [*sentences, f"The tokenizer had no padding token: it pads with {token!r} now."]
    if tokenizer.pad_token_id != token_id:
        sentences.append(
            f"The tokenizer still pads with {tokenizer.pad_token!r}; the model reads {token!r} as padding."
        )
    return "", sentences


def write_pad_token(path: Path, source: Path, token: str) -> None:
    """Writes the settings of the tokenizer at `source` with its padding token to `path`."""
    settings = parse_object(source.read_bytes(), source.name) if source.is_file() else {}
    write_json(path, settings | {"pad_token": token})
