"""Neighbours differ in one step of one number."""

from dataclasses import replace

from fusec.codegen.gpu_source import Variant
from fusec.codegen.triton_tile import STAGES
from fusec.tune.neighbours import neighbours
from tests.tune.kernels import variant

LOOP = replace(
    variant(block=64), constants=(("BLOCK", 64), (STAGES, 2)), ranges=((16, 128), (1, 5))
)


def numbers(found: tuple[Variant, ...]) -> list[tuple[int, ...]]:
    return [(v.warps, *(value for _, value in v.constants)) for v in found]


def test_a_step_changes_one_number() -> None:
    found = neighbours(LOOP, set())
    assert numbers(found) == [
        (8, 64, 2), (2, 64, 2), (4, 128, 2), (4, 32, 2), (4, 64, 3), (4, 64, 1)
    ]  # fmt: skip
    assert {replace(v, warps=4, constants=LOOP.constants) for v in found} == {LOOP}


def test_numbers_have_bounds() -> None:
    first = replace(LOOP, warps=1, constants=(("BLOCK", 16), (STAGES, 1)))
    assert numbers(neighbours(first, set())) == [(2, 16, 1), (1, 32, 1), (1, 16, 2)]
    last = replace(LOOP, warps=32, constants=(("BLOCK", 128), (STAGES, 5)))
    assert numbers(neighbours(last, set())) == [(16, 128, 5), (32, 64, 5), (32, 128, 4)]


def test_what_was_tried_is_no_neighbour() -> None:
    tried = {replace(LOOP, warps=8), replace(LOOP, constants=(("BLOCK", 64), (STAGES, 3)))}
    found = neighbours(LOOP, tried)
    assert numbers(found) == [(2, 64, 2), (4, 128, 2), (4, 32, 2), (4, 64, 1)]


def test_a_step_moves_the_grid_along() -> None:
    by_block = {dict(v.constants)["BLOCK"]: v.counts([1000]) for v in neighbours(LOOP, set())}
    assert by_block == {128: (8,), 64: (16,), 32: (32,)}
