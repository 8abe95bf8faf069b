"""The state of one lowering: buffers and steps as they are made, values of graph nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym
from fusec.ir.graph import Arg, Graph, Node, Ref, Symbolic, TensorType
from fusec.ir.loop import Buffer, BufferView, Compute, External, ExternArg, Reduction, Scalar, Step
from fusec.ir.remember import remember
from fusec.lower.view import View, as_buffer_view, contiguous_stride, loop_axes, view_axes, whole

Number: TypeAlias = "bool | int | float | complex"
Value: TypeAlias = "View | Expr | Scalar | Number | tuple[Value, ...] | None"


class Lowering:
    """Collects what rules emit. Rules call its methods and return the value of their node."""

    def __init__(self, graph: Graph, *, strict_rounding: bool) -> None:
        self.graph = graph
        self.strict_rounding = strict_rounding
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.position = 0  # the node being lowered
        self._single: Node | None = None  # one of the calls that the node stands for
        self._seen: set[object] = set()
        self._once: dict[object, int] = {}
        self._counts: dict[str, int] = {}

    # -- values -----------------------------------------------------------------------------

    def value(self, arg: Arg) -> Value:
        """An argument with references resolved and symbolic numbers as expressions."""
        if isinstance(arg, Ref):
            return self.values[arg.index]
        if isinstance(arg, Symbolic):
            number = ex.as_int(arg.value)
            return arg.value if number is None else number
        if isinstance(arg, tuple):
            return tuple(self.value(a) for a in arg)
        if arg is None or isinstance(arg, (bool, int, float, complex)):
            return arg
        raise LoweringError(f"{self.where()}: argument {arg!r} has no value")

    def view(self, arg: Arg) -> View:
        found = self.value(arg)
        if not isinstance(found, View):
            raise LoweringError(f"{self.where()}: expected a tensor, got {found!r:.80}")
        return found

    def size(self, arg: Arg) -> Expr:
        found = self.value(arg)
        if isinstance(found, Expr):
            return found
        if isinstance(found, int):
            return ex.integer(found)
        raise LoweringError(f"{self.where()}: expected a size, got {found!r:.80}")

    def sizes(self, arg: Arg) -> tuple[Expr, ...]:
        if not isinstance(arg, tuple):
            raise LoweringError(f"{self.where()}: expected sizes, got {arg!r:.80}")
        return tuple(self.size(a) for a in arg)

    def node(self) -> Node:
        """The call being lowered."""
        return self.graph.nodes[self.position] if self._single is None else self._single

    @contextmanager
    def lowering(self, single: Node) -> Iterator[None]:
        """Lower ``single``, one of the calls that the graph's node stands for."""
        before, self._single = self._single, single
        try:
            yield
        finally:
            self._single = before

    def where(self) -> str:
        return f"%{self.position} {self.node().target}"

    def node_type(self) -> TensorType:
        found = self.node().type
        if not isinstance(found, TensorType):
            raise LoweringError(f"{self.where()}: makes {found!r:.80}, not one tensor")
        return found

    def first_time(self, key: object) -> bool:
        """Whether nobody asked with this key before: for what is emitted once."""
        known = key in self._seen
        self._seen.add(key)
        return not known

    def once(self, key: object, make: Callable[[], int]) -> int:
        """The buffer of that key, made when it is first asked for."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def made(self, key: object) -> bool:
        """Whether `once` has made that buffer."""
        return key in self._once

    def next_number(self, name: str) -> int:
        """0, 1, 2, …: how often it was asked with this name before."""
        self._counts[name] = self._counts.get(name, -1) + 1
        return self._counts[name]

    # -- buffers ----------------------------------------------------------------------------

    def new_buffer(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def temp(self, dtype: str, shape: Sequence[Expr], stride: Sequence[Expr] | None = None) -> int:
        steps = contiguous_stride(shape) if stride is None else tuple(stride)
        return self.new_buffer(Buffer(dtype, tuple(shape), steps))

    def load(self, view: View, at: Sequence[Expr], guard: Expr | None = None) -> Scalar:
        """The element of a view at coordinates, as a scalar of its compute type."""
        return lp.load(view.buffer, view.dtype, view.at(at), (), guard)

    def broadcast(self, view: View, at: Sequence[Expr]) -> Scalar:
        """The element of a view broadcast to the rank of ``at``."""
        lead = len(at) - len(view.shape)
        own = [
            ex.ZERO if size is ex.ONE else coordinate
            for size, coordinate in zip(view.shape, at[lead:], strict=True)
        ]
        return self.load(view, own)

    # -- steps ------------------------------------------------------------------------------

    def pointwise(
        self,
        dtype: str,
        shape: Sequence[Expr],
        body: Callable[[tuple[Expr, ...]], Scalar],
        stride: Sequence[Expr] | None = None,
    ) -> View:
        """A new buffer with ``body`` evaluated at every point of ``shape``."""
        axes = loop_axes(shape)
        value = lp.cast(body(axes), dtype)
        if self.strict_rounding and dtype in ("bf16", "f16"):
            value = lp.op(f"round_{dtype}", "f32", value)
        out = self.temp(dtype, shape, stride)
        self.steps.append(Compute(out, axes, value, None, (self.position,)))
        return whole(out, dtype, tuple(shape))

    def node_pointwise(self, body: Callable[[tuple[Expr, ...]], Scalar]) -> View:
        """`pointwise` with the type of the node being lowered."""
        t = self.node_type()
        return self.pointwise(t.dtype, t.shape, body, dense_stride(t))

    def reduce(
        self,
        op: str,
        source: View,
        dims: Sequence[int],
        dtype: str,
        body: Callable[[Scalar], Scalar],
        *,
        keepdim: bool,
    ) -> View:
        """Fold dimensions ``dims`` of a view; ``body`` maps the loaded element first.

        The result has dtype ``dtype``; the reduced dimensions are 1 (keepdim) or gone.
        """
        reduced = frozenset(dims)
        kept = [i for i in range(len(source.shape)) if i not in reduced]
        axes = loop_axes([source.shape[i] for i in kept])
        folded = loop_axes([source.shape[i] for i in sorted(reduced)], "r")
        at: list[Expr] = [ex.ZERO] * len(source.shape)
        for i, axis in zip(kept, axes, strict=True):
            at[i] = axis
        for i, axis in zip(sorted(reduced), folded, strict=True):
            at[i] = axis
        order = tuple(a for a in at if isinstance(a, Sym))
        value = body(self.load(source, at))
        shape = [source.shape[i] for i in kept]
        out = self.temp(dtype, shape)
        if folded:
            self.steps.append(
                Compute(out, axes, value, Reduction(op, folded, order), (self.position,))
            )
        else:  # nothing to fold: 0-d input
            self.steps.append(Compute(out, axes, lp.cast(value, dtype), None, (self.position,)))
        result = whole(out, dtype, tuple(shape))
        if not keepdim:
            return result
        full = tuple(ex.ONE if i in reduced else s for i, s in enumerate(source.shape))
        new_axes = view_axes(full)
        return result.remap(full, [new_axes[i] for i in kept])

    def strided(self, view: View) -> BufferView:
        """A view as an external call sees it, copied first where it is not a strided one."""
        found = as_buffer_view(view, self.buffers[view.buffer].stride)
        if found is not None:
            return found
        copy = self.copy(view, contiguous_stride(view.shape))
        again = as_buffer_view(copy, self.buffers[copy.buffer].stride)
        assert again is not None
        return again

    def copy(self, view: View, stride: Sequence[Expr]) -> View:
        """The view's elements in a buffer of their own with those strides."""
        if computable(view.dtype):
            return self.pointwise(view.dtype, view.shape, lambda at: self.load(view, at), stride)
        source = as_buffer_view(view, self.buffers[view.buffer].stride)
        if source is None:
            raise LoweringError(f"{self.where()}: rearranges a tensor of {view.dtype}")
        out = self.temp(view.dtype, view.shape, stride)
        self.steps.append(
            External((out,), "aten.clone.default", (source,), origin=(self.position,))
        )
        return whole(out, view.dtype, view.shape)

    def extern_arg(self, arg: Arg) -> ExternArg:
        """An argument for an external call: references become strided views or numbers."""
        if isinstance(arg, Ref):
            found = self.values[arg.index]
            if isinstance(found, View):
                return self.strided(found)
            if isinstance(found, tuple):
                raise LoweringError(f"{self.where()}: a tuple value is not an argument")
            if isinstance(found, Scalar):
                raise LoweringError(f"{self.where()}: takes a number computed from sizes")
            return Symbolic(found) if isinstance(found, Expr) else found
        if isinstance(arg, tuple):
            return tuple(self.extern_arg(a) for a in arg)
        return arg

    def external(self, node: Node, reason: str) -> Value:
        """Emit the node as an ATen call and return its value."""
        args = tuple(self.extern_arg(a) for a in node.args)
        kwargs = tuple((k, self.extern_arg(v)) for k, v in node.kwargs)
        multiple = isinstance(node.type, tuple)
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        outputs: list[int | None] = []
        values: list[Value] = []
        for t in types:
            if t is None:
                outputs.append(None)
                values.append(None)
            elif isinstance(t, TensorType):
                buffer = self.temp(t.dtype, t.shape, dense_stride(t))
                outputs.append(buffer)
                values.append(whole(buffer, t.dtype, t.shape))
            else:
                raise LoweringError(
                    f"{self.where()}: makes a number from tensor data",
                    hint="data-dependent sizes run in eager",
                )
        self.steps.append(
            External(tuple(outputs), node.target, args, kwargs, reason, multiple, (self.position,))
        )
        return tuple(values) if multiple else values[0]


