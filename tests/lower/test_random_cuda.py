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


def test_dropout_fuses_and_its_masks_are_the_reference_s() -> None:
    x = torch.randn(6, 40)
    fused, apart = OnCpu(_TWO_DROPOUTS), OnCpu(_TWO_DROPOUTS, fusion=False)
    assert fused.calls == ["aten.randint.low"]
    assert len(fused.sources) == 1
    torch.manual_seed(11)
    out, first, second = fused(x)
    torch.manual_seed(11)
    key = int(torch.randint(-(1 << 63), (1 << 63) - 1, (1,)))
    for number, p, mask in ((0, 0.75, first), (1, 0.5, second)):
        want = [uniform((key + number) % (1 << 64), i) < p for i in range(240)]
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
    key = int(torch.randint(-(1 << 63), (1 << 63) - 1, (1,)))
    assert like.stride() == (1, 8)
    assert like.t().flatten().tolist() == [uniform(key % (1 << 64), i) for i in range(48)]
    for number, bits, got in ((1, 8, bf16), (2, 11, f16)):
        want = [
            int(uniform((key + number) % (1 << 64), i) * (1 << bits)) / (1 << bits)
            for i in range(got.numel())
        ]
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
