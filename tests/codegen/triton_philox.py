"""A program of random numbers alone, and what it has to give."""

from __future__ import annotations

import torch

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.loop import Buffer, BufferView, Compute, LoopProgram, Reduction
from tests.codegen.test_c_random import uniform

KEY = 0x1234567890ABCDEF


def program(rows: int, columns: int, first: int) -> LoopProgram:
    """The key → the numbers at places from ``first`` on, row by row, and each row's largest."""
    i, j = ex.axis("i", rows), ex.axis("j", columns)
    assert isinstance(i, ex.Sym)
    assert isinstance(j, ex.Sym)
    shape = (ex.integer(rows), ex.integer(columns))
    buffers = (
        Buffer("i64", (ex.ONE,), (ex.ONE,), "input"),
        Buffer("f32", shape, ex.row_major(shape)),
        Buffer("f32", shape[:1], (ex.ONE,)),
    )
    key = lp.load(0, "i64", (ex.ZERO,))
    number = lp.op("philox_uniform", "f32", key, lp.index(i * columns + j + first))
    steps = (
        Compute(1, (i, j), number),
        Compute(2, (i,), lp.load(1, "f32", (i, j)), Reduction("max", (j,), (i, j))),
    )
    outputs = tuple(BufferView(n, buffers[n].shape, buffers[n].stride, ex.ZERO) for n in (1, 2))
    return LoopProgram(buffers, steps, (0,), outputs)


def expected(rows: int, columns: int, first: int) -> list[torch.Tensor]:
    places = range(first, first + rows * columns)
    numbers = torch.tensor([uniform(KEY, place) for place in places]).reshape(rows, columns)
    return [numbers, numbers.amax(1)]
