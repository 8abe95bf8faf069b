"""A farm on a machine with a GPU: verified there, tuned there, replaced."""

from __future__ import annotations

import time

import pytest

from cache.artifacts import lookup
from farm.config import FarmConfig
from farm.devices import detected
from farm.embedded import embedded_farm
from farm.quality import lent_timer
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.artifact.quality import Outcome, Tier, quality_of
from fusec.ir.text import parse_graph
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState
from tests.farm.clients import NewClient
from tests.farm.tiny_stages import TinyStages
from tests.lower.on_cpu import cuda_graph

pytestmark = [
    pytest.mark.skipif(not detected(), reason="needs a GPU"),
    pytest.mark.timeout(600),
]


def _small(rows: int) -> str:
    return (
        f'%0 = input "x": f32[{rows}, 4096]\n'
        f"%1 = call aten.exp.default(%0): f32[{rows}, 4096]\n"
        f"%2 = call aten.sum.dim_IntList(%1, [1]): f32[{rows}]\n"
        "return %2\n"
    )


def _as_a_backward(inputs: int) -> str:
    """A graph with as many and as large inputs as the backward of a model has."""
    kind = "bf16[2048, 2048]"
    lines = [f'%{n} = input "x{n}": {kind}' for n in range(inputs)]
    for n in range(inputs - 1):
        before = 0 if n == 0 else inputs + n - 1
        lines.append(f"%{inputs + n} = call aten.add.Tensor(%{before}, %{n + 1}): {kind}")
    return "\n".join([*lines, f"return %{2 * inputs - 2}\n"])


def _job(text: str) -> FarmJob:
    graph = cuda_graph(parse_graph(text))
    target = Target("cuda", next(iter(detected())).split(":")[1])
    data = graph_to_bytes(graph)
    name = graph_fingerprint(data, target, Options(), toolchain())
    return FarmJob(name.hex, name.entries, data, target, Options(), "w")


def test_a_graph_is_verified_and_tuned_on_the_gpu(client: NewClient) -> None:
    job = _job(_small(4096))
    with embedded_farm(pool="memory", farm=FarmConfig(pool="memory", verify_s=300.0)) as farm:
        here = client(farm.url, TinyStages("unused").compile_local, budget_s=60.0)
        assert here.remote is not None
        end = FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=500.0)
        assert end.state is JobState.DONE
        deadline = time.monotonic() + 400.0
        while True:
            found = lookup(farm.store, f"graph/{job.fingerprint}")
            assert found is not None
            quality = quality_of(found.manifest.meta)
            assert quality.verification is not None
            assert quality.verification.outcome is Outcome.PASSED, quality.verification
            assert quality.verification.device in detected()
            if quality.tier is Tier.TUNED:
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert quality.device in detected()
    assert quality.tuned >= 1


def test_a_graph_with_the_inputs_of_a_backward_is_verified_in_time(client: NewClient) -> None:
    """Drawing each of them took longer than a verification may."""
    job = _job(_as_a_backward(200))
    with embedded_farm(pool="memory", farm=FarmConfig(pool="memory", tune=False)) as farm:
        here = client(farm.url, TinyStages("unused").compile_local, budget_s=60.0)
        assert here.remote is not None
        end = FarmClient(here.remote, outage_s=60.0).wait(job, timeout_s=500.0)
        assert end.state is JobState.DONE
        found = lookup(farm.store, f"graph/{job.fingerprint}")
    assert found is not None
    record = quality_of(found.manifest.meta).verification
    assert record is not None
    assert record.outcome is Outcome.PASSED, record


def test_the_process_that_times_is_kept_from_lease_to_lease() -> None:
    ordinal = next(iter(detected().values()))[0]
    with lent_timer(ordinal) as timer:
        opened = timer.open()
        child = timer._child
    with lent_timer(ordinal) as timer:
        assert timer.open() == opened
        assert timer._child is child
