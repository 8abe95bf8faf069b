"""Random numbers: drawn by ATen, from the generator and in the order that eager draws them.

A seed gives the numbers that it gives in eager, whatever is fused around them. Dropout draws its
mask so and does its arithmetic in loops.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Node, Ref, TensorType
from fusec.ir.loop import External, Scalar
from fusec.lower.context import Lowering, Value, compute_type, dense_stride
from fusec.lower.rules import Rule
from fusec.lower.view import View, whole
from fusec.lower.views import permute

# Packets that draw: their calls keep their order.
DRAWING: Final = frozenset(
    f"aten.{name}"
    for name in (
        "bernoulli binomial cauchy exponential geometric log_normal multinomial normal "
        "normal_functional poisson rand rand_like randint randint_like randn randn_like randperm "
        "rrelu_with_noise rrelu_with_noise_functional uniform _fused_dropout _sample_dirichlet "
        "_standard_gamma"
    ).split()
)


def _dropout(low: Lowering, node: Node) -> Value:
    x = low.view(node.args[0])
    p, train = low.value(node.args[1]), low.value(node.args[2]) if len(node.args) > 2 else True
    assert isinstance(node.type, tuple)
    kind, mask_kind = node.type
    if not isinstance(kind, TensorType) or not isinstance(mask_kind, TensorType):
        raise LoweringError(f"{low.where()}: expected two tensors")
    if not isinstance(p, (int, float)):
        raise LoweringError(f"{low.where()}: a probability that is no number")
    if train is False or compute_type(x.dtype) not in ("f32", "f64"):
        return low.external(node, "random")
    if p == 1:  # nothing is kept and eager draws nothing
        zeros: list[Value] = []
        for t in (kind, mask_kind):
            nothing = lp.const(0, t.dtype)
            made = low.pointwise(t.dtype, t.shape, partial(_same, nothing), dense_stride(t))
            zeros.append(made)
        return tuple(zeros)
    kept = _draw(low, node, x, 1.0 - p)
    work = compute_type(x.dtype)
    scale = lp.const(1.0 / (1.0 - p), work)

    def scaled(at: tuple[Expr, ...]) -> Scalar:
        return lp.op("mul", work, lp.op("mul", work, low.load(x, at), low.load(kept, at)), scale)

    out = low.pointwise(kind.dtype, kind.shape, scaled, dense_stride(kind))
    mask = low.pointwise(
        "bool",
        mask_kind.shape,
        lambda at: lp.cast(low.load(kept, at), "bool"),
        dense_stride(mask_kind),
    )
    return out, mask


def _same(value: Scalar, _: tuple[Expr, ...]) -> Scalar:
    return value


def _draw(low: Lowering, node: Node, x: View, p: float) -> View:
    """Ones with probability ``p``, else zeros, in the shape and type of ``x``.

    Eager fills memory like the input's from its start to its end: so in the order of its strides.
    """
    source = low.graph.nodes[node.args[0].index].type if isinstance(node.args[0], Ref) else None
    assert isinstance(source, TensorType)
    steps = [ex.as_int(s) for s in source.stride]
    order = sorted(range(len(steps)), key=lambda d: -(steps[d] or 0)) if None not in steps else []
    order = order if order and x.shape else list(range(len(x.shape)))
    ordered = permute(x, order)
    drawn = low.temp(x.dtype, ordered.shape)
    low.steps.append(
        External(
            (drawn,),
            "aten.bernoulli.p",
            (low.strided(ordered), p),
            reason="random",
            origin=(low.position,),
        )
    )
    back = [order.index(d) for d in range(len(order))]
    return permute(whole(drawn, x.dtype, ordered.shape), back)


RANDOM: Final[dict[str, Rule]] = {"aten.native_dropout": _dropout}
