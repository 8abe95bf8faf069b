"""Scalar values as C statements over vectors.

A `Scope` is one C block: values computed in it are remembered, so common subexpressions are
computed once, and a value that does not change inside the block is computed in the block around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fusec.codegen.c_expr import c_expr
from fusec.codegen.scope import holder, home, own_symbols
from fusec.errors import CodegenError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import Argument, Statement, linear
from fusec.ir.loop import Const, Index, Load, Op, Reduced, Scalar

STORAGE: Final = {
    "f64": "double", "f32": "float", "f16": "unsigned short", "bf16": "unsigned short",
    "i64": "long", "i32": "int", "i16": "short", "i8": "signed char",
    "u64": "unsigned long", "u32": "unsigned int", "u16": "unsigned short", "u8": "unsigned char",
    "bool": "unsigned char",
}  # fmt: skip
_COMPARE: Final = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_LOGIC: Final = frozenset(("and", "or", "xor", "not"))
_INT32: Final = (1 << 31) - 1


def vector_type(dtype: str) -> str:
    return "vmask" if dtype == "bool" else f"v{dtype}"


def _suffix(dtype: str) -> str:
    return "mask" if dtype == "bool" else dtype


@dataclass(slots=True)
class Frame:
    """What a kernel's values are emitted against: shared by all of its scopes."""

    lanes: int
    buffers: dict[int, Argument]
    names: dict[int, str]  # buffer → C pointer
    vector_axis: Sym | None
    symbol: Callable[[Sym], str]
    needed: set[str] = field(default_factory=set)
    counter: int = 0

    def fresh(self) -> str:
        self.counter += 1
        return f"t{self.counter}"

    def call(self, function: str, *args: str) -> str:
        self.needed.add(function)
        return f"{function}({', '.join(args)})"


