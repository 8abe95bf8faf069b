"""The verifiers find what a broken pass would do: each fault is planted in something valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fusec.errors import ScheduleError, VerifyError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.kernel import KernelLoop
from fusec.ir.program import Call, Launch, Program
from fusec.ir.program_wire import program_from_bytes
from fusec.ir.verify_kernel import verify_kernel
from fusec.ir.verify_program import verify_host_program
from fusec.schedule.groups import Group, Schedule
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.space import Space
from fusec.schedule.verify import verify_schedule
from tests.ir.programs import planned, sample_program
from tests.schedule.programs import scheduled

_CHAIN = """\
%0 = input "x": f32[64, 30]
%1 = input "y": f32[64, 30]
%2 = call aten.exp.default(%0): f32[64, 30]
%3 = call aten.sum.dim_IntList(%2, [1], true): f32[64, 1]
%4 = call aten.div.Tensor(%2, %3): f32[64, 30]
%5 = call aten.mm.default(%4, %4): f32[64, 64]
%6 = call aten.add.Tensor(%0, 1): f32[64, 30]
%7 = call aten.copy_.default(%0, %1): f32[64, 30]
return %5, %6
"""


def test_order_is_checked() -> None:
    good = scheduled(_CHAIN)
    with pytest.raises(ScheduleError, match="does not come after"):
        verify_schedule(replace(good, groups=good.groups[::-1]))


def test_an_overwrite_before_a_read_is_found() -> None:
    good = scheduled(_CHAIN)
    program = good.program
    place = next(
        i for i, g in enumerate(good.groups) if any(_writes_input(good, m) for m in g.members)
    )
    rest = good.groups[:place] + good.groups[place + 1 :]
    assert program.buffers
    with pytest.raises(ScheduleError, match="overwrites b0"):
        verify_schedule(replace(good, groups=(good.groups[place], *rest)))


def _writes_input(schedule: Schedule, member: int) -> bool:
    step = schedule.program.steps[member]
    return isinstance(step, lp.Compute) and schedule.program.buffers[step.output].kind == "alias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g[1:], "is in no group"),
        (lambda g: (*g, g[-1]), "in two groups"),
        (lambda g: (*g, Group((99,), frozenset(), None)), "does not exist"),
        (
            lambda g: (replace(g[0], outer=frozenset((77,))), *g[1:]),
            "members that it does",
        ),
        (lambda g: (*g[:-1], replace(g[-1], space=None)), "external call inside"),
    ],
)
def test_every_step_is_in_one_group(change: Callable[..., object], message: str) -> None:
    good = scheduled(_CHAIN)
    with pytest.raises(ScheduleError, match=message):
        verify_schedule(replace(good, groups=change(good.groups)))


def test_reading_at_other_points_is_found() -> None:
    good = scheduled(
        """\
%0 = input "x": f32[30, 30]
%1 = call aten.exp.default(%0): f32[30, 30]
%2 = call aten.permute.default(%1, [1, 0]): f32[30, 30] stride [1, 30]
%3 = call aten.sin.default(%2): f32[30, 30] stride [1, 30]
return %1, %3
""",
        fusion=False,
    )
    space = good.groups[0].space
    with pytest.raises(ScheduleError, match="at other points"):
        verify_schedule(replace(good, groups=(Group((0, 1), frozenset(), space),)))


# -- kernels -------------------------------------------------------------------------------------


def _row_kernel() -> KernelLoop:
    found = scheduled(_CHAIN)
    needed = read_outside(found)
    position = next(i for i, g in enumerate(found.groups) if g.space and g.space.reduces)
    return build_kernel_loop(found.program, found.groups[position], needed[position])


def test_a_kernel_as_built_is_valid() -> None:
    verify_kernel(_row_kernel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: _statements(k, lambda s: replace(s, stage=0)), "before it is complete"),
        (lambda k: _statements(k, lambda s: replace(s, index=s.index[1:])), "another rank"),
        (lambda k: _statements(k, lambda s: replace(s, inner=False)), "scope|outside the folded"),
        (lambda k: replace(k, axes=k.axes[:1]), "not have|scope"),
        (lambda k: replace(k, buffers={}), "no argument|not there"),
        (lambda k: replace(k, results={}), "folded twice"),
        (lambda k: replace(k, statements=k.statements * 2), "twice"),
        (lambda k: _statements(k, lambda s: replace(s, fold=s.fold and "xor")), "unknown fold"),
        (
            lambda k: _statements(k, lambda s: replace(s, value=lp.load(0, "f64", k.axes))),
            "as f64",
        ),
    ],
)
def test_faults_in_kernels(change: Callable[[KernelLoop], KernelLoop], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(change(_row_kernel()))


_COLUMNS = """\
%0 = input "x": f32[32, 30]
%1 = call aten.sum.dim_IntList(%0, [1], true): f32[32, 1]
%2 = call aten.sub.Tensor(%0, %1): f32[32, 30]
%3 = call aten.sum.dim_IntList(%2, [0]): f32[30]
return %2, %3
"""


def _mixed_kernel() -> KernelLoop:
    found = scheduled(_COLUMNS)
    (group,) = found.groups
    made = build_kernel_loop(found.program, group, read_outside(found)[0])
    verify_kernel(made)
    assert made.carried is not None
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: replace(k, carried=None), "no axis is carried"),
        (lambda k: replace(k, carried=k.axes[-1]), "does not keep"),
        (
            lambda k: _statements(k, lambda s: replace(s, across=False)),
            "scope|complete|one element",
        ),
        (lambda k: _statements(k, lambda s: replace(s, across=True)), "mixes|once a row|loads"),
        (
            lambda k: _statements(
                k, lambda s: replace(s, index=k.axes[:1]) if s.across and not s.fold else s
            ),
            "once a row|one element",
        ),
        (
            lambda k: _statements(k, lambda s: replace(s, fold=s.fold and "argmax")),
            "searches for a position",
        ),
    ],
)
def test_faults_in_kernels_of_rows_and_columns(
    change: Callable[[KernelLoop], KernelLoop], message: str
) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(change(_mixed_kernel()))


def test_using_a_result_of_columns_before_the_rows_are_done_is_found() -> None:
    found = scheduled(
        """\
