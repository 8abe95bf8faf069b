"""KernelLoop → C: one function over vectors, parallel over the kept axes.

The function's C type is ``void name(void **buffers, const long *sizes)``. Two forms: lanes along a
folded axis (a row a thread at a time, lanes added up at its end) or along a kept axis (a strip of
columns at a time, each lane its own result). A kernel that folds nothing has the first form with its
vector axis as the inner loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fusec.codegen.c_body import STORAGE, Frame, Scope, narrow_index, vector_type
from fusec.codegen.c_expr import FLOOR_HELPERS, c_expr
from fusec.codegen.c_prelude import prelude
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement, linear
from fusec.ir.loop import Index, Load, Op, Scalar

PARALLEL_WORK: Final = 16384  # elements; below it starting threads costs more than they save
_BLOCK: Final = 4096  # elements of a vector loop that one thread takes at a time
_FLUSH: Final = 64  # vector additions before a partial sum is added to the total
_TYPICAL_SIZE: Final = 64
_VECTOR_BYTES: Final = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64, "aarch64": 16}
_LIBM_HEAVY: Final = frozenset(("argmax", "argmin"))


@dataclass(frozen=True, slots=True)
class CKernel:
    """C source; ``buffers`` in the order of the function's pointers, ``sizes`` likewise."""

    name: str
    source: str
    buffers: tuple[int, ...]
    sizes: tuple[Expr, ...]


def emit_kernel(loop: KernelLoop, isa: str) -> CKernel:
    """Raises CodegenError for an operation that the vector library lacks."""
    return _Emitter(loop, isa).emit()


