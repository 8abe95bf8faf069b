"""The policy `async` goes on: a running graph gets the better artifact that takes the place of its
own, through a real cache service."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cache.artifacts import Found, lookup, publish, replace
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.manifest import FINAL_TIER, Manifest
from cache.memory import MemoryStore
from cache.trust import OWN_STORE
from fusec import upgrades
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.errors import LoadError
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options
from fusec.remote.resolve import Resolver
from fusec.session import Session
from fusec.trace import Recorder
from tests.capture.twin import TARGET, eager_compile, eager_load

UNTUNED = 0  # as `Manifest.tier`; what is tuned is final
SERVICE = ServiceConfig(port=0, entry_ttl_s=0.05)  # what is tuned comes past it, to its store


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(upgrades, "FIRST_S", 0.02)
    monkeypatch.setattr(upgrades, "LONGEST_S", 0.05)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dataclass
class Process:
    """A client that cannot tune what it compiles. ``keys``: of the graphs that it compiled;
    ``ran``: calls of executables, by the tier of their artifact; ``fails``: to load what is
    tuned."""

    local: MemoryStore = field(default_factory=MemoryStore)
    recorder: Recorder = field(default_factory=Recorder)
    keys: list[str] = field(default_factory=list)
    ran: Counter[int] = field(default_factory=Counter)
    fails: bool = False

    def compile(self, graph: Any, target: Any, options: Any, store: Any, **named: Any) -> Found:
        data = graph_to_bytes(graph)
        self.keys.append(graph_fingerprint(data, target, options, toolchain()).key("graph"))
        return eager_compile(graph, target, options, store, tier=UNTUNED, **named)

    def load(self, found: Found, *, recorder: Recorder) -> Any:
        tier, inner = found.manifest.tier, eager_load(found, recorder=recorder)
        if self.fails and tier == FINAL_TIER:
            raise LoadError("made for another machine")

        def run(inputs: list[Any]) -> list[Any]:
            self.ran[tier] += 1
            return inner(inputs)

        return run

    def count(self, name: str) -> int:
        return self.recorder.counters.get(name, 0)

    @contextmanager
    def session(self, url: str | None, policy: str = "async") -> Iterator[Session]:
        options = Options(progress=False, policy=policy)
        remote = None if url is None else CacheClient(url, budget=DelayBudget(60.0))
        with closing(
            Resolver(
                self.local,
                remote,
                options,
                self.recorder,
                trust=OWN_STORE,
                compile_local=self.compile,
            )
        ) as resolver:
            yield Session(options, lambda _: TARGET, resolver, self.load, self.recorder)


def untuned(store: MemoryStore, f: Callable[..., Any], *inputs: Any) -> list[str]:
    """Have a store filled with the untuned artifacts of a function; their keys."""
    maker = Process(store)
    with maker.session(None, "wait") as session:
        torch.compile(f, backend=session.backend)(*inputs)
    torch._dynamo.reset()
    return maker.keys


def tune(store: MemoryStore, keys: list[str], of: MemoryStore | None = None) -> None:
    """What the farm does behind its clients. of: has the artifacts that become better."""
    for key in keys:
        found = lookup(of or store, key)
        assert found is not None
        manifest = Manifest.of("graph", found.blobs, b"tuned")
        if of is None:
            assert replace(store, key, manifest, found.blobs, found.version)
        else:
            publish(store, key, manifest, found.blobs)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def asking() -> bool:
    return any(thread.name == "fusec-upgrades" for thread in threading.enumerate())


def f(x: Tensor) -> Tensor:
    return x.sin() * 2


def test_a_running_graph_gets_the_tuned_artifact_and_then_nobody_asks_again() -> None:
    store, x, here, other = MemoryStore(), torch.randn(6), Process(), Process()
    keys = untuned(store, f, x)
    with serve_in_thread(SERVICE, store=store) as service:
        with here.session(service.url) as session:
            compiled = torch.compile(f, backend=session.backend)
            torch.testing.assert_close(compiled(x), f(x))
            until(lambda: here.count("upgrade_polls") > 1)
            torch.testing.assert_close(compiled(x), f(x))
            assert here.ran == {UNTUNED: 2}
            tune(store, keys)
            until(lambda: here.count("upgrades") == 1)
            torch.testing.assert_close(compiled(x), f(x))
            assert here.ran == {UNTUNED: 2, FINAL_TIER: 1}
            until(lambda: not asking())
        assert here.count("local_compiles") == 0
        kept = lookup(here.local, keys[0])
        assert kept is not None
        assert kept.manifest.is_final, "the next start begins with it"

        torch._dynamo.reset()
        with other.session(service.url, "wait") as session:
            torch.compile(f, backend=session.backend)(x)
        assert not asking()
        assert other.count("upgrade_polls") == 0


def test_what_was_compiled_here_gives_way_to_the_farms() -> None:
    """As where the farm was away when the graph was needed."""
    store, x, here = MemoryStore(), torch.randn(6), Process()
    with (
        serve_in_thread(SERVICE, store=store) as service,
        here.session(service.url) as session,
    ):
        compiled = torch.compile(f, backend=session.backend)
        compiled(x)
        until(lambda: here.count("swaps") == 1)
        tune(store, here.keys, of=here.local)
        until(lambda: here.count("upgrades") == 1)
        torch.testing.assert_close(compiled(x), f(x))
    assert here.ran[FINAL_TIER] == 1


def test_a_backward_is_of_its_forwards_artifact() -> None:
    """Better artifacts come between a forward and its backward, and that is the untuned one's."""
    torch.manual_seed(0)
    model, twin, x = nn.Linear(4, 3), nn.Linear(4, 3), torch.randn(5, 4)
    twin.load_state_dict(model.state_dict())
    store, here = MemoryStore(), Process()
    keys = untuned(store, model, x)
    assert len(keys) == 2

    def check() -> None:
        twin(x).square().sum().backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)

    with (
        serve_in_thread(SERVICE, store=store) as service,
        here.session(service.url) as session,
    ):
        compiled = torch.compile(model, backend=session.backend)
        loss = compiled(x).square().sum()
        tune(store, keys[:1])
        until(lambda: here.count("upgrades") == 1)
        tune(store, keys[1:])
        until(lambda: here.count("upgrades") == 2)
        loss.backward(retain_graph=True)
        assert here.ran == {UNTUNED: 2}
        check()
        loss.backward()
        assert here.ran == {UNTUNED: 3}, "however often, and however late"
        check()
        compiled(x).square().sum().backward()
        assert here.ran == {UNTUNED: 3, FINAL_TIER: 2}
        check()


def test_an_artifact_that_does_not_load_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    store, x, here = MemoryStore(), torch.randn(6), Process(fails=True)
    keys = untuned(store, f, x)
    with (
        serve_in_thread(SERVICE, store=store) as service,
        here.session(service.url) as session,
    ):
        compiled = torch.compile(f, backend=session.backend)
        compiled(x)
        tune(store, keys)
        until(lambda: not asking())
        torch.testing.assert_close(compiled(x), f(x))
    assert here.ran == {UNTUNED: 2}
    assert here.count("upgrades") == 0
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "keeps the artifact that it has: LoadError: made for another machine" in told


def test_it_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "GIVE_UP_S", 0.1)
    store, x, here = MemoryStore(), torch.randn(6), Process()
    untuned(store, f, x)
    with (
        serve_in_thread(SERVICE, store=store) as service,
        here.session(service.url) as session,
    ):
        torch.compile(f, backend=session.backend)(x)
        until(lambda: not asking())
    assert here.count("upgrades") == 0
