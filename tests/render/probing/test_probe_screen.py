"""The sentences of `probe`, one for each way that the scores can fall out."""

from dataclasses import replace

import pytest

from headscope.core.facts.stored.checkpoint import Gap
from headscope.core.words.console import plain_text
from headscope.slices.probe.facts.data import Contradiction, HeadInput, LabelFacts, Numbers, ProbeClass, Suspect
from headscope.slices.probe.facts.result import (
    Advised,
    Baseline,
    BaselineKind,
    Candidate,
    HeadLayout,
    Metric,
    Opinion,
    OpinionKind,
    ProbeFirst,
    ProbeResult,
    Problem,
    Score,
    Selected,
    Standing,
    Start,
    StartingLoss,
    Vector,
    Versus,
    WrittenHead,
)
from headscope.slices.probe.screen.screen import probe_screen
from headscope.slices.probe.screen.words import probe_answer

MEAN = Candidate("masked_mean-11", 11, Vector.MASKED_MEAN, Metric.ACCURACY, 0.912, 0.897, 0.925, 768)
HEAD = Candidate("head", None, Vector.HEAD, Metric.ACCURACY, 0.874, 0.86, 0.89, 768)
WORDS = Baseline(BaselineKind.TFIDF, Metric.ACCURACY, 0.85, 0.83, 0.87)
REAL = Versus("head", 0.038, 0.02, 0.05, 0.002, Standing.BETTER)
BEATS_WORDS = Versus("tfidf", 0.062, 0.04, 0.08, 0.0001, Standing.BETTER)
CONSTANT = Baseline(BaselineKind.MAJORITY, Metric.ACCURACY, 0.9, 0.89, 0.91)
NOT_SHOWN = Versus("majority", 0.012, -0.02, 0.03, 0.4, Standing.UNDECIDED)
RESULT = ProbeResult(
    tool_version="0",
    reference="model",
    data="rows.csv",
    texts=2000,
    available=3000,
    distinct=2000,
    classes=(ProbeClass("a", 1500), ProbeClass("b", 500)),
    folds=5,
    seed=0,
    device="cpu",
    padded=True,
    layers=12,
    candidates=(MEAN, HEAD),
    baselines=(WORDS,),
    best="masked_mean-11",
    head="head",
    selected=Selected(0.905, 0.89, 0.92, ("masked_mean-11",) * 5),
    versus=(REAL, BEATS_WORDS),
    head_input=HeadInput("BertForSequenceClassification", "first_token", "classifier"),
)
BEST = "Mean over tokens of layer 11 is best with a frozen base model: accuracy 0.912 (0.897 to 0.925)"
READS = f"{BEST}; the head of BertForSequenceClassification reads the first token: 0.874."
HOW = "paired, corrected for the choice among 2"
RATE = "6.4% of simulations without a difference find one"
ANSWERS = {
    "real": (RESULT, f"{READS} The difference is real (p = 0.002, {HOW}; {RATE})."),
    "undecided": (
        replace(RESULT, versus=(replace(REAL, p_value=0.31, verdict=Standing.UNDECIDED), BEATS_WORDS)),
        f"{READS} They cannot be told apart (p = 0.31, {HOW}).",
    ),
    "words are better": (
        replace(RESULT, versus=(REAL, replace(BEATS_WORDS, p_value=1.0, verdict=Standing.NOT_BETTER))),
        f"{READS} The difference is real (p = 0.002, {HOW}; {RATE}). Nothing beats TF-IDF with a linear model: 0.850.",
    ),
    "words are as good": (
        replace(RESULT, versus=(REAL, replace(BEATS_WORDS, p_value=0.2, verdict=Standing.UNDECIDED))),
        f"{READS} The difference is real (p = 0.002, {HOW}; {RATE}). The best and TF-IDF (0.850) cannot be told apart "
        "(p = 0.20).",
    ),
    "the head reads the best": (
        replace(RESULT, candidates=(MEAN, replace(HEAD, same_as="masked_mean-11"))),
        f"{BEST}. The head of BertForSequenceClassification reads it.",
    ),
    "through the pooler": (
        replace(RESULT, candidates=(MEAN, replace(HEAD, same_as="pooler"))),
        f"{BEST}; the head of BertForSequenceClassification reads the first token through the pooler: 0.874. The "
        f"difference is real (p = 0.002, {HOW}; {RATE}).",
    ),
    "no better than a constant": (
        replace(RESULT, baselines=(CONSTANT, WORDS), versus=(REAL, NOT_SHOWN, BEATS_WORDS)),
        f"{READS} The difference is real (p = 0.002, {HOW}; {RATE}). No vector is shown to beat predicting the most "
        "frequent class (0.900, p = 0.40).",
    ),
    "worse than a constant": (
        replace(RESULT, baselines=(CONSTANT,), versus=(REAL, replace(NOT_SHOWN, verdict=Standing.NOT_BETTER))),
        f"{READS} The difference is real (p = 0.002, {HOW}; {RATE}). No vector beats predicting the most frequent "
        "class: 0.900.",
    ),
    "no head": (replace(RESULT, candidates=(MEAN,), head=None, head_input=None, versus=(BEATS_WORDS,)), f"{BEST}."),
}


