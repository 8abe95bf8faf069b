"""Neighbours differ in one step of one number."""

from dataclasses import replace

from fusec.tune.neighbours import neighbours
from tests.tune.kernels import variant


def test_a_step_changes_one_number() -> None:
    middle = variant(warps=4, stages=2)
    found = neighbours(middle, set())
    assert [(v.warps, v.stages) for v in found] == [(8, 2), (2, 2), (4, 3), (4, 1)]
    assert {replace(v, warps=4, stages=2) for v in found} == {middle}


def test_numbers_have_bounds() -> None:
    found = neighbours(variant(warps=1, stages=1), set())
    assert [(v.warps, v.stages) for v in found] == [(2, 1), (1, 2)]
    found = neighbours(variant(warps=32, stages=5), set())
    assert [(v.warps, v.stages) for v in found] == [(16, 5), (32, 4)]


def test_what_was_tried_is_no_neighbour() -> None:
    tried = {variant(warps=8, stages=1), variant(warps=4, stages=2)}
    found = neighbours(variant(warps=4, stages=1), tried)
    assert [(v.warps, v.stages) for v in found] == [(2, 1)]
