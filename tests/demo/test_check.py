"""The demo's judgement: each broken promise is found, and a sound run passes."""

import dataclasses

import pytest
import torch

from fusec.demo.check import different_bits, errors, violations
from fusec.demo.results import Result, Times, read, write

COLD = {"farm_compiles": 3, "front_misses": 1, "graph_misses": 3, "graphs": 3}
WARM = {"front_hits": 2, "graphs": 3}


def result(counters, noise=0.0, dtype=torch.float32, **changes):
    generator = torch.Generator().manual_seed(1)
    exact = {
        "loss 1": torch.rand((), generator=generator, dtype=torch.float64),
        "output": torch.randn(64, 100, generator=generator, dtype=torch.float64),
        "gradient of a": torch.randn(1000, generator=generator, dtype=torch.float64),
        # Zero but for rounding.
        "gradient of b": torch.zeros(10, dtype=torch.float64),
    }
    noisy = {
        name: (x + noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)).to(dtype)
        for name, x in exact.items()
    }
    return Result(Times([1.0], [1.0]), {}, dict(counters), noisy | changes)


@pytest.fixture
def runs():
    return {
        "cold": result(COLD, 3e-7),
        "warm": result(WARM, 3e-7),
        "eager": result({}, 2e-7),
        "reference": result({}, dtype=torch.float64),
    }


def test_a_sound_run_passes(runs):
    assert violations(**runs) == []


@pytest.mark.parametrize("counter", ["lowerings", "kernel_compiles", "farm_compiles", "corrupt"])
def test_work_in_the_warm_process_is_found(runs, counter):
    runs["warm"].counters[counter] = 1
    assert [v for v in violations(**runs) if f"{counter} 1" in v]


def test_a_warm_process_without_hits_is_found(runs):
    runs["warm"].counters.clear()
    assert violations(**runs) == ["the warm process loaded nothing from the cache"]


def test_a_cold_process_that_compiled_by_itself_is_found(runs):
    runs["cold"].counters.update(farm_compiles=0, local_compiles=3)
    assert len(violations(**runs)) == 2


def test_one_flipped_bit_is_found(runs):
    output = runs["warm"].tensors["output"].clone()
    output.view(torch.int32)[3, 4] ^= 1
    runs["warm"].tensors["output"] = output
    assert violations(**runs) == ["cold and warm differ in 1 tensors, first in 'output'"]


def test_bits_are_compared_not_values():
    a, b = result({}), result({})
    a.tensors["loss 1"], b.tensors["loss 1"] = torch.tensor(0.0), torch.tensor(-0.0)
    assert different_bits(a, b) == ["loss 1"]
    a.tensors["loss 1"] = b.tensors["loss 1"] = torch.tensor(float("nan"))
    assert different_bits(a, b) == []


@pytest.mark.parametrize("wrong", [1e-3, float("nan"), float("inf")])
def test_one_wrong_element_is_over_the_bound(runs, wrong):
    for name in ("cold", "warm"):
        runs[name].tensors["output"][5, 5] += wrong
    found = violations(**runs)
    assert len(found) == 1
    assert found[0].startswith("output: error")


def test_the_bound_is_twice_eagers_error(runs):
    worse = dataclasses.replace(runs["cold"], tensors=result(COLD, 9e-6).tensors)
    assert not errors(worse, runs["eager"], runs["reference"])[0].within
    eager = result({}, 6e-6)
    assert all(e.within for e in errors(worse, eager, runs["reference"]))


def test_a_float32_loss_of_a_bfloat16_model_is_rounded_as_bfloat16():
    reference = result({}, dtype=torch.float64)
    eager = result({}, dtype=torch.bfloat16)
    exact = reference.tensors["loss 1"].float()
    eager.tensors["loss 1"] = exact
    fusec = result({}, dtype=torch.bfloat16)
    fusec.tensors["loss 1"] = exact * (1 + 2**-9)
    assert all(e.within for e in errors(fusec, eager, reference))
    fusec.tensors["loss 1"] = exact * (1 + 2**-7)
    assert [e.name for e in errors(fusec, eager, reference) if not e.within] == ["loss 1"]


def test_a_running_mean_is_rounded_against_the_spread():
    spread = {"buffer n.running_var": torch.ones(8, dtype=torch.float64)}
    exact = torch.full((8,), 1e-2, dtype=torch.float64)
    reference = result({}, **spread, **{"buffer n.running_mean": exact})
    eager = result({}, **spread, **{"buffer n.running_mean": exact.float()})
    fusec = result({}, **spread, **{"buffer n.running_mean": (exact + 1e-7).float()})
    assert all(e.within for e in errors(fusec, eager, reference))
    fusec.tensors["buffer n.running_mean"] += 1e-6
    bad = [e.name for e in errors(fusec, eager, reference) if not e.within]
    assert bad == ["buffer n.running_mean"]


def test_results_survive_the_disk(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5, dtype=torch.bfloat16),
        "c": torch.tensor(1.5, dtype=torch.float64),
        "d": torch.empty(0, 7),
        "e": torch.randn(4, 6).t(),
    }
    before = Result(Times([1.0, 0.5], [0.25], 2.0), {"load": 0.5}, {"graphs": 2}, tensors)
    write(before, tmp_path)
    after = read(tmp_path)
    assert (after.times, after.stages, after.counters) == (
        before.times,
        before.stages,
        before.counters,
    )
    assert different_bits(before, after) == []
    assert [t.dtype for t in after.tensors.values()] == [t.dtype for t in tensors.values()]
