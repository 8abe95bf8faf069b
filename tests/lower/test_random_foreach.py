"""Random numbers are eager's for the same seed; foreach families give what single calls give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.harness import Compiled, copied, values_differ
from tests.lower.samples import values

_RANDOM: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) + 1,
    "dropout_all": lambda x: (F.dropout(x, 1.0), F.dropout(x, 0.0), F.dropout(x, 0.5, False)),
    "dropout_twice": lambda x: F.dropout(F.dropout(x, 0.5).relu() + 1, 0.1),
    "dropout_of_view": lambda x: F.dropout(x.t(), 0.5),
    "rand": lambda x: (torch.rand(5, 7) + x, torch.rand_like(x) * x),
    "randn": lambda x: (torch.randn(5, 7) * x).sum(),
    "randint": lambda x: (torch.randint(0, 9, (4,)), torch.randperm(6)),
    "bernoulli": lambda x: x.sigmoid().bernoulli() * x,
    "multinomial": lambda x: x.abs().multinomial(3),
    "in_place": lambda x: (x.clone().normal_(1, 2), x.clone().uniform_(-1, 1)),
    "exponential": lambda x: (
        x.clone().exponential_(),
        x.clone().cauchy_(),
        x.clone().geometric_(0.2),
    ),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature_dropout": lambda x: F.dropout2d(x[None, :, :, None], 0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "order": lambda x: (torch.rand(3), F.dropout(x, 0.5), torch.randn(3), x.bernoulli(0.5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_seed_gives_eagers_numbers(dtype: torch.dtype) -> None:
    x = values((5, 7), dtype)

    def fn(x: torch.Tensor) -> list[Any]:
        return [case(x) for case in _RANDOM.values()]

    compiled = Compiled(fn)
    torch.manual_seed(3)
    got = torch.utils._pytree.tree_leaves(compiled(x))
    torch.manual_seed(3)
    want = torch.utils._pytree.tree_leaves(fn(x))
    faults = [f for a, b in zip(got, want) if (f := values_differ(a, b, b))]
    assert not faults


def test_dropout_masks_agree_in_forward_and_backward() -> None:
    x = torch.randn(200, 30, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x.exp(), 0.5) * 3, 0.2)

    compiled = Compiled(fn)
    torch.manual_seed(5)
    out = compiled(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, out.detach(), rtol=1e-5, atol=1e-5)
    assert compiled.fallbacks == 0


_FOREACH: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: (torch._foreach_add(a, b, alpha=2), torch._foreach_add(a, 3)),
    "add_list": lambda a, b: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "sub": lambda a, b: (torch._foreach_sub(a, b), torch._foreach_sub(a, 1.5)),
    "mul": lambda a, b: (torch._foreach_mul(a, b), torch._foreach_mul(a, 0.9)),
    "div": lambda a, b: (torch._foreach_div(a, b), torch._foreach_div(a, [2.0, 3.0, 4.0])),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, a, b, 0.5),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, a, b, [1.0, 2.0, 3.0]),
    "pow": lambda a, b: (torch._foreach_pow(a, 2), torch._foreach_pow(2.0, a)),
    "unary": lambda a, b: (torch._foreach_sqrt(torch._foreach_abs(a)), torch._foreach_neg(a)),
    "more": lambda a, b: (torch._foreach_exp(a), torch._foreach_reciprocal(b)),
    "maximum": lambda a, b: (torch._foreach_maximum(a, b), torch._foreach_clamp_max(a, 0.5)),
    "lerp": lambda a, b: (torch._foreach_lerp(a, b, 0.3), torch._foreach_lerp(a, b, b)),
    "norm": lambda a, b: torch._foreach_norm(a),
    "in_place": lambda a, b: (torch._foreach_add_(a, b), torch._foreach_mul_(a, 2)),
}


def test_foreach() -> None:
    shapes = [(3, 4), (7,), (2, 1, 5)]
    a = [values(s, torch.float32) for s in shapes]
    b = [values(s, torch.float32, 1) for s in shapes]

    def fn(*tensors: torch.Tensor) -> list[Any]:
        found = []
        for case in _FOREACH.values():
            found += torch.utils._pytree.tree_leaves(case(tensors[:3], tensors[3:]))
        return found

    mine, theirs = copied([*a, *b]), copied([*a, *b])
    compiled = Compiled(fn)
    for x, y in zip([*compiled(*mine), *mine], [*fn(*theirs), *theirs]):
        assert values_differ(x, y, y) is None
    names = {name for name, reason in compiled.calls if reason == "fallback"}
    assert names <= {"aten._foreach_norm.Scalar"}


def test_adamw_step() -> None:
    def step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        torch._foreach_mul_([p], 0.99)
        torch._foreach_lerp_([m], [g], 0.1)
        torch._foreach_mul_([v], 0.999)
        torch._foreach_addcmul_([v], [g], [g], 0.001)
        bottom = torch._foreach_sqrt([v])
        torch._foreach_add_(bottom, 1e-8)
        torch._foreach_addcdiv_([p], [m], bottom, -0.01)

    state = [values((30, 7), torch.float32, i).abs() for i in range(4)]
    mine, theirs = copied(state), copied(state)
    compiled = Compiled(step)
    compiled(*mine)
    step(*theirs)
    for x, y in zip(mine, theirs):
        assert values_differ(x, y, y) is None
    assert compiled.fallbacks == 0
