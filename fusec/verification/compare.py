"""Whether results are right, element by element, against eager's and a float64 reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

BOUND: Final = "twice eager's error, or rounding: 4 units in the last place, 1 of the largest value"


@dataclass(frozen=True)
class Compared:
    """wrong: a truth value for each element, None where all are right; error, eager_error: the
    greatest against the reference, of a part of its largest value."""

    wrong: torch.Tensor | None = None
    error: float = 0.0
    eager_error: float = 0.0


def compare(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, *, of_worst: float = 2.0
) -> Compared:
    """Compare values of one shape and type. ``exact``: in float64, or eager's where there are none.

    The bound for floating point: an error (against ``exact``) at most twice eager's, or a few units
    in the last place of the element or one of the largest element. Where eager's error is small by
    chance, ``of_worst`` of its greatest counts. What is no floating-point number must be eager's.
    """
    if not eager.numel():
        return Compared()
    if eager.is_complex():
        exact = exact.detach() if exact.is_complex() else eager
        return compare(
            torch.view_as_real(got.resolve_conj()),
            torch.view_as_real(eager.resolve_conj()),
            torch.view_as_real(exact.resolve_conj()),
            of_worst=of_worst,
        )
    if not eager.is_floating_point():
        wrong = got != eager
        return Compared(wrong if bool(wrong.any()) else None)
    kind = torch.finfo(eager.dtype)
    a, b, c = got.double(), eager.double(), exact.detach().double()
    if a.shape != c.shape:
        c = b
    finite = torch.isfinite(c)
    error, scale = _finite((b - c).abs()), torch.where(finite, c.abs(), 0.0)
    largest, worst = scale.max(), error.max()
    bound = 4 * kind.eps * scale + torch.maximum(2 * error, of_worst * worst) + kind.eps * largest
    bound = bound + 2 * kind.tiny * kind.eps
    same = (a == b) | (a.isnan() & b.isnan()) | (a == c) | (a.isnan() & c.isnan())
    mine = (a - c).abs()
    wrong = ~same & ~(mine <= torch.where(finite, bound, -1.0))
    unit = float(largest) or 1.0
    return Compared(
        wrong if bool(wrong.any()) else None,
        float(_finite(mine).max()) / unit,
        float(worst) / unit,
    )


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(x), x, 0.0)


def first_wrong(wrong: torch.Tensor, *values: torch.Tensor) -> str:
    """How many are wrong, and the values at the first place of those."""
    if any(x.shape != wrong.shape for x in values):  # of complex numbers
        return f"{int(wrong.sum())} of {wrong.numel()} values differ"
    where = tuple(int(i) for i in wrong.nonzero()[0])
    shown = " is not ".join(str(x[where].item()) for x in values)
    return f"{int(wrong.sum())} of {wrong.numel()} values differ, first at {where}: {shown}"
