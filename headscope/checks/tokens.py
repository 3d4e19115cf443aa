"""Rules on padding: which token a head reads, and what is there in a batch."""

from headscope.checks.rule import Findings, NotKnown, Rule, head_of, rule
from headscope.facts import PoolingKind, Severity
from headscope.facts.check import Subject

_BY_PADDING = (PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN)


def _position(subject: Subject) -> PoolingKind:
    """How the head finds the position that it reads; scores by tokens of a language model read one position too."""
    pooling = head_of(subject).pooling
    return pooling.parts[0].kind if pooling.kind is PoolingKind.TOKEN_PAIR and pooling.parts else pooling.kind


@rule("HS301", "pad-token-missing", "The head looks for padding, but no pad token is set")
def pad_token_missing(this: Rule, subject: Subject) -> Findings:
    """A head that finds the last token by its padding, without a pad token: batches fail."""
    if _position(subject) is PoolingKind.LAST_NON_PAD_TOKEN and subject.built.pad_token_id is None:
        yield this.find(
            Severity.ERROR,
            "The head reads the last token that is not padding, and pad_token_id is not set: a batch of more than "
            "one text raises an error, or reads padding.",
            "Set model.config.pad_token_id = tokenizer.pad_token_id (for example the eos token's).",
        )


@rule("HS302", "pad-token-unknown", "The pad token is not in the vocabulary")
def pad_token_unknown(this: Rule, subject: Subject) -> Findings:
    """A pad token id beyond the embedding matrix: an index error, or undefined memory on a GPU."""
    pad, size = subject.built.pad_token_id, subject.built.vocab_size
    if pad is not None and size is not None and not 0 <= pad < size:
        yield this.find(
            Severity.ERROR,
            f"pad_token_id is {pad}, and the vocabulary has {size:,} tokens.",
            "Resize the embeddings (model.resize_token_embeddings), or use a token in the vocabulary.",
        )


@rule("HS303", "padding-side", "The tokenizer pads where the head reads", needs=("tokenizer",))
def padding_side(this: Rule, subject: Subject) -> Findings:
    """A head that reads a fixed end of the text, and a tokenizer that pads that end."""
    kind = _position(subject)
    reads = {PoolingKind.FIRST_TOKEN: "left", PoolingKind.LAST_TOKEN: "right"}.get(kind)
    tokenizer = subject.tokenizer
    if tokenizer is not None and tokenizer.padding_side == reads:
        end = "first" if reads == "left" else "last"
        yield this.find(
            Severity.ERROR,
            f"The head reads the {end} position, and the tokenizer pads on the {reads}: in a batch the shorter texts "
            "are classified by a pad token.",
            f"Set tokenizer.padding_side = {'right' if reads == 'left' else 'left'!r}, and save the tokenizer.",
        )


@rule("HS304", "pad-is-eos", "The pad token is the end-of-text token")
def pad_is_eos(this: Rule, subject: Subject) -> Findings:
    """Padding that looks like the end of a text, for a head that looks for either."""
    kind = _position(subject)
    if kind not in _BY_PADDING or not _same_token(subject):
        return
    if kind is PoolingKind.EOS_TOKEN:
        yield this.find(
            Severity.ERROR,
            "The head reads the end-of-text token, and padding uses the same token: texts of different lengths then "
            "have different numbers of it, which raises an error.",
            "Give the tokenizer a separate pad token.",
        )
    else:
        yield this.find(
            Severity.NOTE,
            "The pad token is the end-of-text token: a text that ends with it is read one token earlier. That is "
            "right as long as training and inference do the same.",
            "Nothing to do if the tokenizer is the same in both.",
        )


def _same_token(subject: Subject) -> bool:
    tokenizer, built = subject.tokenizer, subject.built
    by_name = tokenizer is not None and tokenizer.pad_token is not None and tokenizer.pad_token == tokenizer.eos_token
    return by_name or (built.pad_token_id is not None and built.pad_token_id in built.eos_token_ids)


def _has_pad(subject: Subject) -> bool:
    pad, size = subject.built.pad_token_id, subject.built.vocab_size
    return pad is not None and (size is None or 0 <= pad < size)


@rule("HS305", "padding-changes-scores", "Padding changes the scores")
def padding_changes_scores(this: Rule, subject: Subject) -> Findings:
    """Scores of one text that differ between alone and padded to a batch, measured on a small random model."""
    verification = head_of(subject).verification
    effects = verification.padding if verification is not None else ()
    side = subject.tokenizer.padding_side if subject.tokenizer is not None else subject.built.padding_side
    for effect in effects:
        if effect.side not in (side, "any") or not _has_pad(subject):
            continue
        if effect.changes is None:
            raise NotKnown(f"padding on the {side} could not be measured: {effect.reason}")
        if effect.changes:
            yield this.find(
                Severity.WARNING,
                f"Padding a short text on the {side}, with its mask, changes its scores by "
                f"{effect.difference or 0:.1%} (measured on a small random model of this class and configuration).",
                f"Classify texts of one length at a time, or pad on the {'left' if side == 'right' else 'right'} if "
                "that leaves the scores alone (headscope inspect --verify).",
            )
