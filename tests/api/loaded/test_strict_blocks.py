"""`strict`: how blocks end, and what it takes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification as Auto

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
