"""GPU kernels by hand for the tuner's tests."""

from __future__ import annotations

from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.ir import expr as ex
from fusec.tune.problem import Buffer, Problem

SCALE = """\
def triton_poi_scale(p0, p1, n0, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(p0 + i, i < n0)
    tl.store(p1 + i, a * 2.0, i < n0)
"""
# Reads far outside of every buffer.
ILLEGAL = SCALE.replace("tl.load(p0 + i, i < n0)", "tl.load(p0 + i + (1 << 44))")
# The program whose number is none never comes: the others wait for ever.
HANG = SCALE.replace(
    "    a = tl.load(p0 + i, i < n0)\n",
    "    a = tl.load(p0 + i, i < n0)\n"
    "    while tl.atomic_add(p0, 0.0) < 1.0e30:\n"
    "        a += 1.0\n",
)
N0 = ex.symbol("n0")
BLOCK = ex.symbol("BLOCK", 1)


def variant(text: str = SCALE, block: int = 1024, warps: int = 4) -> Variant:
    grid = ex.floordiv(N0 + (BLOCK - 1), BLOCK)
    return Variant(text, (("BLOCK", block),), warps, (grid,), ranges=((16, 16384),))


def problem(count: int, *variants: Variant, isa: str = "sm_90") -> Problem:
    source = GpuSource("triton_poi_scale", isa, ("*fp32", "*fp32", "i64"), variants)
    return Problem(source, (Buffer(count, "f32"), Buffer(count, "f32")), (count,))