def words_of(result: ProbeResult, *, details: bool) -> str:
    """The screen as one line, without what a terminal acts on."""
    screen = plain_text(probe_screen(result, details=details), 100)
    assert not {"\x1b", "\x9b"} & set(screen)
    return " ".join(screen.split())


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_says_what_the_numbers_say(name: str) -> None:
    result, sentence = ANSWERS[name]
    assert probe_answer(result) == sentence


def test_the_answer_begins_with_the_rows_it_rests_on_where_most_were_left_out() -> None:
    assert probe_answer(replace(RESULT, available=4001)).startswith("Only 2,000 of 4,001 ")
    assert probe_answer(replace(RESULT, available=4000)).startswith("Mean")


@pytest.mark.parametrize("layers", [2, 7, 25, 80, 200])
def test_the_curve_fits_any_depth(layers: int) -> None:
    curve = tuple(
        replace(MEAN, name=f"{kind.value}-{layer}", layer=layer, pooling=kind, mean=0.5 + 0.4 * layer / layers)
        for kind in (Vector.FIRST_TOKEN, Vector.MASKED_MEAN)
        for layer in range(layers)
    )
    screen = plain_text(
        probe_screen(replace(RESULT, candidates=(*curve, HEAD), best=curve[-1].name), details=True), 100
    )
    plot = [line for line in screen.splitlines() if "│" in line or "┤" in line]
    assert len(plot) == 9
    assert max(map(len, plot)) <= 80
    assert sum(line.count("*") for line in plot) >= min(layers, 3) - 1


@pytest.mark.parametrize("details", [False, True])
def test_hostile_names_reach_the_screen_as_text(details: bool) -> None:
    hostile = replace(
        RESULT,
        data="rows\x1b[31m.csv",
        classes=(ProbeClass("a\x9b", 1500), ProbeClass("[bold]", 500)),
        head_input=HeadInput("Bert\x1b[1mX", "first_token", "classifier", ("[red]pooler\x9b.weight",)),
        notes=("\x1b]8", "second\x1b", "third\x9b[blue]"),
        not_determined=(Gap("knn\x1b", "[green]too\x9b large"),),
    )
    screen = words_of(hostile, details=details)
    for words in ("[bold]", "[red]pooler", "[blue]", "[green]too"):
        assert words in screen


TOLD_BY_BOTH = ("a 1,500, b 500; the largest is 3 times the smallest",)
TOLD_BY_DETAILS = (
    "rows 4, 9 (a, b): [bold]twice",
    "row 17: a, predicted b",
    "loss 2.500 with the checkpoint's head, before any training: clearly above the 0.693",
    "head first not determined: the vector that the head reads was not scored",
    "LogME prefers the input of the head (rank correlation of all candidates -0.25)",
    "kNN prefers the same vector",
)


@pytest.mark.parametrize("details", [False, True])
def test_what_the_labels_say_is_shown_and_shown_as_text(details: bool) -> None:
    suspect = Suspect(17, "a \x1b[31mtext", "a", "b\x9b", 3.5)
    told = replace(
        RESULT,
        labels=LabelFacts(3.0, None, 2, 1, (Contradiction("[bold]twice", ("a", "b"), (4, 9)),), (suspect,)),
        start=StartingLoss(2.5, 2.4, 2.6, 0.693, Start.ABOVE, new_head=False),
        probe_first=ProbeFirst(Advised.OPEN, "the vector that the head reads was not scored"),
        opinions=(Opinion(OpinionKind.LOGME, "head", -0.25), Opinion(OpinionKind.KNN, "masked_mean-11", None)),
    )
    screen = words_of(told, details=details)
    for words in (*TOLD_BY_BOTH, *(TOLD_BY_DETAILS if details else ("head first not determined", "1 suspect row"))):
        assert words in screen
    unknowing = words_of(replace(told, baselines=(CONSTANT,), versus=(NOT_SHOWN,)), details=details)
    assert "row 17" not in unknowing and "suspect" not in unknowing


