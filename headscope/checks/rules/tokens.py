"""Rules on tokens: which one a head reads, what is there in a batch, and where files differ about them."""

from headscope.checks.facts import Subject
from headscope.checks.rules.cures import length_code, padding_code, setting_code, token_id_code, unpadded_code
from headscope.checks.rules.rule import Findings, NotApplicable, NotKnown, Rule, head_of, rule
from headscope.core.facts import PoolingKind, Severity
from headscope.core.facts.counting import counted, verb
from headscope.core.facts.stored.tokenizer import AffectedTexts, TokenId

_BY_PADDING = (PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN)


def _position_kind(subject: Subject) -> PoolingKind:
    """Gives how the head finds the position that it reads; for scores by tokens, how their one position is found."""
    pooling = head_of(subject).pooling
    return pooling.parts[0].kind if pooling.kind is PoolingKind.TOKEN_PAIR and pooling.parts else pooling.kind


@rule("HS301", "pad-token-missing", "The head looks for padding, but no pad token is set")
def pad_token_missing(this: Rule, subject: Subject) -> Findings:
    """A head that finds the last token by its padding, without a pad token: batches fail."""
    if _position_kind(subject) is PoolingKind.LAST_NON_PAD_TOKEN and subject.built.pad_token_id is None:
        has_token = subject.tokenizer is not None and subject.tokenizer.pad_token is not None
        is_asked = "" if subject.tokenizer is not None else " if it has none"
        yield this.find(
            Severity.ERROR,
            "The head reads the last token that is not padding, and pad_token_id is not set: a batch of more than "
            "one text raises an error, or reads padding.",
            "Set model.config.pad_token_id = tokenizer.pad_token_id, and save the model."
            if has_token
            else f"Set tokenizer.pad_token = tokenizer.eos_token{is_asked} and model.config.pad_token_id = "
            "tokenizer.pad_token_id, and save both.",
            code=padding_code(subject),
        )


@rule("HS302", "pad-token-unknown", "The pad token is not in the vocabulary")
def pad_token_unknown(this: Rule, subject: Subject) -> Findings:
    """A pad token id beyond the embedding matrix: an index error, or undefined memory on a GPU."""
    pad, size = subject.built.pad_token_id, subject.built.vocab_size
    if pad is not None and size is not None and not 0 <= pad < size:
        tokens = subject.tokenizer.tokens if subject.tokenizer is not None else ()
        own_pad = next((token.id for token in tokens if token.role == "pad"), None)
        yield this.find(
            Severity.ERROR,
            f"pad_token_id is {pad}, and the vocabulary has {size:,} tokens.",
            "Resize the embeddings (model.resize_token_embeddings), or use a token in the vocabulary.",
            code=padding_code(subject) if own_pad in range(size) else "",
        )


@rule("HS303", "padding-side", "The tokenizer pads where the head reads", needs=("tokenizer",))
def padding_side(this: Rule, subject: Subject) -> Findings:
    """A head that reads a fixed end of the text, and a tokenizer that pads that end."""
    kind = _position_kind(subject)
    # Only fixed ends: a head that looks for the padding or the end of a text finds it on either side.
    reads = {PoolingKind.FIRST_TOKEN: "left", PoolingKind.LAST_TOKEN: "right"}.get(kind)
    tokenizer, virtual = subject.tokenizer, head_of(subject).virtual_tokens
    if subject.built.pad_token_id is not None and not _has_usable_pad(subject):
        return  # no input can hold that token, so the trace doesn't tell what the head does with it
    if tokenizer is not None and tokenizer.padding_side == reads and not (virtual and reads == "left"):
        end, other = ("first", "right") if reads == "left" else ("last", "left")
        why = ", because PEFT passes embeddings in which the class can't see padding" if virtual else ""
        yield this.find(
            Severity.ERROR,
            f"The head reads the {end} position{why}, and the tokenizer pads on the {reads}: in a batch the shorter "
            "texts are classified by a pad token.",
            "Classify one text at a time, or texts of one length: padding on the left would come between the virtual "
            "tokens and the text."
            if virtual
            else f"Set tokenizer.padding_side = {other!r}, and save the tokenizer.",
            code="" if virtual else setting_code(subject, "padding_side", other),
        )


