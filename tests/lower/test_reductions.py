"""Every reduction against eager: dims, dtypes, layouts, NaN, zero sizes, indices."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.lower.harness import check_batch, compile_and_compare
from tests.lower.samples import DTYPES, awkward, layouts, values

_REDUCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((1, 3)), x.sum(-1, keepdim=True), x.sum((0, 2, 3))),
    "sum_dtype": lambda x: (x.sum(1, dtype=torch.float64), x.sum(dtype=torch.int32)),
    "prod": lambda x: (x[0, 0].prod(), x[0].prod(1), x[0, 0].prod(0, keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(1), x.mean((2, 3), keepdim=True)),
    "amax": lambda x: (x.amax(), x.amax(1), x.amin((0, 3)), x.amin(-1, keepdim=True)),
    "max": lambda x: (x.max(), x.min()),
    "max_dim": lambda x: (*x.max(1), *x.min(-1, keepdim=True), *x.max(0), *x.min(2)),
    "max_dim_mask": lambda x: (*(x > 0).max(1), *(x > 0).min(-1, True), *(x > 9).max(0)),
    "aminmax": lambda x: (*x.aminmax(), *x.aminmax(dim=1)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1), (x > 1).all(3), (x > -9).all(), x.any()),
    "any_dims": lambda x: ((x > 1).any((1, 2)), (x > 1).all((0, 3), keepdim=True)),
    "any_uint8": lambda x: (x.to(torch.uint8).any(1), x.to(torch.uint8).all(1)),
    "count": lambda x: ((x > 0).sum(), (x > 0).sum(1), x.count_nonzero(2)),
    "var": lambda x: (x.var(), x.var(1), x.var((2, 3), correction=0), x.std(0), x.std(-1, True)),
    "var_mean": lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, (2, 3), keepdim=True)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((2, 3), keepdim=True)),
    "softmax": lambda x: (x.softmax(1), x.softmax(-1), x.log_softmax(0), x.log_softmax(2)),
    "softmax_dtype": lambda x: (x.softmax(1, dtype=torch.float64), F.softmin(x, 2)),
    "norm": lambda x: (x.norm(), x.norm(dim=1), x.norm(p=1, dim=2), x.norm(p=math.inf, dim=3)),
    "norm_3": lambda x: (x.norm(p=3, dim=1), torch.linalg.vector_norm(x, 0, (1, 2))),
    "normalize": lambda x: F.normalize(x, dim=1),
    "layer_norm": lambda x: (F.layer_norm(x, (9,)), F.layer_norm(x, (5, 9))),
    "rms_norm": lambda x: F.rms_norm(x, (9,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "instance_norm": lambda x: F.instance_norm(x),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0), 1),
    "fused": lambda x: ((x - x.mean(1, keepdim=True)).abs().sum((0, 2)), (x * 2).amax(-1) + 1),
    "two_levels": lambda x: (x.sum(-1).amax(-1), x.amax(-1).sum(-1), x.sum(1).sum(0)),
    "dot": lambda x: (x[0] * x[0]).sum(),
    "nansum": lambda x: (x.nansum(1), x.nanmean(1) if x.is_floating_point() else x),
    "median_kthvalue": lambda x: (x.median(1)[0], x.kthvalue(2, 1)[0]),
    "sort_topk": lambda x: (x.sort(1)[0], x.topk(2, 1)[0]),
    "cumsum": lambda x: (x.cumsum(0), x.cumsum(1), x.cumsum(-1) + 1, x.flip(1).cumsum(1)),
    "cumprod": lambda x: (x.cumprod(1), x.cumprod(-1)),
    "cummax": lambda x: (*x.cummax(1), *x.cummin(-1)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 0).to(x.dtype)),
    "trace": lambda x: (x[0, 0, :, :5].trace(), torch.einsum("abcd,abcd->a", x, x)),
}
_INDICES = {
    "argmax": lambda x: (x.argmax(), x.argmin(), x.argmax(1), x.argmin(-1, keepdim=True)),
    "argmax_views": lambda x: (
        x.transpose(1, 3).argmax(),
        x.flip(1).argmin(1),
        x[:, ::2].argmax(),
        x.transpose(0, 2).reshape(30, -1).argmin(1),
        x.expand(3, *x.shape).argmax(),
    ),
}


@pytest.mark.parametrize("name", [n for n in DTYPES if n not in ("float16", "int32", "int16")])
def test_every_reduction(name: str) -> None:
    x = values((2, 6, 5, 9), DTYPES[name])
    assert check_batch(list(_REDUCTIONS.items()), x) == {}
    assert check_batch(list(_INDICES.items()), x) == {}


@pytest.mark.parametrize("layout", ["channels_last", "permuted", "sliced", "expanded"])
def test_reductions_of_layouts(layout: str) -> None:
    x = layouts(torch.float32)[layout]
    assert check_batch(list(_REDUCTIONS.items()), x) == {}
    assert check_batch(list(_INDICES.items()), x) == {}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (3, 0, 2, 4), (1, 1, 1, 1), (2, 3, 4, 0)])
def test_zero_and_one_sizes(shape: tuple[int, ...]) -> None:
    """Sums of nothing are 0, products 1; extremes of nothing are refused by eager."""
    names = ("sum", "prod", "mean", "amax", "any", "var", "softmax")
    apart = [
        (f"{name}{i}", lambda x, f=_REDUCTIONS[name], i=i: f(x)[i])
        for name in names
        for i in range(3)
    ]
    assert check_batch(apart, values(shape, torch.float32)) == {}


def test_scalars() -> None:
    cases = [
        ("sums", lambda x: (x.sum(), x.sum(0), x.mean(), x.prod(), x.amax(), x.max(0)[1])),
        ("indices", lambda x: (x.argmax(), x.argmin(0), x.max(), x.any(), x.softmax(0))),
    ]
    for dtype in (torch.float32, torch.int64):
        assert check_batch(cases, values((), dtype)) == {}


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int64", "int8", "uint8"])
def test_special_values(name: str) -> None:
    special = awkward(DTYPES[name])
    rows = torch.stack([special.roll(i) for i in range(len(special))])
    parts = {
        "extremes": lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), *x.max(1), *x.min(0)),
        "indices": lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.argmin()),
        "pieces": lambda x: (x[:, 1:3].amax(1), x[:, 3:6].argmax(1), x[:, 5:9].sum(1)),
        "ordinary": lambda x: (x[:, 5:9].prod(1), x.clamp(-3, 3).sum(1), x.any(1), x.all(1)),
        "sums": lambda x: (x.sum(1), x.sum(0)) if not x.is_floating_point() else x,
    }
    assert check_batch(list(parts.items()), rows) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_reductions(dtype: torch.dtype) -> None:
    """Long rows and columns: partial sums keep the error at eager's."""
    x = values((700, 900), dtype)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.sum(0), x.sum(1), x.mean(0), x.var(1), x.softmax(1), x.amax(0), x.std()

    compile_and_compare(fn, x)
    compile_and_compare(fn, x.t())


def test_variance_of_values_with_a_large_mean() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(64, 1000, generator=g) + 10000

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.var(1), x.std(0), *torch.var_mean(x), F.layer_norm(x, (1000,))

    compile_and_compare(fn, x)