class _Emitter:
    def __init__(self, loop: KernelLoop, isa: str) -> None:
        self.loop = loop
        self.isa = isa
        indexed = any(s.fold in _LIBM_HEAVY for s in loop.statements)
        self.vector_axis = None if indexed else _vector_axis(loop)
        lanes = 1 if self.vector_axis is None else _lanes(loop, isa)
        self.sizes: list[Sym] = []
        names = {b: f"b{i}" for i, b in enumerate(loop.buffers)}
        self.frame = Frame(lanes, loop.buffers, names, self.vector_axis, self._symbol)
        self.folds_vector = self.vector_axis is None or self.vector_axis in loop.folded
        self.inner = list(loop.inner)
        if self.vector_axis is not None and self.folds_vector or not loop.folded:
            self.inner = [a for a in self.inner if a is not self.vector_axis]
            if self.vector_axis is not None:
                self.inner.append(self.vector_axis)
        self.column = self.vector_axis is not None and bool(loop.folded) and not self.folds_vector
        self.outer = [a for a in loop.kept if a not in self.inner and a is not self.vector_axis]

    def _symbol(self, s: Sym) -> str:
        if s.upper is not None:
            return s.name
        if s not in self.sizes:
            self.sizes.append(s)
        return f"n{self.sizes.index(s)}"

    def _c(self, e: Expr) -> str:
        return c_expr(e, self._symbol)

    # -- the function -----------------------------------------------------------------------

    def emit(self) -> CKernel:
        body = self._strips() if self.column else self._rows()
        name = _name(self.loop)
        lines = [f"void {name}(void **buffers, const long *sizes) {{"]
        for i, (buffer, argument) in enumerate(self.loop.buffers.items()):
            lines.append(f"  {STORAGE[argument.dtype]} *const b{i} = buffers[{i}];")
            assert self.frame.names[buffer] == f"b{i}"
        lines += [f"  const long n{i} = sizes[{i}];" for i in range(len(self.sizes))]
        lines += ["  " + line for line in body]
        lines.append("}")
        head = prelude(self.frame.lanes, self.isa, sorted(self.frame.needed))
        source = head + FLOOR_HELPERS + "\n".join(lines) + "\n"
        return CKernel(name, source, tuple(self.loop.buffers), tuple(self.sizes))

    def _threads(self, iterations: str) -> str:
        """The pragma for the outer loop, or nothing where the work is small."""
        work = 1
        known = True
        for axis in self.loop.axes:
            extent = None if axis.upper is None else ex.as_int(axis.upper)
            known = known and extent is not None
            work *= _TYPICAL_SIZE if extent is None else extent
        if known and work < PARALLEL_WORK:
            return ""
        condition = "" if known else f" if({self._work()} >= {PARALLEL_WORK})"
        return f"#pragma omp parallel for schedule(static){condition}"

    def _work(self) -> str:
        return self._c(ex.product(a.upper for a in self.loop.axes if a.upper is not None))

    # -- lanes along the inner loop -----------------------------------------------------------

    def _rows(self) -> list[str]:
        outer_scope = Scope(self.frame, frozenset(self.outer), "1", vector=False)
        blocked = not self.loop.folded and self.vector_axis is not None
        inner = self._stages(outer_scope, blocked)
        sizes = [a.upper for a in self.outer if a.upper is not None]
        total = ex.product(sizes)
        lines: list[str] = []
        if blocked:
            assert self.vector_axis is not None and self.vector_axis.upper is not None
            extent = self._c(self.vector_axis.upper)
            lines.append(f"const long blocks = ({extent} + {_BLOCK - 1}L) / {_BLOCK}L;")
            lines.append(f"const long total = {self._c(total)} * blocks;")
        else:
            lines.append(f"const long total = {self._c(total)};")
        pragma = self._threads("total") if blocked or self.outer else ""
        if pragma:
            lines.append(pragma)
        lines.append("for (long o = 0; o < total; o++) {")
        body: list[str] = []
        rest = "o"
        if blocked:
            assert self.vector_axis is not None and self.vector_axis.upper is not None
            body.append(f"const long from = o % blocks * {_BLOCK}L;")
            body.append(
                f"const long to = minl(from + {_BLOCK}L, {self._c(self.vector_axis.upper)});"
            )
            rest = "(o / blocks)"
        body += self._decode(rest, self.outer)
        body += outer_scope.lines + inner
        lines += ["  " + line for line in body]
        lines.append("}")
        return lines

    def _decode(self, linear_index: str, axes: list[Sym]) -> list[str]:
        """Declare the axes from one linear index, the last axis the fastest."""
        lines: list[str] = []
        rest = linear_index
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            assert axis.upper is not None
            if position == 0:
                lines.append(f"const long {axis.name} = {rest};")
            else:
                size = self._c(axis.upper)
                lines.append(f"const long {axis.name} = {rest} % {size};")
                fresh = f"q{position}"
                lines.append(f"const long {fresh} = {rest} / {size};")
                rest = fresh
        return lines

    def _stages(self, scope: Scope, blocked: bool) -> list[str]:
        """Everything for one outer point, emitted into ``scope``; returns nothing more."""
        for stage in range(self.loop.stages):
            for statement in self._of(stage, inner=False):
                scope.store(statement.buffer, statement.index, statement.value)
            statements = self._of(stage, inner=True)
            if statements:
                self._inner_loop(scope, statements, blocked)
        return []

    def _of(self, stage: int, *, inner: bool) -> list[Statement]:
        """Statements of a stage; stores that overwrite an input come last."""
        found = [s for s in self.loop.statements if s.stage == stage and s.inner == inner]
        return sorted(
            found, key=lambda s: s.fold is None and self.loop.buffers[s.buffer].alias_of >= 0
        )

    def _inner_loop(self, scope: Scope, statements: list[Statement], blocked: bool) -> None:
        folds = [s for s in statements if s.fold is not None]
        flush = [
            s for s in folds if s.fold == "sum" and self.loop.results[s.buffer] in ("f32", "f64")
        ]
        for s in folds:
            self._declare(scope, s, "a")
        for s in flush:
            self._declare(scope, s, "p")
        scope.lines += self._nest(scope, statements, {s.buffer for s in flush}, blocked)
        for s in folds:
            self._finish(scope, s)

    def _declare(self, scope: Scope, s: Statement, prefix: str) -> None:
        dtype = self.loop.results[s.buffer] if s.fold not in _LIBM_HEAVY else s.value.dtype
        name = f"{prefix}{self._number(s.buffer)}"
        initial = _identity(s.fold or "", dtype)
        scope.emit(f"{vector_type(dtype)} {name} = {self.frame.call(_splat(dtype), initial)};")
        if s.fold in _LIBM_HEAVY:
            scope.emit(f"long i{self._number(s.buffer)} = -1;")

    def _number(self, buffer: int) -> int:
        """Reductions are numbered in the order of their results, for canonical source."""
        return list(self.loop.results).index(buffer)

    def _nest(
        self, scope: Scope, statements: list[Statement], flush: set[int], blocked: bool
    ) -> list[str]:
        axes = list(self.inner)
        varying = frozenset(axes)
        axis = axes[-1] if axes and self.frame.vector_axis is axes[-1] else None
        if axis is None:
            return self._scalar_nest(scope, statements, flush, axes, varying)
        lanes = self.frame.lanes
        assert axis.upper is not None
        extent = self._c(axis.upper)
        full = self._body(scope, statements, varying, str(lanes), flush)
        static = ex.as_int(axis.upper)
        tail: list[str] | None = None
        if static is None or static % lanes:
            tail = self._body(scope, statements, varying, "n", flush)
        v = axis.name
        lines: list[str] = []
        start, stop = ("from", "to") if blocked else ("0", extent)
        if flush:
            span = lanes * _FLUSH
            lines.append(f"for (long k = {start}; k < {stop}; k += {span}L) {{")
            lines.append(f"  const long end = minl(k + {span}L, {stop});")
            start, stop = "k", "end"
        lines.append(f"long {v} = {start};")
        lines.append(f"for (; {v} + {lanes}L <= {stop}; {v} += {lanes}L) {{")
        lines += ["  " + line for line in full] + ["}"]
        if tail is not None:
            lines.append(f"if ({v} < {stop}) {{ const int n = (int)({stop} - {v});")
            lines += ["  " + line for line in tail] + ["}"]
        if flush:
            lines += ["  " + self._flush(s) for s in statements if s.buffer in flush and s.fold]
            lines.append("}")
        return _loops([(a.name, self._c(_upper(a))) for a in axes[:-1]], lines, scoped=True)

    def _scalar_nest(
        self,
        scope: Scope,
        statements: list[Statement],
        flush: set[int],
        axes: list[Sym],
        varying: frozenset[Sym],
    ) -> list[str]:
        """Loops none of which carries lanes (a column kernel's folds, or one lane in all)."""
        body = self._body(scope, statements, varying, scope.count, flush)
        if not axes:
            if flush:
                body += [self._flush(s) for s in statements if s.buffer in flush and s.fold]
            return ["{", *("  " + line for line in body), "}"]
        last = axes[-1]
        extent = self._c(_upper(last))
        if flush:
            lines = [
                f"for (long k = 0; k < {extent}; k += {_FLUSH}L) {{",
                f"  const long end = minl(k + {_FLUSH}L, {extent});",
                f"  for (long {last.name} = k; {last.name} < end; {last.name}++) {{",
                *("    " + line for line in body),
                "  }",
                *("  " + self._flush(s) for s in statements if s.buffer in flush and s.fold),
                "}",
            ]
        else:
            lines = [
                f"for (long {last.name} = 0; {last.name} < {extent}; {last.name}++) {{",
                *("  " + line for line in body),
                "}",
            ]
        return _loops([(a.name, self._c(_upper(a))) for a in axes[:-1]], lines, scoped=True)

    def _flush(self, s: Statement) -> str:
        dtype = self.loop.results[s.buffer]
        number = self._number(s.buffer)
        total = self.frame.call(f"add_{dtype}", f"a{number}", f"p{number}")
        zero = self.frame.call(_splat(dtype), _identity("sum", dtype))
        return f"a{number} = {total}; p{number} = {zero};"

    def _body(
        self,
        scope: Scope,
        statements: list[Statement],
        varying: frozenset[Sym],
        count: str,
        flush: set[int],
    ) -> list[str]:
        vector = self.vector_axis is not None
        inner = Scope(self.frame, varying, count, vector, scope)
        for s in statements:
            if s.fold is None:
                inner.store(s.buffer, s.index, s.value)
            else:
                self._accumulate(inner, s, count, flush)
        return inner.lines

    def _accumulate(self, scope: Scope, s: Statement, count: str, flush: set[int]) -> None:
        frame = self.frame
        number = self._number(s.buffer)
        if s.fold in _LIBM_HEAVY:
            self._accumulate_index(scope, s, number)
            return
        dtype = self.loop.results[s.buffer]
        value = scope.value(lp.cast(s.value, dtype))
        name = f"p{number}" if s.buffer in flush else f"a{number}"
        partial = count != str(frame.lanes) and not self.column and frame.lanes > 1
        if partial:
            first = frame.call("iota_i32", "0")
            inside = frame.call("lt_i32", first, frame.call("splat_i32", count))
            neutral = frame.call(_splat(dtype), _identity(s.fold or "", dtype))
            if dtype == "bool":
                kept = frame.call("and_mask", inside, value)
                out = frame.call("and_mask", frame.call("not_mask", inside), neutral)
                value = frame.call("or_mask", kept, out)
            else:
                value = frame.call(f"sel_{dtype}", inside, value, neutral)
        scope.emit(f"{name} = {frame.call(_combine(s.fold or '', dtype), name, value)};")

    def _accumulate_index(self, scope: Scope, s: Statement, number: int) -> None:
        """The first place of the extreme; NaN beats every number (one lane)."""
        value = scope.value(s.value)
        place: Expr = ex.ZERO
        for axis in self.loop.inner:
            place = place * _upper(axis) + axis
        better = ">" if s.fold == "argmax" else "<"
        nan = f"({value} != {value} && a{number} == a{number})"
        scope.emit(
            f"if (i{number} < 0 || {value} {better} a{number} || {nan}) "
            f"{{ a{number} = {value}; i{number} = {self._c(place)}; }}"
        )

    def _finish(self, scope: Scope, s: Statement) -> None:
        """The finished result becomes a known value of the scope."""
        number = self._number(s.buffer)
        dtype = self.loop.results[s.buffer]
        node = lp.reduced(s.buffer, dtype)
        if s.fold in _LIBM_HEAVY:
            scope.known[node] = f"i{number}"
            return
        name = f"a{number}"
        if not self.column and self.frame.lanes > 1:
            name = f"r{number}"
            text = self.frame.call(_horizontal(s.fold or "", dtype), f"a{number}")
            scope.emit(f"{vector_type(dtype)} {name} = {self.frame.call(_splat(dtype), text)};")
        scope.known[node] = name

    # -- lanes along a kept axis --------------------------------------------------------------

    def _strips(self) -> list[str]:
        axis = self.vector_axis
        assert axis is not None
        lanes = self.frame.lanes
        extent = self._c(_upper(axis))
        static = ex.as_int(_upper(axis))
        varying = frozenset((*self.outer, axis))
        lines = [
            f"const long strips = ({extent} + {lanes - 1}L) / {lanes}L;",
            f"const long total = {self._c(ex.product(_upper(a) for a in self.outer))} * strips;",
        ]
        pragma = self._threads("total")
        if pragma:
            lines.append(pragma)
        lines.append("for (long o = 0; o < total; o++) {")
        body = [f"const long {axis.name} = o % strips * {lanes}L;"]
        body += self._decode("(o / strips)", self.outer)
        full = Scope(self.frame, varying, str(lanes), vector=True)
        self._stages(full, blocked=False)
        if static is not None and static % lanes == 0:
            body += full.lines
        else:
            body.append(f"const int n = (int)minl({lanes}L, {extent} - {axis.name});")
            body.append(f"if (n == {lanes}) {{")
            body += ["  " + line for line in full.lines]
            body.append("} else {")
            tail = Scope(self.frame, varying, "n", vector=True)
            self._stages(tail, blocked=False)
            body += ["  " + line for line in tail.lines] + ["}"]
        lines += ["  " + line for line in body]
        lines.append("}")
        return lines


