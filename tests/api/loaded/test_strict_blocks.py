"""`strict`: how blocks end, and what it takes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification as Auto

import headscope
from headscope.errors import HeadNotLoaded, UsageError
from tests.api.loaded.test_strict import saved, transformers_is_as_it_was

__all__ = ["saved", "transformers_is_as_it_was"]


def test_a_block_that_ends_in_another_thread_leaves_nothing_open(saved: Path) -> None:
    block = headscope.strict()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    Auto.from_pretrained(saved / "lost")  # outside of any block


def test_what_is_no_function_of_one_call_is_judged_or_refused(saved: Path) -> None:
    class Loads:
        async def __call__(self) -> None:
            Auto.from_pretrained(saved / "lost")

    with pytest.raises(HeadNotLoaded):
        asyncio.run(headscope.strict()(Loads())())
    with pytest.raises(UsageError, match="async generator"):

        @headscope.strict()
        async def steps() -> AsyncIterator[int]:
            yield 1


def test_what_is_no_name_and_no_model_is_refused(saved: Path) -> None:
    for wrong in ([None], [b"x"]):
        with pytest.raises(UsageError):
            headscope.strict(allow=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        headscope.strict(str(saved / "lost"))  # type: ignore[arg-type]


def test_each_configuration_that_was_given_a_number_of_classes_allows_a_new_head(saved: Path) -> None:
    with headscope.strict():
        teacher, student = (AutoConfig.from_pretrained(saved / "base", num_labels=count) for count in (3, 2))
        for config in (teacher, student):
            Auto.from_pretrained(saved / "base", config=config)
        with pytest.raises(HeadNotLoaded):
            Auto.from_pretrained(saved / "base", config=AutoConfig.from_pretrained(saved / "base"))
