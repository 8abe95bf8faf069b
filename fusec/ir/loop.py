"""LoopProgram: computations as loops over typed buffers. Loops are data, never closures.

A `Compute` fills one buffer: for every point of its axes it evaluates a `Scalar`, a tree of loads,
constants and operations, and stores it, or folds it over its reduction axes first. A *scan* keeps
every intermediate result of a fold: the axis that it folds is an axis of its output too. A
*scatter* changes memory at places that are loaded (`scatter`). What has no loop form is a call to
ATen (`External`). Equal scalars are one object: common subexpressions cost nothing to find.

Values have *compute* types (see `fusec.ir.dtypes`): a load of bf16 yields f32. What a half
precision buffer holds is rounded when it is stored; an explicit cast rounds too (`round_bf16`).

Invariants (`fusec.ir.verify_loop`): a load's index has one expression a dimension of its buffer, it
only uses axes of its computation and bound indirections, and types of operands agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.graph import Arg, SymbolRange
from fusec.ir.interning import Interning

_interned: Final[Interning[Scalar]] = Interning()


class Scalar:
    """A scalar value inside a loop body. Build with the functions below, never directly."""

    __slots__ = ("__weakref__", "_below", "_loads", "dtype", "key", "size")
    dtype: str
    key: tuple[object, ...]
    size: int  # operations in the tree, shared ones counted each time, saturating
    # Worked out when first asked for; without the node itself, which would be a cycle.
    _below: tuple[Scalar, ...] | None
    _loads: tuple[Load, ...] | None

    def __repr__(self) -> str:
        return format_scalar(self)


class Const(Scalar):
    __slots__ = ("value",)
    value: bool | int | float


class Index(Scalar):
    """An index expression as an i64 value (or bool for a comparison)."""

    __slots__ = ("expr",)
    expr: Expr


class Load(Scalar):
    """One element of a buffer.

    ``index`` has one expression a dimension; ``indirect`` binds the symbols in it that stand for
    loaded values. Where ``guard`` is given and zero nothing is read and the value is 0.
    """

    __slots__ = ("buffer", "guard", "index", "indirect")
    buffer: int
    index: tuple[Expr, ...]
    indirect: tuple[tuple[Sym, Scalar], ...]
    guard: Expr | None


class Op(Scalar):
    """An operation by its name in the scalar instruction set (see `fusec.codegen.c_math`)."""

    __slots__ = ("args", "name")
    name: str
    args: tuple[Scalar, ...]


class Reduced(Scalar):
    """Inside a kernel: the finished result of a reduction that the same kernel computes; of a scan,
    its result up to and with the point at hand."""

    __slots__ = ("buffer",)
    buffer: int


_SATURATED: Final = 1 << 30
_Kind = TypeVar("_Kind", bound=Scalar)


def _new(cls: type[_Kind], key: tuple[object, ...], dtype: str, size: int) -> _Kind:
    node = cls.__new__(cls)
    node.key, node.dtype, node.size = key, dtype, min(size, _SATURATED)
    node._below = node._loads = None
    return node


def const(value: bool | int | float, dtype: str) -> Scalar:
    compute = DTYPES[dtype].compute
    if compute in ("f32", "f64"):
        value = float(value)
        identity: object = value.hex()
    elif compute == "bool":
        value = identity = bool(value)
    else:
        value = identity = int(value)
    key = ("const", compute, identity)
    found = _interned.get(key)
    if found is not None:
        return found
    node = _new(Const, key, compute, 0)
    node.value = value
    return _interned.add(key, node)


def index(e: Expr) -> Scalar:
    return _position_node(("index", e), "i64", e)


def condition(e: Expr) -> Scalar:
    """A comparison of index expressions as a bool value."""
    value = ex.as_int(e)
    if value is not None:
        return const(bool(value), "bool")
    return _position_node(("condition", e), "bool", e)


def _position_node(key: tuple[object, ...], dtype: str, e: Expr) -> Scalar:
    found = _interned.get(key)
    if found is not None:
        return found
    node = _new(Index, key, dtype, 1)
    node.expr = e
    return _interned.add(key, node)


def load(
    buffer: int,
    dtype: str,
    at: tuple[Expr, ...],
    indirect: tuple[tuple[Sym, Scalar], ...] = (),
    guard: Expr | None = None,
) -> Scalar:
    if guard is not None and ex.as_int(guard):
        guard = None
    if indirect:
        used = {s for e in (*at, *((guard,) if guard is not None else ())) for s in ex.symbols(e)}
        indirect = tuple(
            sorted(((s, v) for s, v in indirect if s in used), key=lambda b: b[0].name)
        )
    compute = DTYPES[dtype].compute
    key = ("load", buffer, compute, at, indirect, guard)
    found = _interned.get(key)
    if found is not None:
        return found
    node = _new(Load, key, compute, 1 + sum(v.size for _, v in indirect))
    node.buffer, node.index, node.indirect, node.guard = buffer, at, indirect, guard
    return _interned.add(key, node)


def op(name: str, dtype: str, *args: Scalar) -> Scalar:
    """An operation, or what it is known to give: arithmetic on positions is done on expressions."""
    folded = _folded(name, dtype, args)
    if folded is not None:
        return folded
    key = ("op", name, dtype, args)
    found = _interned.get(key)
    if found is not None:
        return found
    node = _new(Op, key, dtype, 1 + sum(a.size for a in args))
    node.name, node.args = name, args
    return _interned.add(key, node)


_COMPARISONS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_SAFE: Final = 1 << 62  # positions beyond this could wrap around


def _folded(name: str, dtype: str, args: tuple[Scalar, ...]) -> Scalar | None:
    if name == "where":
        if args[1] is args[2]:
            return args[1]
        inner = args[1]
        if isinstance(inner, Op) and inner.name == "where" and inner.args[0] is args[0]:
            return op(name, dtype, args[0], inner.args[1], args[2])
        if isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
    elif dtype == "bool" and name in ("and", "or"):
        for known, other in (args, args[::-1]):
            if isinstance(known, Const):
                decides = bool(known.value) == (name == "or")
                return known if decides else other
    elif len(args) == 2 and (name in _COMPARISONS or dtype == "i64"):
        left, right = _position(args[0]), _position(args[1])
        if left is not None and right is not None:
            return _folded_positions(name, left, right)
    return None


def _position(s: Scalar) -> Expr | None:
    """The expression of a position or of a whole number."""
    if s.dtype != "i64":
        return None
    if isinstance(s, Const):
        return ex.integer(int(s.value))
    return s.expr if isinstance(s, Index) else None


def _folded_positions(name: str, left: Expr, right: Expr) -> Scalar | None:
    if name in _COMPARISONS:
        return condition(ex.compare(_COMPARISONS[name], left, right))
    if name in ("add", "sub"):
        result = left + right if name == "add" else left - right
        low, high = ex.bounds(result)
        if low is not None and high is not None and low > -_SAFE and high < _SAFE:
            return index(result)
    elif name in ("min", "max"):
        result = ex.minimum(left, right) if name == "min" else ex.maximum(left, right)
        if result is left or result is right:
            return index(result)
    return None


def reduced(buffer: int, dtype: str) -> Scalar:
    compute = DTYPES[dtype].compute
    key = ("reduced", buffer, compute)
    found = _interned.get(key)
    if found is not None:
        return found
    node = _new(Reduced, key, compute, 0)
    node.buffer = buffer
    return _interned.add(key, node)


SCATTERS: Final = {f"scatter_{mode}": mode for mode in ("store", "add", "mul", "max", "min")}
"""What a scatter does with the value at a place: replace it, or fold another into it."""


def scatter(mode: str, place: Scalar, value: Scalar) -> Scalar:
    """``value`` put at the place of a load, whose buffer is the base of the scatter's output, by a
    ``mode`` of `SCATTERS`. At one place folded values all count, and any stored one stays."""
    return op(f"scatter_{mode}", place.dtype, place, value)


WITHIN: Final = "within"


def within(place: Scalar, size: Expr) -> Scalar:
    """The i64 ``place``, which must be in [0, size): a kernel stops with an assertion where it is
    not. A third operand, a bool, says where it is of interest: it can be anything elsewhere."""
    known = _position(place)
    if known is not None and ex.compare(">=", known, 0) * ex.compare("<", known, size) is ex.ONE:
        return place
    fixed = ex.as_int(size)
    return op(WITHIN, "i64", place, index(size) if fixed is None else const(fixed, "i64"))


def _of_interest(node: Op, args: tuple[Scalar, ...], guard: Expr) -> Scalar:
    """A `within` of other operands that is only of interest where a guard holds as well."""
    where = op("and", "bool", *args[2:], condition(guard)) if args[2:] else condition(guard)
    return op(WITHIN, node.dtype, *args[:2], where)


def cast(value: Scalar, dtype: str) -> Scalar:
    """Convert to the compute type of ``dtype``; no rounding to a half type."""
    target = DTYPES[dtype].compute
    if value.dtype == target:
        return value
    if isinstance(value, Const):
        return const(value.value, target) if target != "bool" else const(bool(value.value), "bool")
    return op("cast", target, value)


def children(s: Scalar) -> tuple[Scalar, ...]:
    if isinstance(s, Op):
        return s.args
    if isinstance(s, Load):
        return tuple(v for _, v in s.indirect)
    return ()


def nodes(root: Scalar) -> tuple[Scalar, ...]:
    """Every distinct node of a tree, operands before users, the root last."""
    if root._below is None:
        pending = [root]
        while pending:
            node = pending[-1]
            below = children(node)
            missing = [c for c in below if c._below is None]
            if missing:
                pending += missing
                continue
            pending.pop()
            node._below = tuple(dict.fromkeys(n for c in below for n in (*(c._below or ()), c)))
    return (*(root._below or ()), root)


def walk(roots: Iterable[Scalar]) -> Iterator[Scalar]:
    """Every distinct node of several trees, operands before users."""
    several = tuple(roots)
    if len(several) == 1:
        return iter(nodes(several[0]))
    return iter(dict.fromkeys(node for root in several for node in nodes(root)))


def rewrite(
    root: Scalar, leaf: Callable[[Scalar], Scalar | None], memo: dict[Scalar, Scalar]
) -> Scalar:
    """Rebuild a tree. ``leaf`` may replace a node (its result is not visited again)."""
    for node in nodes(root):
        if node in memo:
            continue
        replaced = leaf(node)
        if replaced is None:
            replaced = node
            if isinstance(node, Op):
                args = tuple(memo[a] for a in node.args)
                if args != node.args:
                    replaced = op(node.name, node.dtype, *args)
            elif isinstance(node, Load) and node.indirect:
                indirect = tuple((s, memo[v]) for s, v in node.indirect)
                if indirect != node.indirect:
                    replaced = load(node.buffer, node.dtype, node.index, indirect, node.guard)
        memo[node] = replaced
    return memo[root]


def reindex(
    root: Scalar,
    mapping: Mapping[Expr, Expr],
    guard: Expr | None = None,
    bound: tuple[tuple[Sym, Scalar], ...] = (),
    memo: dict[Scalar, Scalar] | None = None,
) -> Scalar:
    """Substitute axes in every index of a tree.

    ``guard`` is added to every load's guard; ``bound`` gives the values of indirect symbols that
    ``mapping`` brings in; ``memo``: what became of nodes, kept for trees that share some.
    """
    memo = {} if memo is None else memo
    pairs = tuple(mapping.items())

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Index):
            e = ex.substitute(node.expr, mapping)
            return condition(e) if node.dtype == "bool" else index(e)
        if isinstance(node, Load):
            own = None if node.guard is None else ex.substitute(node.guard, mapping)
            merged = own if guard is None else guard if own is None else own * guard
            indirect = (*((s, memo[v]) for s, v in node.indirect), *bound)
            at = ex.substitute_all(node.index, pairs)
            return load(node.buffer, node.dtype, at, indirect, merged)
        if isinstance(node, Op) and node.name == WITHIN and guard is not None:
            return _of_interest(node, tuple(memo[a] for a in node.args), guard)
        return None

    return rewrite(root, leaf, memo)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one tensor. ``kind``: input, temp, or alias (the memory of ``base``, overwritten:
    an input's, or that of a temp which nothing else reads); sizes and strides in elements."""

    dtype: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    kind: str = "temp"
    base: int = -1


