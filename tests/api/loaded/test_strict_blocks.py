"""`strict`: how blocks end, and what it takes."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification as Auto, BertForSequenceClassification

import headscope
from headscope.errors import HeadNotLoaded, LoadNotJudged, Unsupported, UsageError


def a_plain_function(function: Callable[[], Any]) -> Callable[[], Any]:
    """One that returns a coroutine or a generator, and doesn't look like it."""

    def call() -> Any:
        return function()

    return call


def test_a_block_that_ends_in_another_thread_leaves_nothing_open(saved: Path) -> None:
    block = headscope.strict()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    Auto.from_pretrained(saved / "lost")  # outside of any block


def test_a_generator_that_runs_in_two_contexts_or_threads_leaves_nothing_open(saved: Path) -> None:
    block = headscope.strict()
    contextvars.copy_context().run(block.__enter__)
    contextvars.copy_context().run(block.__exit__, None, None, None)
    Auto.from_pretrained(saved / "lost")

    @headscope.strict()
    def steps() -> Iterator[int]:
        yield 1

    running = steps()
    contextvars.copy_context().run(next, running)
    thread = threading.Thread(target=list, args=(running,))
    thread.start()
    thread.join()
    Auto.from_pretrained(saved / "lost")


def test_what_is_no_function_of_one_call_is_judged_or_refused(saved: Path) -> None:
    async def load() -> None:
        await asyncio.sleep(0)
        Auto.from_pretrained(saved / "lost")

    def load_later() -> Iterator[int]:
        yield 1
        Auto.from_pretrained(saved / "lost")

    async def stream() -> AsyncIterator[int]:
        yield 1

    class Loads:
        async def __call__(self) -> None:
            await load()

    class Streams:
        async def __call__(self) -> AsyncIterator[int]:
            yield 1

    for function in (load, Loads(), functools.partial(load), a_plain_function(load)):
        with pytest.raises(HeadNotLoaded):
            asyncio.run(headscope.strict()(function)())
    for function in (load_later, functools.partial(load_later), a_plain_function(load_later)):
        with pytest.raises(HeadNotLoaded):
            list(headscope.strict()(function)())
    for refused in (stream, Streams()):
        with pytest.raises(UsageError, match="async generator"):
            headscope.strict()(refused)
    with pytest.warns(LoadNotJudged, match="the async_generator that a decorated function returned"):
        headscope.strict()(a_plain_function(stream))()

    async def start() -> None:
        await headscope.strict()(lambda: asyncio.ensure_future(asyncio.sleep(0)))()

    with pytest.warns(LoadNotJudged, match="the Task that"):
        asyncio.run(start())
    with pytest.raises(UsageError, match="before it began"):
        headscope.strict().__exit__(None)


def test_a_decorated_function_stays_of_its_kind() -> None:
    async def load() -> None: ...

    def steps() -> Iterator[int]:
        yield 1

    assert inspect.iscoroutinefunction(headscope.strict()(load))
    assert inspect.isgeneratorfunction(headscope.strict()(steps))
    assert not inspect.isawaitable(headscope.strict()(a_plain_function(steps))())


def test_a_decorated_generator_passes_on_what_comes_and_goes() -> None:
    heard: list[Any] = []

    @headscope.strict()
    def steps() -> Generator[int, str, str]:
        try:
            heard.append((yield 1))
            heard.append((yield 2))
        except KeyError as err:
            heard.append(type(err))
        try:
            yield 3
        finally:
            heard.append("closed")
        return "end"

    running = steps()
    assert (next(running), running.send("sent"), running.throw(KeyError("x"))) == (1, 2, 3)
    with pytest.raises(StopIteration) as caught:
        next(running)
    assert caught.value.value == "end"
    assert heard == ["sent", KeyError, "closed"]
    running = steps()
    next(running)
    running.close()
    assert next(running, None) is None


