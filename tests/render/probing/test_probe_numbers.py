"""What the screen says of the pass over the texts."""

from dataclasses import replace

import pytest
from test_probe_screen import RESULT

from headscope.core.words.console import plain_text
from headscope.slices.probe.facts.data import FeatureNumbers, LayerNumbers, Precision, VectorNumbers
from headscope.slices.probe.screen.screen import probe_screen

NUMBERS = FeatureNumbers(
    vectors=(VectorNumbers("masked_mean-11", 0.71234, 3, 1.25e-6), VectorNumbers("head", None, 0)),
    layers=(LayerNumbers(0, 0.05, 0.999), LayerNumbers(1, 0.62, 0.4321), LayerNumbers(2, 0.3, 0.8)),
    precision=Precision("float32", "float32"),
)
DTYPES = {
    "half": (
        Precision("bfloat16", "bfloat16", 0.0123, 0.05, 8),
        "bfloat16; the weights are stored in bfloat16; bfloat16 changes the vectors of 8 sample texts against float32 "
        "by 1.2% at most, within the 5% allowed",
    ),
    "given up": (
        Precision("float32", "float16", None, 0.05, 8),
        "float32; the weights are stored in float16; float16 changes the vectors of 8 sample texts against float32 by "
        "numbers that are not finite, more than the 5% allowed",
    ),
    "not compared": (
        Precision("bfloat16", "bfloat16"),
        "bfloat16; the weights are stored in bfloat16; not compared with float32, which needs too much memory",
    ),
    "wider": (Precision("float32", "bfloat16"), "float32; the weights are stored in bfloat16"),
}


def shown(numbers: FeatureNumbers) -> list[str]:
    return plain_text(probe_screen(replace(RESULT, numbers=numbers), details=True), 400).splitlines()


def line(lines: list[str], name: str) -> str:
    return next((item.removeprefix(name).strip() for item in lines if item.startswith(name)), "")


def test_the_best_vector_and_the_first_token_are_described() -> None:
    lines = shown(NUMBERS)
    assert RESULT.best == "masked_mean-11"
    assert line(lines, "vectors") == (
        "the best: mean cosine between two texts 0.712; 3 of 768 dimensions the same for every text; padding changes "
        "it by 1e-06 of its largest number"
    )
    assert line(lines, "first token") == (
        "on average 62% of the norms of a text's tokens in layer 1, where that is most; leaving it out of the mean "
        "keeps an average cosine of 0.432 in layer 1, where that is least"
    )
    assert line(lines, "dtype") == line(lines, "reused") == ""
    assert "earlier run" in line(shown(replace(NUMBERS, reused=True)), "reused")


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_shown_where_it_was_chosen(name: str) -> None:
    precision, sentence = DTYPES[name]
    assert line(shown(replace(NUMBERS, precision=precision)), "dtype") == sentence