@dataclass(frozen=True, slots=True)
class BufferView:
    """A strided view of a buffer, as an external call or a caller sees it."""

    buffer: int
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    offset: Expr


SCANS: Final = {
    "cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min",
    "logcumsumexp": "logaddexp",
}  # fmt: skip
"""What a scan folds with."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """``op``: sum, prod, min, max, or, and, argmax, argmin; or a scan (`SCANS`). ``axes`` are
    folded, in order; ``order`` is all axes, kept and folded, as they lie in the tensor that is
    reduced. A scan folds one axis, which its output has as well: the result at a point is the fold
    of the values up to and with that point."""

    op: str
    axes: tuple[Sym, ...]
    order: tuple[Sym, ...]

    @property
    def scans(self) -> bool:
        return self.op in SCANS


@dataclass(frozen=True, slots=True)
class Compute:
    """Fill ``output``: for all ``axes`` (one a dimension), store ``value`` or its reduction. A
    scatter's axes are those of what it puts; its output is an alias of what it changes."""

    output: int
    axes: tuple[Sym, ...]
    value: Scalar
    reduction: Reduction | None = None
    origin: tuple[int, ...] = ()

    @property
    def scatters(self) -> bool:
        return isinstance(self.value, Op) and self.value.name in SCATTERS


