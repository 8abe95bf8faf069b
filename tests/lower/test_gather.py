"""Reads and writes at places given by index tensors, against eager; out of range raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.harness import Compiled, check_batch, compile_and_compare
from tests.lower.samples import values

_CASES: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i, j, u: F.embedding(i, x),
    "embedding_scaled": lambda x, i, j, u: F.embedding(i, x * 2) + 1,
    "embedding_of_view": lambda x, i, j, u: F.embedding(j, x.t()) * 3,
    "gather_0": lambda x, i, j, u: x.gather(0, i),
    "gather_1": lambda x, i, j, u: x.gather(1, j) + 1,
    "gather_computed": lambda x, i, j, u: (x + 1).gather(1, (j + 1) % 4) * 2,
    "gather_column": lambda x, i, j, u: x.log_softmax(-1).gather(-1, j[:, :1]).sum(),
    "select": lambda x, i, j, u: (x.index_select(0, i[0]), x.index_select(1, j[0]) + x[:, :4]),
    "index_rows": lambda x, i, j, u: (x[i[0]], x[i], x[i - 7]),
    "index_columns": lambda x, i, j, u: (x[:, j[0]], x[:, j], x[..., j[1] - 3]),
    "index_both": lambda x, i, j, u: (x[i, j], x[i[0], j[1]] + 1),
    "index_broadcast": lambda x, i, j, u: x[i[:, :1], j[0]],
    "index_split": lambda x, i, j, u: (x[:, None, :][i[0], :, j[0]], x[None][:, i, j]),
    "index_slices": lambda x, i, j, u: (x[1:, 1:][j, :], x[j[0], 1:3]),
    "index_of_index": lambda x, i, j, u: x[i[0][j[0]]],
    "index_int32": lambda x, i, j, u: (x[i.int()], F.embedding(i.int(), x)),
    "index_softmax": lambda x, i, j, u: x[i].softmax(-1).sum(1),
    "take": lambda x, i, j, u: x.take(i),
    "take_along": lambda x, i, j, u: x.take_along_dim(x.argsort(1), 1),
    "embedding_bag": lambda x, i, j, u: F.embedding_bag(i, x.float(), mode="sum"),
    "scatter": lambda x, i, j, u: (x.scatter(1, j[:, :1], u[:, :1]), x.scatter(1, j[:, :1], 5)),
    "scatter_add": lambda x, i, j, u: x.scatter_add(1, j, u),
    "scatter_reduce": lambda x, i, j, u: x.scatter_reduce(1, j, u, "amax"),
    "index_add": lambda x, i, j, u: x.index_add(0, i[0], u[:4], alpha=2),
    "index_copy": lambda x, i, j, u: x.index_copy(1, torch.tensor([2, 0]), u[:, :2]),
    "index_fill": lambda x, i, j, u: x.index_fill(1, j[0], 3),
    "index_put": lambda x, i, j, u: _put(x, (torch.tensor([1, 4]), torch.tensor([0, 2])), 3),
    "index_put_add": lambda x, i, j, u: x.index_put((i[0], j[0]), u[0, :4], accumulate=True),
    "masked_select": lambda x, i, j, u: torch.where(x > 0, x, u[:, :4]),
    "masked_scatter": lambda x, i, j, u: x.masked_fill(x > 0, 2).gather(1, j),
    "one_hot": lambda x, i, j, u: F.one_hot(j, 6),
    "upsample_nearest": lambda x, i, j, u: F.interpolate(x.float()[None, None], scale_factor=2),
    "bucketize": lambda x, i, j, u: torch.bucketize(x.float(), torch.tensor([-1.0, 0.5, 2.0])),
}


def _put(x: torch.Tensor, where: Any, value: Any) -> torch.Tensor:
    copy = x.clone()
    copy[where] = value
    return copy + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_every_function(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, u = values((7, 4), dtype), values((7, 5), dtype, 1)
    i = torch.randint(0, 7, (3, 4), generator=g)
    j = torch.randint(0, 4, (7, 4), generator=g)
    assert check_batch(list(_CASES.items()), x, i, j, u) == {}


def test_rows_of_many_elements_and_large_gathers() -> None:
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(50, 130, generator=g)
    tokens = torch.randint(0, 50, (4, 33), generator=g)

    def fn(w: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = F.embedding(t, w)
        normed = F.layer_norm(rows, (130,)) + F.embedding(torch.arange(33), w)
        loss = F.cross_entropy(normed.view(-1, 130), t.view(-1) * 2)
        return rows, normed, loss

    assert compile_and_compare(fn, weight, tokens).fallbacks == 0
    compile_and_compare(fn, weight.bfloat16(), tokens)


def test_gradients() -> None:
    g = torch.Generator().manual_seed(2)
    weight = torch.randn(20, 9, generator=g, requires_grad=True)
    tokens = torch.randint(0, 20, (3, 5), generator=g)

    def fn(w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(t, w, padding_idx=2)
        picked = rows.gather(2, t[:, :, None] % 9) + rows[:, t[0] % 5].sum() + w[t].tanh().sum()
        return F.cross_entropy(rows.view(-1, 9) * picked.mean(), t.view(-1) % 9, ignore_index=3)

    compiled = Compiled(fn)
    mine, theirs = (
        weight.clone().detach().requires_grad_(),
        weight.clone().detach().requires_grad_(),
    )
    a, b = compiled(mine, tokens), fn(theirs, tokens)
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)


_OUT_OF_RANGE: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x[:, 0].take(i),
    "cross_entropy": lambda x, i: F.cross_entropy(x.t(), i[:3]),
}


@pytest.mark.parametrize("name", _OUT_OF_RANGE)
@pytest.mark.parametrize("place", [5, 1 << 40, -6, -(1 << 62)])
def test_out_of_range_raises_and_reads_nothing(name: str, place: int) -> None:
    fn = _OUT_OF_RANGE[name]
    x = values((5, 3), torch.float32)
    compiled = Compiled(fn)
    good = torch.tensor([0, 4, 2, 1])
    torch.testing.assert_close(compiled(x, good), fn(x, good))
    with pytest.raises((RuntimeError, IndexError), match=r"(?i)out of (range|bounds)"):
        compiled(x, torch.tensor([0, place, 2, 1]))
    torch.testing.assert_close(compiled(x, good), fn(x, good))


def test_an_index_is_checked_once_in_whatever_shape_it_is_used() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.embedding(i, x), F.embedding(i.view(-1), x * 2), F.embedding(i.t()[None], x), x[i]

    x, i = values((7, 5), torch.float32), torch.tensor([[0, 6, 2], [1, 1, 3]])
    compiled = compile_and_compare(fn, x, i)
    checks = [target for target, reason in compiled.calls if reason == "check"]
    assert len(checks) == 2  # x[i] takes negative indices too
    parts = Compiled(lambda x, i: (F.embedding(i[:, 1:], x), F.embedding(i[:1], x)))
    for place in ((0, 1), (1, 2), (0, 0)):
        bad = i.clone()
        bad[place] = 7
        with pytest.raises(RuntimeError, match="out of range"):
            parts(x, bad)
    bad = i.clone()
    bad[1, 0] = 7  # no part reads it
    parts(x, bad)


def test_negative_indices_wrap_only_where_eager_wraps() -> None:
    x = values((5, 3), torch.float32)
    compile_and_compare(lambda x, i: x[i], x, torch.tensor([-1, -5, 0]))
    compiled = Compiled(lambda x, i: F.embedding(i, x))
    with pytest.raises(RuntimeError, match="out of range"):
        compiled(x, torch.tensor([-1]))


def test_empty_dimensions() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    cases = [
        ("no_rows", lambda x, e: (F.embedding(e, x), x[e], x.index_select(1, e))),
        ("from_empty", lambda x, e: (x[:0][e], x[:, :0][e], x[:0].gather(0, e[:, None]))),
    ]
    assert check_batch(cases, values((4, 3), torch.float32), nothing) == {}
    compiled = Compiled(lambda x, i: x[i])
    with pytest.raises(RuntimeError, match="out of range"):
        compiled(torch.zeros(0, 3), torch.tensor([0, 1]))
