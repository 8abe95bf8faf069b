"""What a variant leaves in memory is compared with another's: rounding passes, faults do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusec.tune.agree import _values, differing
from fusec.tune.bench import windows


def _bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


KINDS = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_rounding_is_no_difference(name: str) -> None:
    x = torch.randn(5000, dtype=torch.float64)
    eps = torch.finfo(KINDS[name]).eps
    a, b = x.to(KINDS[name]), (x * (1 + 2 * eps)).to(KINDS[name])
    assert not differing(_bytes(a), _bytes(b), name)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_left_out_is_a_difference(name: str) -> None:
    x = torch.randn(5000, dtype=torch.float64).to(KINDS[name])
    y = x.clone()
    y[-500:] = 0  # of which many are near zero, by a bound as wide as eight bits want it
    assert differing(_bytes(y), _bytes(x), name)
    y = x.clone()
    y[:20] = float("nan")
    assert differing(_bytes(y), _bytes(x), name)


def test_integers_differ_in_few_places_at_most() -> None:
    x = torch.arange(10_000)
    one, many = x.clone(), x.clone()
    one[77] = 5
    many[::7] += 1
    assert not differing(_bytes(one), _bytes(x), "i64")
    assert differing(_bytes(many), _bytes(x), "i64")
    assert differing(_bytes(x)[:-8], _bytes(x), "i64")


def test_not_a_number_is_like_another() -> None:
    x = torch.full((100,), float("nan"))
    assert not differing(_bytes(x), _bytes(-x), "f32")


def test_small_buffers_are_read_whole() -> None:
    assert windows([100, 0, 7], 200) == [[(0, 100)], [], [(0, 7)]]


def test_large_buffers_are_read_in_pieces_from_the_first_byte_to_the_last() -> None:
    size = (1 << 30) + 12
    pieces, small = windows([size, 4096], 1 << 20)
    assert pieces[0][0] == 0
    assert sum(pieces[-1]) == size
    assert all(start % 16 == 0 for start, _ in pieces)
    assert sum(length for _, length in pieces) <= (1 << 20) + 64 * 16
    assert pieces == sorted(pieces)
    assert sum(length for _, length in small) <= 4096


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2"])
def test_each_of_the_small_numbers_is_read_as_torch_reads_it(name: str) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    wanted = every.view(KINDS[name]).double().numpy()
    np.testing.assert_array_equal(_values(every.numpy(), name), wanted)


@pytest.mark.parametrize("name", ["c64", "c128"])
def test_complex_numbers_differ_by_either_part(name: str) -> None:
    x = torch.randn(5000, dtype=torch.complex64 if name == "c64" else torch.complex128)
    assert not differing(_bytes(x * (1 + 1e-12)), _bytes(x), name)
    assert differing(_bytes(x.conj().resolve_conj()), _bytes(x), name)


def test_infinities_are_no_rounding() -> None:
    x = torch.randn(5000)
    y = x.clone()
    y[:20] = float("inf")
    assert differing(_bytes(y), _bytes(x), "f32")
    assert not differing(_bytes(y), _bytes(y.clone().add_(0.0)), "f32")
