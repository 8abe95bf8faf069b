"""A value computed where a gather takes it, at a place that is itself computed in the graph."""

from __future__ import annotations

import torch
from torch.nn import functional

from fusec.codegen.isa import host_target
from fusec.ir.expr import as_int
from fusec.ir.loop import Compute
from fusec.pipeline import stages
from fusec.trace import Recorder
from tests.lower.harness import Compiled, compile_and_compare


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


def test_a_row_is_not_stored_for_the_element_that_is_taken():
    """One value of a row is taken and the row is summed: nothing of the row's size is stored, and
    in the gradient no pass over the row looks for the class that is its target's."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 400, generator=generator, requires_grad=True)
    t = torch.randint(0, 400, (64,), generator=generator)
    t[3] = -100  # ignored
    compiled = Compiled(functional.cross_entropy)
    loss = compiled(x, t)
    (gradient,) = torch.autograd.grad(loss, x)
    wide = x.detach().double().requires_grad_()
    exact = functional.cross_entropy(wide, t)
    (expected,) = torch.autograd.grad(exact, wide)
    torch.testing.assert_close(loss.double(), exact)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-7)
    for graph in compiled.graphs:
        grouped, host = stages(graph, host_target(), compiled.options, recorder=Recorder())
        assert host.program.arena_bytes < x.nbytes
        folds = [s.reduction for s in grouped.program.steps if isinstance(s, Compute)]
        lengths = {as_int(a.upper) for fold in folds if fold for a in fold.axes if a.upper}
        assert (400 in lengths) == (graph is compiled.graphs[0])
