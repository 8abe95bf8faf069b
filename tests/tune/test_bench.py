"""What timing needs of memory: layout and values; and what is said where there is no GPU."""

import struct

import pytest
import torch

from fusec.errors import ChildLost
from fusec.ir.dtypes import DTYPES
from fusec.runtime.operators import TORCH_DTYPES
from fusec.trace import Recorder
from fusec.tune.bench import layout, pattern
from fusec.tune.device import current_gpu
from fusec.tune.timing import Timer
from fusec.tune.tuner import Tuned, tune
from tests.tune.kernels import problem, variant

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine with no GPU")


def test_buffers_do_not_overlap_and_are_aligned() -> None:
    places, total = layout([(100, "f32", 1), (0, "i64", 1), (3, "bool", 1), (1000, "bf16", 1)])
    assert places == [0, 512, 768, 1024]
    assert total == 1024 + 2048
    assert all(place % 256 == 0 for place in (*places, total))


@pytest.mark.parametrize("name", DTYPES)
def test_values_are_such_as_models_hold(name: str) -> None:
    data = pattern(name, 7)
    assert len(data) % DTYPES[name].size == 0
    if name not in TORCH_DTYPES:
        return
    values = torch.frombuffer(bytearray(data), dtype=TORCH_DTYPES[name])
    if DTYPES[name].kind in ("int", "uint"):
        numbers = values.to(torch.int64)
        assert (numbers.min(), numbers.max()) == (0, 6)
    elif DTYPES[name].kind == "bool":
        assert set(data) == {0, 1}
    else:
        parts = torch.view_as_real(values) if values.is_complex() else values
        magnitudes = parts.to(torch.float64).abs()
        assert 0.0 < magnitudes.max() <= 2.0
        assert magnitudes.mean() > 0.25


def test_integers_of_unknown_meaning_are_zero() -> None:
    assert set(pattern("i64", 1)) == {0}
    assert struct.unpack("<2q", pattern("i64", 3)[:16])[0] in (0, 1, 2)


@NO_GPU
def test_a_machine_without_a_gpu_is_told() -> None:
    timer = Timer(0)
    with pytest.raises(ChildLost, match=r"libcuda|CUDA_ERROR"):
        timer.open()
    timer.close()


@NO_GPU
def test_there_is_no_current_gpu() -> None:
    assert current_gpu() is None


@NO_GPU
def test_without_a_gpu_the_first_variants_stand() -> None:
    problems = [problem(100, variant(), variant(warps=8)), problem(100, variant())]
    recorder = Recorder()
    tuned = tune(problems, budget_s=10.0, recorder=recorder)
    assert [t.binary for t in tuned] == [None, None]
    assert [t.problem for t in tuned] == problems
    assert all(t.why for t in tuned)
    assert "kernels_tuned" not in recorder.counters


def test_single_variants_need_no_device() -> None:
    only = problem(100, variant())
    assert tune([only], budget_s=10.0, recorder=Recorder()) == [
        Tuned(only, why="it has one variant")
    ]
    assert tune([], budget_s=10.0, recorder=Recorder()) == []
