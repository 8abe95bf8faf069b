"""What is replaced in Dynamo's graph, and what is left as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.capture.rewrite import copied, rewrite


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_copied_graph_is_changed_alone() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        copy = copied(gm)
        assert str(copy.graph) == str(gm.graph)
        assert copy.meta == gm.meta
        for old, new in zip(gm.graph.nodes, copy.graph.nodes, strict=True):
            assert old is not new
            assert old.meta.keys() == new.meta.keys()
            if new.target is torch.sin:
                new.target = torch.cos
        copy.recompile()
        assert copy(*inputs)[0].equal(torch.ones(3, 4).cos())
        return gm.forward

    torch.testing.assert_close(
        torch.compile(torch.sin, backend=backend)(torch.ones(3, 4)), torch.ones(3, 4).sin()
    )


def test_attention_on_the_cpu_is_left_to_torch() -> None:
    seen: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        seen.append(rewrite(gm) is gm or "attend" not in str(rewrite(gm).graph))
        return gm.forward

    q = torch.randn(1, 2, 4, 8)
    torch.compile(F.scaled_dot_product_attention, backend=backend)(q, q, q)
    assert seen == [True]
