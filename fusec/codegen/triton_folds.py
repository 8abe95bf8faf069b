"""Reductions inside a Triton kernel: over a tile, or block by block in a loop.

A tile that holds all of the folded axes is reduced at once. In a loop each point of the tile has a
partial result of its own, and these are reduced after it: there is no exchange between threads
inside the loop.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen.triton_body import Scope
from fusec.codegen.triton_frame import Frame, Shape
from fusec.codegen.triton_ops import TYPES
from fusec.codegen.triton_tile import Dim
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Load, Op, Scalar

INDEXED: Final = frozenset(("argmax", "argmin"))
_COMBINE: Final = {
    "prod": "multiply", "max": "largest", "min": "smallest", "logaddexp": "log_of_sum",
    "argmax": "first_largest", "argmin": "first_smallest",
}  # fmt: skip
_OWN_SCANS: Final = ("cumsum", "cumprod")  # that Triton's language has by name
_UPDATE: Final = {"sum": "{a} + {v}", "prod": "{a} * {v}", "or": "{a} | {v}", "and": "{a} & {v}"}


def identity(fold: str, dtype: str) -> str:
    """The neutral element of a reduction, as text."""
    if dtype == "bool":
        return "True" if fold in ("and", "min", "argmin", "prod") else "False"
    real = DTYPES[dtype].is_float
    if fold in ("sum", "prod"):
        one = int(fold == "prod")
        return f"{one}.0" if real else str(one)
    low = fold in ("max", "argmax", "logaddexp")
    if real:
        return f'float("{"-" if low else ""}inf")'
    bits = 8 * DTYPES[dtype].size
    if dtype.startswith("u"):
        return "0" if low else str((1 << bits) - 1)
    return str(-(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1)


def _update(fold: str, name: str, value: str) -> str:
    """A value folded into a result, as text."""
    if fold in _UPDATE:
        return _UPDATE[fold].format(a=name, v=value)
    return f"{_COMBINE[fold]}({name}, {value})"


class Folds:
    """Writes the reductions of a kernel over one dimension of its tile; None: over a loop that
    leaves nothing to reduce after it."""

    def __init__(self, loop: KernelLoop, frame: Frame, dim: Dim | None) -> None:
        self.loop = loop
        self.frame = frame
        self.dim = dim
        self.numbers = {buffer: k for k, buffer in enumerate(loop.results)}
        self.whole: Shape = frozenset(d.name for d in frame.tile.dims)

    def dtype(self, s: Statement) -> str:
        return s.value.dtype if s.fold in INDEXED else self.loop.results[s.buffer]

    # -- a whole tile -----------------------------------------------------------------------

    def fold(self, scope: Scope, s: Statement) -> None:
        """Reduce a value over the tile; the result becomes a known value of the scope."""
        value = self.inside(scope, s)
        if s.fold in lp.SCANS:
            self._scan(scope, s, value)
        elif s.fold in INDEXED:
            self._finish_index(scope, s, value, self._positions())
        else:
            self._finish(scope, s, value)

    # -- a loop -----------------------------------------------------------------------------

    def declare(self, scope: Scope, s: Statement) -> None:
        """Partial results at their neutral values."""
        dtype = self.dtype(s)
        if s.fold in lp.SCANS:
            shape = self.result_shape()
            neutral = identity(lp.SCANS[s.fold], dtype)
            scope.emit(f"{self.partial(s)} = tl.full({shape}, {neutral}, {TYPES[dtype]})")
            return
        shape = self.frame.tile.shape(self.whole)
        neutral = identity(s.fold or "", dtype)
        scope.emit(f"{self.partial(s)} = tl.full({shape}, {neutral}, {TYPES[dtype]})")
        if s.fold in INDEXED:
            scope.emit(f"{self.partial(s)}_at = tl.full({shape}, {self._last()}, {self._place()})")

    def accumulate(self, scope: Scope, s: Statement) -> None:
        """Fold one block into the partial results."""
        name = self.partial(s)
        if s.fold in INDEXED:
            value = self.inside(scope, s)
            scope.emit(
                f"{name}, {name}_at = {_COMBINE[s.fold or '']}({name}, {name}_at, {value}, "
                f"{self._positions()})"
            )
            return
        value = self.inside(scope, s)
        if s.fold in lp.SCANS:
            fold = lp.SCANS[s.fold]
            self._scan(scope, s, value, carry=name)
            value = self.reduce(fold, self.dtype(s), value)
            scope.emit(f"{name} = {_update(fold, name, value)}")
            return
        scope.emit(f"{name} = {_update(s.fold or '', name, value)}")

    def finish(self, scope: Scope, s: Statement) -> None:
        """Reduce the partial results."""
        name = self.partial(s)
        if s.fold in lp.SCANS:
            return
        if s.fold in INDEXED:
            self._finish_index(scope, s, name, f"{name}_at")
        else:
            self._finish(scope, s, name)

    # -- what both have ---------------------------------------------------------------------

    def partial(self, s: Statement) -> str:
        return f"part{self.numbers[s.buffer]}"

    def inside(self, scope: Scope, s: Statement) -> str:
        """The value over the whole tile, neutral beyond the end of the folded axes."""
        dtype = self.dtype(s)
        value = s.value if s.fold in INDEXED else lp.cast(s.value, dtype)
        text = scope.whole(value, self.whole)
        dim = self.dim
        if dim is not None and dim.masked:
            neutral = identity(lp.SCANS.get(s.fold or "", s.fold or ""), dtype)
            if s.fold not in ("sum", "or") or not self._zero_outside(value, dim):
                text = f"tl.where({dim.name}mask, {text}, {neutral})"
        if text.isidentifier():
            return text
        name = self.frame.fresh()
        scope.emit(f"{name} = {text}")
        return name

    def _zero_outside(self, node: Scalar, dim: Dim) -> bool:
        """Whether a value is known to be 0 beyond the end of the folded axes."""
        if isinstance(node, Load):
            return dim.name in self.frame.shape(node)
        if isinstance(node, Op) and node.name in ("cast", "mul", "abs", "round_bf16", "round_f16"):
            return all(self._zero_outside(a, dim) for a in node.args)
        return False

    def _place(self) -> str:
        assert self.dim is not None
        return "tl.int64" if self.frame.wide(self.dim.count) else "tl.int32"

    def _last(self) -> str:
        assert self.dim is not None
        return str((1 << (63 if self.frame.wide(self.dim.count) else 31)) - 1)

    def _positions(self) -> str:
        assert self.dim is not None
        if len(self.frame.tile.dims) == 1:
            return self.dim.name
        return f"tl.broadcast_to({self.dim.name}, {self.frame.tile.shape(self.whole)})"

    def _along(self) -> str:
        dims = self.frame.tile.dims
        assert self.dim is not None
        if len(dims) == 1:
            return "0"
        return f"{dims.index(self.dim)}, keep_dims=True"

    def reduce(self, fold: str, dtype: str, value: str) -> str:
        along = self._along()
        if dtype == "bool":
            extreme = "max" if fold in ("or", "max", "sum") else "min"
            return f"tl.{extreme}({value}.to(tl.int32), {along}) != 0"
        if fold == "sum":
            return f"tl.sum({value}, {along})"
        if fold in ("min", "max") and not DTYPES[dtype].is_float:
            return f"tl.{fold}({value}, {along})"
        axis, _, keep = along.partition(", ")
        more = f", {keep}" if keep else ""
        return f"tl.reduce({value}, {axis}, {_COMBINE[fold]}{more})"

    def _finish(self, scope: Scope, s: Statement, value: str) -> None:
        name = value
        if self.dim is not None:
            name = f"fold{self.numbers[s.buffer]}"
            scope.emit(f"{name} = {self.reduce(s.fold or '', self.dtype(s), value)}")
        scope.known[lp.reduced(s.buffer, self.loop.results[s.buffer])] = name

    def result_shape(self) -> str:
        """The shape of a result, as text."""
        if len(self.whole) == 1:
            return "[]"
        return self.frame.tile.shape(
            frozenset(d.name for d in self.frame.tile.dims if d is not self.dim)
        )

    def _scan(self, scope: Scope, s: Statement, value: str, carry: str = "") -> None:
        """The results up to each point, from what ``carry`` holds of the points before."""
        assert s.fold is not None
        axis = self._along().partition(", ")[0]
        fold = lp.SCANS[s.fold]
        text = f"tl.{s.fold}({value}, {axis})"
        if s.fold not in _OWN_SCANS:
            text = f"tl.associative_scan({value}, {axis}, {_COMBINE[fold]})"
        if carry:
            text = _update(fold, carry, text)
        name = f"scan{self.numbers[s.buffer]}"
        scope.emit(f"{name} = {text}")
        scope.known[lp.reduced(s.buffer, self.loop.results[s.buffer])] = name

    def _finish_index(self, scope: Scope, s: Statement, value: str, places: str) -> None:
        name = f"fold{self.numbers[s.buffer]}"
        axis, _, keep = self._along().partition(", ")
        more = f", {keep}" if keep else ""
        scope.emit(
            f"{name}_value, {name}_at = tl.reduce(({value}, {places}), {axis}, "
            f"{_COMBINE[s.fold or '']}{more})"
        )
        scope.emit(f"{name} = {name}_at.to(tl.int64)")
        scope.known[lp.reduced(s.buffer, self.loop.results[s.buffer])] = name