def test_what_is_loaded_while_a_generator_waits_is_not_its_concern(saved: Path) -> None:
    @headscope.strict()
    def steps() -> Iterator[int]:
        yield 1
        Auto.from_pretrained(saved / "lost")

    running = steps()
    next(running)
    Auto.from_pretrained(saved / "lost")
    with headscope.strict(), pytest.raises(HeadNotLoaded):  # the block of the caller counts
        Auto.from_pretrained(saved / "lost")
    with pytest.raises(HeadNotLoaded):
        next(running)


@pytest.mark.parametrize("wrong", [5, [None], b"x", [b"x"], {"classifier": 1}])
def test_allow_takes_names_only(wrong: Any) -> None:
    with pytest.raises(UsageError):
        headscope.strict(allow=wrong)


def test_no_name_allows_nothing(saved: Path) -> None:
    with pytest.raises(HeadNotLoaded), headscope.strict(allow=None):  # type: ignore[arg-type]
        Auto.from_pretrained(saved / "lost")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("text", "check"),
        ("path", "check"),
        ("function", "@headscope.strict()"),
        ("pipeline", "`model`"),
        ("5", "block"),
        ("modules", "from_pretrained returned"),
        ("modules around a model", "model.get_submodule('0.1')"),
        ("class", "from_pretrained returned"),
    ],
)
def test_what_is_not_a_model_is_refused_with_what_to_write(kind: str, hint: str, saved: Path) -> None:
    given = {
        "text": str(saved / "lost"),
        "path": saved / "lost",
        "function": lambda: None,
        "pipeline": SimpleNamespace(model=Auto.from_pretrained(saved / "whole")),
        "5": 5,
        "modules": nn.Sequential(nn.Linear(2, 2)),
        "modules around a model": nn.Sequential(nn.Sequential(nn.Linear(2, 2), Auto.from_pretrained(saved / "whole"))),
        "class": BertForSequenceClassification,
    }[kind]
    with pytest.raises(UsageError) as caught:
        headscope.strict(given)  # type: ignore[arg-type]
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_each_configuration_that_was_given_a_number_of_classes_allows_a_new_head(saved: Path) -> None:
    plain = AutoConfig.from_pretrained(saved / "base")
    with headscope.strict():
        teacher, student = (AutoConfig.from_pretrained(saved / "base", num_labels=count) for count in (3, 2))
        for config in (teacher, student):
            Auto.from_pretrained(saved / "base", config=config)
        for config in (plain, AutoConfig.from_pretrained(saved / "base")):
            with pytest.raises(HeadNotLoaded):
                Auto.from_pretrained(saved / "base", config=config)


def test_a_missing_buffer_is_not_called_random(saved: Path) -> None:
    class Scaled(BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.register_buffer("scale", torch.full((2,), 3.0))
            self.post_init()

        def forward(self, *given: Any, **options: Any) -> Any:
            found = super().forward(*given, **options)
            found.logits = found.logits * self.scale
            return found

    with pytest.raises(HeadNotLoaded, match="scale of Scaled: missing buffers are") as caught, headscope.strict():
        Scaled.from_pretrained(saved / "whole")
    assert caught.value.parameters == ("scale",) and "random" not in caught.value.message
    with pytest.raises(HeadNotLoaded, match="newly initialized at every load; missing buffers are"), headscope.strict():
        Scaled.from_pretrained(saved / "lost")


def test_a_model_in_memory_that_can_not_be_examined_is_warned_of(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of bitsandbytes' 8-bit layers, whose parameters lack what a first call puts there."""
    model = Auto.from_pretrained(saved / "whole")

    def refuse(*_: Any, **__: Any) -> None:
        raise Unsupported("it is packed", "load it whole")

    monkeypatch.setattr("headscope.slices.inspect.run.inspect", refuse)
    with pytest.warns(LoadNotJudged, match="it is packed"):
        headscope.strict(model)
