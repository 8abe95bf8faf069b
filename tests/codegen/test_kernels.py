"""The C of typical kernels, as golden files, compiled for every ISA level and run.

After a change that is meant: ``pytest tests/codegen/test_kernels.py --update-golden``, then read
the difference.
"""

from __future__ import annotations

import pytest
import torch

from fusec.capture.eager import EagerProgram
from fusec.codegen.c_expr import FLOOR_HELPERS
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Graph, TensorType
from fusec.ir.text import parse_graph
from fusec.options import Target
from fusec.runtime.operators import TORCH_DTYPES
from tests.codegen.kernels import KERNELS as GRAPHS
from tests.codegen.native import runnable
from tests.conftest import Golden
from tests.fuzz.check import KERNELS, load
from tests.ir.programs import planned

_SIZES = ({"s0": 37, "s1": 1000}, {"s0": 2, "s1": 5}, {"s0": 300, "s1": 64})


@pytest.mark.parametrize("name", GRAPHS)
def test_the_source_is_as_it_was(name: str, golden: Golden) -> None:
    """Without the vector library above each kernel: it has tests of its own."""
    plan = planned(GRAPHS[name], Target("cpu", "x86-64-v3"))
    texts = [k.source.split(FLOOR_HELPERS)[1] for k in plan.kernels[:-1]]
    golden(f"codegen/{name}.c", "\n".join(texts))


@pytest.mark.parametrize("isa", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_every_form_is_right_on_every_level(isa: str) -> None:
    if not runnable(isa):
        pytest.skip(f"this machine does not run {isa}")
    target = Target("cpu", isa)
    plans = {name: planned(text, target) for name, text in GRAPHS.items()}
    KERNELS.add(k for plan in plans.values() for k in plan.kernels)
    for name, plan in plans.items():
        run = load(plan, target)
        graph = parse_graph(GRAPHS[name])
        for sizes in _SIZES if graph.symbols else _SIZES[:1]:
            mine, theirs = _inputs(graph, sizes), _inputs(graph, sizes)
            kept = list(mine)
            got, wanted = run(mine), EagerProgram(graph)(list(theirs))
            for a, b in zip([*got, *kept], [*wanted, *theirs], strict=True):
                torch.testing.assert_close(a, b, msg=lambda m, n=name, s=sizes: f"{n} {s}: {m}")


def _inputs(graph: Graph, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Random tensors of the graph's input types, the same at each call."""
    rng = torch.Generator().manual_seed(3)
    made: list[torch.Tensor] = []
    for number in graph.inputs:
        t = graph.nodes[number].type
        assert isinstance(t, TensorType)
        shape = [ex.evaluate(e, sizes) for e in t.shape]
        stride = [ex.evaluate(e, sizes) for e in t.stride]
        size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        values = torch.randn(size, generator=rng)
        if DTYPES[t.dtype].is_integer:
            values = values * 100
        made.append(values.to(TORCH_DTYPES[t.dtype]).as_strided(shape, stride))
    return made
