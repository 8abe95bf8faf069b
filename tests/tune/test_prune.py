"""Pruning looks at what variants need of the device, and always leaves one that can run."""

from dataclasses import replace

import pytest

from fusec.codegen.gpu_binary import GpuBinary
from fusec.ir.expr import ONE
from fusec.tune.device import Device
from fusec.tune.prune import prune, resident_programs

H200 = Device(
    name="NVIDIA H200", isa="sm_90", multiprocessors=132, threads=2048, programs=32,
    registers=65536, shared=233472, shared_program=232448, reserved=1024, cache=62914560,
    memory=150 << 30,
)  # fmt: skip
PLAIN = GpuBinary("k", b"image", (ONE,), 128, 0, 2, registers=32, spills=0)
MANY = (100_000,)


def of(*binaries: GpuBinary, grid: tuple[int, ...] = MANY) -> dict[int, str]:
    numbered = {n: replace(b, image=bytes([n])) for n, b in enumerate(binaries)}
    return prune(numbered, dict.fromkeys(numbered, grid), H200)


@pytest.mark.parametrize(
    ("change", "programs"),
    [
        ({}, 16),  # 2048 threads
        ({"threads": 32}, 32),  # no more programs
        ({"registers": 65}, 65536 // (72 * 128)),  # in steps of eight
        ({"registers": 255, "threads": 256}, 1),
        ({"registers": 128, "threads": 1024}, 0),  # 128 times 1024 registers are too many
        ({"shared": 64 << 10}, 3),
        ({"shared": 227 << 10}, 1),
        ({"shared": 228 << 10}, 0),
        ({"threads": 4096}, 0),
    ],
)
def test_resident_programs(change: dict[str, int], programs: int) -> None:
    assert resident_programs(replace(PLAIN, **change), H200) == programs


def test_what_cannot_run_is_left_out() -> None:
    together = replace(PLAIN, cooperative=True)
    assert of(PLAIN, replace(PLAIN, shared=1 << 19)) == {1: "does not fit on the device"}
    assert of(PLAIN, together) == {1: "its programs are not resident together"}
    assert of(together, grid=(132 * 16,)) == {}
    assert of(together, grid=(132 * 16 + 1,)) != {}
    assert list(of(PLAIN, grid=(1, 65536))) == list(of(PLAIN, grid=(1, 1, 65536))) == [0]


def test_nothing_is_timed_twice() -> None:
    same = {0: PLAIN, 1: PLAIN, 2: replace(PLAIN, threads=256), 3: PLAIN}
    grids = {0: (4,), 1: (4,), 2: (4,), 3: (8,)}
    assert prune(same, grids, H200) == {1: "the same as variant 0"}


def test_spills_count_against_the_least() -> None:
    spills = replace(PLAIN, spills=400)
    assert list(of(PLAIN, spills)) == [1]
    assert list(of(spills, replace(PLAIN, spills=32), PLAIN)) == [0]
    assert of(spills, replace(spills, spills=420)) == {}


def test_few_threads_count_against_the_most() -> None:
    few = replace(PLAIN, registers=255, threads=128, shared=100 << 10)  # two programs
    assert list(of(PLAIN, few)) == [1]
    assert of(few) == {}
    # Where the launch itself has few programs nobody keeps more.
    assert of(PLAIN, few, grid=(100,)) == {}


def test_one_that_can_run_is_always_left() -> None:
    worst = replace(PLAIN, spills=5000, registers=255, threads=32, shared=227 << 10)
    assert of(replace(PLAIN, shared=1 << 19), worst) == {0: "does not fit on the device"}
