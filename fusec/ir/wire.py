"""Graphs and expressions to and from msgpack: bounded, versioned, without pickle or eval.

The bytes are canonical: one graph has one encoding, and its hash is the graph part of a key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import msgpack

from fusec.errors import VerifyError, WireError
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr
from fusec.ir.graph import (
    Arg,
    Attr,
    Graph,
    Node,
    Ref,
    ScalarType,
    Symbolic,
    SymbolRange,
    TensorType,
    ValueType,
)
from fusec.ir.remember import remember
from fusec.ir.verify import verify_graph

GRAPH_VERSION: Final = 1
MAX_GRAPH_BYTES: Final = 256 << 20
MAX_NODES: Final = 1_000_000
MAX_DEPTH: Final = 64
MAX_OPERANDS: Final = 4096
MAX_DIGITS: Final = 64  # of a number that 64 bits do not hold
_OPS: Final = ("input", "const", "call")
_ATTR_KINDS: Final = ("dtype", "device", "layout", "memory_format")
_I64: Final = range(-(1 << 63), 1 << 63)


def expr_to_wire(e: Expr) -> object:
    if isinstance(e, ex.Int):
        return e.value if e.value in _I64 else ["i", str(e.value)]
    if isinstance(e, ex.Sym):
        if e.upper is not None:
            return ["a", e.name, expr_to_wire(e.upper)]
        return ["s", e.name, _int_to_wire(e.lower)]
    if isinstance(e, ex.Sum):
        return [
            "+",
            _int_to_wire(e.const),
            *([_int_to_wire(c), expr_to_wire(a)] for a, c in e.terms),
        ]
    if isinstance(e, ex.Product):
        return ["*", *(expr_to_wire(f) for f in e.factors)]
    if isinstance(e, ex.Binary):
        return [e.op, expr_to_wire(e.left), expr_to_wire(e.right)]
    assert isinstance(e, ex.Extremum)
    return [e.op, *(expr_to_wire(a) for a in e.args)]


@remember
def exprs_to_wire(items: tuple[Expr, ...]) -> tuple[object, ...]:
    """Each by `expr_to_wire`. For encoding only: results are shared."""
    return tuple(expr_to_wire(e) for e in items)


def _int_to_wire(value: int) -> int | str:
    return value if value in _I64 else str(value)


def _int_from_wire(data: object) -> int:
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    if isinstance(data, str) and len(data) < MAX_DIGITS:
        return int(data)
    raise WireError(f"not a whole number: {data!r:.80}")


_BINARY: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "//": ex.floordiv,
    "%": ex.mod,
    **{op: partial(ex.compare, op) for op in ("==", "!=", "<", "<=")},
}


def expr_from_wire(data: object, depth: int = 0) -> Expr:
    """Raises WireError for anything that `expr_to_wire` does not write."""
    if depth > MAX_DEPTH:
        raise WireError("an expression is nested too deep", hint=f"the limit is {MAX_DEPTH} levels")
    if isinstance(data, int) and not isinstance(data, bool):
        return ex.integer(data)
    if not isinstance(data, (list, tuple)) or not data or not isinstance(data[0], str):
        raise WireError(f"not an expression: {data!r:.80}")
    op, rest = data[0], data[1:]
    if len(rest) > MAX_OPERANDS:
        raise WireError(f"an expression of {len(rest)} operands", hint=f"at most {MAX_OPERANDS}")
    try:
        if op == "i" and len(rest) == 1 and isinstance(rest[0], str) and len(rest[0]) < MAX_DIGITS:
            return ex.integer(int(rest[0]))
        if op == "s" and len(rest) == 2 and _is_name(rest[0]):
            return ex.symbol(rest[0], _int_from_wire(rest[1]))
        if op == "a" and len(rest) == 2 and _is_name(rest[0]):
            return ex.axis(rest[0], expr_from_wire(rest[1], depth + 1))
        if op == "+" and rest:
            terms: dict[Expr, int] = {}
            for coefficient, data_of_atom in rest[1:]:
                atom = _atom(data_of_atom, depth)
                terms[atom] = terms.get(atom, 0) + _int_from_wire(coefficient)
            return ex.from_terms(_int_from_wire(rest[0]), terms)
        if op == "*":
            return ex.product(_atom(f, depth) for f in rest)
        if op in _BINARY and len(rest) == 2:
            left, right = (expr_from_wire(e, depth + 1) for e in rest)
            return _BINARY[op](left, right)
        if op in ("min", "max") and rest:
            fold = ex.minimum if op == "min" else ex.maximum
            return fold(*(expr_from_wire(a, depth + 1) for a in rest))
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise WireError(f"malformed expression: {data!r:.80}") from error
    raise WireError(f"unknown expression form {op!r:.20}")


def _atom(data: object, depth: int) -> Expr:
    """A term or factor. Sums are none: a product of them would be multiplied out, without bound."""
    found = expr_from_wire(data, depth + 1)
    if isinstance(found, (ex.Sum, ex.Int)):
        raise WireError(f"not a term or factor: {data!r:.80}")
    return found


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier() and len(value) <= 64


def type_to_wire(t: ValueType) -> object:
    if t is None:
        return None
    if isinstance(t, TensorType):
        return [
            "T",
            t.dtype,
            exprs_to_wire(t.shape),
            exprs_to_wire(t.stride),
            t.device,
            None if t.offset is None else expr_to_wire(t.offset),
        ]
    if isinstance(t, ScalarType):
        return ["S", t.kind, None if t.value is None else expr_to_wire(t.value)]
    return ["L", *(type_to_wire(item) for item in t)]


def type_from_wire(data: object) -> ValueType:
    if data is None:
        return None
    if isinstance(data, list) and data:
        tag, rest = data[0], data[1:]
        if tag == "L":
            items = tuple(type_from_wire(item) for item in rest)
            if not any(isinstance(item, tuple) for item in items):
                return items  # type: ignore[return-value]
        if tag == "T" and len(rest) == 5:
            name, shape, stride, device, offset = rest
            if name in DTYPES and device in ("cpu", "cuda", "meta") and len(shape) == len(stride):
                return TensorType(
                    name,
                    tuple(expr_from_wire(e) for e in shape),
                    tuple(expr_from_wire(e) for e in stride),
                    device,
                    None if offset is None else expr_from_wire(offset),
                )
        if tag == "S" and len(rest) == 2 and rest[0] in ("int", "float", "bool"):
            return ScalarType(rest[0], None if rest[1] is None else expr_from_wire(rest[1]))
    raise WireError(f"not a value type: {data!r:.80}")


def arg_to_wire(arg: Arg) -> object:
    """Plain numbers, strings and None stand for themselves; the rest is a one-entry map by tag."""
    if isinstance(arg, Ref):
        return {"r": arg.index}
    if arg is None or isinstance(arg, (bool, str, bytes)):
        return arg
    if isinstance(arg, int):
        return arg if arg in _I64 else {"i": str(arg)}
    if isinstance(arg, float):
        # The bits, so that -0.0 and NaN payloads survive and 1.0 differs from 1.
        return {"f": struct.pack(">d", arg)}
    if isinstance(arg, complex):
        return {"c": struct.pack(">dd", arg.real, arg.imag)}
    if isinstance(arg, Symbolic):
        return {"e": expr_to_wire(arg.value)}
    if isinstance(arg, Attr):
        return {"a": [arg.kind, arg.name]}
    return [arg_to_wire(item) for item in arg]


def arg_from_wire(data: object, depth: int = 0) -> Arg:
    if depth > MAX_DEPTH:
        raise WireError("an argument is nested too deep", hint=f"the limit is {MAX_DEPTH} levels")
    if data is None or isinstance(data, (bool, int, str, bytes)):
        return data
    if isinstance(data, list):
        return tuple(arg_from_wire(item, depth + 1) for item in data)
    if isinstance(data, dict) and len(data) == 1:
        ((tag, value),) = data.items()
        if tag == "r" and isinstance(value, int) and value >= 0:
            return Ref(value)
        if tag == "e":
            return Symbolic(expr_from_wire(value))
        if tag == "f" and isinstance(value, bytes) and len(value) == 8:
            return float(struct.unpack(">d", value)[0])
        if tag == "c" and isinstance(value, bytes) and len(value) == 16:
            return complex(*struct.unpack(">dd", value))
        if tag == "i" and isinstance(value, str) and len(value) < MAX_DIGITS:
            try:
                return int(value)
            except ValueError as error:
                raise WireError(f"not an integer: {value!r}") from error
        if tag == "a" and isinstance(value, list) and len(value) == 2 and value[0] in _ATTR_KINDS:
            return Attr(value[0], str(value[1]))
    raise WireError(f"not an argument: {data!r:.80}")


def graph_to_bytes(graph: Graph) -> bytes:
    """The canonical encoding of a graph."""
    nodes = [
        [
            _OPS.index(n.op),
            n.target,
            [arg_to_wire(a) for a in n.args],
            [[k, arg_to_wire(v)] for k, v in n.kwargs],
            type_to_wire(n.type),
        ]
        for n in graph.nodes
    ]
    body = {
        "v": GRAPH_VERSION,
        "nodes": nodes,
        "outputs": [arg_to_wire(a) for a in graph.outputs],
        "symbols": [[s.name, s.lower, s.upper] for s in graph.symbols],
    }
    return bytes(msgpack.packb(body, use_bin_type=True))


def graph_from_bytes(data: bytes) -> Graph:
    """Raises WireError for anything but a graph of this version within the limits."""
    if len(data) > MAX_GRAPH_BYTES:
        raise WireError(f"a graph of {len(data)} bytes is over the limit of {MAX_GRAPH_BYTES}")
    try:
        body = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"a graph does not decode: {error}") from error
    if not isinstance(body, dict) or set(body) != {"v", "nodes", "outputs", "symbols"}:
        raise WireError("a graph has missing or unknown fields")
    if body["v"] != GRAPH_VERSION:
        raise WireError(
            f"graph version {body['v']!r:.20} is not {GRAPH_VERSION}",
            hint="client and farm run different releases of fusec: upgrade the older",
        )
    if not isinstance(body["nodes"], list) or len(body["nodes"]) > MAX_NODES:
        raise WireError("a graph has no node list or too many nodes")
    try:
        nodes = tuple(_node_from_wire(n) for n in body["nodes"])
        symbols = tuple(
            SymbolRange(str(n), int(lo), None if up is None else int(up))
            for n, lo, up in body["symbols"]
        )
        outputs = tuple(arg_from_wire(a) for a in body["outputs"])
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise WireError(f"a graph is malformed: {error}") from error
    graph = Graph(nodes, outputs, symbols)
    try:
        verify_graph(graph)
    except VerifyError as error:
        raise WireError(f"a graph breaks its rules: {error.message}") from error
    return graph


def _node_from_wire(data: object) -> Node:
    if not isinstance(data, list) or len(data) != 5:
        raise WireError(f"not a node: {data!r:.80}")
    op, target, args, kwargs, value_type = data
    if not isinstance(op, int) or not 0 <= op < len(_OPS) or not isinstance(target, str):
        raise WireError(f"not a node: {data!r:.80}")
    return Node(
        _OPS[op],
        target,
        tuple(arg_from_wire(a) for a in args),
        tuple((str(k), arg_from_wire(v)) for k, v in kwargs),
        type_from_wire(value_type),
    )
