"""Random graphs for the printers and the wire: every kind of node, type and argument."""

from __future__ import annotations

import math
import random
import struct

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

_FLOATS = (0.0, -0.0, 1.0, 0.1, -2.5e-300, 1e308, math.inf, -math.inf, math.nan, 5e-324)
_STRINGS = ("", "mean", 'a "quoted" one', "line\nfeed\ttab \\ slash", "é — 漢", "\x00\x7f\u2028")


def random_graph(seed: int) -> Graph:
    """A graph that `verify_graph` accepts; it need not make sense."""
    return _Maker(random.Random(seed)).graph()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ranges = tuple(
            SymbolRange(f"s{i}", rng.choice((0, 2, -(1 << 63))), rng.choice((None, 64, 1 << 40)))
            for i in range(rng.randrange(4))
        )
        self.symbols = [ex.symbol(s.name, s.lower) for s in self.ranges]

    def graph(self) -> Graph:
        rng = self.rng
        nodes: list[Node] = [
            Node("input", self.text(), type=self.leaf()) for _ in range(rng.randrange(4))
        ]
        for _ in range(rng.randrange(6)):
            if rng.random() < 0.2:
                data = bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
                nodes.append(Node("const", self.text(), (data,), type=self.leaf()))
            else:
                nodes.append(self.call(len(nodes)))
        outputs = tuple(self.arg(len(nodes), 1) for _ in range(rng.randrange(4)))
        return Graph(tuple(nodes), outputs, self.ranges)

    def call(self, count: int) -> Node:
        rng = self.rng
        target = rng.choice(("aten.add.Tensor", "aten.sum.dim_IntList", "py.getitem", "a_b._c.d2"))
        args = tuple(self.arg(count, 3) for _ in range(rng.randrange(4)))
        names = rng.sample(["dim", "keepdim", "dtype", "none", "true", "a name"], rng.randrange(3))
        kwargs = tuple((name, self.arg(count, 2)) for name in names)
        made: ValueType = self.leaf()
        if rng.random() < 0.2:
            made = tuple(self.leaf() for _ in range(rng.randrange(3)))
        elif rng.random() < 0.1:
            made = None
        return Node("call", target, args, kwargs, made)

    def size(self) -> Expr:
        rng = self.rng
        if not self.symbols or rng.random() < 0.4:
            return ex.integer(rng.choice((0, 1, 2, 7, 64, -3, 1 << 70)))
        a, b = rng.choice(self.symbols), rng.choice(self.symbols)
        made = (
            lambda: a * 3 + b - 2,
            lambda: (a * b + 1) // 4,
            lambda: a % 8 * b,
            lambda: ex.minimum(a, b, 5),
            lambda: ex.maximum(a - b, 1) // 3,
            lambda: ex.compare(rng.choice(("<", "<=", "==", "!=")), a, b * 2 + 1),
            lambda: -a,
            lambda: a,
        )
        return rng.choice(made)()

    def leaf(self) -> TensorType | ScalarType | None:
        rng = self.rng
        if rng.random() < 0.1:
            return None
        if rng.random() < 0.25:
            value = self.size() if rng.random() < 0.7 else None
            return ScalarType(rng.choice(("int", "float", "bool")), value)
        shape = tuple(self.size() for _ in range(rng.randrange(4)))
        stride = tuple(self.size() for _ in shape) if rng.random() < 0.4 else ex.row_major(shape)
        offset = self.size() if rng.random() < 0.2 else None
        device = rng.choice(("cpu", "cpu", "cuda", "meta"))
        return TensorType(rng.choice(list(DTYPES)), shape, stride, device, offset)

    def text(self) -> str:
        return self.rng.choice(_STRINGS)

    def float(self) -> float:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(_FLOATS)
        return float(struct.unpack(">d", rng.randbytes(8))[0])

    def arg(self, count: int, depth: int) -> Arg:
        rng = self.rng
        kind = rng.randrange(11 if depth else 10)
        if kind == 0 and count:
            return Ref(rng.randrange(count))
        if kind == 1:
            return Symbolic(self.size())
        if kind == 2:
            name = rng.choice(("f32", "torch.strided", "cpu", "odd name", ""))
            return Attr(rng.choice(("dtype", "device", "layout", "memory_format")), name)
        if kind == 3:
            return rng.random() < 0.5
        if kind == 4:
            return rng.choice((0, 1, -1, 10, -(1 << 63), 1 << 63, 10**30))
        if kind == 5:
            return self.float()
        if kind == 6:
            return complex(self.float(), self.float())
        if kind == 7:
            return self.text()
        if kind == 8:
            return rng.randbytes(rng.randrange(5))
        if kind == 10:
            return tuple(self.arg(count, depth - 1) for _ in range(rng.randrange(4)))
        return None