@rule("HS304", "pad-is-eos", "The pad token is the end-of-text token", finds="EN|EN")
def pad_is_eos(this: Rule, subject: Subject) -> Findings:
    """Padding that looks like the end of a text, for a head that looks for either."""
    kind = _position_kind(subject)
    tokenizer, built = subject.tokenizer, subject.built
    by_name = tokenizer is not None and tokenizer.pad_token is not None and tokenizer.pad_token == tokenizer.eos_token
    # The files of the tokenizer may be unread or name no tokens; the ids in the configuration can tell it alone.
    is_eos = by_name or (built.pad_token_id is not None and built.pad_token_id in built.eos_token_ids)
    if kind not in _BY_PADDING or not is_eos:
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
            "A text that ends with it is read one token earlier. That is right as long as training and inference do "
            "the same.",
            "Nothing to do if the tokenizer is the same in both.",
        )


def _has_usable_pad(subject: Subject) -> bool:
    """True if a pad token is set and the vocabulary has it, so that inputs can hold it."""
    pad, size = subject.built.pad_token_id, subject.built.vocab_size
    return pad is not None and (size is None or 0 <= pad < size)


@rule("HS305", "padding-changes-scores", "Padding changes the scores", finds="W|W")
def padding_changes_scores(this: Rule, subject: Subject) -> Findings:
    """Scores of one text that differ between alone and padded to a batch, measured on a small random model."""
    verification = head_of(subject).verification
    effects = verification.padding if verification is not None else ()
    side = subject.tokenizer.padding_side if subject.tokenizer is not None else subject.built.padding_side
    for effect in effects:
        if effect.side not in (side, "any") or not _has_usable_pad(subject):
            continue
        if effect.changes is None:
            raise NotKnown(f"padding on the {side} could not be measured: {effect.reason}")
        if effect.changes:
            yield this.find(
                Severity.WARNING,
                f"Padding a short text on the {side} changes its scores (measured on a small random model of this "
                "class and configuration).",
                f"Classify texts of one length at a time, or pad on the {'left' if side == 'right' else 'right'} if "
                "that leaves the scores alone (headscope inspect --prove).",
            )


def _describe_token_id(token: TokenId) -> str:
    """Gives the id of a token and the file that it comes from."""
    return f"{token.id} ({token.file})" if token.file else f"{token.id} (not in its vocabulary, so appended to it)"


@rule(
    "HS306",
    "token-ids",
    "The tokenizer has another id for a special token",
    needs=("tokenizer", "token ids"),
    finds="EWN|EWN",
)
def token_ids(this: Rule, subject: Subject) -> Findings:
    """A special token whose id in the configuration isn't the tokenizer's, with what that does to the scores."""
    facts, run = subject.tokenizer, subject.run
    by_role = {token.role: token for token in facts.tokens} if facts else {}
    is_run_well = run and not run.failed and run.batch_difference is not None and not run.batch_differs
    for effect in facts.effects if facts else ():
        token, field = by_role[effect.role], f"{effect.role}_token_id"
        if effect.changes is None:
            raise NotKnown(f"what {field} {effect.configured} does to the scores could not be measured: {effect.seen}")
        if effect.changes is AffectedTexts.ALL and is_run_well:
            continue  # the run looked at just such texts
        severity, happens = _CONSEQUENCE[effect.changes]
        yield this.find(
            severity,
            f"{field} is {effect.configured} ({effect.source}), and the id of the tokenizer's {effect.role} token "
            f"{token.token!r} is {_describe_token_id(token)}{happens.format(effect)} (measured on a small random model "
            "of this class).",
            f"Set model.config.{field} to the id that the model was trained with, usually tokenizer.{field}.",
            [field],
            code=token_id_code(subject, field, token.id),
        )
    if facts and any(role in by_role and by_role[role].id is None for role, _ in subject.built.token_ids):
        raise NotKnown(facts.ids_unread)


_CONSEQUENCE = {
    AffectedTexts.ALL: (Severity.ERROR, ": texts {0.seen}"),
    AffectedTexts.SOME: (Severity.WARNING, ": texts with the token {0.configured} {0.seen}"),
    AffectedTexts.NONE: (Severity.NOTE, ", which leaves the scores alone"),
}


