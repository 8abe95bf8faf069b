"""Random numbers, on a CPU and on a GPU.

On a CPU ATen draws them, from the generator and in the order of eager: a seed gives the numbers
that it gives in eager, whatever is fused around them. Dropout draws its mask so and does its
arithmetic in loops.

On a GPU they are computed where they are used (``philox_uniform``), as a pure function of a key
and of the element's place in memory. The keys, one for each operation that draws, are drawn once a
run of the program from the device's generator. So a seed repeats a run, fusion changes nothing, and
no draw is a pass over memory. The numbers are not eager's. A kernel is given its keys as memory:
nothing in its text tells which of a model's equal layers it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr
from fusec.ir.graph import Attr, Node, Ref, TensorType
from fusec.ir.loop import Buffer, External, Scalar
from fusec.lower.context import Lowering, Value, compute_type, dense_stride
from fusec.lower.rules import Rule, kwarg, operand, to_type
from fusec.lower.view import View, contiguous_stride, linearise, whole
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
    if kind.device == "cuda":
        return _computed_dropout(low, x, p, kind, mask_kind)
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


def _computed_dropout(
    low: Lowering, x: View, p: float, kind: TensorType, mask_kind: TensorType
) -> Value:
    """Dropout whose mask is computed where it is used; the mask is a result for the backward."""
    number = _uniform(low, mask_kind)
    keep = lp.const(1.0 - p, "f32")
    mask = low.pointwise(
        "bool",
        mask_kind.shape,
        lambda at: lp.op("lt", "bool", number(at), keep),
        dense_stride(mask_kind),
    )
    work = compute_type(x.dtype)
    scale = lp.const(1.0 / (1.0 - p), work)

    def scaled(at: tuple[Expr, ...]) -> Scalar:
        kept = lp.cast(low.load(mask, at), work)
        return lp.op("mul", work, lp.op("mul", work, low.load(x, at), kept), scale)

    return low.pointwise(kind.dtype, kind.shape, scaled, dense_stride(kind)), mask


def _uniform(low: Lowering, t: TensorType) -> Callable[[tuple[Expr, ...]], Scalar]:
    """A new number in [0, 1) for each element of a tensor of that type, as f32 values.

    The place of an element is counted in the order of memory.
    """
    key = _key(low, t.device)
    steps = [ex.as_int(s) for s in dense_stride(t)]
    order = list(range(len(t.shape)))
    if None not in steps:
        order.sort(key=lambda d: -(steps[d] or 0))

    def number(at: tuple[Expr, ...]) -> Scalar:
        place = linearise([t.shape[d] for d in order], [at[d] for d in order])
        return lp.op("philox_uniform", "f32", key, lp.index(place))

    return number


def _key(low: Lowering, device: str) -> Scalar:
    """The key of one more operation: part of what is drawn before the first use of any."""
    key = low.temp("i64", (ex.integer(_KEY),))
    first = low.once("random keys", lambda: _begin_keys(low))
    draw, apart = low.steps[first : first + 2]
    assert isinstance(draw, External)
    assert isinstance(apart, External)
    (drawn,), keys = draw.outputs, (*apart.outputs, key)
    assert drawn is not None
    shape = (ex.integer(len(keys)), ex.integer(_KEY))
    low.buffers[drawn] = Buffer("i64", shape, contiguous_stride(shape))
    bounds = (-(1 << 63), (1 << 63) - 1)
    kwargs = (("dtype", Attr("dtype", "i64")), ("device", Attr("device", device)))
    low.steps[first] = replace(draw, args=(*bounds, (len(keys), _KEY)), kwargs=kwargs)
    every = low.strided(whole(drawn, "i64", shape))
    low.steps[first + 1] = replace(apart, args=(every, 0), outputs=keys)
    return lp.load(key, "i64", (ex.ZERO,))


_KEY: Final = 2  # elements of a key, of which one is used: 16 bytes, as kernels count on


def _begin_keys(low: Lowering) -> int:
    """The place among the steps of those that draw all keys at once and take them apart, which
    moves nothing."""
    drawn, origin = low.temp("i64", ()), (low.position,)
    low.steps.append(External((drawn,), "aten.randint.low", (), (), "random", origin=origin))
    low.steps.append(External((), "aten.unbind.int", (), (), "random", True, origin))
    return len(low.steps) - 2


_BITS: Final = {"f32": 24, "bf16": 8, "f16": 11}  # that a significand holds


def _drawn(low: Lowering, node: Node, body: Callable[[Scalar, tuple[Expr, ...]], Scalar]) -> Value:
    """An element a number, where the device's numbers are computed; else a call."""
    t = low.node_type()
    generator = kwarg(node, "generator")
    if t.device != "cuda" or t.dtype not in _BITS or generator is not None:
        return low.external(node, "random")
    number = _uniform(low, t)
    return low.node_pointwise(lambda at: body(number(at), at))


def _rand(low: Lowering, node: Node) -> Value:
    """Uniform numbers in [0, 1): as many bits as the type holds, so that none rounds to one."""
    bits = _BITS.get(low.node_type().dtype, 0)
    return _drawn(low, node, lambda number, _: _short(number, bits))


def _short(number: Scalar, bits: int) -> Scalar:
    if bits == 24:
        return number
    scaled = lp.op("mul", "f32", number, lp.const(float(1 << bits), "f32"))
    return lp.op("mul", "f32", lp.op("floor", "f32", scaled), lp.const(1.0 / (1 << bits), "f32"))


def _bernoulli(low: Lowering, node: Node) -> Value:
    """One with a probability: an argument's number, or an element of the tensor itself."""
    source: Value = low.value(node.args[0])
    if node.target == "aten.bernoulli.p":
        source = low.value(node.args[1])
    if not isinstance(source, (View, int, float)):
        return low.external(node, "random")

    def body(number: Scalar, at: tuple[Expr, ...]) -> Scalar:
        below = lp.op("lt", "bool", number, to_type(operand(low, source, at), "f32"))
        return lp.cast(below, "f32")

    return _drawn(low, node, body)


RANDOM: Final[dict[str, Rule]] = {
    "aten.native_dropout": _dropout,
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
}