@pytest.mark.parametrize("details", [False, True])
def test_a_regression_is_shown_with_its_numbers(details: bool) -> None:
    score = replace(MEAN, metric=Metric.R2)
    numbers = Numbers(-1.5, 20.0, 7.25, 3.0)
    told = replace(
        RESULT,
        problem=Problem.REGRESSION,
        candidates=(score, replace(HEAD, metric=Metric.R2)),
        baselines=(replace(WORDS, metric=Metric.R2),),
        classes=(),
        labels=LabelFacts(None, numbers, 0, 0, (), ()),
    )
    screen = words_of(told, details=details)
    assert ": R2 0.912" in screen
    assert "from -1.5 to 20 (mean 7.25, " in screen
    assert ("ridge regression" in screen) is details
    assert "logistic" not in screen


def test_the_first_screen_fits_a_terminal_of_24_lines() -> None:
    layers = range(7)
    of_layers = tuple(
        replace(MEAN, name=f"{kind.value}-{layer}", layer=layer, pooling=kind, mean=0.5 + layer / 20)
        for kind in (Vector.FIRST_TOKEN, Vector.MASKED_MEAN, Vector.LAST_NON_PAD_TOKEN)
        for layer in layers
    )
    others = tuple(
        replace(MEAN, name=kind.value, pooling=kind, layer=None, mean=0.6, size=1536)
        for kind in Vector
        if kind not in {item.pooling for item in of_layers} | {Vector.HEAD}
    )
    suspect = Suspect(17, "a text", "a", "b", 3.5)
    told = replace(
        RESULT,
        candidates=(*of_layers, *others, replace(HEAD, same_as="pooler")),
        best=of_layers[-1].name,
        labels=LabelFacts(3.0, None, 2, 0, (), (suspect,)),
        probe_first=ProbeFirst(Advised.YES, "a reason of its own"),
        notes=("the base model was frozen; full fine-tuning can remove the advantage", "2 rows left out", "1 cut"),
    )
    screen = plain_text(probe_screen(replace(told, available=5000)), 80)
    assert len(screen.splitlines()) <= 24
    assert max(map(len, screen.splitlines())) <= 80
    assert "--details: 6 more vectors, 1 suspect row, each layer, reasons" in screen
    assert "2 rows left out; 1 cut" in screen
    whole = plain_text(probe_screen(told, details=True), 80)
    for words in ("row 17", "a reason of its own", "output of the pooler", "method", "maximum over tokens"):
        assert words in whole
        assert words not in screen


def test_a_long_row_of_the_table_continues_below_its_last_column() -> None:
    new = replace(HEAD, new=("pooler.dense.weight",), same_as="first_token-11")
    lines = plain_text(probe_screen(replace(RESULT, candidates=(MEAN, new))), 60).splitlines()
    row = next(at for at, line in enumerate(lines) if "input of the head" in line)
    assert lines[row + 1].startswith(" " * lines[row].index("input"))
    assert lines[row + 1].strip()


@pytest.mark.parametrize(
    ("vector", "layout", "versus", "said", "following"),
    [
        ("head", HeadLayout.OWN, REAL, True, "headscope check 'my head' --for inference"),
        ("head", HeadLayout.OWN, replace(REAL, verdict=Standing.UNDECIDED), False, "headscope check 'my head' --for"),
        ("masked_mean-11", HeadLayout.MODULE, REAL, False, "python 'my head'/classifier.py"),
    ],
)
def test_a_written_head_says_whether_another_vector_is_better(
    vector: str, layout: HeadLayout, versus: Versus, said: bool, following: str
) -> None:
    written = WrittenHead("my head", layout, vector, Score(Metric.ACCURACY, 0.874, 0.86, 0.89), ("classifier.weight",))
    result = replace(RESULT, written=written, versus=(versus, BEATS_WORDS))
    warned = "mean over tokens of layer 11 is significantly better, 0.912 against 0.874 (p = 0.002). `-o FILE.py`"
    for details in (False, True):
        words = " ".join(plain_text(probe_screen(result, details=details)).split())
        assert (warned in words) is said
        assert f"next {following}" in words
        failed = replace(result, written=replace(written, failure="it differs"))
        assert "next" not in plain_text(probe_screen(failed, details=details)).split()