@dataclass(slots=True)
class Scope:
    """One C block. ``varying``: symbols that change in it; ``count``: C text of the valid lanes."""

    frame: Frame
    varying: frozenset[Sym]
    count: str
    vector: bool  # whether lanes run along the vector axis here, or all lanes are alike
    parent: Scope | None = None
    shift: int = 0  # how far along the vector axis this copy of the body lies
    lines: list[str] = field(default_factory=list)
    known: dict[Scalar, str] = field(default_factory=dict)

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def value(self, root: Scalar) -> str:
        """The C name of a value, computed here or around here."""
        for node in lp.walk((root,)):
            if holder(self, node) is None:
                block = home(self, lp.children(node), own_symbols(node))
                block.known[node] = block._compute(node)
        found = holder(self, root)
        assert found is not None
        return found.known[root]

    # -- values -----------------------------------------------------------------------------

    def _compute(self, node: Scalar) -> str:
        text = self._text(node)
        name = self.frame.fresh()
        self.emit(f"{vector_type(node.dtype)} {name} = {text};")
        return name

    def _text(self, node: Scalar) -> str:
        if isinstance(node, Const):
            return self.frame.call(f"splat_{_suffix(node.dtype)}", _literal(node))
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Index):
            return (
                self._condition(node.expr)
                if node.dtype == "bool"
                else self._index(node.expr, "i64")
            )
        if isinstance(node, Reduced):
            raise CodegenError(
                f"the result of reduction b{node.buffer} is used before it is complete"
            )
        assert isinstance(node, Op)
        return self._op(node)

    def _op(self, node: Op) -> str:
        frame = self.frame
        if node.name == "cast":
            source = node.args[0]
            narrow = narrow_index(node)
            if narrow is not None:
                value = self._index(narrow, "i32")
                if node.dtype == "i32":
                    return value
                return frame.call(f"cvt_i32_{_suffix(node.dtype)}", value)
            return frame.call(
                f"cvt_{_suffix(source.dtype)}_{_suffix(node.dtype)}", self.value(source)
            )
        args = [self.value(a) for a in node.args]
        if node.name in _COMPARE:
            operand = node.args[0].dtype
            if operand == "bool":
                return self._compare_masks(node.name, args)
            return frame.call(f"{node.name}_{operand}", *args)
        if node.name in _LOGIC:
            return frame.call(f"{node.name}_{_suffix(node.dtype)}", *args)
        if node.name == "where":
            if node.dtype == "bool":
                yes = frame.call("and_mask", args[0], args[1])
                no = frame.call("and_mask", frame.call("not_mask", args[0]), args[2])
                return frame.call("or_mask", yes, no)
            return frame.call(f"sel_{node.dtype}", *args)
        if node.name.startswith("round_"):
            return frame.call(node.name, *args)
        operand = node.args[0].dtype if node.dtype == "bool" else node.dtype
        return frame.call(f"{node.name}_{operand}", *args)

    def _compare_masks(self, name: str, args: list[str]) -> str:
        frame = self.frame
        if name in ("eq", "ne"):
            different = frame.call("xor_mask", *args)
            return different if name == "ne" else frame.call("not_mask", different)
        wide = [frame.call("cvt_mask_i32", a) for a in args]
        return frame.call(f"{name}_i32", *wide)

    # -- memory -----------------------------------------------------------------------------

    def _coefficient(self, e: Expr) -> int | None:
        """How far ``e`` moves from one lane to the next; None where that is not a constant 0 or 1
        or some other number known now."""
        axis = self.frame.vector_axis
        return ex.step(e, axis) if axis is not None and self.vector else 0

    def c(self, e: Expr, lane: str | None = None, bound: dict[str, str] | None = None) -> str:
        """C text of an index expression here; ``lane`` is added to the vector axis."""
        axis = self.frame.vector_axis

        def name(s: Sym) -> str:
            if bound and s.name in bound:
                return bound[s.name]
            text = self.frame.symbol(s)
            if s is not axis:
                return text
            more = [f"{self.shift}L"] * bool(self.shift) + ([lane] if lane is not None else [])
            return f"({' + '.join([text, *more])})" if more else text

        return c_expr(e, name)

    def _load(self, node: Load) -> str:
        frame = self.frame
        argument = frame.buffers[node.buffer]
        offset = linear(node.index, argument.stride)
        pointer = frame.names[node.buffer]
        stored = argument.dtype
        guard_step = 0 if node.guard is None else self._coefficient(node.guard)
        step = self._coefficient(offset)
        uniform = not any(varies(v, frame.vector_axis) for _, v in node.indirect)
        if not uniform or step not in (0, 1) or guard_step != 0:
            return self._gather(node, offset, pointer, stored)
        bound = {symbol.name: self._first_lane(value) for symbol, value in node.indirect}
        place = self.c(offset, bound=bound)
        if step == 1:
            text = frame.call(f"ld_{stored}", f"{pointer} + {place}", self.count)
        else:
            text = self._splat(stored, f"{pointer}[{place}]")
        if node.guard is not None:
            zero = frame.call(f"splat_{_suffix(node.dtype)}", "0")
            text = f"{self.c(node.guard, bound=bound)} ? {text} : {zero}"
        return text

    def _first_lane(self, value: Scalar) -> str:
        """A name for a loaded index that all lanes share."""
        place = self.frame.fresh()
        lane = "" if self.frame.lanes == 1 else "[0]"
        self.emit(f"const long {place} = {self.value(value)}{lane};")
        return place

    def _splat(self, stored: str, element: str) -> str:
        frame = self.frame
        if stored in ("bf16", "f16"):
            return frame.call(f"from_{stored}", frame.call("splat_u16", element))
        if stored == "bool":
            return frame.call("cvt_u8_mask", frame.call("splat_u8", element))
        return frame.call(f"splat_{stored}", element)

    def _gather(self, node: Load, offset: Expr, pointer: str, stored: str) -> str:
        """Lane by lane: as the parts of one vector where all lanes count, else through an array.

        (A vector load from an array that was just written part by part waits for the writes.)
        """
        frame = self.frame
        whole = self.vector and self.count == str(frame.lanes) and frame.lanes > 1
        plain = stored == node.dtype != "bool"  # a mask is not what a byte holds
        if whole and plain and not node.indirect and node.guard is None:
            parts = (f"{pointer}[{self.c(offset, f'{lane}L')}]" for lane in range(frame.lanes))
            return f"({vector_type(stored)}){{{', '.join(parts)}}}"
        bound: dict[str, str] = {}
        for symbol, value in node.indirect:
            places = frame.fresh()
            self.emit(f"long {places}[{frame.lanes}];")
            self.emit(frame.call("st_i64", places, self.value(value), str(frame.lanes)) + ";")
            bound[symbol.name] = f"{places}[l]"
        items = frame.fresh()
        valid = f"l < {self.count}" if self.vector else "1"
        guard = "" if node.guard is None else f" && {self.c(node.guard, 'l', bound)}"
        self.emit(f"{STORAGE[stored]} {items}[{frame.lanes}];")
        self.emit(
            f"for (int l = 0; l < {frame.lanes}; l++) {items}[l] = "
            f"{valid}{guard} ? {pointer}[{self.c(offset, 'l', bound)}] : 0;"
        )
        return frame.call(f"ld_{stored}", items, str(frame.lanes))

    def _index(self, e: Expr, dtype: str) -> str:
        """An index expression as a vector of i64 or i32."""
        frame = self.frame
        step = self._coefficient(e)
        if step == 0:
            return frame.call(f"splat_{dtype}", self.c(e))
        if step is not None:
            axis = frame.vector_axis
            assert axis is not None
            first = frame.call(f"splat_{dtype}", self.c(e))
            lanes = frame.call(f"iota_{dtype}", "0")
            if step != 1:
                lanes = frame.call(f"mul_{dtype}", lanes, frame.call(f"splat_{dtype}", str(step)))
            return frame.call(f"add_{dtype}", first, lanes)
        return self._lanewise(e, dtype)

    def _lanewise(self, e: Expr, dtype: str) -> str:
        frame = self.frame
        items = frame.fresh()
        self.emit(f"{STORAGE[dtype]} {items}[{frame.lanes}];")
        self.emit(f"for (int l = 0; l < {frame.lanes}; l++) {items}[l] = {self.c(e, 'l')};")
        return frame.call(f"ld_{dtype}", items, str(frame.lanes))

    def _condition(self, e: Expr) -> str:
        frame = self.frame
        if self._coefficient(e) == 0:
            return frame.call("splat_mask", self.c(e))
        if isinstance(e, ex.Binary) and e.op in ("<", "<=", "==", "!="):
            sides = (e.left, e.right)
            if all(fits_int32(s) and self._coefficient(s) is not None for s in sides):
                name = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne"}[e.op]
                return frame.call(f"{name}_i32", *(self._index(s, "i32") for s in sides))
        if isinstance(e, ex.Product):
            text = self._condition(e.factors[0])
            for factor in e.factors[1:]:
                text = frame.call("and_mask", text, self._condition(factor))
            return text
        return frame.call("ne_i32", self._lanewise(e, "i32"), frame.call("splat_i32", "0"))

    def store(self, buffer: int, index: tuple[Expr, ...], value: Scalar) -> None:
        """Write a value; in a scope whose lanes are alike, one element."""
        frame = self.frame
        argument = frame.buffers[buffer]
        offset = linear(index, argument.stride)
        name = self.value(lp.cast(value, argument.dtype))
        pointer = frame.names[buffer]
        step = self._coefficient(offset)
        if not self.vector or step == 0:
            self.emit(
                frame.call(f"st_{argument.dtype}", f"{pointer} + {self.c(offset)}", name, "1") + ";"
            )
        elif step == 1:
            self.emit(
                frame.call(
                    f"st_{argument.dtype}", f"{pointer} + {self.c(offset)}", name, self.count
                )
                + ";"
            )
        else:
            items = frame.fresh()
            self.emit(f"{STORAGE[argument.dtype]} {items}[{frame.lanes}];")
            self.emit(frame.call(f"st_{argument.dtype}", items, name, str(frame.lanes)) + ";")
            place = f"{pointer}[{self.c(offset, 'l')}]"
            self.emit(f"for (int l = 0; l < {self.count}; l++) {place} = {items}[l];")

    def scatter(self, s: Statement) -> None:
        """Put elements at a place that is loaded: one, or neighbours along the lanes."""
        frame = self.frame
        argument = frame.buffers[s.buffer]
        bound = {symbol.name: self._first_lane(value) for symbol, value in s.indirect}
        place = self.c(linear(s.index, argument.stride), bound=bound)
        name = self.value(lp.cast(s.value, argument.dtype))
        target = f"{frame.names[s.buffer]} + {place}"
        count = self.count if self.vector else "1"
        if s.scatter != "store":
            kind = _suffix(DTYPES[argument.dtype].compute)
            fold = s.scatter if kind != "mask" else "or" if s.scatter in ("add", "max") else "and"
            before = frame.call(f"ld_{argument.dtype}", target, count)
            name = frame.call(f"{fold}_{kind}", before, name)
        self.emit(frame.call(f"st_{argument.dtype}", target, name, count) + ";")


def narrow_index(node: Op) -> Expr | None:
    """For a conversion of an index that fits 32 bits: the index."""
    source = node.args[0]
    if isinstance(source, Index) and source.dtype == "i64" and fits_int32(source.expr):
        return source.expr if node.dtype != "i64" else None
    return None


def fits_int32(e: Expr) -> bool:
    low, high = ex.bounds(e)
    return low is not None and high is not None and low >= -_INT32 and high <= _INT32


def varies(value: Scalar, axis: Sym | None) -> bool:
    """Whether a value can differ between the lanes along ``axis``."""
    return any(axis in own_symbols(node) for node in lp.walk((value,)))


def _literal(node: Const) -> str:
    value = node.value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        if node.dtype == "i64" and value == -(1 << 63):
            return "(-9223372036854775807L - 1)"
        return f"{value}{'UL' if DTYPES[node.dtype].kind == 'uint' else 'L'}"
    suffix = "f" if node.dtype == "f32" else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return value.hex() + suffix
