"""What is fused, what is kept apart, and that no order is ever broken."""

from __future__ import annotations

from fusec.ir import expr as ex
from fusec.ir.loop import BufferView, Compute
from fusec.ir.loop_text import format_program
from tests.schedule.programs import calls, dissolved, kernels, scheduled

_SOFTMAX = """\
%0 = input "x": f32[64, 300]
%1 = call aten.amax.default(%0, [1], true): f32[64, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[64, 300]
%3 = call aten.exp.default(%2): f32[64, 300]
%4 = call aten.sum.dim_IntList(%3, [1], true): f32[64, 1]
%5 = call aten.div.Tensor(%3, %4): f32[64, 300]
return %5
"""


def test_a_softmax_is_one_kernel() -> None:
    assert len(kernels(scheduled(_SOFTMAX))) == 1


def test_without_fusion_each_step_is_a_kernel() -> None:
    found = scheduled(_SOFTMAX, fusion=False)
    assert all(len(g.members) == 1 for g in found.groups)
    assert len(found.groups) == len(found.program.steps) > 1


def test_what_lies_across_a_call_is_apart() -> None:
    found = scheduled("""\
%0 = input "x": f32[64, 64]
%1 = call aten.exp.default(%0): f32[64, 64]
%2 = call aten.mm.default(%1, %1): f32[64, 64]
%3 = call aten.add.Tensor(%1, %2): f32[64, 64]
return %3
""")
    assert calls(found) == ["aten.mm.default"]
    assert len(kernels(found)) == 2


def test_results_that_meet_later_are_made_together() -> None:
    """Nothing joins the first two but the product; all three are wanted."""
    found = scheduled("""\
%0 = input "x": f32[64, 300]
%1 = input "y": f32[64, 300]
%2 = call aten.sigmoid.default(%0): f32[64, 300]
%3 = call aten.tanh.default(%1): f32[64, 300]
%4 = call aten.mul.Tensor(%2, %3): f32[64, 300]
return %2, %3, %4
""")
    assert len(kernels(found)) == 1


def test_a_transposed_reader_is_apart_or_computes_again() -> None:
    """Costly values read at other points: no kernel reads what it makes elsewhere."""
    scheduled("""\
%0 = input "x": f32[300, 300]
%1 = call aten.exp.default(%0): f32[300, 300]
%2 = call aten.permute.default(%1, [1, 0]): f32[300, 300] stride [1, 300]
%3 = call aten.add.Tensor(%1, %2): f32[300, 300]
%4 = call aten.sum.dim_IntList(%3, [0]): f32[300]
return %3, %4
""")


_ROWS_AND_COLUMNS = """\
%0 = input "x": f32[32, 300]
%1 = call aten.exp.default(%0): f32[32, 300]
%2 = call aten.sum.dim_IntList(%1, [0]): f32[300]
%3 = call aten.sum.dim_IntList(%1, [1]): f32[32]
return %2, %3
"""


def test_rows_and_columns_are_folded_in_one_pass() -> None:
    found = scheduled(_ROWS_AND_COLUMNS)
    assert [str(g.space) for g in found.groups] == ["(carry 32, fold 300)"]


def test_a_result_of_columns_is_used_after_all_rows() -> None:
    found = scheduled(
        _ROWS_AND_COLUMNS.replace(
            "return %2, %3",
            """\
%4 = call aten.sub.Tensor(%0, %2): f32[32, 300]
return %3, %4""",
        )
    )
    kernel = {s: i for i, group in enumerate(kernels(found)) for s in group}
    folds = [s for s in found.program.steps if isinstance(s, Compute) and s.reduction]
    columns = next(s.output for s in folds if s.axes[0].upper is ex.integer(300))
    used = found.program.outputs[1]
    assert isinstance(used, BufferView)
    assert kernel[used.buffer] != kernel[columns]


def test_columns_of_unknown_number_are_apart() -> None:
    found = scheduled("symbol s0 in [2, 4096]\n" + _ROWS_AND_COLUMNS.replace("300", "s0"))
    assert not any(g.space and g.space.mixed for g in found.groups)


def test_wide_rows_carry_no_columns() -> None:
    found = scheduled(_ROWS_AND_COLUMNS.replace("300", "300000"))
    assert not any(g.space and g.space.mixed for g in found.groups)


