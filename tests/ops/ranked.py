"""The operators that models use most, each with a call of it.

From rankings over 24 models' graphs of core ATen and 166 models' graphs as Inductor sees them. Its
own operators (seeds, low-memory pooling, fma) stand here as what they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

aten: Final = torch.ops.aten
prims: Final = torch.ops.prims

_X, _Y = torch.randn(4, 6), torch.rand(4, 6) + 1
_IMAGE, _ROWS = torch.randn(2, 3, 8, 8), torch.randn(3, 4, 6)
_INTS = torch.tensor([[0, 2, 1, 0, 1, 3]] * 4)
_WEIGHT = torch.randn(6)

Call = tuple[Callable[..., Any], Sequence[torch.Tensor]]


def _named(names: str, *tensors: torch.Tensor, rest: Sequence[Any] = ()) -> dict[str, Call]:
    """Calls of operators by name, all with the same arguments."""
    return {f"aten.{name}": (_with(_overload(name), rest), tensors) for name in names.split()}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _with(op: Any, rest: Sequence[Any]) -> Callable[..., Any]:
    return lambda *tensors: op(*tensors, *rest)


def _listed(names: str, lists: int, *rest: Any) -> dict[str, Call]:
    def with_lists(op: Any) -> Callable[..., Any]:
        return lambda *tensors: op(*[list(tensors)] * lists, *rest)

    return {
        f"aten._foreach_{n}": (with_lists(_overload(f"_foreach_{n}")), (_X, _Y))
        for n in names.split()
    }


CALLS: Final[dict[str, Call]] = {
    **_named(
        "abs alias clone cos erf exp expm1 gelu glu lift_fresh_copy log log1p neg reciprocal relu "
        "rsqrt sigmoid sin sqrt tanh mean sum amax any argmax logical_not zeros_like", _Y,
    ),
    **_named(
        "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum minimum eq.Tensor ge.Tensor gt.Tensor "
        "le.Tensor lt.Tensor copy", _X, _Y,
    ),
    **_named(
        "eq.Scalar ne.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar mul.Scalar div.Scalar "
        "fmod.Scalar pow.Tensor_Scalar clamp_max clamp_min clamp full_like", _X, rest=(2,),
    ),
    **_named("cumsum any.dim max.dim unsqueeze unbind.int", _X, rest=(1,)),
    **_named("sum.dim_IntList mean.dim any.dims", _X, rest=([1],)),
    **_named("_softmax _log_softmax", _X, rest=(1, False)),
    **_named("bitwise_and.Tensor bitwise_or.Tensor", _INTS, _INTS),
    **_named("logical_and", _X, _Y),
    **_named("bitwise_not", _INTS),
    **_named("var.correction var_mean.correction", _X),
    **_named("sort", _X),
    **_named("topk", _X, rest=(2,)),
    **_named("histc", _X, rest=(4, 0.0, 1.0)),
    **_named("view reshape expand repeat", _X, rest=([4, 6],)),
    **_named("permute", _X, rest=([1, 0],)),
    **_named("select.int", _X, rest=(0, 1)),
    **_named("slice.Tensor", _X, rest=(0, 1, 3)),
    **_named("split.Tensor", _X, rest=(2,)),
    **_named("split_with_sizes", _X, rest=([1, 3],)),
    **_named("squeeze.dim", _X[:1], rest=(0,)),
    **_named("squeeze.dims", _X[:1], rest=([0],)),
    **_named("constant_pad_nd", _X, rest=([1, 2],)),
    **_named("as_strided", _X, rest=([3, 2], [6, 1])),
    **_named("new_empty_strided", _X, rest=([3, 2], [2, 1])),
    **_named("mm", _X, _Y.t().contiguous()),
    **_named("bmm", _ROWS, _ROWS.mT.contiguous()),
    **_named("addmm", torch.randn(4), _X, _Y.t().contiguous()),
    "aten.gather": (lambda x, i: x.gather(1, i), (_X, _INTS)),
    "aten.scatter.value": (lambda x, i: x.scatter(1, i, 0.5), (_X, _INTS)),
    **_named("native_dropout", _X, rest=(0.5, True)),
    "aten.native_layer_norm": (lambda x, w: F.layer_norm(x, (6,), w, w), (_X, _WEIGHT)),
    **_named("native_group_norm", _IMAGE, rest=(None, None, 2, 3, 64, 3, 1e-5)),
    **_named("avg_pool2d max_pool2d_with_indices", _IMAGE, rest=([2, 2],)),
    **_named("_adaptive_avg_pool2d", _IMAGE, rest=([2, 2],)),
    **_named("addcmul", _X, _X, _Y),
    **_named("embedding", _X, _INTS),
    **_named("view_as_complex", torch.randn(4, 2)),
    **_named("_fft_c2c", torch.randn(4, 6, dtype=torch.complex64), rest=([1], 0, True)),
    **_named("view_as_real", torch.randn(4, dtype=torch.complex64)),
    **_listed("neg reciprocal sqrt", 1),
    **_listed("add.Scalar sub.Scalar mul.Scalar div.Scalar", 1, 2.0),
    **_listed("add.List sub.List div.List", 2),
    **_listed("addcdiv.Scalar addcmul.Scalar", 3, 1.0),
    "aten._foreach_pow.ScalarAndTensor": (lambda x, y: aten._foreach_pow(2.0, [x, y]), (_X, _Y)),
    "aten.pow.Scalar": (lambda x: aten.pow.Scalar(2.0, x), (_X,)),
    "aten.where.self": (lambda x, y: aten.where.self(x > 0, x, y), (_X, _Y)),
    "aten.div.Tensor_mode": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (_X, _Y)),
    "aten.scalar_tensor": (lambda x: x + torch.scalar_tensor(2.0), (_X,)),
    "aten.full": (lambda x: x + torch.full((4, 6), 3.0), (_X,)),
    "aten.empty": (lambda x: torch.empty(4, 6).copy_(x), (_X,)),
    "aten.arange.start_step": (lambda x: torch.arange(0, 12, 2) * x[0], (_X,)),
    "prims.iota": (
        lambda x: prims.iota.default(
            6, start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False
        ) * x,
        (_X,),
    ),
    "prims.rev": (lambda x: prims.rev.default(x, [1]), (_X,)),
    "prims.convert_element_type": (lambda x: x.to(torch.bfloat16), (_X,)),
    "aten.tril_indices": (lambda x: torch.tril_indices(4, 4) + x[0, 0].long(), (_X,)),
    "aten.rand": (lambda x: torch.rand(4, 6) + x, (_X,)),
    "aten.randint": (lambda x: torch.randint(0, 9, (4, 6)) + x, (_X,)),
    "aten.cat": (lambda x, y: torch.cat([x, y], 1), (_X, _Y)),
    "aten.select_scatter": (lambda x, y: x.select_scatter(y[0], 0, 1), (_X, _Y)),
    "aten.slice_scatter": (lambda x, y: x.slice_scatter(y[:2], 0, 1, 3), (_X, _Y)),
    "aten.as_strided_scatter": (lambda x, y: x.as_strided_scatter(y[:2], (2, 6), (6, 1)), (_X, _Y)),
    "aten.copy_": (lambda x, y: x.copy_(y), (_X, _Y)),
    "aten.index.Tensor": (lambda x, i: x[i[0, :3]], (_X, _INTS)),
    "aten._unsafe_index.Tensor": (lambda x, i: aten._unsafe_index(x, [i[0, :3]]), (_X, _INTS)),
    "aten.index_put": (lambda x, i: x.index_put((i[0, :3],), x[:3], accumulate=True), (_X, _INTS)),
    "aten.index_add": (lambda x, i: x.index_add(0, i[0, :4], x), (_X, _INTS)),
    "aten.scatter.src": (lambda x, i: x.scatter(1, i, x * 2), (_X, _INTS)),
    "aten.scatter_add": (lambda x, i: x.scatter_add(1, i, x * 2), (_X, _INTS)),
    "aten._unsafe_masked_index_put_accumulate": (
        lambda x, i: aten._unsafe_masked_index_put_accumulate(
            x, x[0] > 0, [i[0].clamp(max=3), i[0]], x[1]
        ),
        (_X, _INTS),
    ),
    "aten._embedding_bag": (
        lambda x, i: aten._embedding_bag(x, i[0], torch.tensor([0, 3]), False, 0)[0],
        (_X, _INTS),
    ),
    "aten._native_batch_norm_legit_functional": (
        lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True), (_IMAGE,),
    ),
    "aten.avg_pool2d_backward": (
        lambda x: aten.avg_pool2d_backward(
            x[:, :, :4, :4], x, [2, 2], [], [0, 0], False, True, None
        ),
        (_IMAGE,),
    ),
    "aten.max_pool2d_with_indices_backward": (
        lambda x: aten.max_pool2d_with_indices_backward(
            x[:, :, :4, :4], x, [2, 2], [2, 2], [0, 0], [1, 1], False,
            F.max_pool2d(x, 2, return_indices=True)[1],
        ),
        (_IMAGE,),
    ),
    "aten._adaptive_avg_pool2d_backward": (
        lambda x: aten._adaptive_avg_pool2d_backward(x[:, :, :2, :2], x), (_IMAGE,),
    ),
    "aten.convolution": (lambda x, w: F.conv2d(x, w), (_IMAGE, torch.randn(4, 3, 3, 3))),
    "aten.convolution_backward": (
        lambda x, w: aten.convolution_backward(
            torch.ones(2, 4, 6, 6) + x[0, 0, 0, 0], x, w, [4], [1, 1], [0, 0], [1, 1], False,
            [0, 0], 1, [True, True, True],
        ),
        (_IMAGE, torch.randn(4, 3, 3, 3)),
    ),
    "aten._scaled_dot_product_attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x), (torch.randn(1, 2, 8, 16),),
    ),
    "aten._grouped_mm": (
        lambda x, w: aten._grouped_mm(x, w, torch.tensor([2, 4], dtype=torch.int32)),
        (torch.randn(4, 16, dtype=torch.bfloat16), torch.randn(2, 16, 8, dtype=torch.bfloat16)),
    ),
}  # fmt: skip
