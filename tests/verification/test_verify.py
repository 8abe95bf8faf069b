"""Artifacts verified in a child process: right ones pass, wrong ones do not, whatever they do."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from cache.artifacts import Found
from cache.manifest import Manifest
from fusec.artifact.quality import Outcome, Verification, quality_of, verified
from fusec.ir.text import parse_graph
from fusec.ir.wire import graph_to_bytes
from fusec.trace import Recorder
from fusec.verification import worker
from fusec.verification.check import Check
from fusec.verification.inputs import random_inputs
from fusec.verification.memory import needed_bytes
from fusec.verification.verify import Limits, verify
from tests.verification.graphs import EMBEDDED, SOFTMAX, compiled

LIMITS = Limits(seconds=150.0, threads=1)


def outcome(text: str, other: str = "", limits: Limits = LIMITS) -> Verification:
    """What verifying a graph comes to, with the artifact of another one where that is given."""
    graph, found = compiled(text)
    if other:
        _, found = compiled(other)
    return verify(graph_to_bytes(graph), found, limits=limits, recorder=Recorder())


@pytest.mark.parametrize("text", [SOFTMAX, EMBEDDED], ids=["softmax", "embedding"])
def test_a_right_artifact_passes(text: str) -> None:
    found = outcome(text)
    assert found.outcome is Outcome.PASSED, found
    assert found.device == "cpu"
    assert found.compared in (6400, 7 * 3 * 32)
    assert 0.0 <= found.error < 1e-5
    assert found.bound


def test_a_wrong_artifact_fails() -> None:
    wrong = SOFTMAX.replace("mul.Tensor", "add.Tensor")
    found = outcome(SOFTMAX, wrong)
    assert found.outcome is Outcome.FAILED
    assert "values differ" in found.why


def test_a_small_fault_in_one_place_fails() -> None:
    """As a kernel that is wrong at its last elements: 0.001 of the value off, at one of 6400."""
    right = """\
%0 = input "x": f32[6400]
%1 = call aten.exp.default(%0): f32[6400]
return %1
"""
    wrong = """\