@rule(
    "HS307",
    "tokens-beyond-embedding",
    "The tokenizer has ids that the model has no vector for",
    needs=("tokenizer", "token ids"),
    finds="EW|EW",
)
def tokens_beyond_embedding(this: Rule, subject: Subject) -> Findings:
    """Ids of the tokenizer at or beyond the rows of the word embeddings: a text with one raises an IndexError."""
    facts, rows = subject.tokenizer, subject.built.embedding_rows or subject.built.vocab_size
    if rows is None:
        raise NotApplicable("the model looks up no vectors by token")
    tokens = facts.tokens if facts else ()
    beyond = [token for token in tokens if token.id is not None and token.id >= rows]
    for occurs in (True, False):
        found = {token.token: token for token in beyond if token.occurs is occurs}
        if found:
            listed = ", ".join(f"{token.token!r} has the id {_describe_token_id(token)}" for token in found.values())
            yield this.find(
                Severity.ERROR if occurs else Severity.WARNING,
                f"The word embeddings have {rows:,} rows, and {listed}: "
                + ("texts with such a token raise" if occurs else "a text that names such a token raises")
                + " an IndexError.",
                "Use the tokenizer that the model was saved with, or model.resize_token_embeddings(len(tokenizer)) "
                "before training.",
            )
    if facts and facts.ids_unread and not beyond:
        raise NotKnown(facts.ids_unread)


@rule("HS308", "text-length", "The tokenizer cuts texts at more tokens than the model takes", needs=("tokenizer",))
def text_length(this: Rule, subject: Subject) -> Findings:
    """A model_max_length beyond the positions of the model, where longer texts raise an error."""
    facts = subject.tokenizer
    if facts is None or facts.too_long == "":
        return
    if facts.too_long is None:
        raise NotKnown(f"what a text of {facts.max_length:,} tokens does could not be tried")
    adapter, most = subject.report.adapter, subject.built.positions or 0
    virtual = adapter.virtual_tokens if adapter is not None else 0
    # PEFT puts the virtual tokens before the text, so they take positions of the model.
    taken = f", of which {counted(virtual, 'virtual token')} of the adapter {verb(virtual, 'takes', 'take')} {virtual}"
    yield this.find(
        Severity.ERROR,
        f"model_max_length of the tokenizer is {facts.max_length:,}, and the model has "
        f"{most:,} positions{taken if virtual else ''}: longer texts raise {facts.too_long}.",
        f"Set tokenizer.model_max_length = {most - virtual}, and save the tokenizer.",
        code=length_code(subject, most - virtual),
    )


_OF_PADDING = ("pad_token", "padding_side")
"""What tokenizer.json keeps of the last padded batch, until padding is switched off."""


@rule("HS309", "tokenizer-files", "The tokenizer's files differ", needs=("tokenizer",), finds="N|N")
def tokenizer_files(this: Rule, subject: Subject) -> Findings:
    """A fact that two files of the tokenizer hold differently: programs differ in the one that they read."""
    for item in subject.tokenizer.contradictions if subject.tokenizer else ():
        yield this.find(
            Severity.NOTE,
            f"{item.what} is {item.used}, which Transformers uses, and {item.other}, which other programs may use.",
            "Save the tokenizer again with tokenizer.save_pretrained(folder)"
            + (", after tokenizer.backend_tokenizer.no_padding()." if item.what in _OF_PADDING else "."),
            code=unpadded_code(subject) if item.what in _OF_PADDING else "",
        )


@rule(
    "HS310",
    "end-token-not-added",
    "The head reads the end token, and the tokenizer adds none",
    needs=("tokenizer", "token ids"),
)
def end_token_not_added(this: Rule, subject: Subject) -> Findings:
    """A head that reads the end-of-text token, and a tokenizer whose texts don't end with one."""
    facts = subject.tokenizer
    if facts and facts.appends_eos is False and _position_kind(subject) is PoolingKind.EOS_TOKEN:
        yield this.find(
            Severity.ERROR,
            "The head reads the end-of-text token, and the tokenizer doesn't add it: texts without one raise an error.",
            "Use the tokenizer that the model was saved with, or set tokenizer.add_eos_token = True and save it.",
        )
