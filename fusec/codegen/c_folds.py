"""Reductions inside a C kernel: totals, the partial results of each copy, how they come together.

A fold has a total ``a<k>`` and one partial result ``p<k>_<copy>`` a copy of the body. Partial
results go into the total every few dozen additions, so that a long float sum loses no more than a
blocked one does.
"""

from __future__ import annotations

from typing import Final

from fusec.codegen.c_body import Frame, Scope, vector_type
from fusec.codegen.c_expr import c_expr
from fusec.codegen.c_layout import INDEXED, upper
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import SCANS

_LOWEST: Final = {
    "f32": ("-__builtin_inff()", "__builtin_inff()"),
    "f64": ("-__builtin_inf()", "__builtin_inf()"),
    "i64": ("(-9223372036854775807L - 1)", "9223372036854775807L"),
    "i32": ("(-2147483647 - 1)", "2147483647"),
    "i16": ("-32768", "32767"),
    "i8": ("-128", "127"),
    "u64": ("0", "18446744073709551615UL"),
    "u32": ("0", "4294967295U"),
    "u16": ("0", "65535"),
    "u8": ("0", "255"),
}


def identity(fold: str, dtype: str) -> str:
    """The neutral element of a reduction, as C."""
    fold = SCANS.get(fold, fold)
    if fold in ("sum", "or"):
        return "0"
    if fold in ("prod", "and"):
        return "1"
    low, high = _LOWEST.get(dtype, ("0", "1"))
    return low if fold in ("max", "argmax", "logaddexp") else high


def splat(dtype: str) -> str:
    return "splat_mask" if dtype == "bool" else f"splat_{dtype}"


def combine(fold: str, dtype: str) -> str:
    name = {"sum": "add", "prod": "mul"}.get(fold, fold)
    return f"{name}_{'mask' if dtype == 'bool' else dtype}"


def _horizontal(fold: str, dtype: str) -> str:
    if dtype == "bool":
        return "hany" if fold == "or" else "hall"
    return f"h{fold}_{dtype}"


