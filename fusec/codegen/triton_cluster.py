"""Device functions by which the programs of a cluster, which share a row, add up their results.

The programs of a cluster run at once on neighbouring processors (NVIDIA's, from sm_90 on), and each
can read the shared memory of the others. Every program is given the same result, bit by bit: lane
i has the value of program i modulo 8, and a butterfly adds them up.

As `triton_library`, but in PTX: Triton's language has no word for it, and its interpreter runs one
program at a time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

# Each use has a box of its own in shared memory, so that the next use need not wait until
# everybody has read this one; who leaves has to, and that is what `cluster_leave` is for.
_EXCHANGE: Final = """{
.shared .align 4 .f32 box;
.reg .pred first, inside;
.reg .u32 thread, rank, count, place;
.reg .f32 value, other;
mov.u32 thread, %tid.x;
setp.eq.u32 first, thread, 0;
@first st.shared.f32 [box], $1;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
and.b32 rank, thread, 7;
mov.u32 count, %cluster_nctarank;
setp.lt.u32 inside, rank, count;
mov.f32 value, NEUTRAL;
mov.u32 place, box;
@inside mapa.shared::cluster.u32 place, place, rank;
@inside ld.shared::cluster.f32 value, [place];
shfl.sync.bfly.b32 other, value, 4, 31, -1;
COMBINE value, value, other;
shfl.sync.bfly.b32 other, value, 2, 31, -1;
COMBINE value, value, other;
shfl.sync.bfly.b32 other, value, 1, 31, -1;
COMBINE value, value, other;
mov.f32 $0, value;
}"""


def _exchange(neutral: str, combine: str) -> tl.constexpr:
    return tl.constexpr(_EXCHANGE.replace("NEUTRAL", neutral).replace("COMBINE", combine))


_SUM = _exchange("0f00000000", "add.rn.f32")
_LARGEST = _exchange("0fFF800000", "max.NaN.f32")
_SMALLEST = _exchange("0f7F800000", "min.NaN.f32")
# What was read has come: nothing in memory is to be waited for.
_LEAVE = tl.constexpr(
    """{
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
mov.u32 $0, 0;
}"""
)


@triton.jit
def cluster_sum(a):
    """The sum over the programs of a cluster of a float32 that each has one of."""
    return tl.inline_asm_elementwise(_SUM, "=f,f", [a], tl.float32, is_pure=False, pack=1)


@triton.jit
def cluster_largest(a):
    """As `cluster_sum`: the largest, NaN where one of them is."""
    return tl.inline_asm_elementwise(_LARGEST, "=f,f", [a], tl.float32, is_pure=False, pack=1)


@triton.jit
def cluster_smallest(a):
    """As `cluster_sum`: the smallest, NaN where one of them is."""
    return tl.inline_asm_elementwise(_SMALLEST, "=f,f", [a], tl.float32, is_pure=False, pack=1)


@triton.jit
def cluster_leave():
    """Wait until no program of the cluster reads what another one has told."""
    tl.inline_asm_elementwise(_LEAVE, "=r", [], tl.int32, is_pure=False, pack=1)
