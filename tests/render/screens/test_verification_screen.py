"""The screen of `verify`: what is wrong comes first, and of that what is wrong with the head."""

from headscope.core.facts.verdict import Verdict
from headscope.core.words.console import plain_text
from headscope.shared.loaded.facts import TensorCheck, TensorStatus, VerifyResult
from headscope.slices.loaded.screen import verification_screen


def tensor(name: str, status: TensorStatus, *, is_head: bool = False) -> TensorCheck:
    return TensorCheck(name, status, (3, 4), "float32", is_head=is_head)


def verified(*tensors: TensorCheck) -> VerifyResult:
    """A result on some tensors."""
    return VerifyResult(
        tool_version="0",
        command="verify",
        reference="a model",
        model="BertForSequenceClassification",
        loader="transformers",
        verdict=Verdict.FAILED,
        tensors=tensors,
        findings=(),
        ignored=(),
        not_determined=(),
        notes=(),
        rules=(),
        bytes_read=0,
    )


def statuses(result: VerifyResult, width: int = 200) -> list[str]:
    """The words at the margin below the verdict, up to the first empty line."""
    _, _, *lines = plain_text(verification_screen(result), width).splitlines()
    return [line.split()[0] for line in lines[: lines.index("")] if not line.startswith(" ")]


def test_the_head_comes_before_the_rest_of_what_is_wrong_and_that_before_what_is_right() -> None:
    result = verified(
        tensor("a.weight", TensorStatus.DROPPED),
        tensor("b.weight", TensorStatus.DIFFERENT),
        tensor("head.bias", TensorStatus.CAST, is_head=True),
        tensor("head.dense", TensorStatus.EQUAL, is_head=True),
        tensor("head.weight", TensorStatus.RANDOM, is_head=True),
    )
    assert statuses(result) == ["random", "dropped", "different", "cast", "equal"]


def test_of_many_names_six_are_shown() -> None:
    result = verified(*(tensor(f"{chr(97 + number)}.weight", TensorStatus.DROPPED) for number in range(9)))
    assert "f.weight and 3 more (--json lists all)" in plain_text(verification_screen(result), 200)
