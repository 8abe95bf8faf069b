"""What a variant leaves in memory is compared with another's: rounding passes, faults do not."""

from __future__ import annotations

import pytest
import torch

from fusec.tune.agree import differing
from fusec.tune.bench import windows


def _bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


KINDS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


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
    y[-20:] = 0
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
