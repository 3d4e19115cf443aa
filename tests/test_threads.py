"""Inspections in threads, beside others that train, load and ask the Hub: each gets what it gets alone."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headscope
from headscope.core.facts.plain import to_dict
from tests.families import FAMILIES

THREADS = 8
NAMES = ("bert", "gpt2", "roberta", "xlnet", "llama", "t5", "vit", "distilbert")


def trainer(steps: int | None, stop: threading.Event) -> list[float]:
    """The losses of a small training with dropout, until `stop` or for `steps`."""
    generator = torch.Generator().manual_seed(1)
    model = FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, labels = torch.randint(3, 40, (4, 7), generator=generator), torch.tensor([0, 1, 2, 0])
    losses: list[float] = []
    torch.manual_seed(5)
    while not stop.is_set() and (steps is None or len(losses) < steps):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@contextmanager
def training() -> Iterator[list[float]]:
    """A training loop in another thread; its losses are there at the end."""
    stop, losses = threading.Event(), list[float]()
    thread = threading.Thread(target=lambda: losses.extend(trainer(None, stop)))
    thread.start()
    try:
        yield losses
    finally:
        stop.set()
        thread.join()


def build(name: str) -> nn.Module:
    family = FAMILIES[name]
    return family.build(family.classifier, num_labels=3)


def facts(model: Any, **options: Any) -> dict[str, Any]:
    return to_dict(headscope.inspect(model, prove=True, **options))


def test_inspections_beside_a_training_loop_equal_the_lone_ones() -> None:
    models = [build(name) for name in NAMES]
    alone = [facts(model) for model in models]
    with training() as losses, ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(facts, models * 2))
    assert found == alone * 2
    assert losses
    assert losses == trainer(len(losses), threading.Event()), "the training drew other random values"


def test_checkpoints_of_half_precision_leave_the_default_dtype(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").to(torch.bfloat16).save_pretrained(tmp_path)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda _: headscope.inspect(tmp_path, prove=True), range(3 * THREADS)))
    assert torch.get_default_dtype() is torch.float32
    assert found == [found[0]] * len(found)


def test_one_model_inspected_by_all_threads_equals_the_lone_inspection() -> None:
    model = build("gpt2").train()
    alone = facts(model)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(facts, [model] * THREADS))
    assert found == [alone] * THREADS
    assert all(part.training for part in model.modules())


def test_checkpoints_inspected_in_threads_equal_the_lone_inspections() -> None:
    names = ["gpt2", "roberta-base"] * 4

    def inspect(name: str) -> dict[str, Any]:
        return to_dict(headscope.inspect(name, offline=True, num_labels=3))

    def of_torch() -> tuple[Any, ...]:
        return torch.get_default_dtype(), torch.linspace, nn.init.normal_, torch.autocast, torch.is_autocast_enabled

    kept = of_torch()
    alone = {name: inspect(name) for name in set(names)}
    with training(), ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(inspect, names))
    assert found == [alone[name] for name in names]
    assert of_torch() == kept


class Meeting(nn.Module):
    """In its forward it waits until another thread has done what it is asked to do."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, device="meta")
        self.meanwhile = meanwhile

    def forward(self, x: Tensor) -> Tensor:
        thread = threading.Thread(target=self.meanwhile)
        thread.start()
        thread.join()
        with torch.autocast("meta", dtype=torch.bfloat16):
            return self.fc(x) if not torch.is_autocast_enabled("meta") else x


def run(meanwhile: Callable[[], Any]) -> tuple[Any, Any]:
    found: list[Any] = []  # not in the module, whose lists are put back after the run
    model = Meeting(lambda: found.append(meanwhile()))
    report = headscope.inspect(model, example_inputs={"x": torch.empty(2, 4, device="meta")})
    return report, found[0]


def test_autocast_on_meta_is_off_for_one_thread_and_refused_in_others() -> None:
    def refused() -> list[type]:
        found = []
        for ask in (lambda: torch.autocast("meta"), lambda: torch.is_autocast_enabled("meta")):
            with pytest.raises(RuntimeError) as caught:
                ask()
            found.append(caught.type)
        return found

    real = torch.autocast
    assert run(refused)[1] == [RuntimeError, RuntimeError]
    assert run(lambda: torch.autocast)[1] is real

    def works() -> tuple[bool, torch.dtype]:
        with torch.autocast("cpu", dtype=torch.bfloat16) as entered:
            return isinstance(entered, real), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert run(works)[1] == (True, torch.bfloat16)


class Slow(nn.Module):
    """In another thread than `own` it says when it has begun, and waits to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.begun, self.go = threading.get_ident(), threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        if threading.get_ident() != self.own:
            self.begun.set()
            self.go.wait(20)
        return x


class Shared(nn.Module):
    """Another thread is in one of its modules while its own thread computes the head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.slow, self.fc = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Slow(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        thread = threading.Thread(target=lambda: self.slow(x))
        thread.start()
        assert self.slow.begun.wait(20)
        scores = self.fc(torch.relu(hidden[:, 0]))
        self.slow.go.set()
        thread.join()
        return scores


def test_another_thread_in_the_same_modules_is_not_recorded() -> None:
    report = headscope.inspect(Shared(), example_inputs={"x": torch.randn(2, 6, 4)})
    assert [stage.operation for stage in report.head.stages] == ["select", "relu", "linear"]
    assert [stage.module for stage in report.head.stages] == ["", "", "fc"]
