"""The tokens whose logits are the scores of a reranker: those that the user names, or those that its files name."""

from __future__ import annotations

from headscope.errors import HeadscopeError, UsageError
from headscope.examination.base.request import Request
from headscope.facts import CheckpointManifest, TokenRow

_ID = "id:"
_MOST_DIGITS = 9


def tokens_of(request: Request, manifest: CheckpointManifest) -> tuple[TokenRow, ...]:
    """The tokens in the order of the scores, with their texts where the files are at hand; () for no such scores.

    Raises UsageError for tokens that the vocabulary lacks, and for a text where no vocabulary can be read.
    """
    if request.tokens:
        return _named(request, manifest)
    files = manifest.sentence.token_ids if manifest.sentence is not None else ()
    if not files or request.task or request.model_class or request.num_labels is not None:
        return ()
    texts = _texts(request, manifest)
    return tuple(TokenRow(number, texts.get(number, "")) for number in files)


def _named(request: Request, manifest: CheckpointManifest) -> tuple[TokenRow, ...]:
    if request.task or request.model_class or request.num_labels is not None:
        raise UsageError(
            "--tokens was given with --task, --model-class or --num-labels",
            "leave out either: tokens make one score each, of a causal language model",
        )
    if len(set(request.tokens)) < len(request.tokens) or len(request.tokens) > 2:
        raise UsageError(
            f"--tokens names {', '.join(request.tokens)}", "name the token for no and the one for yes, or one token"
        )
    if all(map(_is_id, request.tokens)):
        texts = _texts(request, manifest)
        return tuple(TokenRow(number, texts.get(number, "")) for number in map(_id, request.tokens))
    from headscope.model.classes.token_rows import id_of

    vocabulary = _vocabulary(request, manifest)
    return tuple(
        TokenRow(_id(token)) if _is_id(token) else TokenRow(id_of(token, vocabulary), token) for token in request.tokens
    )


def _is_id(token: str) -> bool:
    digits = token.removeprefix(_ID)
    return token.startswith(_ID) and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS


def _id(token: str) -> int:
    return int(token.removeprefix(_ID))


def _texts(request: Request, manifest: CheckpointManifest) -> dict[int, str]:
    """The texts of ids, where reading them costs no request; empty where it does, and where no file lists them."""
    from headscope.checkpoints import open_sidecar

    try:
        sidecar = open_sidecar(request.location)
        if sidecar is None or not sidecar.reads_cheaply:
            return {}
        return {number: token for token, number in _vocabulary(request, manifest).items()}
    except HeadscopeError:  # the ids stand without their texts
        return {}


def _vocabulary(request: Request, manifest: CheckpointManifest) -> dict[str, int]:
    """Every token with its id. Raises UsageError for a snapshot, which has none."""
    from dataclasses import replace

    from headscope.checkpoints import open_sidecar, read_vocabulary

    sidecar = open_sidecar(replace(request.location, commit=manifest.commit))
    if sidecar is None:
        raise UsageError(
            f"{request.reference} holds no tokenizer to look tokens up in",
            "give the ids of the tokens, such as --tokens id:2152,id:9693",
        )
    with sidecar.reaching():
        return read_vocabulary(sidecar.storage)
