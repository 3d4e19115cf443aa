"""What every rule says, as a golden file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headscope.checks.facts import LiveFacts, Subject
from headscope.core.facts.built import BuiltFacts, ConfigFacts
from headscope.core.facts.health import HealthBasis
from headscope.core.facts.stored.tokenizer import AffectedTexts, TokenId, TokenizerFacts
from headscope.facts import AdapterFaultKind, PaddingEffect, PoolingKind, Task, Verification, WeightsFormat
from tests.checks.rules.subjects import (
    ALL_NEW,
    BASE,
    BIAS,
    CLASSIFIER,
    CONTRADICTIONS,
    EMPTY,
    EOS,
    FOUND,
    HEALTHY,
    IDLE,
    IGNORED,
    INFERENCE,
    LANGUAGE,
    LAST_REAL,
    LEFT,
    MEMORY,
    NAMED,
    NEW_CLASSIFIER,
    NEW_DENSE,
    OTHER_SHAPE,
    PAD,
    RIGHT,
    SIGMOID,
    SOFTMAXED,
    STATISTICS,
    TOO_LONG,
    TRAINED_SINCE,
    TRIALS,
    TWO,
    UNKNOWN,
    ZEROS,
    adapter,
    checkpoint,
    fault,
    findings,
    head,
    health,
    leftovers,
    missing,
    model,
    parameter,
    quantized,
    subject,
    tokenized,
    values,
    weights,
    with_effect,
    wrapped,
)


def of_adapter(*kinds: AdapterFaultKind) -> Subject:
    return subject(adapter=adapter(faults=tuple(fault(kind, name) for kind, name in zip(kinds, "abcd", strict=False))))


LAST = head(kind=PoolingKind.LAST_TOKEN)
MISSING_IN_FILE = AdapterFaultKind.MISSING
PADDED_RIGHT = head(verification=Verification(True, "", (), (PaddingEffect("right", True, 0.25),)))
PADDED_LEFT = head(verification=Verification(True, "", (), (PaddingEffect("left", True, None),)))
SAID: tuple[tuple[str, Subject], ...] = (
    ("HS101", missing(1)),
    ("HS101", missing(1, "a.b")),
    ("HS101", missing(2, "a.b", "c.d")),
    ("HS101", wrapped()),
    ("HS102", subject(head=ALL_NEW)),
    ("HS102", subject(INFERENCE, head=head(parameter(CLASSIFIER, IGNORED)))),
    ("HS102", subject(head=replace(ALL_NEW, buffers=STATISTICS))),
    ("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=(ZEROS,))),
    ("HS102", subject(head=ALL_NEW, checkpoint=MEMORY)),
    ("HS103", subject(head=NEW_CLASSIFIER)),
    ("HS103", subject(head=NEW_DENSE)),
    ("HS103", subject(head=head(buffers=STATISTICS))),
    ("HS104", subject(head=OTHER_SHAPE)),
    ("HS104", subject(**IDLE)),
    ("HS104", subject(**IDLE, checkpoint=MEMORY)),
    ("HS105", subject(head=head(not_live=("idle.weight",)), weights=weights(new=("idle.weight",)))),
    ("HS106", subject(head=NEW_CLASSIFIER, weights=leftovers(FOUND))),
    ("HS106", subject(checkpoint=checkpoint(unread=("model-00001-of-00001.safetensors",)))),
    ("HS107", subject(adapter=adapter(not_carried=(CLASSIFIER,), modules_to_save=("classifier",)))),
    ("HS107", subject(adapter=adapter(promised=("score",)))),
    ("HS108", subject(checkpoint=checkpoint(format=WeightsFormat.TORCH))),
    *(("HS109", of_adapter(kind)) for kind in AdapterFaultKind),
    ("HS109", subject(adapter=adapter(load_options=("num_labels=5", "ignore_mismatched_sizes=True")))),
    ("HS109", subject(adapter=adapter(word_rows=140))),
    ("HS109", of_adapter(*[MISSING_IN_FILE] * 3)),
    ("HS109", of_adapter(*[MISSING_IN_FILE] * 4)),
    ("HS110", TRAINED_SINCE),
    ("HS201", subject(head=head(TWO))),
    ("HS201", subject(head=head(TWO), wanted_num_labels=3)),
    ("HS201", subject(head=head(TWO), wanted_num_labels=3, config=ConfigFacts())),
    ("HS201", subject(wanted_num_labels=2)),
    ("HS201", subject(config=ConfigFacts(7, NAMED))),
    ("HS202", subject(model=model(labels_are_placeholders=True))),
    ("HS202", subject(INFERENCE, model=model(labels_are_placeholders=True))),
    ("HS202", subject(INFERENCE, checkpoint=MEMORY, model=model(labels_are_placeholders=True))),
    *(("HS203", subject(config=config)) for config in CONTRADICTIONS),
    ("HS204", subject(config=ConfigFacts(problem_type="ordinal"))),
    ("HS204", subject(model=model(num_labels=1, reads_problem_type=False))),
    ("HS204", subject(INFERENCE, model=model(num_labels=1, reads_problem_type=False))),
    ("HS205", subject(model=model(num_labels=1, loss="MSELoss"))),
    ("HS205", subject(model=model(num_labels=1, loss="MSELoss", reads_problem_type=False))),
    ("HS206", subject(model=model(reads_problem_type=False), config=ConfigFacts(problem_type="regression"))),
    ("HS207", subject(head=SOFTMAXED)),
    ("HS207", subject(INFERENCE, head=SOFTMAXED)),
    ("HS207", subject(head=SIGMOID, model=model(loss="BCEWithLogitsLoss"))),
    ("HS207", subject(INFERENCE, head=SIGMOID, config=ConfigFacts(problem_type="multi_label_classification"))),
    ("HS207", subject(INFERENCE, head=SOFTMAXED, model=model(task=Task.TOKEN_CLASSIFICATION))),
    ("HS207", subject(INFERENCE, head=SIGMOID, model=model(class_name="CrossEncoder", loss="none"))),
    ("HS301", subject(head=head(kind=LAST_REAL), built=BuiltFacts(3, 100, None))),
    ("HS302", subject(built=BuiltFacts(3, 100, 100))),
    ("HS303", subject(tokenizer=LEFT)),
    ("HS303", subject(head=LAST, tokenizer=RIGHT)),
    ("HS304", subject(head=head(kind=EOS), tokenizer=TokenizerFacts("right", "</s>", "</s>"))),
    ("HS305", subject(head=PADDED_RIGHT)),
    ("HS305", subject(head=PADDED_LEFT, tokenizer=LEFT)),
    *(("HS306", replace(with_effect(reach), run=None)) for reach in AffectedTexts),
    ("HS307", subject(**tokenized(TokenId("", "w", 100, "tokenizer.json", True)))),
    ("HS308", subject(**TOO_LONG)),
    ("HS310", subject(head=head(kind=EOS), **tokenized(PAD, appends_eos=False))),
    ("HS401", subject(built=LANGUAGE, head=ALL_NEW)),
    ("HS401", subject(built=LANGUAGE, head=ALL_NEW, checkpoint=checkpoint(architectures=()))),
    ("HS402", subject(head=head(parameter(CLASSIFIER, dtype="int8")))),
    ("HS403", subject(config=ConfigFacts(has_auto_map=True))),
    ("HS404", subject(head=NEW_CLASSIFIER, model=quantized(skips_head=False))),
    ("HS404", subject(head=NEW_CLASSIFIER, model=quantized(skips_head=False, skipped=("lm_head",)))),
    *(("HS501", subject(values=(values(CLASSIFIER),), trial=trial)) for trial, _ in TRIALS),
    ("HS501", subject(values=(values(BIAS, nan=1),), trial=HEALTHY)),
    ("HS502", subject(health=health())),
    ("HS502", subject(health=health(basis=HealthBasis.DRAW))),
    ("HS502", subject(health=health(), head=head(parameter(CLASSIFIER, UNKNOWN)))),
    ("HS601", subject(live=LiveFacts((CLASSIFIER,)))),
    ("HS601", subject(live=LiveFacts((CLASSIFIER, BIAS), modules_to_save=("classifier",)))),
    ("HS602", subject(live=LiveFacts((), (CLASSIFIER,)))),
    ("HS602", subject(live=LiveFacts((), (CLASSIFIER, BIAS)))),
    ("HS801", subject(weights=weights(mismatched=(EMPTY,), parameters=BASE))),
    ("HS802", wrapped()),
)


def test_what_the_rules_say_is_as_the_golden_file_shows(same_as_golden: Callable[[Path, str], bool]) -> None:
    shown = [
        f"{item.id} {item.severity}, {about.profile}\n{item.message}\n{item.remedy}\n"
        for rule_id, about in SAID
        for item in findings(rule_id, about)
    ]
    assert len(shown) == len(SAID)
    assert same_as_golden(Path(__file__).parent / "golden" / "rules.txt", "\n".join(shown))
