"""Random numbers of a GPU graph: pure functions of a key and a place, whatever is fused."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_c_random import uniform
from tests.lower.on_cpu import OnCpu

_TWO_DROPOUTS = """\
%0 = input "x": f32[6, 40] @cuda
%1 = call aten.exp.default(%0): f32[6, 40] @cuda
%2 = call aten.native_dropout.default(%1, 0.25, true): (f32[6, 40] @cuda, bool[6, 40] @cuda)
%3 = call py.getitem(%2, 0): f32[6, 40] @cuda
%4 = call py.getitem(%2, 1): bool[6, 40] @cuda
%5 = call aten.sin.default(%3): f32[6, 40] @cuda
%6 = call aten.native_dropout.default(%5, 0.5, true): (f32[6, 40] @cuda, bool[6, 40] @cuda)
%7 = call py.getitem(%6, 0): f32[6, 40] @cuda
%8 = call py.getitem(%6, 1): bool[6, 40] @cuda
return %7, %4, %8
"""


def _keys(count: int) -> list[int]:
    """What a program draws next for so many operations."""
    drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (count, 2))
    return [key % (1 << 64) for key in drawn[:, 0].tolist()]


def test_dropout_fuses_and_its_masks_are_the_reference_s() -> None:
    x = torch.randn(6, 40)
    fused, apart = OnCpu(_TWO_DROPOUTS), OnCpu(_TWO_DROPOUTS, fusion=False)
    assert fused.calls == ["aten.randint.low", "aten.unbind.int"]
    assert len(fused.sources) == 1
    torch.manual_seed(11)
    out, first, second = fused(x)
    torch.manual_seed(11)
    for key, p, mask in zip(_keys(2), (0.75, 0.5), (first, second), strict=True):
        want = [uniform(key, i) < p for i in range(240)]
        assert mask.flatten().tolist() == want
    expected = (x.exp() * first / 0.75).sin() * second / 0.5
    torch.testing.assert_close(out, expected)
    torch.manual_seed(11)
    for a, b in zip(apart(x), (out, first, second), strict=True):
        torch.testing.assert_close(a, b)
    other, _, _ = fused(x)
    assert not torch.equal(other, out)


def test_places_are_counted_in_the_order_of_memory() -> None:
    text = """\
%0 = input "x": f32[8, 6] stride [1, 8] @cuda
%1 = call aten.rand_like.default(%0): f32[8, 6] stride [1, 8] @cuda
%2 = call aten.rand.default([5, 3]): bf16[5, 3] @cuda
%3 = call aten.rand.default([7]): f16[7] @cuda
return %1, %2, %3
"""
    run = OnCpu(text)
    torch.manual_seed(5)
    like, bf16, f16 = run(torch.zeros(6, 8).t())
    torch.manual_seed(5)
    keys = _keys(3)
    assert like.stride() == (1, 8)
    assert like.t().flatten().tolist() == [uniform(keys[0], i) for i in range(48)]
    for key, bits, got in ((keys[1], 8, bf16), (keys[2], 11, f16)):
        want = [int(uniform(key, i) * (1 << bits)) / (1 << bits) for i in range(got.numel())]
        assert got.flatten().tolist() == want


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli_and_means(p: float) -> None:
    text = f"""\
symbol s0 in [2, 1048576]
%0 = input "x": f32[s0] @cuda
%1 = call aten.bernoulli.p(%0, {p}): f32[s0] @cuda
%2 = call aten.bernoulli.default(%0): f32[s0] @cuda
%3 = call aten.rand_like.default(%0): f32[s0] @cuda
%4 = call aten.bernoulli.p(%3, {p}, generator=none): f32[s0] @cuda
return %1, %2, %3, %4
"""
    run = OnCpu(text)
    n = 100_000
    drawn, own, flat, again = run(torch.full((n,), p))
    for ones in (drawn, own, again):
        assert set(ones.unique().tolist()) <= {0.0, 1.0}
        assert abs(float(ones.mean()) - p) < 0.01
    assert float(flat.min()) >= 0
    assert float(flat.max()) < 1
    assert abs(float(flat.mean()) - 0.5) < 0.005
    assert abs(float(flat.var()) - 1 / 12) < 0.002
    assert not torch.equal(drawn, own) or p in (0.0, 1.0)


def test_equal_layers_draw_different_numbers_with_one_kernel() -> None:
    lines = ['%0 = input "x": f32[64, 64] @cuda']
    both = "(f32[64, 64] @cuda, bool[64, 64] @cuda)"
    last = 0
    for _ in range(4):
        n = len(lines)
        lines += [
            f"%{n} = call aten.mm.default(%{last}, %0): f32[64, 64] @cuda",
            f"%{n + 1} = call aten.native_dropout.default(%{n}, 0.5, true): {both}",
            f"%{n + 2} = call py.getitem(%{n + 1}, 0): f32[64, 64] @cuda",
            f"%{n + 3} = call py.getitem(%{n + 1}, 1): bool[64, 64] @cuda",
        ]
        last = n + 2
    masks = ", ".join(f"%{n}" for n in range(4, len(lines), 4))
    run = OnCpu("\n".join(lines) + f"\nreturn %{last}, {masks}\n")
    assert len(run.sources) == 1
    _, *drawn = run(torch.eye(64))
    for i, one in enumerate(drawn):
        assert all(not torch.equal(one, other) for other in drawn[:i])