def _upper(axis: Sym) -> Expr:
    assert axis.upper is not None
    return axis.upper


def _loops(axes: list[tuple[str, str]], body: list[str], *, scoped: bool) -> list[str]:
    """Wrap lines in loops, the first axis outermost."""
    lines = ["{", *("  " + line for line in body), "}"] if scoped else body
    for name, extent in reversed(axes):
        lines = [f"for (long {name} = 0; {name} < {extent}; {name}++)", *("  " + x for x in lines)]
    return lines


def _splat(dtype: str) -> str:
    return "splat_mask" if dtype == "bool" else f"splat_{dtype}"


def _combine(fold: str, dtype: str) -> str:
    name = {"sum": "add", "prod": "mul"}.get(fold, fold)
    return f"{name}_{'mask' if dtype == 'bool' else dtype}"


def _horizontal(fold: str, dtype: str) -> str:
    if dtype == "bool":
        return "hany" if fold == "or" else "hall"
    return f"h{fold}_{dtype}"


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


def _identity(fold: str, dtype: str) -> str:
    """The neutral element of a reduction, as C."""
    if fold in ("sum", "or"):
        return "0"
    if fold in ("prod", "and"):
        return "1"
    low, high = _LOWEST.get(dtype, ("0", "1"))
    return low if fold in ("max", "argmax") else high