%0 = input "x": f32[6400]
%1 = call aten.exp.default(%0): f32[6400]
%2 = call aten.slice.Tensor(%1, 0, 6399, 6400): f32[1]
%3 = call aten.mul.Tensor(%2, 1.001): f32[1]
%4 = call aten.slice_scatter.default(%1, %3, 0, 6399, 6400): f32[6400]
return %4
"""
    found = outcome(right, wrong)
    assert found.outcome is Outcome.FAILED
    assert "1 of 6400 values differ, first at (6399,)" in found.why


def test_an_artifact_of_another_form_fails() -> None:
    other = '%0 = input "x": f32[64, 100]\n%1 = call aten.sum.dim_IntList(%0, [1]): f32[64]\n'
    assert outcome(SOFTMAX, other + "return %1\n").outcome is Outcome.FAILED


def test_an_artifact_that_does_not_load_fails() -> None:
    graph, found = compiled(SOFTMAX)
    blobs = {name: data for name, data in found.blobs.items() if not name.startswith("kernel/")}
    broken = Found(Manifest.of("graph", blobs, found.manifest.meta), blobs)
    verdict = verify(graph_to_bytes(graph), broken, limits=LIMITS, recorder=Recorder())
    assert verdict.outcome is Outcome.FAILED
    assert "lacks kernel" in verdict.why


def test_an_artifact_that_ends_its_process_fails() -> None:
    """A kernel that writes where it may not."""
    from fusec.codegen.c_toolchain import compile_shared
    from fusec.codegen.isa import host_target
    from fusec.codegen.kernel_source import KernelSource
    from fusec.codegen.runner import RUNNER_NAME, runner_source

    assert isinstance(runner_source(host_target().isa), KernelSource)
    text = f"long {RUNNER_NAME}() {{ *(volatile int *)0 = 1; return 0; }}\n"
    graph, found = compiled(SOFTMAX)
    blobs = {**found.blobs, "runner": compile_shared(text, host_target().isa, 60)}
    deadly = Found(Manifest.of("graph", blobs, found.manifest.meta), blobs)
    verdict = verify(graph_to_bytes(graph), deadly, limits=LIMITS, recorder=Recorder())
    assert verdict.outcome is Outcome.FAILED
    assert "SIGSEGV" in verdict.why
    assert os.getpid()  # this process is well


def test_what_eager_refuses_is_inconclusive() -> None:
    unknown = SOFTMAX.replace("aten.mul.Tensor(%1, %0)", "nobody.has_this.default(%1, %0)")
    _, found = compiled(SOFTMAX)
    verdict = verify(
        graph_to_bytes(parse_graph(unknown)), found, limits=LIMITS, recorder=Recorder()
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "nobody.has_this" in verdict.why


def test_a_large_graph_is_left_out_and_says_so() -> None:
    found = outcome(SOFTMAX, limits=Limits(memory=10_000, seconds=150.0, threads=1))
    assert found.outcome is Outcome.SKIPPED
    assert "the limit is" in found.why


def test_what_is_too_large_in_float64_is_compared_with_eager_alone() -> None:
    graph, found = compiled(SOFTMAX)
    memory = (needed_bytes(graph) + needed_bytes(graph, exact=False)) // 2
    limits = Limits(memory=memory, seconds=150.0, threads=1)
    verdict = verify(graph_to_bytes(graph), found, limits=limits, recorder=Recorder())
    assert verdict.outcome is Outcome.PASSED, verdict
    assert "no float64 reference: it takes" in verdict.bound
    _, wrong = compiled(SOFTMAX.replace("mul.Tensor", "add.Tensor"))
    verdict = verify(graph_to_bytes(graph), wrong, limits=limits, recorder=Recorder())
    assert verdict.outcome is Outcome.FAILED


def test_an_artifact_that_finds_no_memory_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Check) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Check, "run_artifact", full)
    graph, found = compiled(SOFTMAX)
    steps = worker.Worker()
    steps.open(
        {
            "graph": graph_to_bytes(graph),
            "manifest": found.manifest.encode(),
            "blobs": dict(found.blobs),
            "seed": 1,
            "memory": 1 << 30,
            "threads": torch.get_num_threads(),
        }
    )
    steps.eager(False, False)
    assert steps.artifact()["memory"] is True


def test_its_stages_are_told() -> None:
    graph, found = compiled(SOFTMAX)
    recorder = Recorder()
    verify(graph_to_bytes(graph), found, limits=LIMITS, recorder=recorder)
    stages = ("verify_child", "verify_eager", "verify_artifact", "verify_compare")
    assert set(recorder.stages) == set(stages)


def test_values_are_drawn_once_for_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward graph has hundreds of large inputs: a draw for each took a minute of a GPU."""
    lines = [f'%{n} = input "x{n}": f32[2048, 2048]\n' for n in range(12)]
    graph = parse_graph("".join([*lines, "return %0\n"]))
    drawn: list[int] = []
    randn = torch.randn

    def counted(size: int, **how: Any) -> torch.Tensor:
        drawn.append(size)
        return randn(size, **how)

    monkeypatch.setattr(torch, "randn", counted)
    inputs = random_inputs(graph, 77, torch.device("cpu"))
    assert sum(drawn) < 1 << 22
    again = random_inputs(graph, 77, torch.device("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(inputs, again, strict=True))
    assert not any(torch.equal(inputs[0], other) for other in inputs[1:])
    assert abs(float(inputs[5].std()) * 32 - 1) < 0.01


def test_the_record_is_part_of_the_manifest() -> None:
    _, found = compiled(SOFTMAX)
    record = Verification(Outcome.PASSED, "cpu", 7, 100, 1e-7, 2e-7, "twice", "")
    manifest = verified(found.manifest, record)
    assert quality_of(manifest.meta).verification == record
    assert manifest.blobs == found.manifest.blobs
    assert "1.0e-07" in record.text()