def test_a_light_chain_dissolves() -> None:
    program = dissolved("""\
%0 = input "x": f32[10, 3]
%1 = call aten.neg.default(%0): f32[10, 3]
%2 = call aten.permute.default(%1, [1, 0]): f32[3, 10] stride [1, 3]
%3 = call aten.clone.default(%2): f32[3, 10]
%4 = call aten.exp.default(%3): f32[3, 10]
return %4
""")
    assert len(program.steps) == 1
    assert "neg" in format_program(program)


def test_a_costly_value_is_not_computed_many_times() -> None:
    program = dissolved("""\
%0 = input "x": f32[10]
%1 = call aten.exp.default(%0): f32[10]
%2 = call aten.expand.default(%1, [1000, 10]): f32[1000, 10] stride [0, 1]
%3 = call aten.add.Tensor(%2, %2): f32[1000, 10]
return %3
""")
    assert len(program.steps) == 2


def test_what_nobody_reads_is_gone() -> None:
    program = dissolved("""\
%0 = input "x": f32[10]
%1 = call aten.exp.default(%0): f32[10]
%2 = call aten.log.default(%1): f32[10]
%3 = call aten.sin.default(%0): f32[10]
return %3
""")
    assert len(program.steps) == 1


def test_reductions_over_one_element_are_values() -> None:
    program = dissolved("""\
%0 = input "x": f32[50, 1]
%1 = call aten.sum.dim_IntList(%0, [1]): f32[50]
%2 = call aten.argmax.default(%0, 1): i64[50]
return %1, %2
""")
    assert all(isinstance(s, Compute) and s.reduction is None for s in program.steps)


def test_an_overwrite_comes_after_every_read_of_the_old_value() -> None:
    found = scheduled("""\
%0 = input "x": f32[7, 7]
%1 = input "y": f32[7, 7]
%2 = call aten.add.Tensor(%0, 1): f32[7, 7]
%3 = call aten.mul.Tensor(%1, 2): f32[7, 7]
%4 = call aten.copy_.default(%0, %3): f32[7, 7]
%5 = call aten.copy_.default(%1, %2): f32[7, 7]
return
""")
    assert sum(len(g.members) for g in found.groups) == len(found.program.steps)


def test_an_input_overwritten_by_its_transpose_goes_through_a_copy() -> None:
    found = scheduled("""\
%0 = input "x": f32[7, 7]
%1 = call aten.permute.default(%0, [1, 0]): f32[7, 7] stride [1, 7]
%2 = call aten.mul.Tensor(%1, 2): f32[7, 7] stride [1, 7]
%3 = call aten.copy_.default(%0, %2): f32[7, 7]
return
""")
    assert len(kernels(found)) == 2


def test_an_input_overwritten_point_by_point_is_one_kernel() -> None:
    found = scheduled("""\
%0 = input "x": f32[70, 7]
%1 = input "y": f32[7]
%2 = call aten.mul.Tensor(%0, %1): f32[70, 7]
%3 = call aten.copy_.default(%0, %2): f32[70, 7]
return
""")
    assert len(kernels(found)) == 1


def test_equal_graphs_are_scheduled_alike() -> None:
    first, second = scheduled(_SOFTMAX), scheduled(_SOFTMAX)
    assert first.groups == second.groups
    assert first.verdicts == second.verdicts


def test_a_fold_of_rows_does_not_join_what_runs_on_the_folded_columns() -> None:
    """The group folds the first axis and goes on at the kept ones; a fold of the last axis would
    leave those no place in the loops."""
    found = scheduled("""\
%0 = input "x": f32[300, 2, 100]
%1 = call aten._log_softmax.default(%0, 0, false): f32[300, 2, 100]
%2 = call aten.sum.dim_IntList(%1, [2], false): f32[300, 2]
%3 = call aten.amax.default(%0, [0], true): f32[1, 2, 100]
%4 = call aten.exp.default(%3): f32[1, 2, 100]
%5 = call aten.sub.Tensor(%0, %4): f32[300, 2, 100]
%6 = call aten.sum.dim_IntList(%5, [2], false): f32[300, 2]
return %2, %6
""")
    assert len(kernels(found)) > 1
