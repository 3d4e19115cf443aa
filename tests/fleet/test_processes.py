"""A worker answers calls: with results, with errors as they were raised, and with the way in which it ended."""

import os
import sys
import time

import pytest
from tables import workers_below

from headscope.errors import Unsupported, UsageError, WithoutConfig
from headscope.fleet.processes import Worker, WorkerEnded


def test_calls_are_answered_in_one_process() -> None:
    with Worker() as worker:
        assert worker.call(abs, -3) == 3
        process = worker.call(os.getpid)
        assert process == worker.call(os.getpid) != os.getpid()
        with pytest.raises(ZeroDivisionError, match="by zero"):
            worker.call(divmod, 1, 0)
        assert worker.call(os.getpid) == process


@pytest.mark.parametrize(
    "error",
    [UsageError("wrong", "do it right"), WithoutConfig("none", "add one", (1, 2)), Unsupported("odd", contents=[3])],
)
def test_an_error_arrives_with_all_its_fields(error: Exception) -> None:
    with Worker() as worker, pytest.raises(type(error)) as caught:
        worker.call(raising, error)
    assert type(caught.value) is type(error)
    assert vars(caught.value) == vars(error)
    assert str(caught.value) == str(error)


def test_a_result_that_cannot_be_sent_is_an_error_and_the_worker_goes_on() -> None:
    with Worker() as worker:
        with pytest.raises(Exception, match="pickle"):
            worker.call(open, os.devnull)
        assert worker.call(abs, -1) == 1


@pytest.mark.parametrize(("arguments", "code"), [((os._exit, 7), 7), ((os.abort,), -6)])
def test_how_it_ended_is_known(arguments: tuple[object, ...], code: int) -> None:
    with Worker() as worker:
        with pytest.raises(WorkerEnded) as caught:
            worker.call(*arguments)  # type: ignore[arg-type]
        assert caught.value.code == code
        assert worker.is_over


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are read from /proc")
def test_a_call_that_takes_too_long_ends_the_process() -> None:
    with Worker() as worker:
        assert worker.call(abs, -1, seconds=60) == 1
        assert workers_below(os.getpid()) == 1
        with pytest.raises(TimeoutError):
            worker.call(time.sleep, 600, seconds=0.5)
        assert worker.is_over
        assert workers_below(os.getpid()) == 0


def test_nothing_that_a_call_prints_or_reads_is_an_answer() -> None:
    with Worker() as worker:
        assert worker.call(os.write, 1, b"not an answer") == 13
        assert worker.call(os.read, 0, 10) == b""
        assert worker.call(abs, -1) == 1


def raising(error: Exception) -> None:
    raise error
