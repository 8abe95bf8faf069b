"""as_strided and its kin: places counted from the start of a tensor's own storage."""

from __future__ import annotations

import torch

from tests.lower.harness import Compiled, check_batch
from tests.lower.samples import values

_CASES = {
    "of_a_temporary": lambda x: (x + 1).as_strided((2, 3), (1, 2), 3) * 2,
    "overlapping": lambda x: torch.arange(24).as_strided((2, 2, 3), (1, 1, 1), 4) + 1,
    "of_a_view": lambda x: (x * 2)[1:, 2:].as_strided((3,), (5,), 1),
    "of_a_transposed": lambda x: (x.t() + 1).as_strided((2, 3), (1, 4)),
    "copy": lambda x: torch.as_strided_copy(x + 1, (2, 3), (6, 1), 2),
    "copy_of_input": lambda x: torch.as_strided_copy(x, (2, 3), (6, 1), 2),
    "scatter": lambda x: torch.as_strided_scatter(x + 1, x[:2, :3] * 5, (2, 3), (7, 2), 1),
    "scatter_rows": lambda x: torch.as_strided_scatter(x + 1, x[:3, 0], (3,), (6,), 2),
    "scatter_into_input": lambda x: torch.as_strided_scatter(x, x[:2, :3], (2, 3), (6, 1), 0),
    "complex": lambda x: torch.view_as_complex((x + 1).view(4, 3, 2)).as_strided((2, 2), (3, 1), 1),
    "complex_moved": lambda x: torch.view_as_complex((x + 1).view(4, 3, 2)).t().flip(0),
}


def test_places_in_temporaries_and_inputs() -> None:
    for dtype in (torch.float32, torch.int64):
        assert check_batch(list(_CASES.items()), values((4, 6), dtype)) == {}


def test_gradients_of_overlapping_places() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_copy(x, (2, 2, 2, 2), (1, 1, 1, 1), 0) * 2

    x = torch.randn(16, requires_grad=True)
    (got,) = torch.autograd.grad(Compiled(fn)(x).sum(), x)
    (want,) = torch.autograd.grad(fn(x).sum(), x)
    assert torch.equal(got, want)
