"""Facts in a checkpoint's tokenizer files, compared with its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headscope.core.facts import Gap, Report
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.heads.tasks import TEXT_TASKS
from headscope.core.facts.stored.tokenizer import FileContradiction, IdEffect, TokenId, TokenizerFacts
from headscope.core.source.reading.configuration import ROLES
from headscope.errors import HeadscopeError, NotFound

if TYPE_CHECKING:
    from headscope.core.checkpoints.checkpoint_files import FileReader
    from headscope.core.checkpoints.contents.tokenizer_file import TokenIds
    from headscope.core.checkpoints.contents.weights import FileStorage
    from headscope.core.source.checkpoint import Checkpoint

_NO_LIMIT = 10**9
"""A `model_max_length` of this or more is Transformers' way to say that there is none."""
_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_SHOWN = 80
"""Characters of the longest token that a finding quotes."""
TOKEN_IDS = "token ids"
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class FileReading(Generic[_Found]):
    """What was found in files, if anything, and the gaps beside it.

    What is unknown may be readable the next time, say after a network error; what is inapplicable isn't there.
    """

    found: _Found | None = None
    unknown: tuple[Gap, ...] = ()
    inapplicable: tuple[Gap, ...] = ()


def read_tokenizer(checkpoint: Checkpoint, report: Report) -> FileReading[TokenizerFacts]:
    """Reads the checkpoint's tokenizer files, for a model of which a report tells."""
    if report.model.task not in TEXT_TASKS:
        return FileReading(inapplicable=(Gap("tokenizer", "the model reads no text"),))
    from headscope.core.checkpoints.checkpoint_files import read_tokenizer_settings

    try:
        opened = checkpoint.stored_files
        read = ((place.sidecar, read_tokenizer_settings(place.sidecar)) for place in opened)
        found = next(((sidecar, settings) for sidecar, settings in read if settings is not None), None)
    except HeadscopeError as err:
        return FileReading(unknown=(Gap("tokenizer", f"its settings could not be read: {err.message}"),))
    if found is None:
        where = "the checkpoint contains no tokenizer" if opened else "snapshots contain no tokenizer"
        return FileReading(inapplicable=(Gap("tokenizer", where),))
    sidecar, settings = found
    facts = _settings_facts(settings, report.checkpoint.model_type or "")
    sentence = checkpoint.manifest.sentence
    if sentence is not None and sentence.token_ids and report.head and report.head.token_rows:
        # sentence-transformers pads language models that score by tokens on the left.
        facts = replace(facts, padding_side="left")  # whatever its file says
    try:
        return FileReading(_with_files(facts, sidecar, settings, report.checkpoint.model_type or ""))
    except NotFound as err:
        return FileReading(facts, inapplicable=(Gap(TOKEN_IDS, err.message),))
    except HeadscopeError as err:
        return FileReading(facts, unknown=(Gap(TOKEN_IDS, err.message),))


def _with_files(
    facts: TokenizerFacts, sidecar: FileReader, settings: Mapping[str, Any], model_type: str
) -> TokenizerFacts:
    """Adds the ids of the tokens, and where files differ. Raises NotFound if no file gives any ids."""
    from headscope.core.checkpoints.contents.tokenizer_file import read_token_ids

    with sidecar.reaching():
        ids = read_token_ids(sidecar.storage, settings)
        templates = tuple(_two_templates(settings, sidecar.storage))
    names = _names_of(settings, model_type)
    return replace(
        facts,
        tokens=tuple(_list_tokens(names, ids)),
        ids_unread=ids.unread,
        contradictions=(*_find_contradictions(settings, ids), *templates),
        appends_eos=_appends_eos(names.get("eos"), settings, ids),
    )


def _names_of(settings: Mapping[str, Any], model_type: str) -> dict[str, str]:
    """Names the special tokens by role: as the settings do, otherwise as the tokenizer's class does."""
    from headscope.core.model.tokenizers import default_tokens

    named = settings.get("tokenizer_class")
    defaults = default_tokens(named if isinstance(named, str) else "", model_type)
    found = {role: settings.get(f"{role}_token", defaults.get(f"{role}_token")) for role in ROLES}
    return {role: token for role, value in found.items() if (token := _token_text(value)) is not None}


def _settings_facts(settings: Mapping[str, Any], model_type: str) -> TokenizerFacts:
    from headscope.core.model.tokenizers import padding_side_of

    side, longest = settings.get("padding_side"), settings.get("model_max_length")
    return TokenizerFacts(
        padding_side=side if side in ("left", "right") else padding_side_of(model_type),
        pad_token=_token_text(settings.get("pad_token")),
        eos_token=_token_text(settings.get("eos_token")),
        max_length=longest if type(longest) is int and 0 < longest < _NO_LIMIT else None,
    )