ExternArg: TypeAlias = "BufferView | Arg | tuple[ExternArg, ...]"


@dataclass(frozen=True, slots=True)
class External:
    """An ATen call. ``reason`` says why: library (faster there), or fallback (no lowering)."""

    outputs: tuple[int | None, ...]
    target: str
    args: tuple[ExternArg, ...]
    kwargs: tuple[tuple[str, ExternArg], ...] = ()
    reason: str = "library"
    multiple: bool = False  # the call returns a tuple
    origin: tuple[int, ...] = ()


Step: TypeAlias = "Compute | External"
Output: TypeAlias = "BufferView | Expr | bool | int | float | None"


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """Steps in an executable order. ``inputs``: a buffer, or the symbol that the caller passes."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int | Expr | None, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[SymbolRange, ...] = ()


def extern_views(arg: ExternArg) -> list[BufferView]:
    """Every view in an external call's argument."""
    if isinstance(arg, BufferView):
        return [arg]
    if isinstance(arg, tuple):
        return [view for item in arg for view in extern_views(item)]
    return []


def external_reads(step: External) -> list[BufferView]:
    found = extern_views(step.args)
    for _, arg in step.kwargs:
        found += extern_views(arg)
    return found


def loads(root: Scalar) -> tuple[Load, ...]:
    """Every distinct load in a tree."""
    if root._loads is None:
        root._loads = tuple(n for n in nodes(root)[:-1] if isinstance(n, Load))
    return (*root._loads, root) if isinstance(root, Load) else root._loads


def overwrites_input(buffers: tuple[Buffer, ...], number: int) -> bool:
    """Whether a buffer is the memory of an input: writing it is an effect of its own."""
    found = buffers[number]
    return found.kind == "alias" and buffers[found.base].kind == "input"


def format_scalar(s: Scalar) -> str:
    if isinstance(s, Const):
        return f"{s.value}:{s.dtype}"
    if isinstance(s, Index):
        return f"<{s.expr}>"
    if isinstance(s, Load):
        at = ", ".join(map(repr, s.index))
        extra = "".join(f" where {sym.name}={v}" for sym, v in s.indirect)
        guard = "" if s.guard is None else f" if {s.guard}"
        return f"b{s.buffer}[{at}]{extra}{guard}"
    if isinstance(s, Reduced):
        return f"reduced(b{s.buffer})"
    assert isinstance(s, Op)
    return f"{s.name}.{s.dtype}({', '.join(map(format_scalar, s.args))})"