@remember
def dense_stride(t: TensorType) -> tuple[Expr, ...]:
    """The strides a new buffer for that type gets: its own where they are dense, else row-major."""
    numbers = [(ex.as_int(s), ex.as_int(n)) for s, n in zip(t.stride, t.shape, strict=True)]
    if any(s is None or n is None for s, n in numbers):
        return t.stride if dense(t.shape, t.stride) else contiguous_stride(t.shape)
    step = 1
    pairs = sorted((s, n) for s, n in numbers if s is not None and n is not None and n != 1)
    for stride, size in pairs:
        if stride != step or size == 0:
            return contiguous_stride(t.shape)
        step *= size
    return t.stride


def dense(shape: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Whether strides walk memory in some order without gaps or repetitions."""
    left = [i for i, n in enumerate(shape) if n is not ex.ONE]
    step: Expr = ex.ONE
    while left:
        found = next((i for i in left if stride[i] is step), None)
        if found is None:
            return False
        step = step * shape[found]
        left.remove(found)
    return True


def computable(dtype: str) -> bool:
    """Whether loops can hold elements of that type; the others go through ATen whole."""
    return DTYPES[dtype].kind != "complex" and not dtype.startswith("f8")


def normalise_dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def compute_type(dtype: str) -> str:
    return DTYPES[dtype].compute