def _token_text(value: Any) -> str | None:
    """Reads a special token as settings write it: a text, or an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _list_tokens(names: Mapping[str, str], ids: TokenIds) -> Iterator[TokenId]:
    """Lists the special tokens, then the ordinary and the added token with the highest id.

    A special token that the files don't list gets the next id, as the tokenizer appends it.
    """
    known: dict[str, tuple[int | None, str]] = {
        token: (ids.vocabulary[token], ids.file) for token in names.values() if token in ids.vocabulary
    }
    known |= {item.token: (item.id, item.file) for item in ids.added}
    following = max([len(ids.vocabulary), *((item.id or 0) + 1 for item in ids.added)])
    for role, token in names.items():
        # These two may be in any encoded text, whatever the template puts around it.
        occurs = role in ("pad", "unk") or token in (ids.around or ())
        if token not in known and not ids.unread:
            known[token] = following, ""
            following += 1
        number, file = known.get(token, (None, ""))
        yield TokenId(role, token, number, file, occurs)
    if ids.vocabulary:
        token = max(ids.vocabulary, key=ids.vocabulary.__getitem__)
        yield TokenId("", token[:_SHOWN], ids.vocabulary[token], ids.file, True)
    beside = [item for item in ids.added if item.token not in names.values()]
    if beside:
        yield max(beside, key=lambda item: item.id or 0)


def _appends_eos(eos: str | None, settings: Mapping[str, Any], ids: TokenIds) -> bool | None:
    """True if texts hold the end token; None if the tokenizer's class decides, which adds what its heads read."""
    from headscope.core.model.tokenizers import GENERIC

    if ids.around is not None:
        return eos in ids.around
    return False if ids.post_processor is None and settings.get("tokenizer_class") in GENERIC else None


def _find_contradictions(settings: Mapping[str, Any], ids: TokenIds) -> Iterator[FileContradiction]:
    """Finds where `tokenizer_config.json` and `tokenizer.json` differ.

    Transformers takes ids from the second file only.
    """
    listed = settings.get("added_tokens_decoder")
    known = {item.token: item.id for item in ids.added}
    for number, item in sorted(listed.items()) if isinstance(listed, dict) else ():
        token = _token_text(item) or ""
        if str(known.get(token, number)) != number:
            yield FileContradiction(f"the id of {token!r}", f"{known[token]} ({ids.file})", f"{number} ({_SETTINGS})")
    padding, truncation = (part if isinstance(part, dict) else {} for part in (ids.padding, ids.truncation))
    others = {
        "pad_token": padding.get("pad_token"),
        "padding_side": padding.get("direction"),
        "truncation_side": truncation.get("direction"),
    }
    for name, other in others.items():
        used = _token_text(settings.get(name))
        if used is not None and isinstance(other, str) and used.lower() != other.lower():
            yield FileContradiction(name, f"{used!r} ({_SETTINGS})", f"{other!r} ({ids.file})")


def _two_templates(settings: Mapping[str, Any], storage: FileStorage) -> Iterator[FileContradiction]:
    """Compares the chat templates of two files. Transformers takes the separate file."""
    stated = settings.get("chat_template")
    if isinstance(stated, list):  # several, by name
        stated = {str(item.get("name")): item.get("template") for item in stated if isinstance(item, dict)}.get(
            "default"
        )
    if not isinstance(stated, str) or not storage.has(_TEMPLATE):
        return
    used = storage.read_text(_TEMPLATE).decode("utf-8", "replace")
    if used.splitlines() != stated.splitlines():
        yield FileContradiction("the chat template", f"that in {_TEMPLATE}", f"that in {_SETTINGS}")


def with_effects(facts: TokenizerFacts, built: BuiltFacts, checkpoint: Checkpoint) -> TokenizerFacts:
    """Adds what follows from ids and lengths on which the configuration differs; measures only these."""
    effects = _measure_effects(facts, built, checkpoint)
    return replace(facts, effects=effects, too_long=_too_long(facts, built, checkpoint))


def _measure_effects(facts: TokenizerFacts, built: BuiltFacts, checkpoint: Checkpoint) -> tuple[IdEffect, ...]:
    rows = built.embedding_rows or built.vocab_size or 0
    has_template = any(item.occurs for item in facts.tokens if item.role in ("cls", "sep", "bos", "eos"))
    ids = {item.role: item.id for item in facts.tokens if item.role and item.id is not None and item.id < rows}
    differing = {
        role: number
        for role, number in built.token_ids
        if role in ids and ids[role] != number and 0 <= number < rows
        if not (role == "eos" and ids[role] in built.eos_token_ids)
    }
    if not differing:
        return ()
    last = max((item.id or 0 for item in facts.tokens if not item.role and item.occurs), default=0)
    around = {item.role for item in facts.tokens if item.occurs} if has_template else {"cls", "sep", "pad", "unk"}
    from headscope.core.source.loading import choose_class
    from headscope.core.source.reading.tracing import id_effects

    try:
        unwritten = {number for role, number in ids.items() if role not in around}
        is_word = {role: number <= last and number not in unwritten for role, number in differing.items()}
        choice = choose_class(checkpoint.request, checkpoint.manifest)
        measured = id_effects(choice, ids, around, is_word, facts.padding_side)
    except Exception as err:  # a class that cannot be built small is not measured, and a gap reports it
        measured = dict.fromkeys(differing, (None, f"{type(err).__name__}: {err}"))
    config = checkpoint.manifest.config
    inner = config.get("text_config")
    stated = {*(inner if isinstance(inner, dict) else ()), *config}
    effects = []
    for role, at in differing.items():
        origin = "config.json" if f"{role}_token_id" in stated else "the default of its class"
        effects.append(IdEffect(role, at, origin, *measured[role]))
    return tuple(effects)


def _too_long(facts: TokenizerFacts, built: BuiltFacts, checkpoint: Checkpoint) -> str | None:
    from headscope.core.upstream.peft import virtual_tokens_in

    adapter = checkpoint.manifest.adapter
    virtual = 0 if adapter is None else virtual_tokens_in(adapter.config)
    if facts.max_length is None or built.positions is None or facts.max_length <= built.positions - virtual:
        return ""
    from headscope.core.source.loading import choose_class
    from headscope.core.source.reading.tracing import length_effect

    try:
        return length_effect(choose_class(checkpoint.request, checkpoint.manifest), facts.max_length, virtual)
    except Exception:  # a class that cannot be built small is not measured, and a gap reports it
        return None