def _accesses(loop: KernelLoop) -> Iterable[tuple[Expr, int]]:
    """Element offset and element size of every load and store at inner points."""
    for s in loop.statements:
        if not s.inner:
            continue
        if s.fold is None:
            argument = loop.buffers[s.buffer]
            yield linear(s.index, argument.stride), 2 * DTYPES[argument.dtype].size
        for load in lp.loads(s.value):
            argument = loop.buffers[load.buffer]
            yield linear(load.index, argument.stride), DTYPES[argument.dtype].size


def _vector_axis(loop: KernelLoop) -> Sym | None:
    """The axis along which most memory is contiguous; the last among equals."""
    best: tuple[float, int] | None = None
    choice: Sym | None = None
    accesses = list(_accesses(loop))
    for position, axis in enumerate(loop.axes):
        score = 0.0
        for offset, size in accesses:
            if not any(s is axis for s in ex.symbols(offset)):
                continue
            _, terms = ex.linear_terms(offset)
            step = next((c for a, c in terms if a is axis), None)
            score += size if step == 1 else -2 * size
        extent = ex.as_int(_upper(axis))
        if extent is not None and extent < 8:
            score -= 8 * (8 - extent)
        if best is None or (score, position) > best:
            best, choice = (score, position), axis
    return choice


