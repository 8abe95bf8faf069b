"""Programs of hand-written Triton kernels, for a real GPU."""

from __future__ import annotations

import functools

from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.triton_toolchain import compile_variant
from fusec.ir import expr as ex
from fusec.ir.graph import SymbolRange
from fusec.ir.loop import BufferView
from fusec.ir.program import Launch, Program, Slot

N0 = ex.symbol("n0")
S0 = ex.symbol("s0")

# y = 2 x + 1
AFFINE = """\
def affine(x, y, n0, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n0) * 2 + 1, i < n0)
"""
# c = a @ b of 128 x K x 128: tiles in flight fill more shared memory than a kernel gets unasked.
DOT = """\
def dot(a, b, c, n0, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inner = tl.arange(0, 64)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, n0, 64, num_stages=4):
        left = tl.load(a + row * n0 + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * BLOCK + column)
        total += tl.dot(left, right)
    tl.store(c + row * BLOCK + column, total)
"""
# Each program adds its sum to all: they wait for each other, so all must run at once.
TOGETHER = """\
def together(x, count, y, n0, BLOCK: tl.constexpr):
    me = tl.program_id(0)
    tl.atomic_add(y + tl.num_programs(0), tl.load(x + me))
    tl.atomic_add(count, 1)
    while tl.atomic_add(count, 0) < tl.num_programs(0):
        pass
    tl.store(y + me, tl.atomic_add(y + tl.num_programs(0), 0.0))
"""


@functools.cache
def affine(isa: str, block: int = 1024, size: str = "i64") -> GpuBinary:
    grid = ((N0 + (block - 1)) // block,)
    return _compiled(AFFINE, isa, ("*fp32", "*fp32", size), block, grid)


@functools.cache
def dot(isa: str) -> GpuBinary:
    return _compiled(DOT, isa, ("*fp16", "*fp16", "*fp32", "i32"), 128, (ex.ONE,), 8)


@functools.cache
def together(isa: str) -> GpuBinary:
    kinds = ("*fp32", "*i32", "*fp32", "i32")
    return _compiled(TOGETHER, isa, kinds, 1, (N0,), cooperative=True)


def _compiled(
    text: str,
    isa: str,
    kinds: tuple[str, ...],
    block: int,
    grid: tuple[ex.Expr, ...],
    warps: int = 4,
    *,
    cooperative: bool = False,
) -> GpuBinary:
    name = text.split("(")[0].removeprefix("def ")
    variant = Variant(text, (("BLOCK", block),), warps, grid, cooperative)
    return compile_variant(GpuSource(name, isa, kinds, (variant,)), 0, 300)


def vector(kind: str, number: int, n: ex.Expr, dtype: str = "f32") -> Slot:
    return Slot(kind, number, dtype, (n,), (ex.ONE,))


def view(slot: int, n: ex.Expr) -> BufferView:
    return BufferView(slot, (n,), (ex.ONE,), ex.ZERO)


def chain(n: ex.Expr, launches: int, middle: str = "arena") -> Program:
    """2 x + 1, ``launches`` times over, by way of two slots."""
    slots = [vector("input", 0, n)]
    size = ex.as_int(n)
    room = 0 if size is None or middle != "arena" else -(-4 * size // 64) * 64
    slots += [vector(middle, i * room, n) for i in range(2)]
    slots.append(vector("fresh", 0, n))
    steps = []
    for i in range(launches):
        source = 0 if i == 0 else 1 + (i - 1) % 2
        target = 3 if i == launches - 1 else 1 + i % 2
        steps.append(Launch(0, (source, target), (n,)))
    symbols = () if size is not None else (SymbolRange("s0", 0, None),)
    return Program(
        (0,), tuple(slots), (), tuple(steps), (view(3, n),), (("kernel/affine", "affine"),),
        symbols, 2 * room, "cuda",
    )  # fmt: skip


def in_place(n: ex.Expr) -> Program:
    """x = 2 w + 1 in place of x."""
    slots = (vector("input", 0, n), vector("input", 1, n), vector("alias", 0, n))
    return Program(
        (0, 1), slots, (), (Launch(0, (1, 2), (n,)),), (), (("kernel/affine", "affine"),), (), 0,
        "cuda",
    )  # fmt: skip
