"""What of a graph can be compared where the compiled program draws numbers of its own."""

from __future__ import annotations

from fusec.ir.text import parse_graph
from fusec.verification.reference import is_draw, undetermined

_TWO_DROPOUTS = """\
%0 = input "x": f32[4, 8] @cuda
%1 = call aten.native_dropout.default(%0, 0.5, true): (f32[4, 8] @cuda, bool[4, 8] @cuda)
%2 = call py.getitem(%1, 0): f32[4, 8] @cuda
%3 = call aten.exp.default(%2): f32[4, 8] @cuda
%4 = call aten.native_dropout.default(%3, 0.5, true): (f32[4, 8] @cuda, bool[4, 8] @cuda)
%5 = call py.getitem(%4, 0): f32[4, 8] @cuda
%6 = call aten.exp.default(%0): f32[4, 8] @cuda
return %5, %6
"""


def test_a_known_draw_does_not_make_known_what_it_was_given() -> None:
    graph = parse_graph(_TWO_DROPOUTS)
    assert [n for n, node in enumerate(graph.nodes) if is_draw(node)] == [1, 4]
    assert undetermined(graph, "cuda", {}) == {1, 2, 3, 4, 5}
    assert undetermined(graph, "cuda", {4: None}) == {1, 2, 3, 4, 5}
    assert undetermined(graph, "cuda", {1: None}) == {4, 5}
    assert undetermined(graph, "cuda", {1: None, 4: None}) == frozenset()
    assert undetermined(graph, "cpu", {}) == frozenset()