def _lanes(loop: KernelLoop, isa: str) -> int:
    """How many lanes keep the widest value of the kernel within one register."""
    roots = [s.value for s in loop.statements]
    widest = 4
    narrowed: set[Scalar] = set()
    nodes = list(lp.walk(roots))
    for node in nodes:
        if isinstance(node, Op) and node.name == "cast" and narrow_index(node) is not None:
            narrowed.add(node.args[0])
    for node in nodes:
        if node not in narrowed:
            widest = max(widest, DTYPES[node.dtype].size)
        if isinstance(node, Load) and node.indirect:
            widest = 8
        if isinstance(node, Index) and node.dtype == "bool":
            continue
    for dtype in loop.results.values():
        widest = max(widest, DTYPES[dtype].size)
    return _VECTOR_BYTES[isa] // widest


def _name(loop: KernelLoop) -> str:
    """Kind and operations, from what the kernel computes alone."""
    kind = "red" if loop.folded else "poi"
    names: dict[str, None] = {}
    for s in loop.statements:
        for node in lp.walk((s.value,)):
            if isinstance(node, Op) and node.name not in ("cast", "where"):
                names[node.name] = None
        if s.fold is not None:
            names[s.fold] = None
    return "_".join(["cpu", kind, "fused", *list(names)[:6]]) if names else f"cpu_{kind}_copy"
