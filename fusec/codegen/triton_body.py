"""Scalar values as Triton statements over tiles.

A `Scope` is one block of the program: the kernel's own, or the body of a loop in it. Values
computed in it are remembered, so common subexpressions are computed once, and what does not change
inside a loop is computed around it. Each value has the narrowest shape that holds it: a scalar, a
row, a column, or the whole tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fusec.codegen import triton_random
from fusec.codegen.scope import holder, home, own_symbols
from fusec.codegen.triton_expr import triton_condition, triton_expr, triton_operand
from fusec.codegen.triton_frame import SCALAR, Frame, Shape
from fusec.codegen.triton_ops import (
    TYPED,
    constant,
    conversion,
    operation,
    reciprocal,
    typed,
)
from fusec.codegen.triton_tile import Dim, upper
from fusec.errors import CodegenError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import Statement, linear
from fusec.ir.loop import Const, Index, Load, Op, Reduced, Scalar

MANY: Final = 8  # points that share a divisor, so that its reciprocal is worth computing


@dataclass(slots=True)
class Scope:
    """One block. ``varying``: axes that change in it and not around it."""

    frame: Frame
    varying: frozenset[Sym]
    parent: Scope | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[Scalar, str] = field(default_factory=dict)
    axes: dict[tuple[Sym, bool], str] = field(default_factory=dict)  # by axis and width

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def value(self, root: Scalar) -> str:
        """The name of a value, computed here or around here; the text of a constant."""
        for node in self._missing(root):
            operands = (c for c in _operands(node) if not isinstance(c, Const))
            block = home(self, operands, _symbols(node))
            block.known[node] = block._compute(node)
        if isinstance(root, Const):
            return typed(root)
        found = holder(self, root)
        assert found is not None
        return found.known[root]

    def _missing(self, root: Scalar) -> Iterator[Scalar]:
        """What has to be computed for a value, operands before users."""
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if isinstance(node, Const) or holder(self, node) is not None:
                continue
            if ready:
                yield node
            else:
                stack.append((node, True))
                stack.extend((c, False) for c in reversed(_operands(node)))

    def whole(self, root: Scalar, shape: Shape) -> str:
        """A value in a shape that it may not fill."""
        if self.frame.shape(root) == shape:
            return self.value(root)
        return f"tl.broadcast_to({self.value(root)}, {self.frame.tile.shape(shape)})"

    # -- values -----------------------------------------------------------------------------

    def _compute(self, node: Scalar) -> str:
        text = self._text(node)
        name = self.frame.fresh()
        self.emit(f"{name} = {text}")
        return name

    def _text(self, node: Scalar) -> str:
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Index):
            return self._index(node)
        if isinstance(node, Reduced):
            raise CodegenError(
                f"the result of reduction b{node.buffer} is used before it is complete"
            )
        assert isinstance(node, Op)
        if node.name == triton_random.NAME:
            return self._random(node)
        if node.name == lp.WITHIN:
            return self._within(node)
        if node.name == "cast":
            source = node.args[0]
            return conversion(self.value(source), source.dtype, node.dtype)
        name, operands = node.name, node.args
        inverse = reciprocal(operands[1]) if name == "div" else None
        if inverse is not None:
            name, operands = "mul", (operands[0], inverse)
        quotients = self._quotients(node) if name == "div" else None
        if quotients is not None:
            return quotients
        plain = name not in TYPED and not all(isinstance(a, Const) for a in operands)
        args = [
            constant(a, name) if plain and isinstance(a, Const) else self.value(a) for a in operands
        ]
        return operation(
            name,
            node.dtype,
            operands[-1].dtype,
            args,
            self.frame.isa,
            precise=node in self.frame.precise,
        )

    def _quotients(self, node: Op) -> str | None:
        """A precise division of many points of a tile by one number; None for another one."""
        shape = self.frame.shape(node)
        divisor = node.args[1]
        own = self.frame.shape(divisor)
        shared = math.prod(d.block for d in self.frame.tile.dims if d.name in shape - own)
        if node.dtype != "f32" or node not in self.frame.precise or shared < MANY:
            return None
        return f"divide_by({self.whole(node.args[0], shape)}, {self.value(divisor)})"

    def _within(self, node: Op) -> str:
        """A place that is asserted to be in range, by the points that are inside and of interest.
        AMD's assertions need calls to the host from every kernel: there it is clamped."""
        place, size, *where = node.args
        shape = self.frame.shape(node)
        name = self.whole(place, shape)
        end = constant(size, "lt") if isinstance(size, Const) else self.value(size)
        if self.frame.isa.startswith("gfx"):
            return f"tl.maximum(tl.minimum({name}, {end} - 1), 0)"
        own = self.value(place)
        arguments = [f"({own} >= 0) & ({own} < {end})", '"index out of range"']
        mask = self._mask(shape, self.value(where[0]) if where else None)
        if mask:
            arguments.append(mask)
        self.emit(f"tl.device_assert({', '.join(arguments)})")
        return name

    def _random(self, node: Op) -> str:
        key, place = self.value(node.args[0]), triton_random.place_of(node)
        if place is None:
            return f"philox_uniform({key}, {self.value(node.args[1])})"
        tile = self.frame.tile
        blocks = triton_random.whole_blocks(place, tile)
        if blocks is None:
            place = tile.as_linear(place)
            return (
                f"philox_uniform({key}, {triton_expr(place, self._namer(self.frame.wide(place)))})"
            )
        dim, first = blocks.dim, blocks.first
        start = self.frame.starts[dim.name]
        lanes = f"tl.arange(0, {dim.constant} // 4){tile.spread(dim)}"
        parts = [f"({start}) // 4", lanes] if start else [lanes]
        if first is not ex.ZERO:
            parts.insert(0, triton_operand(first, self._namer(self.frame.wide(place))))
        numbers = f"philox_uniform_four({key}, {' + '.join(parts)})"
        shape = self.frame.shape_of(place)
        return f"tl.reshape({numbers}, {tile.shape(shape)})"

    def _index(self, node: Index) -> str:
        e = node.expr
        if node.dtype == "bool":
            return triton_condition(e, self._namer(self.frame.wide(e)))
        if isinstance(e, ex.Int):
            return f"tl.full([], {e.value}, tl.int64)"
        return f"tl.cast({triton_expr(e, self._namer(self.frame.wide(e)))}, tl.int64)"

    # -- places -----------------------------------------------------------------------------

    def _namer(self, wide: bool, bound: dict[Sym, str] | None = None) -> Callable[[Sym], str]:
        def name(s: Sym) -> str:
            if bound and s in bound:
                return bound[s]
            return self._axis(s, wide) if s.upper is not None else self.frame.size(s, wide=wide)

        return name

    def _axis(self, s: Sym, wide: bool) -> str:
        """The name of an axis, made of its dimension's index where it is first asked for."""
        scope: Scope = self
        dim = self.frame.tile.dim_of(s)
        first = dim.axes[0] if dim is not None else s
        while scope.parent is not None and first not in scope.varying:
            scope = scope.parent
        found = scope.axes.get((s, wide))
        if found is None:
            found = scope.axes[(s, wide)] = scope._define(s, dim, wide)
        return found

    def _define(self, s: Sym, dim: Dim | None, wide: bool) -> str:
        if wide:
            narrow = self._axis(s, False)
            if self.frame.wide(s):
                return narrow  # 64 bits as it is
            self.emit(f"{narrow}_wide = tl.cast({narrow}, tl.int64)")
            return f"{narrow}_wide"
        if dim is not None and s is dim.linear:
            return dim.name
        if dim is not None:
            start = _operand(self.frame.starts[dim.name]) if dim.uniform(s) else dim.name
            return self._decode(start, dim.axes, s)
        single = self.frame.tile.single
        if s is self.frame.tile.row:
            return "row"
        if s in single:
            return self._decode(self.frame.single, single, s)
        raise CodegenError(f"the axis {s.name} is not in scope")

    def _decode(self, linear_name: str, axes: tuple[Sym, ...], s: Sym) -> str:
        """One axis of a linear index over several."""
        if len(axes) == 1:
            return linear_name
        place = axes.index(s)
        below = ex.product(upper(a) for a in axes[place + 1 :])
        text = linear_name
        if below is not ex.ONE:
            text = f"{text} // {_operand(self.frame.size_text(below))}"
        if place > 0:
            text = f"({text})" if below is not ex.ONE else text
            text = f"{text} % {_operand(self.frame.size_text(upper(s)))}"
        self.emit(f"{s.name} = {text}")
        return s.name

    def _pointer(
        self,
        buffer: int,
        index: tuple[Expr, ...],
        bound: dict[Sym, tuple[str, Shape]],
        shape: Shape,
    ) -> str:
        """The text of an element's place, of at least a shape: fixed parts before the varying ones,
        so that only the former need 64 bits in most large tensors."""
        frame = self.frame
        offset = frame.tile.as_linear(linear(index, frame.buffers[buffer].stride))
        names = {s: text for s, (text, _) in bound.items()}

        def shape_of(e: Expr) -> Shape:
            found = frame.shape_of(e)
            return found.union(*(bound[s][1] for s in ex.symbols(e) if s in bound))

        const, terms = ex.linear_terms(offset)
        parts: dict[Shape, Expr] = {}
        if frame.wide(offset):
            for atom, coefficient in terms:
                own = shape_of(atom)
                parts[own] = parts.get(own, ex.ZERO) + atom * coefficient
            order = sorted(parts, key=lambda p: (len(p), sorted(p)))
            if const:
                first = order[0] if order else SCALAR
                parts[first] = parts.get(first, ex.ZERO) + const
        else:
            parts[shape_of(offset)] = offset
        text = frame.names[buffer]
        covered = SCALAR
        for own in sorted(parts, key=lambda p: (len(p), sorted(p))):
            part = parts[own]
            if part is ex.ZERO and own == SCALAR:
                continue
            wide = frame.wide(part)
            text = f"{text} + {triton_operand(part, self._namer(wide, names))}"
            covered |= own
        if covered >= shape:
            return text
        full = frame.tile.shape(shape | covered)
        if covered:
            return f"tl.broadcast_to({text}, {full})"
        return f"{text} + tl.zeros({full}, tl.int32)"

    def _mask(self, shape: Shape, guard: str | None) -> str:
        """The condition that a tile's points are inside and the guard holds; or nothing."""
        parts = [f"{d.name}mask" for d in self.frame.tile.dims if d.name in shape and d.masked]
        if guard is not None:
            parts.append(guard)
        return " & ".join(parts)

    def _load(self, node: Load) -> str:
        frame = self.frame
        bound = {s: (self.value(value), frame.shape(value)) for s, value in node.indirect}
        guard = None if node.guard is None else self._guard(node.guard, bound)
        shape = frame.shape(node)
        arguments = [self._pointer(node.buffer, node.index, bound, shape)]
        mask = self._mask(shape, guard)
        if mask:
            arguments += [mask, "other=0"]
        policy = frame.eviction(node)
        if policy:
            arguments.append(f'eviction_policy="{policy}"')
        text = f"tl.load({', '.join(arguments)})"
        stored = frame.buffers[node.buffer].dtype
        if stored == "bool":
            return f"{text} != 0"
        return text if stored == node.dtype else conversion(text, stored, node.dtype)

    def _guard(self, guard: Expr, bound: dict[Sym, tuple[str, Shape]]) -> str:
        if not any(s in bound for s in ex.symbols(guard)):
            return self.value(lp.condition(guard))
        names = {s: text for s, (text, _) in bound.items()}
        return triton_condition(guard, self._namer(self.frame.wide(guard), names))

    def store(self, s: Statement, shape: Shape) -> None:
        """Write a statement's value at every point of a shape. A scatter's points may name one
        place at once: of stored values any may stay, added ones go in atomically."""
        frame = self.frame
        dtype = frame.buffers[s.buffer].dtype
        value = s.value
        if isinstance(value, Op) and value.name == f"round_{dtype}":
            value = value.args[0]  # to store it is to round it
        bound = {symbol: (self.value(v), frame.shape(v)) for symbol, v in s.indirect}
        name = self.value(lp.cast(value, dtype))
        arguments = [self._pointer(s.buffer, s.index, bound, shape), name]
        mask = self._mask(shape, None)
        if mask:
            arguments.append(mask)
        if s.scatter == "add":
            self.emit(f'tl.atomic_add({", ".join(arguments)}, sem="relaxed")')
        elif s.scatter in (None, "store"):
            self.emit(f"tl.store({', '.join(arguments)})")
        else:
            raise CodegenError(f"no atomic operation for the scatter {s.scatter}")


def _operands(node: Scalar) -> tuple[Scalar, ...]:
    """The values that a value's text names."""
    children = lp.children(node)
    return children[:1] if triton_random.place_of(node) is not None else children


def _symbols(node: Scalar) -> set[Sym]:
    place = triton_random.place_of(node)
    return own_symbols(node) if place is None else set(ex.symbols(place))


def _operand(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"
