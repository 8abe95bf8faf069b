"""Device functions that generated kernels call by name, beside `triton.language` and libdevice.

They use the language alone, so that Triton's interpreter runs them too; what libdevice computes is
passed in by the caller's text. Triton reads their types from the call, so they have no annotations.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# -- integers ------------------------------------------------------------------------------------


@triton.jit
def floor_divide(a, b):
    """The quotient rounded down, for integers of any sign."""
    quotient = a // b
    rest = a - quotient * b
    return quotient - ((rest != 0) & ((rest < 0) != (b < 0))).to(quotient.dtype)


@triton.jit
def floor_modulo(a, b):
    """What is left of `floor_divide`: it has the sign of ``b``."""
    return a - floor_divide(a, b) * b


@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    """``a << b``; 0 where ``b`` is no position in ``bits`` bits."""
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def shift_right(a, b, bits: tl.constexpr):
    """``a >> b``; where ``b`` is no position in ``bits`` bits, as for the last one."""
    inside = (b >= 0) & (b < bits)
    last = tl.where(inside, b, bits - 1).to(a.dtype)
    return a >> last


# -- floats --------------------------------------------------------------------------------------


@triton.jit
def float_remainder(a, b, rest):
    """Python's ``a % b``; ``rest``: C's fmod of the two."""
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def float_floor_divide(a, b, rest, quotient):
    """Python's ``a // b``, so that it agrees with the remainder. ``rest``: C's fmod of the two;
    ``quotient``: a / b."""
    whole = (a - rest) / b
    whole = tl.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1.0, whole)
    floor = tl.floor(whole)
    floor = tl.where(whole - floor > 0.5, floor + 1.0, floor)
    floor = tl.where(whole == 0, quotient * 0.0, floor)
    return tl.where(b == 0, quotient, floor)


@triton.jit
def divide_by(a, b):
    """``a / b`` of f32, rounded correctly, for a divisor that many numbers share. With the rounded
    reciprocal y of b, q = a·y is a few last places off, and the next q + (a - b·q)·y by less than
    one; for that one the same step rounds correctly (P. W. Markstein, "Computation of elementary
    functions on the IBM RISC System/6000 processor", 1990). The signs keep those of zeros. At the
    ends of the range the products are not exact, and the last place may be off: for |a| below
    2⁻¹⁰⁰, and for quotients that are not normal or next to infinite."""
    size = tl.abs(b)
    scale = tl.where(size < 2.0**-100, 2.0**64, tl.where(size > 2.0**100, 2.0**-64, 1.0))
    scale = tl.where(b < 0.0, -scale, scale)
    a, b = a * scale, b * scale
    y = tl.div_rn(1.0, b)
    first = a * y
    second = tl.fma(tl.fma(b, first, -a), -y, first)
    quotient = tl.fma(tl.fma(b, second, -a), -y, second)
    return tl.where(quotient == quotient, quotient, first)  # what is infinite is right at once


# -- folds ---------------------------------------------------------------------------------------


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def largest(a, b):
    """The larger one; NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smallest(a, b):
    """The smaller one; NaN if one is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log_of_sum(a, b):
    """log(exp(a) + exp(b)): the larger one and log(1 + e), which is 2 artanh(e / (2 + e)), for an e
    in [0, 1]. So many terms of its series are as good as the type."""
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    e = tl.exp(low - high)
    s = e / (2.0 + e)
    terms: tl.constexpr = 17 if a.dtype == tl.float64 else 8
    series = s * 0.0
    for k in tl.static_range(terms):
        series = series * (s * s) + 1.0 / (2 * (terms - k) - 1)
    return tl.where(tl.abs(high) < float("inf"), high + 2.0 * s * series, high)


@triton.jit
def first_largest(a, i, b, j):
    """Of two values and their places the larger value, of equals the first; NaN is the largest."""
    both = (a == b) | ((a != a) & (b != b))
    take = ((a > b) | ((a != a) & (b == b))) | (both & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)


@triton.jit
def first_smallest(a, i, b, j):
    """Of two values and their places the smaller value, of equals the first; NaN is the
    smallest."""
    both = (a == b) | ((a != a) & (b != b))
    take = ((a < b) | ((a != a) & (b == b))) | (both & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)


# -- random numbers ------------------------------------------------------------------------------


@triton.jit
def philox_uniform(key, place):
    """Numbers in [0, 1), one for each place: the upper 24 bits of word ``place % 4`` of the
    Philox4x32-10 block ``place // 4``."""
    a, b, c, d = tl.randint4x(key, place >> 2)
    word = place & 3
    low, high = tl.where(word == 0, a, b), tl.where(word == 2, c, d)
    return unit_interval(tl.where(word < 2, low, high))


@triton.jit
def philox_uniform_four(key, block):
    """As `philox_uniform` for all places of whole blocks, four numbers a block side by side in a
    dimension of their own."""
    a, b, c, d = tl.randint4x(key, block)
    return unit_interval(tl.join(tl.join(a, c), tl.join(b, d)))


@triton.jit
def unit_interval(word):
    """The upper 24 bits of a word as a multiple of 2⁻²⁴ in [0, 1)."""
    return (word.to(tl.uint32, bitcast=True) >> 8).to(tl.float32) * 5.9604644775390625e-08