%0 = input "x": f32[32, 30]
%1 = call aten.sum.dim_IntList(%0, [1]): f32[32]
%2 = call aten.sum.dim_IntList(%0, [0]): f32[30]
%3 = call aten.sub.Tensor(%0, %2): f32[32, 30]
return %1, %3
""",
        fusion=False,
    )
    space = Space(tuple(map(ex.integer, (32, 30))), (False, True), (True, False))
    with pytest.raises(ScheduleError, match="before it is complete"):
        verify_schedule(replace(found, groups=(Group((0, 1, 2), frozenset(), space),)))


def _statements(loop: KernelLoop, change: Callable[..., object]) -> KernelLoop:
    return replace(loop, statements=tuple(change(s) for s in loop.statements))  # type: ignore[misc]


def test_a_kernel_that_loads_what_it_stores_is_refused() -> None:
    loop = _row_kernel()
    store = next(s for s in loop.statements if s.fold is None and s.inner)
    again = replace(store, value=lp.load(store.buffer, "f32", store.index))
    others = tuple(s for s in loop.statements if s is not store)
    with pytest.raises(VerifyError, match="stored and loaded"):
        verify_kernel(replace(loop, statements=(*others, again)))


# -- programs ------------------------------------------------------------------------------------


def _program() -> Program:
    return program_from_bytes(
        planned("""\
%0 = input "x": f32[64, 64]
%1 = call aten.exp.default(%0): f32[64, 64]
%2 = call aten.mm.default(%1, %0): f32[64, 64]
%3 = call aten.sin.default(%2): f32[64, 64]
%4 = call aten.mm.default(%3, %1): f32[64, 64]
%5 = call aten.mm.default(%4, %3): f32[64, 64]
%6 = call aten.add.Tensor(%5, %1): f32[64, 64]
return %6
""").program
    )


def _scratch(program: Program) -> int:
    return next(i for i, s in enumerate(program.slots) if s.kind == "arena")


def test_slots_that_live_at_once_lie_apart() -> None:
    good = _program()
    arena = [i for i, s in enumerate(good.slots) if s.kind == "arena"]
    assert len({good.slots[i].number for i in arena}) > 2
    caught = 0
    for a in arena:
        for b in arena:
            if good.slots[a].number == good.slots[b].number:
                continue
            moved = list(good.slots)
            moved[a] = replace(moved[a], number=good.slots[b].number)
            try:
                verify_host_program(replace(good, slots=tuple(moved)))
            except VerifyError as error:
                caught += "live at once" in str(error)
    assert caught > len(arena)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, arena_bytes=p.arena_bytes - 64), "outside the arena"),
        (lambda p: replace(p, kernels=()), "kernel 0 of 0"),
        (lambda p: replace(p, steps=p.steps[1:]), "before it is made"),
        (lambda p: _outputs(p, lambda v: replace(v, buffer=_scratch(p))), "not there at the end"),
        (lambda p: replace(p, inputs=(None,)), "no input of the program"),
        (
            lambda p: _slots(p, lambda s: replace(s, number=s.number + 2)),
            "not aligned|outside|no input",
        ),
        (lambda p: _steps(p, lambda s: replace(s, free=(0,))), "frees slot 0"),
        (lambda p: _outputs(p, lambda v: replace(v, offset=ex.integer(1))), "beyond its memory"),
        (lambda p: _outputs(p, lambda v: replace(v, shape=(ex.symbol("q"),) * 2)), "no size of it"),
    ],
)
def test_faults_in_programs(change: Callable[[Program], Program], message: str) -> None:
    good = _program()
    verify_host_program(good)
    with pytest.raises(VerifyError, match=message):
        verify_host_program(change(good))


def test_a_slot_used_after_it_was_freed_is_found() -> None:
    good = sample_program()
    number, step = next((i, s) for i, s in enumerate(good.steps) if s.free)
    early = next(
        i
        for i, s in enumerate(good.steps)
        if i < number and step.free[0] in (s.slots if isinstance(s, Launch) else s.outputs)
    )
    steps = list(good.steps)
    steps[early] = replace(steps[early], free=(*steps[early].free, step.free[0]))
    with pytest.raises(VerifyError, match="freed by"):
        verify_host_program(replace(good, steps=tuple(steps)))


def test_a_size_that_no_input_tells_is_found() -> None:
    good = sample_program()
    inputs = tuple(None if i is good.inputs[2] or i == good.inputs[0] else i for i in good.inputs)
    slots = tuple(
        replace(s, kind="fresh") if s.kind == "input" and inputs[s.number] is None else s
        for s in good.slots
    )
    with pytest.raises(VerifyError, match="no input tells the size s0"):
        verify_host_program(replace(good, inputs=inputs, slots=slots))


def _slots(p: Program, change: Callable[..., object]) -> Program:
    return replace(p, slots=tuple(change(s) for s in p.slots))  # type: ignore[misc]


def _steps(p: Program, change: Callable[[Launch | Call], object]) -> Program:
    return replace(p, steps=tuple(change(s) for s in p.steps))  # type: ignore[misc]


def _outputs(p: Program, change: Callable[..., object]) -> Program:
    return replace(p, outputs=tuple(change(v) for v in p.outputs))  # type: ignore[misc]
