"""The policy `async`: eager at once, compiled from the call after the artifact is there."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cache.artifacts import Found
from cache.memory import MemoryStore
from fusec.errors import CompileError
from fusec.options import Options
from fusec.remote.resolve import Resolver
from fusec.session import Session
from fusec.swap import Swap
from fusec.trace import Recorder
from tests.capture.twin import TARGET, eager_compile, eager_load


class Held:
    """A compiler that waits until it is let go, and counts the runs of what it compiled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.error = error
        self.calls = 0

    def compile(self, *arguments: Any, **more: Any) -> Found:
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return eager_compile(*arguments, **more)

    def load(self, found: Found, *, recorder: Recorder) -> Any:
        inner = eager_load(found, recorder=recorder)

        def run(inputs: list[Any]) -> list[Any]:
            self.calls += 1
            return inner(inputs)

        return run


def session(held: Held, store: MemoryStore | None = None) -> Session:
    recorder, options = Recorder(), Options(progress=False, policy="async")
    local = store if store is not None else MemoryStore()
    resolver = Resolver(local, None, options, recorder, compile_local=held.compile)
    return Session(options, lambda _: TARGET, resolver, held.load, recorder)


def settle(recorder: Recorder, counter: str) -> None:
    for thread in threading.enumerate():
        if thread.name == "fusec-swap":
            thread.join(30)
    assert recorder.counters[counter] == 1


def f(x: Tensor) -> Tensor:
    return x.sin() * 2


def test_eager_now_and_compiled_once_it_is_there() -> None:
    held, x = Held(), torch.randn(6)
    one = session(held)
    compiled = torch.compile(f, backend=one.backend)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
    assert held.calls == 0
    held.go.set()
    settle(one.recorder, "swaps")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
    assert held.calls == 2


def test_a_training_step_is_wholly_the_one_or_the_other() -> None:
    """The swap comes between a forward and its backward: that backward stays eager."""
    held = Held()
    torch.manual_seed(0)
    model, twin = nn.Linear(4, 3), nn.Linear(4, 3)
    twin.load_state_dict(model.state_dict())
    one = session(held)
    compiled = torch.compile(model, backend=one.backend)
    for step in range(4):
        x = torch.randn(5, 4)
        loss = compiled(x).square().sum()
        if step == 1:
            held.go.set()
            settle(one.recorder, "swaps")
            assert held.calls == 0
        loss.backward()
        if step == 1:
            assert held.calls == 0, "the backward of an eager forward"
        twin(x).square().sum().backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
        with torch.no_grad():
            for parameter in (*model.parameters(), *twin.parameters()):
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    assert held.calls == 4, "two steps, each a forward and a backward"


def test_a_compile_that_fails_stays_eager_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held, x = Held(CompileError("no compiler")), torch.randn(6)
    one = session(held)
    compiled = torch.compile(f, backend=one.backend)
    torch.testing.assert_close(compiled(x), f(x))
    held.go.set()
    settle(one.recorder, "fallbacks_to_eager")
    torch.testing.assert_close(compiled(x), f(x))
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert "swaps" not in one.recorder.counters


def test_what_is_there_already_is_used_from_the_first_call() -> None:
    held, store, x = Held(), MemoryStore(), torch.randn(6)
    held.go.set()
    one = session(held, store)
    torch.compile(f, backend=one.backend)(x)
    settle(one.recorder, "swaps")
    torch._dynamo.reset()
    calls = held.calls
    two = session(held, store)
    torch.testing.assert_close(torch.compile(f, backend=two.backend)(x), f(x))
    assert held.calls == calls + 1
    assert two.recorder.counters["front_hits"] == 1, "published when its graphs were there"


def test_a_fault_of_ours_stays_eager() -> None:
    failures: list[Exception] = []

    def work() -> Any:
        raise ZeroDivisionError

    swap = Swap(lambda x: x)
    swap.prepare(work, ready=lambda: None, failed=failures.append).join(10)
    assert swap(3) == 3
    assert len(failures) == 1
