"""A value computed where a gather takes it, at a place that is itself computed in the graph."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.lower.harness import compile_and_compare


def _same_label(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, torch.full((logits.shape[0],), 3))


def _masked_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, torch.where(labels > 3, 0, labels))


def test_places_that_are_computed():
    """What computes the place is written out too, wherever the value that it picks goes."""
    logits = torch.randn(8, 40, generator=torch.Generator().manual_seed(0))
    compile_and_compare(_same_label, logits)
    compile_and_compare(_masked_labels, logits, torch.arange(8))


def test_places_that_are_computed_from_gathers():
    def twice(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        first = (x * 2).gather(1, (i + 1) % 40)
        return (first.exp() + 1).gather(1, i[:, :1] % 3)

    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(0))
    compile_and_compare(twice, x, torch.arange(8 * 3).reshape(8, 3))
