"""Every elementwise operation against eager: dtypes, promotion, special values, layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusec.options import Options
from tests.lower.elementwise import Case, binary, unary
from tests.lower.harness import Compiled, check_batch
from tests.lower.samples import DTYPES, awkward, layouts, values

# Tracing itself refuses these, whatever the backend.
_REFUSED = {torch.bool: {"shift", "rshift"}}
# Half and integer: eager rounds the integer to the half first, we compute in float32.
_ROUNDED_LATER = {"mul_f16", "add_bf16"}


def _cases(dtype: torch.dtype, without: frozenset[str] | set[str] = frozenset()) -> list[Case]:
    refused = _REFUSED.get(dtype, set()) | without
    return [(n, f) for n, f in (*unary(), *binary()) if n not in refused]


@pytest.mark.parametrize("name", DTYPES)
def test_every_function(name: str) -> None:
    dtype = DTYPES[name]
    x, y = values((3, 5, 21), dtype), values((5, 1), dtype, 1)
    assert check_batch(_cases(dtype), x, y, values((5, 21), torch.bool, 2)) == {}


@pytest.mark.parametrize("name", [n for n in DTYPES if n != "bool"])
def test_special_values_in_pairs(name: str) -> None:
    dtype = DTYPES[name]
    special = awkward(dtype)
    count = len(special)
    x = special.repeat(count).reshape(count, count)
    mask = torch.arange(count) % 3 == 0
    without = frozenset() if dtype.is_floating_point else _ROUNDED_LATER
    assert check_batch(_cases(dtype, without), x, special[:, None], mask) == {}


_FEW = [
    ("add", lambda x, y: x + y),
    ("mul_add", lambda x, y: x * y + x),
    ("swapped", lambda x, y: y - x),
    ("unary", lambda x, y: (-x, y.abs())),
    ("to_f64", lambda x, y: x.double() * 0.5),
    ("compare", lambda x, y: (x > y, x == y)),
    ("broadcast_row", lambda x, y: x + y[0, 0, 0]),
    ("broadcast_column", lambda x, y: x + y[:, :, :, :1]),
    ("flat", lambda x, y: x.reshape(-1) + y.reshape(-1)),
    ("transposed", lambda x, y: x.transpose(1, 2) * 2),
    ("clone", lambda x, y: (x.clone(), y.contiguous())),
    ("channels_last", lambda x, y: (x + y).contiguous(memory_format=torch.channels_last)),
    ("where", lambda x, y: torch.where(x > 0, x, y)),
]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "uint8"])
def test_layouts(name: str) -> None:
    found = layouts(DTYPES[name])
    names = list(found)
    pairs = list(zip(names, names[1:] + names[:1]))
    cases: list[Any] = []
    for i, (a, b) in enumerate(pairs):
        for case, fn in _FEW:
            at = (names.index(a), names.index(b))
            cases.append((f"{case}({a}, {b}) {i}", lambda *t, f=fn, at=at: f(t[at[0]], t[at[1]])))
    assert check_batch(cases, *found.values()) == {}


def test_sizes_zero_and_scalars() -> None:
    cases = [
        ("empty", lambda z, s, x: (z + z, z * 2, z.exp(), z.sum(), z.sum(0), z.to(torch.int32))),
        ("empty_row", lambda z, s, x: z + s),
        ("scalar", lambda z, s, x: (s + s, s * 2.5, s.exp(), -s, s > 0)),
        ("scalar_with", lambda z, s, x: (x + s, s - x, torch.where(x > s, x, s))),
        ("one", lambda z, s, x: (x[:1] + 1, x[:1, :1] * s)),
        ("outer", lambda z, s, x: x[:, None, :] * x[None, :, :]),
        ("reshape_empty", lambda z, s, x: (z.reshape(3, 0), z.t(), z.unsqueeze(1))),
    ]
    for dtype in (torch.float32, torch.float16, torch.int64):
        inputs = (values((0, 3), dtype), values((), dtype, 1), values((4, 3), dtype, 2))
        assert check_batch(cases, *inputs) == {}, dtype


def test_strict_rounding_gives_eagers_halves() -> None:
    """Rounded after every operation, half arithmetic is eager's bit for bit."""

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x + y) * y - x) * 3 + x

    for dtype in (torch.bfloat16, torch.float16):
        x, y = values((50, 40), dtype), values((40,), dtype, 1)
        got = Compiled(chain, Options(progress=False, strict_rounding=True))(x, y)
        assert torch.equal(got, chain(x, y))
