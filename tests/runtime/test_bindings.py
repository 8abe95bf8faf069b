"""What programs tell beforehand: when slots are done with, and where runs of launches end."""

from __future__ import annotations

from fusec.ir import expr as ex
from fusec.ir.loop import BufferView
from fusec.ir.program import Call, Launch, Program, Slot
from fusec.runtime.bindings import done_after, fresh_before, runs_of


def _slot(kind: str, number: int, n: int) -> Slot:
    return Slot(kind, number, "f32", (ex.integer(n),), (ex.ONE,))


def _program(n: int) -> Program:
    """Two inputs, one overwritten; launches 0 and 1 read the first, 2 the overwritten one."""
    slots = (
        _slot("input", 0, n), _slot("input", 1, n), _slot("alias", 1, n), _slot("fresh", 0, n),
        _slot("fresh", 0, n), _slot("fresh", 0, n), _slot("input", 2, n),
    )  # fmt: skip
    view = BufferView(6, (ex.integer(n),), (ex.ONE,), ex.ZERO)
    steps = (
        Launch(0, (0, 3), ()),
        Launch(0, (0, 3, 4), (), (3,)),
        Launch(0, (4, 2), ()),
        Launch(0, (4, 5), (), (4,)),
        Call("aten.mm.default", (view, view), (), (None,), False, False, "library"),
    )
    out = BufferView(5, (ex.integer(n),), (ex.ONE,), ex.ZERO)
    return Program((0, 1, 6), slots, (), steps, (out, view), (("k", "k"),), (), 0)


def test_slots_are_done_after_their_last_use() -> None:
    assert done_after(_program(8)) == [(), (3, 0), (1,), (4,), ()]


def test_fresh_slots_are_made_before_their_first_use() -> None:
    assert fresh_before(_program(8)) == [[3], [4], [], [5], []]


def test_runs_end_where_much_memory_is_free_for_what_comes() -> None:
    for n, runs in ((8, [range(4)]), (1 << 20, [range(3), range(3, 4)])):
        program = _program(n)
        assert runs_of(program, range(4), fresh_before(program), done_after(program)) == runs
