"""The session: faults end in eager and are told once; what does not fit is passed over."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusec.api as api
from cache.artifacts import Found, lookup, publish
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.store import Store
from fusec.capture.recipe import Recipe
from fusec.errors import CompileError, FusecError, LoadError, PolicyError, WireError
from fusec.ir.graph import Graph
from fusec.options import Options, Target
from fusec.remote.jobs import FrontRecord
from fusec.remote.resolve import Resolver
from fusec.session import Session
from fusec.trace import Recorder
from tests.capture.twin import TARGET, Twin, eager_compile, eager_load


def f(x: Tensor) -> Tensor:
    return x.sin() * 2


def g(x: Tensor) -> Tensor:
    return x.cos() * 3


def unsupported(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


X = torch.arange(6.0)


def session(compile_local: Any = eager_compile, load: Any = eager_load, **options: Any) -> Session:
    recorder = Recorder()
    chosen = Options(progress=False, **options)
    resolver = Resolver(MemoryStore(), None, chosen, recorder, compile_local=compile_local)
    return Session(chosen, lambda _: TARGET, resolver, load, recorder)


def run(one: Session, fn: Any, *args: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend=one.backend)(*args)


def test_what_cannot_be_captured_runs_eager(caplog: pytest.LogCaptureFixture) -> None:
    one = session()
    with torch.no_grad():
        torch.testing.assert_close(run(one, unsupported, X), unsupported(X))
        torch.testing.assert_close(run(one, unsupported, X[1:]), unsupported(X[1:]))
    assert one.recorder.counters["fallbacks_to_eager"] == 2
    told = [r for r in caplog.records if r.name == "fusec" and r.levelno == logging.WARNING]
    assert len(told) == 1
    assert "runs eager" in told[0].getMessage()
    assert "sub-graph" in told[0].getMessage()


@pytest.mark.parametrize(
    "error", [CompileError("no compiler"), KeyError("a fault of ours"), OSError("no space")]
)
def test_a_compile_that_fails_runs_eager(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(
        graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
    ) -> Found:
        raise error

    one = session(failing)
    x = X.clone().requires_grad_()
    y = run(one, f, x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.cos())
    assert one.recorder.counters["fallbacks_to_eager"] == 1
    assert sum(r.name == "fusec" and r.levelno == logging.WARNING for r in caplog.records) == 1


@pytest.mark.parametrize("place", ["fusec.session.front_key", "fusec.session.restore"])
def test_a_fault_around_the_front_key_is_passed_over(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = Twin()
    torch.compile(f, backend=cold)(X)
    torch._dynamo.reset()

    def faulty(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("a fault of ours")

    monkeypatch.setattr(place, faulty)
    warm = Twin(cold.store)
    torch.testing.assert_close(torch.compile(f, backend=warm)(X), f(X))
    assert warm.count("fallbacks_to_eager") == 0
    assert warm.count("local_compiles") == 0


def test_a_fault_in_the_export_runs_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("fusec.capture.aot.export", faulty)
    one = session()
    torch.testing.assert_close(run(one, f, X), f(X))
    assert one.recorder.counters["fallbacks_to_eager"] == 1


def test_different_causes_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[FusecError] = [CompileError("first"), CompileError("second")]

    def failing(*args: Any, **kwargs: Any) -> Found:
        raise errors.pop(0)

    one = session(failing)
    run(one, f, X)
    run(one, g, X)
    told = [r.getMessage() for r in caplog.records if r.name == "fusec"]
    assert len(told) == 2


def test_an_artifact_that_does_not_load_is_compiled_again() -> None:
    refused: list[Found] = []

    def load(found: Found, *, recorder: Recorder) -> Any:
        if not refused:
            refused.append(found)
            raise LoadError("made for another machine")
        return eager_load(found, recorder=recorder)

    one = session(load=load)
    torch.testing.assert_close(run(one, f, X), f(X))
    assert "fallbacks_to_eager" not in one.recorder.counters
    assert one.recorder.counters["local_compiles"] == 2


def test_the_policy_require_fails_loudly() -> None:
    one = session(policy="require")
    with pytest.raises(Exception, match="require") as caught:
        run(one, f, X)
    assert isinstance(caught.value.__cause__ or caught.value, (PolicyError, Exception))
    assert "fallbacks_to_eager" not in one.recorder.counters


def test_front_keys_can_be_switched_off() -> None:
    twin = Twin(front_key=False)
    torch.compile(f, backend=twin)(X)
    assert not {"front_hits", "front_misses", "front_ineligible"} & set(twin.recorder.counters)


def test_a_damaged_recipe_is_passed_over() -> None:
    twin = Twin()
    torch.compile(f, backend=twin)(X)
    (record,) = twin.records
    for damaged in (b"", record.recipe[:-1], record.recipe.replace(b"inputs", b"outputs")):
        other = FrontRecord(record.entries, record.parts, damaged)
        store = MemoryStore()
        for part in record.part_keys().values():
            kept = lookup(twin.store, part)
            assert kept is not None
            publish(store, part, kept.manifest, kept.blobs)
        publish(store, record.key, Manifest("front", (), other.encode()), {})
        torch._dynamo.reset()
        warm = Twin(store)
        torch.testing.assert_close(torch.compile(f, backend=warm)(X), f(X))
        assert warm.count("corrupt") == 1
        assert warm.count("graph_hits") >= 1
        assert warm.count("fallbacks_to_eager") == 0


def test_recipes_survive_their_bytes() -> None:
    twin = Twin()
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    torch.compile(model, backend=twin, dynamic=True)(torch.ones(2, 2, 8, 8))
    assert twin.records
    for record in twin.records:
        data = record.recipe
        recipe = Recipe.from_bytes(data)
        assert recipe.to_bytes() == data
        assert recipe.training
        for cut in range(0, len(data), 7):
            with pytest.raises(WireError):
                Recipe.from_bytes(data[:cut])


def test_numbers_that_change_are_traced_again() -> None:
    """A float argument becomes a tensor: Dynamo restarts the analysis, and the backend lets it."""

    def scaled(x: Tensor, scale: float) -> Tensor:
        return x * scale

    twin = Twin()
    compiled = torch.compile(scaled, backend=twin)
    for scale in (2.0, 3.5, 7.25):
        torch.testing.assert_close(compiled(X, scale), X * scale)
    assert twin.count("fallbacks_to_eager") == 0


def test_forward_and_backward_are_under_way_together() -> None:
    """Both graphs are submitted before either result is asked for."""
    events: list[str] = []
    twin = Twin()
    resolver = twin.session._resolver
    submit = resolver.submit

    class Watched:
        def __init__(self, ticket: Any, label: str) -> None:
            self.ticket, self.label = ticket, label

        def result(self) -> Found:
            events.append(f"result {self.label}")
            return self.ticket.result()  # type: ignore[no-any-return]

        def cancel(self) -> None:
            self.ticket.cancel()

    def watched(job: Any) -> Any:
        events.append(f"submit {job.label}")
        return Watched(submit(job), job.label)

    resolver.submit = watched  # type: ignore[method-assign]
    torch.compile(f, backend=twin)(X.clone().requires_grad_()).sum().backward()
    assert sorted(events[:2]) == ["submit backward", "submit forward"]
    assert sorted(events[2:]) == ["result backward", "result forward"]


def test_the_string_backend(tmp_path: Path) -> None:
    """The real compiler, found by name; options and mode as torch.compile takes them."""
    api.reset()
    options = {"cache_dir": str(tmp_path), "progress": False}
    torch.testing.assert_close(torch.compile(f, backend="fusec", options=options)(X), f(X))
    counts = api.snapshot().counters
    assert counts["local_compiles"] == 1
    assert counts.get("fallbacks_to_eager", 0) == 0
    torch._dynamo.reset()
    api.reset()
    torch.testing.assert_close(torch.compile(f, backend="fusec", options=options)(X), f(X))
    counts = api.snapshot().counters
    assert (counts.get("front_hits"), counts.get("kernel_compiles", 0)) == (1, 0), counts
    api.reset()


def test_options_that_make_no_sense_are_told() -> None:
    with pytest.raises(Exception, match="no option 'colour'"):
        torch.compile(f, backend="fusec", options={"colour": "red"})(X)
    with pytest.raises(Exception, match=r"mode 'fast' is unknown"):
        torch.compile(f, backend="fusec", mode="fast")(X)
    with pytest.raises(Exception, match="mode is given twice"):
        api.backend(torch.fx.symbolic_trace(f), [X], mode="default", options={"mode": "x"})
