"""What is replaced in Dynamo's graph, and what is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.capture.rewrite import copied, rewrite
from tests.capture.test_decompositions import check, targets


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


_UPSAMPLED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "linear1d": (lambda x: F.interpolate(x, 9, mode="linear"), (2, 3, 4)),
    "bilinear2d": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (2, 3, 5, 4)),
    "bilinear2d_aligned": (
        lambda x: F.interpolate(x.sin(), (3, 9), mode="bilinear", align_corners=True),
        (2, 3, 5, 4),
    ),
    "bilinear2d_again": (
        lambda x: F.interpolate(
            x, scale_factor=(1.3, 2.0), mode="bilinear", recompute_scale_factor=True
        ),
        (2, 3, 5, 4),
    ),
    "trilinear3d": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (1, 2, 3, 4, 3)),
}


@pytest.mark.parametrize("name", _UPSAMPLED)
def test_linear_interpolation_on_the_cpu_stays_whole(name: str) -> None:
    fn, shape = _UPSAMPLED[name]
    x = torch.randn(shape)
    packet = f"aten.upsample_{name.partition('_')[0]}"
    used = targets(fn, x.requires_grad_())
    assert {f"{packet}.default", f"{packet}_backward.default"} <= used
    assert not any("index" in target for target in used)
    check(fn, x.detach())
    if x.dim() == 4:
        check(fn, x.detach().contiguous(memory_format=torch.channels_last))


def test_other_interpolation_is_left_to_torch() -> None:
    nearest = targets(lambda x: F.interpolate(x, scale_factor=2), torch.randn(1, 2, 3, 4))
    half = targets(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        torch.randn(1, 2, 3, 4).bfloat16(),
    )
    assert not any("upsample" in target for target in (*nearest, *half))
