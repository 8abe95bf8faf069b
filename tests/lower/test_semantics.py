"""The kinds of faults that fusing compilers have had: each must give what eager gives."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.lower.harness import Compiled, compare_with_eager, compile_and_compare
from tests.lower.samples import values


def test_int64_ranges_times_large_constants() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i = torch.arange(x.shape[0])
        return (
            i * 3_000_000_000,
            (i * 3_000_000_000) % 7 + x.long(),
            (i[:, None] * 2_147_483_648 + torch.arange(3)).sum(),
            i.to(torch.int32) * 2_000_000_000,
            (i + (1 << 40)).float() * x,
        )

    compile_and_compare(fn, values((9,), torch.float32))


def test_argmin_through_views() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.t().argmin(),
            x.t().argmin(0),
            x[1::2, ::3].argmin(),
            x.flip(0).argmin(1),
            x.view(3, 2, 4).permute(2, 0, 1).argmax(1),
            x.expand(2, 6, 4).argmax(),
            (x * 0).argmax(1),
            x.unfold(1, 2, 1).argmin(-1),
        )

    compile_and_compare(fn, values((6, 4), torch.float32))
    compile_and_compare(fn, values((6, 4), torch.int64))


def test_small_unsigned_negation_through_cat() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat((-x, x + 200, ~x))
        return joined, joined > 100, joined.float(), joined.sum(), -joined // 2, joined >> 1

    compile_and_compare(fn, torch.tensor([0, 1, 2, 128, 255], dtype=torch.uint8))
    compile_and_compare(fn, torch.tensor([0, 1, -128, 127], dtype=torch.int8))


def test_half_overflow_at_explicit_casts() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = x.to(torch.float16)
        return (
            half.float() / 2,
            x.to(torch.bfloat16).float() - x,
            (half * 1).to(torch.float32).isinf(),
            x.half().half().double().amax(),
            x.to(torch.float16).to(torch.int32).clamp(-70000, 70000) * 0,
        )

    compile_and_compare(fn, torch.tensor([1e5, -1e5, 65504.0, 65519.0, 65520.0, 1e-8, 1.0]))


def test_hyperbolic_functions_near_their_limits() -> None:
    x = torch.tensor([88.0, 88.7, 89.0, 89.4, -89.4, 90.0, 1e-4, -1e-4, 20.0, 9.0])
    compile_and_compare(lambda x: (x.sinh(), x.cosh(), x.tanh(), (x / 1000).sinh()), x)
    compile_and_compare(lambda x: (x.exp(), x.expm1(), x.sigmoid(), F.softplus(x)), x)


def test_variance_with_a_large_mean() -> None:
    x = torch.rand(33, 517) + 1e4

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.var(1), x.std(), x.var(0, correction=0), F.group_norm(x[:, None, :], 1)

    compile_and_compare(fn, x)
    compile_and_compare(lambda x: F.layer_norm(x, (517,)), x)


def test_index_put_then_reads_in_place() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x[i] = x[i] * 2
        y = x + 1
        x.index_put_((i,), y[i], accumulate=True)
        x[0] += x[-1]
        return x.sum(), y, x[i] - y[i]

    compile_and_compare(fn, values((6, 3), torch.float32), torch.tensor([4, 1, 2]))


def test_views_read_after_their_base_changes() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row, turned = x[1], x.t()
        before = row + 0
        x.mul_(3)
        after = row + turned[:, 1]
        turned[0] = 7
        return before, after, row * 1, x.sum()

    compile_and_compare(fn, values((3, 4), torch.float32))


def test_temporaries_keep_what_inputs_were() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return old + 1, x - y

    compile_and_compare(fn, values((4, 5), torch.float32), values((4, 5), torch.float32, 1))

    def turn(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.t().clone())
        return x + 1

    compile_and_compare(turn, values((5, 5), torch.float32))

    def shift(x: torch.Tensor) -> None:
        x[1:] = x[:-1].clone()
        x[:, 0] += x[:, -1]

    compile_and_compare(shift, values((6, 4), torch.float32))

    def rotate(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        a, b, c = x * 1, y * 1, z * 1
        x.copy_(b)
        y.copy_(c)
        z.copy_(a)

    compile_and_compare(rotate, *(values((7,), torch.float32, s) for s in range(3)))


def test_views_given_as_inputs() -> None:
    base = values((6, 6), torch.float32)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    compiled = Compiled(fn)
    mine, theirs = base.clone(), base.clone()
    got, want = compiled(mine[1:], mine[:, 2:]), fn(theirs[1:], theirs[:, 2:])
    assert torch.equal(got, want)
    assert torch.equal(mine, theirs)


def test_nan_in_extremes() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0], [math.nan, 2.0, math.nan], [4.0, 5.0, -math.inf]])

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.flip(0)
        return (
            torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y),
            x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), *x.max(1), *x.min(0), x.argmax(),
            x.clamp(0, 2), x.clamp(min=y), x.relu(), x.max(), F.hardtanh(x), x.sign(),
            torch.where(x > 1, x, 0), x != x, x.sort(1)[0], F.max_pool1d(x, 2),
            x.bfloat16().amax(1), x.half().argmin(1), F.threshold(x, 1, 5), F.relu6(x),
        )  # fmt: skip

    compile_and_compare(fn, x)


def test_padding_fused_into_reductions_keeps_its_fill() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.pad(x.exp(), (1, 2), value=5)
        return (
            y.sum(1), y.amax(0), F.pad(x, (2, 1), value=-math.inf).amax(1),
            F.pad(x, (1, 1, 1, 1)).prod(1), F.pad(x.log_softmax(1), (0, 3)).mean(1),
            F.pad(F.pad(x, (1, 0), value=2).cos(), (0, 1), value=3).sum(0),
            F.pad(x, (3, 3), value=1).argmax(1), torch.cat((x.exp(), x * 0), 1).sum(1),
        )  # fmt: skip

    compile_and_compare(fn, values((5, 7), torch.float32))


def test_sizes_of_zero() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(), x.sum(0), x.sum(1), x.prod(1), (x > 0).all(), (x > 0).any(0), x.softmax(1),
            torch.cat((x, y)), x.t() + 1, F.pad(x, (0, 0, 1, 1), value=2), x.mean(1), y[:0] @ y.t(),
            x @ y.t(), x.reshape(4, 0), x.expand(2, 0, 4) * 2, x.max(1)[0], x.new_ones(0).mean(),
            y[:, :0].sum(1), y[:, :0] @ x[:, :3],
        )  # fmt: skip

    compile_and_compare(fn, torch.zeros(0, 4), values((3, 4), torch.float32))


def test_dropout_masks_do_not_change_with_fusion() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = F.dropout(x * 2, 0.5)
        b = F.dropout(a.relu() + x, 0.25)
        return a, b, torch.rand(4), b.sum()

    x = values((40, 30), torch.float32)
    results = []
    for run in (fn, Compiled(fn), Compiled(fn, options=Compiled.plain(fusion=False))):
        torch.manual_seed(11)
        results.append(run(x))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b)


def test_integer_arithmetic_wraps() -> None:
    x = torch.tensor([120, 127, -128, 100], dtype=torch.int8)
    compile_and_compare(lambda x: (x + x, x * x, -x, x - 100, (x * x).sum(), x.abs(), x << 3), x)
    shifted = compile_and_compare(
        lambda x, n: (x << n, x >> n, x << 1, x >> 9, x << -1, torch.bitwise_left_shift(5, n)),
        x,
        torch.tensor([-1, 3, 7, 9], dtype=torch.int8),
    )
    assert shifted.fallbacks == 0
    y = torch.tensor([2**62, -(2**63), 2**63 - 1, 5])
    compile_and_compare(lambda y: (y + y, y * y, -y, y - 2, y.sum(), y.abs(), y * 3), y)


def test_results_of_one_compiled_function_do_not_share_memory() -> None:
    compiled = Compiled(lambda x: (x + 1, (x + 1).sum(0), x * 2))
    x = values((30, 50), torch.float32)
    first = compiled(x)
    kept = [t.clone() for t in first]
    compiled(x * 3)
    assert all(torch.equal(a, b) for a, b in zip(first, kept))


def test_sizes_as_symbols() -> None:
    """One graph for many sizes, traced with symbolic shapes."""

    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            x.softmax(0), (x + n).sum(1), x.view(-1)[: n * 2].mean(), torch.arange(n) * 2,
            torch.cat((x, x[1:])), x[i], x.t().reshape(-1), x.var(0), F.pad(x, (1, 0, 0, 1)),
            x.new_zeros(n), x.argmax(0), x[-1] * n,
        )  # fmt: skip

    compiled = Compiled(fn, dynamic=True)
    for n in (5, 8, 64, 129):
        x = values((n, 6), torch.float32, n)
        compare_with_eager(compiled, fn, x, torch.arange(0, n, 2))
    assert compiled.graphs[0].symbols
    assert len(compiled.graphs) == 1
