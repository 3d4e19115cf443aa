"""The rules HS2xx, HS3xx and HS401 on facts written by hand: classes, losses, padding, token IDs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headscope.checks.rules.rule import NotApplicable, NotKnown
from headscope.core.facts.built import BuiltFacts, ConfigFacts
from headscope.core.facts.stored.checkpoint import ScoreHead
from headscope.core.facts.stored.sentence import SentenceModule, SentencePipeline
from headscope.core.facts.stored.tokenizer import AffectedTexts, FileContradiction, IdEffect, TokenId, TokenizerFacts
from headscope.facts import PaddingEffect, Pooling, PoolingKind, PoolingPart, Positions, Severity, Task, Where
from tests.checks.rules.subjects import (
    ALL_NEW,
    BIAS,
    CLASSIFIER,
    CONFIGURED,
    CONTRADICTIONS,
    DENSE,
    EOS,
    ERROR,
    INFERENCE,
    LANGUAGE,
    LAST_REAL,
    LEFT,
    LOADED,
    MISMATCHED,
    NAMED,
    NOTE,
    PAD,
    RAN,
    RIGHT,
    SILENT,
    TOO_LONG,
    TWO,
    WARNING,
    adapter,
    checkpoint,
    findings,
    head,
    measured,
    model,
    parameter,
    severities,
    subject,
    tokenized,
    weights,
    with_effect,
)

CHAIN = SentencePipeline(
    ("Transformer", "Pooling"), parts=(SentenceModule("Transformer", ""), SentenceModule("Pooling", "1_Pooling"))
)


def test_a_stored_classifier_of_another_size() -> None:
    assert severities("HS201", head=head(parameter(DENSE), TWO)) == ([WARNING], [ERROR])
    for stored in ((2, 9), (2,), (0, 8), (3, 9)):
        assert severities("HS201", head=head(replace(TWO, checkpoint_shape=stored))) == SILENT
    assert severities("HS201", head=head(replace(TWO, status=LOADED))) == SILENT
    assert severities("HS201", head=head(replace(TWO, checkpoint_shape=None))) == SILENT
    four = parameter(BIAS, MISMATCHED, checkpoint_shape=(4,))
    assert severities("HS201", head=head(TWO, four)) == SILENT
    choices = model(task=Task.MULTIPLE_CHOICE)
    assert severities("HS201", head=head(TWO), model=choices) == SILENT


def test_other_class_counts_than_the_configurations() -> None:
    assert severities("HS201", wanted_num_labels=3) == SILENT
    assert severities("HS201", wanted_num_labels=2) == ([NOTE], [ERROR])
    assert severities("HS201", wanted_labels=("a", "b")) == ([NOTE], [ERROR])
    assert severities("HS201", wanted_num_labels=2, config=ConfigFacts(3)) == SILENT
    assert severities("HS201", wanted_num_labels=2, config=ConfigFacts()) == SILENT
    assert severities("HS201", config=ConfigFacts(7, NAMED)) == ([ERROR], [ERROR])
    assert severities("HS201", config=ConfigFacts(7)) == SILENT
    assert severities("HS201", config=ConfigFacts(None, NAMED)) == SILENT


def test_classes_without_names() -> None:
    plain = model(labels_are_placeholders=True)
    assert severities("HS202", model=plain) == ([NOTE], [WARNING])
    assert severities("HS202", model=replace(plain, num_labels=1)) == SILENT
    assert severities("HS202", model=replace(plain, task=Task.QUESTION_ANSWERING)) == SILENT


@pytest.mark.parametrize("config", CONTRADICTIONS)
def test_label_maps_that_contradict_each_other(config: ConfigFacts) -> None:
    assert severities("HS203", config=config) == ([WARNING], [ERROR])
    assert severities("HS203", config=config, model=model(task=Task.MULTIPLE_CHOICE)) == SILENT


@pytest.mark.parametrize("ids", [("00", "01"), ("1", "0"), (" 0", "+1")])
def test_ids_are_the_numbers_that_transformers_reads(ids: tuple[str, str]) -> None:
    names = tuple(zip(ids, ("a", "b"), strict=True))
    back = tuple((name, str(int(key))) for key, name in names)
    assert severities("HS203", config=ConfigFacts(None, names, back)) == SILENT


@pytest.mark.parametrize("ids", [("0", "00"), ("0", "x"), ("0", "1.0"), ("-1", "0")])
def test_ids_that_are_not_the_rows_are_found(ids: tuple[str, str]) -> None:
    config = ConfigFacts(None, tuple(zip(ids, ("a", "b"), strict=True)), ())
    assert severities("HS203", config=config) == ([WARNING], [ERROR])


def test_a_map_that_is_not_there_contradicts_nothing() -> None:
    assert severities("HS203", config=ConfigFacts(None, (), (("a", "0"),))) == SILENT
    assert severities("HS203", config=ConfigFacts(None, NAMED, ())) == SILENT
    assert severities("HS203", config=ConfigFacts(None, NAMED, (), ids_as_text=("a",))) == ([WARNING], [WARNING])


def test_problem_types_that_cannot_be_meant() -> None:
    assert severities("HS204", config=ConfigFacts(problem_type="ordinal")) == ([ERROR], [WARNING])
    for known in ("regression", "single_label_classification", "multi_label_classification"):
        assert severities("HS204", config=ConfigFacts(problem_type=known)) == SILENT
    single = model(problem_type="single_label_classification")
    assert severities("HS204", model=replace(single, num_labels=1)) == ([ERROR], [ERROR])
    assert severities("HS204", model=replace(single, num_labels=2)) == SILENT
    number = model(problem_type="regression", loss="MSELoss")
    assert severities("HS204", model=number) == ([WARNING], [WARNING])
    assert severities("HS204", model=replace(number, num_labels=1)) == SILENT
    assert severities("HS204", model=replace(number, num_labels=2)) == ([WARNING], [WARNING])
    assert severities("HS204", model=replace(number, labels_are_placeholders=True)) == SILENT


def test_one_class_under_a_softmax_learns_nothing_whatever_chose_the_loss() -> None:
    one = model(num_labels=1, loss="CrossEntropyLoss", reads_problem_type=False)
    assert severities("HS204", model=one) == ([ERROR], [WARNING])
    ignored = replace(one, problem_type="single_label_classification")
    assert severities("HS204", model=ignored) == ([ERROR], [WARNING])
    assert severities("HS204", model=replace(one, task=Task.MULTIPLE_CHOICE)) == SILENT
    for loss in ("MSELoss", "BCEWithLogitsLoss", "none"):
        assert severities("HS204", model=replace(one, loss=loss)) == SILENT
    with pytest.raises(NotKnown, match="loss"):
        findings("HS204", subject(model=replace(one, loss="not determined")))
    several = subject(model=model(loss="not determined"))
    with pytest.raises(NotKnown, match="loss"):
        findings("HS204", several)
    assert not findings("HS204", replace(several, profile=INFERENCE))
    tokens = replace(several.report, model=model(loss="not determined", task=Task.MULTIPLE_CHOICE))
    assert not findings("HS204", replace(several, report=tokens))
    strange = ConfigFacts(problem_type="ordinal")
    assert severities("HS204", model=model(reads_problem_type=False), config=strange) == SILENT
    named = model(problem_type="regression", reads_problem_type=False)
    assert severities("HS204", model=named) == SILENT


def test_one_label_means_regression_where_the_loss_is_that_of_numbers() -> None:
    one = model(num_labels=1, loss="MSELoss")
    assert severities("HS205", model=one) == ([WARNING], [NOTE])
    assert severities("HS205", model=replace(one, task=Task.IMAGE_CLASSIFICATION)) == ([WARNING], [NOTE])
    assert severities("HS205", model=replace(one, task=Task.TOKEN_CLASSIFICATION)) == SILENT
    assert severities("HS205", model=one, config=ConfigFacts(problem_type="regression")) == SILENT
    for loss in ("CrossEntropyLoss", "BCEWithLogitsLoss", "none"):
        assert severities("HS205", model=replace(one, loss=loss)) == SILENT
    with pytest.raises(NotKnown, match="loss"):
        findings("HS205", subject(model=replace(one, loss="not determined")))
    (fixed,) = findings("HS205", subject(model=replace(one, reads_problem_type=False)))
    assert "problem_type" not in fixed.message + fixed.remedy


def test_a_problem_type_that_the_forward_does_not_read() -> None:
    several = ConfigFacts(problem_type="multi_label_classification")
    deaf = model(reads_problem_type=False)
    assert severities("HS206", model=deaf, config=several) == ([WARNING], [NOTE])
    assert severities("HS206", model=replace(deaf, loss="BCEWithLogitsLoss"), config=several) == SILENT
    assert severities("HS206", model=deaf, config=ConfigFacts()) == SILENT
    assert severities("HS206", model=replace(deaf, task=Task.MULTIPLE_CHOICE), config=several) == SILENT
    assert severities("HS206", model=replace(deaf, reads_problem_type=True), config=several) == SILENT
    unseen = replace(deaf, reads_problem_type=None)
    assert severities("HS206", model=replace(unseen, loss="none"), config=several) == SILENT
    with pytest.raises(NotKnown, match="loss"):
        findings("HS206", subject(model=unseen, config=several))


def test_a_head_that_was_trained_for_another_task() -> None:
    trained = BuiltFacts(3, 100, 0, trained_for=Task.TOKEN_CLASSIFICATION)
    assert severities("HS401", built=trained) == ([NOTE], [ERROR])
    for made, words in ((head(), f"{BIAS} hold what"), (head(parameter(CLASSIFIER)), f"{CLASSIFIER} holds what")):
        assert words in findings("HS401", subject(built=trained, head=made))[0].message
    assert "what was learned" not in findings("HS401", subject(built=trained, head=ALL_NEW))[0].message
    assert severities("HS401", built=trained, head=ALL_NEW) == ([NOTE], [WARNING])
    assert severities("HS401", built=replace(trained, trained_for=Task.SEQUENCE_CLASSIFICATION)) == SILENT
    assert severities("HS401", built=trained, model=model(class_name="SomeModel")) == SILENT


def test_a_head_that_looks_for_padding_needs_a_pad_token() -> None:
    unset = BuiltFacts(3, 100, None)
    assert severities("HS301", head=head(kind=LAST_REAL), built=unset) == ([ERROR], [ERROR])
    assert severities("HS301", head=head(kind=LAST_REAL)) == SILENT
    assert severities("HS301", built=unset) == SILENT
    for kind, expected in ((LAST_REAL, ([ERROR], [ERROR])), (PoolingKind.LAST_TOKEN, SILENT)):
        pair = Pooling(PoolingKind.TOKEN_PAIR, (), "", (), (PoolingPart(kind, Positions(Where.LAST_NON_PAD)),))
        assert severities("HS301", head=head(pooling=pair), built=unset) == expected
    assert severities("HS301", head=head(kind=PoolingKind.TOKEN_PAIR), built=unset) == SILENT
    cures = {RIGHT: "Set model.config", TokenizerFacts("right", None, "</s>"): "eos_token and", None: "if it has none"}
    for tokenizer, words in cures.items():
        (found,) = findings("HS301", subject(head=head(kind=LAST_REAL), built=unset, tokenizer=tokenizer))
        assert words in found.remedy


@pytest.mark.parametrize(
    ("pad", "size", "is_found"),
    [(100, 100, True), (99, 100, False), (-1, 100, True), (0, 100, False), (None, 100, False), (5, None, False)],
)
def test_a_pad_token_beyond_the_vocabulary(pad: int | None, size: int | None, is_found: bool) -> None:
    assert severities("HS302", built=BuiltFacts(3, size, pad)) == (([ERROR], [ERROR]) if is_found else SILENT)


def test_a_pad_token_of_the_tokenizer_replaces_an_id_beyond_the_vocabulary() -> None:
    outside = BuiltFacts(3, 100, 50_000, embedding_rows=100)
    eos = TokenId("eos", "</s>", 1, "tokenizer.json", True)
    for pads in ((PAD,), (replace(PAD, id=100),), (replace(PAD, id=None),), ()):
        facts = TokenizerFacts("right", None, "</s>", (eos, *pads))
        (found,) = findings("HS302", subject(built=outside, tokenizer=facts, folder="it"))
        assert ("['pad_token_id'] = 6" in found.code) == bool(found.code) == (pads == (PAD,))


def test_a_tokenizer_that_pads_where_the_head_reads() -> None:
    assert severities("HS303", tokenizer=RIGHT) == SILENT
    assert severities("HS303", tokenizer=LEFT) == ([ERROR], [ERROR])
    last = head(kind=PoolingKind.LAST_TOKEN)
    assert severities("HS303", head=last, tokenizer=RIGHT) == ([ERROR], [ERROR])
    assert severities("HS303", head=last, tokenizer=LEFT) == SILENT
    assert severities("HS303", head=last, tokenizer=RIGHT, built=BuiltFacts(3, 100, 100)) == SILENT  # HS302 tells it
    assert severities("HS303", head=head(kind=PoolingKind.MEAN), tokenizer=LEFT) == SILENT
    # Virtual tokens come before the padding on the left, so the first position is one of them.
    assert severities("HS303", head=head(virtual_tokens=8), tokenizer=LEFT) == SILENT
    (found,) = findings("HS303", subject(head=replace(last, virtual_tokens=8), tokenizer=RIGHT, folder="it"))
    assert "one text at a time" in found.remedy and found.code == ""
    (found,) = findings("HS303", subject(head=last, tokenizer=RIGHT, folder="it"))
    assert "'padding_side'] = 'left'" in found.code


def test_padding_made_of_the_end_token() -> None:
    same = TokenizerFacts("right", "</s>", "</s>")
    assert severities("HS304", head=head(kind=EOS), tokenizer=same) == ([ERROR], [ERROR])
    assert severities("HS304", head=head(kind=LAST_REAL), tokenizer=same) == ([NOTE], [NOTE])
    assert severities("HS304", tokenizer=same) == SILENT
    assert severities("HS304", head=head(kind=EOS), tokenizer=RIGHT) == SILENT
    assert severities("HS304", head=head(kind=EOS), tokenizer=TokenizerFacts("right", None, None)) == SILENT
    assert severities("HS304", head=head(kind=EOS), built=BuiltFacts(3, 100, 2, (1, 2))) == ([ERROR], [ERROR])
    assert severities("HS304", head=head(kind=EOS), built=BuiltFacts(3, 100, None, (1, 2))) == SILENT


def test_padding_that_changes_the_scores() -> None:
    changing = measured(PaddingEffect("right", True, 0.25), PaddingEffect("left", False, 0.0))
    assert severities("HS305", head=changing) == ([WARNING], [WARNING])
    assert severities("HS305", head=changing, tokenizer=LEFT) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, 0, padding_side="left")) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, None)) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, 100)) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, None, 100)) == ([WARNING], [WARNING])
    with pytest.raises(NotKnown, match=r"right.*: it failed"):
        findings("HS305", subject(head=measured(PaddingEffect("right", None, reason="it failed"))))
    with pytest.raises(NotKnown, match=r"right.*: no model"):
        findings("HS305", subject(head=measured(PaddingEffect("any", None, reason="no model"))))
    other = measured(PaddingEffect("left", None, reason="it failed"), PaddingEffect("right", True, 0.5))
    assert severities("HS305", head=other) == ([WARNING], [WARNING])


def test_a_checkpoint_of_another_kind() -> None:
    assert severities("HS401", built=LANGUAGE) == SILENT
    assert severities("HS401", built=LANGUAGE, head=ALL_NEW) == ([NOTE], [WARNING])
    vectors = {"built": BuiltFacts(0, 100, 0, kind="sentence embedder"), "head": ALL_NEW}
    for chain, num_labels, severity in ((CHAIN, 0, NOTE), (CHAIN, 3, WARNING), (None, 0, WARNING)):
        about = vectors | {"checkpoint": checkpoint(sentence_transformers=chain)}
        shown = model(class_name="SentenceTransformer", num_labels=num_labels)
        assert severities("HS401", model=shown, **about) == ([NOTE], [severity])


def test_each_broken_module_of_a_chain_is_an_error() -> None:
    broken = replace(CHAIN, parts=(CHAIN.parts[0], replace(CHAIN.parts[1], fault="it has no weights")))
    for chain, count in ((CHAIN, 0), (broken, 1), (None, 0)):
        assert severities("HS405", checkpoint=checkpoint(sentence_transformers=chain)) == ([ERROR] * count,) * 2


def test_a_head_of_another_library_is_found_unless_the_class_loads_it() -> None:
    value = checkpoint(score_heads=(ScoreHead("v_head", 1, "v_head.weight", ("v_head.weight", "v_head.bias")),))
    for unused, expected in (("v_head.weight", ([NOTE], [WARNING])), ("other.weight", SILENT)):
        assert severities("HS406", checkpoint=value, weights=weights(unused=(unused,))) == expected


@pytest.mark.parametrize(
    ("reach", "severity"), [(AffectedTexts.ALL, ERROR), (AffectedTexts.SOME, WARNING), (AffectedTexts.NONE, NOTE)]
)
def test_another_id_is_as_grave_as_what_it_changes(reach: AffectedTexts, severity: Severity) -> None:
    (found,) = findings("HS306", replace(with_effect(reach), run=None))
    assert (found.severity, found.parameters) == (severity, ("pad_token_id",))
    # A run has seen ordinary texts, and none that holds the token as a word.
    assert [item.severity for item in findings("HS306", with_effect(reach))] == [severity] * (severity is not ERROR)
    for seen in ({"failed": 1}, {"batch_difference": None}, {"batch_difference": 0.5}):
        (found,) = findings("HS306", replace(with_effect(reach), run=replace(RAN, **seen)))
        assert found.severity is severity


def test_an_effect_that_a_run_did_not_see_hides_no_other() -> None:
    seen, other = (
        IdEffect(role, 5, "config.json", reach, "get other scores")
        for role, reach in (("pad", AffectedTexts.ALL), ("eos", AffectedTexts.SOME))
    )
    eos = TokenId("eos", "</s>", 1, "tokenizer.json", True)
    (found,) = findings("HS306", subject(**tokenized(PAD, eos, effects=(seen, other))))
    assert found.parameters == ("eos_token_id",)


def test_an_id_that_could_not_be_measured_or_read_is_not_silent() -> None:
    unmeasured = IdEffect("pad", 5, "config.json", None, "ValueError: no")
    with pytest.raises(NotKnown, match=r"pad_token_id 5 .*: ValueError: no"):
        findings("HS306", subject(**tokenized(PAD, effects=(unmeasured,))))
    unread = tokenized(replace(PAD, id=None), ids_unread="it has 17 MB")
    for ids in ((("pad", 5),), (("pad", 5), ("eos", 1))):  # the tokenizer names no eos token
        with pytest.raises(NotKnown, match="17 MB"):
            findings("HS306", subject(**unread | {"built": replace(CONFIGURED, token_ids=ids)}))
    with pytest.raises(NotKnown, match="17 MB"):
        findings("HS307", subject(**tokenized(PAD, ids_unread="it has 17 MB")))
    assert severities("HS306", **tokenized(PAD)) == SILENT


@pytest.mark.parametrize(("number", "is_found"), [(99, False), (100, True)])
@pytest.mark.parametrize(("occurs", "severity"), [(True, ERROR), (False, WARNING)])
def test_a_token_counts_from_the_first_row_that_is_missing(
    number: int, is_found: bool, occurs: bool, severity: Severity
) -> None:
    facts = tokenized(TokenId("", "w", number, "tokenizer.json", occurs))
    assert severities("HS307", **facts) == (([severity], [severity]) if is_found else SILENT)
    with pytest.raises(NotApplicable):
        findings("HS307", subject(**facts | {"built": replace(CONFIGURED, embedding_rows=None, vocab_size=None)}))
    facts["built"] = replace(CONFIGURED, embedding_rows=None)
    assert severities("HS307", **facts) == (([severity], [severity]) if is_found else SILENT)


@pytest.mark.parametrize(("kind", "appended", "is_found"), [
    (EOS, False, True), (EOS, True, False), (EOS, None, False), (PoolingKind.FIRST_TOKEN, False, False),
])  # fmt: skip
def test_a_head_that_reads_the_end_token_needs_texts_that_end_with_it(
    kind: PoolingKind, appended: bool | None, is_found: bool
) -> None:
    facts = tokenized(PAD, appends_eos=appended)
    assert severities("HS310", head=head(kind=kind), **facts) == (([ERROR], [ERROR]) if is_found else SILENT)


def test_a_text_as_long_as_the_tokenizer_allows_is_tried() -> None:
    assert severities("HS308", **tokenized(too_long="")) == SILENT
    assert severities("HS308", **TOO_LONG) == ([ERROR], [ERROR])
    with pytest.raises(NotKnown, match="513"):
        findings("HS308", subject(**tokenized(max_length=513, too_long=None)))
    (found,) = findings("HS308", subject(**TOO_LONG, adapter=adapter(virtual_tokens=8), folder="it"))
    assert "['model_max_length'] = 504" in found.code
    assert "8 virtual tokens of the adapter take 8" in found.message and "model_max_length = 504" in found.remedy


def test_only_what_a_padded_batch_left_in_a_file_is_cured_by_code() -> None:
    for what, has_code in (("padding_side", True), ("pad_token", True), ("chat_template", False)):
        facts = tokenized(contradictions=(FileContradiction(what, "a", "b"),))
        (found,) = findings("HS309", subject(**facts, folder="it"))
        assert ("no_padding()" in found.remedy) == bool(found.code) == has_code
