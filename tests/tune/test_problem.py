"""Problems are read off a program: which buffers, how large, with which sizes."""

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.host import EmitOnce, HostPlan, build_host_plan
from fusec.ir.text import parse_graph
from fusec.ir.typical import TYPICAL_SIZE
from fusec.lower.lowering import lower
from fusec.parts import finish
from fusec.schedule.dissolve import dissolve
from fusec.schedule.search import schedule
from fusec.tune.problem import Buffer, Problem, problems
from tests.tune.kernels import problem, variant


def host_plan(text: str) -> HostPlan:
    return finish(
        build_host_plan(
            schedule(dissolve(lower(parse_graph(text)))), EmitOnce(gpu_emitter("sm_90")), "cuda"
        )
    )


def of(plan: HostPlan, sizes: dict[str, int] | None = None) -> tuple[Problem, ...]:
    return problems(plan.program, plan.kernels, sizes)


STATIC = """\
%0 = input "x": bf16[8, 100] stride [128, 1]
%1 = input "i": i64[8, 100]
%2 = call aten.add.Tensor(%0, %1): bf16[8, 100]
return %2
"""
GATHER = """\
%0 = input "x": bf16[1000, 64]
%1 = input "i": i64[8, 100]
%2 = call aten.embedding.default(%0, %1): bf16[8, 100, 64]
return %2
"""
ASSERTED = """\
%0 = input "x": bf16[1000, 64] @cuda
%1 = input "i": i64[8, 100] @cuda
%2 = call aten.embedding.default(%0, %1): bf16[8, 100, 64] @cuda
return %2
"""
COMPUTED = """\
%0 = input "x": bf16[1000, 64] @cuda
%1 = input "i": i64[8, 100] @cuda
%2 = call aten.add.Tensor(%1, 999): i64[8, 100] @cuda
%3 = call aten.embedding.default(%0, %2): bf16[8, 100, 64] @cuda
return %3
"""
DYNAMIC = """\
symbol s0 in [2, 1048576]
%0 = input "x": f32[s0, 4]
%1 = call aten.exp.default(%0): f32[s0, 4]
return %1
"""


def test_buffers_reach_as_far_as_their_strides() -> None:
    (made,) = of(host_plan(STATIC))
    kinds = sorted((b.dtype, b.count, b.below) for b in made.buffers)
    assert kinds == [("bf16", 800, 1), ("bf16", 7 * 128 + 100, 1), ("i64", 800, 1)]
    assert made.sizes == ()
    assert made.bytes == 2 * (800 + 996) + 8 * 800


def test_places_are_below_the_size_of_what_they_are_places_in() -> None:
    made = of(host_plan(GATHER))
    assert {b.below for p in made for b in p.buffers if b.dtype == "i64"} == {1, 1000}
    assert {b.below for p in made for b in p.buffers if b.dtype != "i64"} == {1}


def test_places_that_kernels_assert_are_filled_in_range() -> None:
    for text, below in ((ASSERTED, 1000), (COMPUTED, 1)):
        (made,) = of(host_plan(text))
        assert "tl.device_assert" in made.source.source
        assert [b.below for b in made.buffers if b.dtype == "i64"] == [below]


def test_sizes_are_the_ones_given_or_typical() -> None:
    plan = host_plan(DYNAMIC)
    (given,) = of(plan, {"s0": 1000})
    assert [b.count for b in given.buffers] == [4000, 4000]
    assert 1000 in given.sizes or 4000 in given.sizes
    (typical,) = of(plan)
    assert [b.count for b in typical.buffers] == [4 * TYPICAL_SIZE] * 2
    types = [t for t in given.source.signature if not t.startswith("*")]
    assert given.to_wire()["sizes"] == [[t, n] for t, n in zip(types, given.sizes, strict=True)]


def test_the_grid_is_of_the_problems_sizes() -> None:
    made = problem(5000, variant(block=1024), variant(block=512))
    assert made.grid(made.source.variants[0]) == (5,)
    assert made.grid(made.source.variants[1]) == (10,)
    assert made.to_wire() == {
        "buffers": [[5000, "f32", 1], [5000, "f32", 1]],
        "sizes": [["i64", 5000]],
    }


def test_bytes_of_a_buffer() -> None:
    assert Buffer(3, "f64").bytes == 24
    assert Buffer(3, "bool").bytes == 3