class Folds:
    """Writes the C of a kernel's reductions. ``tag`` tells apart the strips of a column kernel."""

    def __init__(self, loop: KernelLoop, frame: Frame, *, across_lanes: bool) -> None:
        self.loop = loop
        self.frame = frame
        self.across_lanes = across_lanes  # lanes are added up at the end
        self.numbers = {buffer: k for k, buffer in enumerate(loop.results)}

    def dtype(self, s: Statement) -> str:
        return s.value.dtype if s.fold in INDEXED else self.loop.results[s.buffer]

    def total(self, s: Statement, tag: str = "") -> str:
        return f"a{self.numbers[s.buffer]}{tag}"

    def partial(self, s: Statement, copy: int) -> str:
        return f"p{self.numbers[s.buffer]}_{copy}"

    def _neutral(self, s: Statement) -> str:
        dtype = self.dtype(s)
        return self.frame.call(splat(dtype), identity(s.fold or "", dtype))

    def declare(self, scope: Scope, s: Statement, copies: int, tag: str = "") -> None:
        """Total and partial results, at their neutral values."""
        kind = vector_type(self.dtype(s))
        scope.emit(f"{kind} {self.total(s, tag)} = {self._neutral(s)};")
        if s.fold in INDEXED:
            scope.emit(f"long i{self.numbers[s.buffer]} = -1;")
            return
        if s.fold in SCANS:
            return
        if self._compensated(s):
            scope.emit(f"{kind} e{self.total(s, tag)} = {self._neutral(s)};")
        for copy in range(copies):
            scope.emit(f"{kind} {self.partial(s, copy)}{tag} = {self._neutral(s)};")

    def accumulate(
        self, scope: Scope, s: Statement, copy: int, *, partial_lanes: bool, tag: str = ""
    ) -> None:
        """Fold one body's value in; with ``partial_lanes`` only the valid lanes count."""
        if s.fold in INDEXED:
            self._accumulate_index(scope, s)
            return
        frame = self.frame
        dtype = self.dtype(s)
        value = scope.value(lp.cast(s.value, dtype))
        if partial_lanes and self.across_lanes and frame.lanes > 1:
            inside = frame.call(
                "lt_i32", frame.call("iota_i32", "0"), frame.call("splat_i32", scope.count)
            )
            value = self._masked(inside, value, s)
        if s.fold in SCANS:
            self._scan(scope, s, value, tag)
            return
        name = f"{self.partial(s, copy)}{tag}"
        scope.emit(f"{name} = {frame.call(combine(s.fold or '', dtype), name, value)};")

    def _scan(self, scope: Scope, s: Statement, value: str, tag: str) -> None:
        """The running result becomes a known value of the body; the total is its last lane."""
        frame, dtype = self.frame, self.dtype(s)
        fold, total, name = SCANS[s.fold or ""], self.total(s, tag), frame.fresh()
        along = self.across_lanes and frame.lanes > 1
        if along:
            value = frame.call(f"scan_{fold}_{dtype}", value)
        scope.emit(
            f"{vector_type(dtype)} {name} = {frame.call(combine(fold, dtype), total, value)};"
        )
        last = frame.call(splat(dtype), f"{name}[{frame.lanes - 1}]") if along else name
        scope.emit(f"{total} = {last};")
        scope.known[lp.reduced(s.buffer, self.loop.results[s.buffer])] = name

    def _masked(self, inside: str, value: str, s: Statement) -> str:
        frame, dtype = self.frame, self.dtype(s)
        if dtype != "bool":
            return frame.call(f"sel_{dtype}", inside, value, self._neutral(s))
        kept = frame.call("and_mask", inside, value)
        rest = frame.call("and_mask", frame.call("not_mask", inside), self._neutral(s))
        return frame.call("or_mask", kept, rest)

    def _accumulate_index(self, scope: Scope, s: Statement) -> None:
        """The first place of the extreme; NaN beats every number (one lane)."""
        value = scope.value(s.value)
        place: Expr = ex.ZERO
        for axis in self.loop.inner:
            place = place * upper(axis) + axis
        number = self.numbers[s.buffer]
        better = ">" if s.fold == "argmax" else "<"
        nan = f"({value} != {value} && a{number} == a{number})"
        scope.emit(
            f"if (i{number} < 0 || {value} {better} a{number} || {nan}) "
            f"{{ a{number} = {value}; i{number} = {c_expr(place, self.frame.symbol)}; }}"
        )

    def flush(self, s: Statement, copies: int, tag: str = "") -> str:
        """Partial results into the total."""
        if s.fold in INDEXED:
            return ""
        operation = combine(s.fold or "", self.dtype(s))
        names = [f"{self.partial(s, copy)}{tag}" for copy in range(copies)]
        parts = list(names)
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            odd = parts[len(parts) // 2 * 2 :]
            parts = [self.frame.call(operation, a, b) for a, b in pairs] + odd
        total = self.total(s, tag)
        reset = " ".join(f"{name} = {self._neutral(s)};" for name in names)
        if not self._compensated(s):
            return f"{total} = {self.frame.call(operation, total, parts[0])}; {reset}"
        # Kahan's summation: what an addition to the total rounds away is taken off the next one.
        call, dtype, error = self.frame.call, self.dtype(s), f"e{total}"
        kind = vector_type(dtype)
        return (
            f"{{ {kind} y = {call(f'sub_{dtype}', parts[0], error)}; "
            f"{kind} z = {call(f'add_{dtype}', total, 'y')}; "
            f"{error} = {call(f'sub_{dtype}', call(f'sub_{dtype}', 'z', total), 'y')}; "
            f"{total} = z; }} {reset}"
        )

    def _compensated(self, s: Statement) -> bool:
        return s.fold == "sum" and self.dtype(s) in ("f32", "f64")

    def finish(self, scope: Scope, s: Statement, tag: str = "") -> None:
        """The finished result becomes a known value of the scope."""
        dtype = self.loop.results[s.buffer]
        node = lp.reduced(s.buffer, dtype)
        if s.fold in INDEXED:
            scope.known[node] = f"i{self.numbers[s.buffer]}"
            return
        name = self.total(s, tag)
        if self.across_lanes and self.frame.lanes > 1:
            result = f"r{self.numbers[s.buffer]}"
            text = self.frame.call(_horizontal(s.fold or "", dtype), name)
            scope.emit(f"{vector_type(dtype)} {result} = {self.frame.call(splat(dtype), text)};")
            name = result
        scope.known[node] = name
