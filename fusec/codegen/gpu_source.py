"""A GPU kernel before it is compiled: Triton source in the variants that are worth trying.

A variant is one way to build and launch the kernel; the first is the cost model's choice and the
one that a machine without a GPU builds. All variants compute the same from the same arguments.

A kernel of sizes that are known only at the call may be there twice: for calls whose sizes 32 bits
are enough to compute with, and for all others. For a call that it is not for, a kernel's grid has
no programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgpack

from fusec.errors import WireError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.wire import expr_from_wire, expr_to_wire

MAX_GPU_SOURCE: Final = 8 << 20
MAX_VARIANTS: Final = 64
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to build and launch a kernel.

    source: Triton text, one function ``def <name>(…)`` without a decorator; its parameters are the
    kernel's arguments, then the ``constants`` by name (``tl.constexpr``). ranges: for each constant
    the least and the greatest value that the text is right for; none: those it has. warps: of one
    program. grid: one to three counts of programs, over the constants and the symbols ``n0``,
    ``n1``, … that stand for the kernel's sizes in their order. cooperative: its programs wait for
    each other, so all must be resident together.
    """

    source: str
    constants: tuple[tuple[str, int], ...]
    warps: int
    grid: tuple[Expr, ...]
    cooperative: bool = False
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def programs(self) -> tuple[Expr, ...]:
        """The grid over the sizes alone."""
        known: dict[Expr, Expr] = {
            s: ex.integer(value)
            for name, value in self.constants
            for e in self.grid
            for s in ex.symbols(e)
            if s.name == name
        }
        return tuple(ex.substitute(e, known) for e in self.grid)

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many programs there are along each dimension of the grid."""
        return counts_at(self.programs, sizes)


def counts_at(grid: Sequence[Expr], sizes: Sequence[int]) -> tuple[int, ...]:
    """A grid over the sizes ``n0``, ``n1``, …, for the sizes of a call."""
    values = {f"n{i}": size for i, size in enumerate(sizes)}
    return tuple(ex.evaluate(e, values) for e in grid)


@dataclass(frozen=True)
class GpuSource:
    """name: the function; isa: ``sm_90``, ``gfx942``; signature: the type of each argument as
    Triton writes it, buffers (``*bf16``) in the order of the launch and then sizes (``i32``, or
    ``i64`` where a size can pass 2³¹; ``i32:16`` where it is always a multiple of 16). Pointers are
    16-byte aligned: the runtime sees to it. below: for each buffer, what integers that are places
    in another one are below; 0 or nothing where there are none or it is not known."""

    name: str
    isa: str
    signature: tuple[str, ...]
    variants: tuple[Variant, ...]
    below: tuple[int, ...] = ()

    @cached_property
    def digest(self) -> str:
        """64 hex characters: the identity of the kernel, whichever graph asked for it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def source(self) -> str:
        """The text of the first variant, for a reader."""
        return self.variants[0].source

    def to_bytes(self) -> bytes:
        texts = list(dict.fromkeys(v.source for v in self.variants))
        rows = [
            [
                texts.index(v.source),
                [list(pair) for pair in v.constants],
                v.warps,
                [expr_to_wire(e) for e in v.grid],
                v.cooperative,
                [list(pair) for pair in v.ranges],
            ]
            for v in self.variants
        ]
        body = [
            _VERSION, self.name, self.isa, list(self.signature), texts, rows, list(self.below)
        ]  # fmt: skip
        return bytes(msgpack.packb(body, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> GpuSource:
        """Raises WireError for anything that `to_bytes` does not write."""
        if len(data) > MAX_GPU_SOURCE:
            raise WireError(f"a kernel source of {len(data)} bytes is over {MAX_GPU_SOURCE}")
        try:
            version, name, isa, signature, texts, rows, below = msgpack.unpackb(data, raw=False)
            if version != _VERSION or not 0 < len(rows) <= MAX_VARIANTS:
                raise WireError("a GPU kernel of another version, or of no or too many variants")
            _texts(name, isa, *signature, *texts)
            if not all(type(n) is int for n in below) or len(below) > len(signature):
                raise WireError("a GPU kernel is malformed: bounds of integers expected")
            variants = tuple(_variant(row, texts) for row in rows)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise WireError(f"a GPU kernel does not decode: {error}") from error
        return cls(name, isa, tuple(signature), variants, tuple(below))


def _texts(*values: object) -> None:
    if not all(isinstance(v, str) for v in values):
        raise WireError("a GPU kernel is malformed: text expected")


def _variant(row: Any, texts: list[str]) -> Variant:
    which, constants, warps, grid, cooperative, ranges = row
    bounds = tuple((least, greatest) for least, greatest in ranges)
    numbers = (which, warps, *(value for _, value in constants), *(n for b in bounds for n in b))
    if not (
        all(type(n) is int for n in numbers)
        and which >= 0
        and len(bounds) in (0, len(constants))
        and 0 < len(grid) <= 3
        and type(cooperative) is bool
    ):
        raise WireError("a variant of a GPU kernel is malformed")
    _texts(*(name for name, _ in constants))
    return Variant(
        texts[which],
        tuple((name, value) for name, value in constants),
        warps,
        tuple(expr_from_wire(e) for e in grid),
        cooperative,
        bounds,
    )
