"""The kernel suite: what is timed, and on which inputs.

A case makes a Workload from a seed. The sizes are the ones in its name; `quick` makes them small
enough for a test, where the figures mean nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import nets


@dataclass(frozen=True)
class Workload:
    """function(*inputs) gives a tensor or a tuple of them.

    train: time the forward and the backward pass, else the forward pass without gradients.
    module: holds the parameters, for models. moved: bytes that any implementation must read or
    write; None where arithmetic counts more.
    """

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    train: bool = False
    module: nn.Module | None = None
    moved: int | None = None


Case = Callable[[torch.Generator, bool], Workload]
_F32 = 4


def _randn(g: torch.Generator, *shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, generator=g).requires_grad_(grad)


def _softmax(g: torch.Generator, quick: bool) -> Workload:
    x = _randn(g, 64 if quick else 4096, 1024)
    return Workload(lambda x: torch.softmax(x, -1), (x,), moved=2 * _F32 * x.numel())


def _layer_norm(g: torch.Generator, quick: bool) -> Workload:
    x = _randn(g, 64 if quick else 4096, 768, grad=True)
    w, b = _randn(g, 768, grad=True), _randn(g, 768, grad=True)
    return Workload(
        lambda x, w, b: functional.layer_norm(x, (768,), w, b),
        (x, w, b),
        train=True,
        moved=5 * _F32 * x.numel(),
    )


def _pointwise(function: Callable[[Tensor], Tensor], positive: bool = False) -> Case:
    def make(g: torch.Generator, quick: bool) -> Workload:
        x = _randn(g, 1 << (14 if quick else 24))
        if positive:
            x = x.abs() + 1e-3
        return Workload(function, (x,), moved=2 * _F32 * x.numel())

    return make


def _transpose_add(g: torch.Generator, quick: bool) -> Workload:
    n = 128 if quick else 4096
    x, y = _randn(g, n, n), _randn(g, n, n)
    return Workload(lambda x, y: x.t() + y, (x, y), moved=3 * _F32 * x.numel())


def _column_sum(g: torch.Generator, quick: bool) -> Workload:
    x = _randn(g, 128 if quick else 8192, 256 if quick else 4096)
    return Workload(lambda x: x.sum(0), (x,), moved=_F32 * x.numel())


def _batch_norm(g: torch.Generator, quick: bool) -> Workload:
    side = 8 if quick else 56
    x = _randn(g, 2 if quick else 32, 64, side, side).to(memory_format=torch.channels_last)
    x.requires_grad_()
    w, b = _randn(g, 64, grad=True), _randn(g, 64, grad=True)
    mean, var = torch.zeros(64), torch.ones(64)

    def run(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return functional.relu(functional.batch_norm(x, mean, var, w, b, True))

    return Workload(run, (x, w, b, mean, var), train=True, moved=8 * _F32 * x.numel())


def _bilinear(g: torch.Generator, quick: bool) -> Workload:
    side = 8 if quick else 64
    x = _randn(g, 2 if quick else 8, 64, side, side)

    def run(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)

    return Workload(run, (x,), moved=5 * _F32 * x.numel())


def _cross_entropy(g: torch.Generator, quick: bool) -> Workload:
    rows, classes = (16, 512) if quick else (2048, 32768)
    x = _randn(g, rows, classes, grad=True)
    t = torch.randint(0, classes, (rows,), generator=g)
    moved = 3 * _F32 * x.numel()
    return Workload(functional.cross_entropy, (x, t), train=True, moved=moved)


def _embedding_bag(g: torch.Generator, quick: bool) -> Workload:
    rows, bags = (1000, 64) if quick else (1_000_000, 8192)
    table = _randn(g, rows, 64)
    indices = torch.randint(0, rows, (bags, 20), generator=g)

    def run(indices: Tensor, table: Tensor) -> Tensor:
        return functional.embedding_bag(indices, table, mode="sum")

    return Workload(run, (indices, table), moved=(20 + 1) * bags * 64 * _F32)


def _bert(g: torch.Generator, quick: bool) -> Workload:
    model = nets.bert_base(layers=1 if quick else 12).eval()
    tokens = torch.randint(0, 30522, (1, 16 if quick else 128), generator=g)
    return Workload(model, (tokens,), module=model)


def _resnet(g: torch.Generator, quick: bool) -> Workload:
    model = nets.ResNet50(blocks=(1, 1, 1, 1) if quick else (3, 4, 6, 3)).eval()
    side = 64 if quick else 224
    return Workload(model, (_randn(g, 1, 3, side, side),), module=model)


CASES: Mapping[str, Case] = {
    "softmax 4096x1024": _softmax,
    "layer norm fwd+bwd 4096x768": _layer_norm,
    "gelu 16M": _pointwise(functional.gelu),
    "log 16M": _pointwise(torch.log, positive=True),
    "tanh 16M": _pointwise(torch.tanh),
    "transpose+add 4096x4096": _transpose_add,
    "column sum 8192x4096": _column_sum,
    "batch norm+relu fwd+bwd channels-last": _batch_norm,
    "bilinear x2 8x64x64x64": _bilinear,
    "cross entropy fwd+bwd 2048x32768": _cross_entropy,
    "embedding bag 1Mx64": _embedding_bag,
    "bert-base batch 1": _bert,
    "resnet-50-like batch 1": _resnet,
}


def chosen(only: str | None) -> list[str]:
    """Names of the cases that hold one of the words in `only`, split at commas; all for None.

    Raises ValueError when a word fits no case.
    """
    if only is None:
        return list(CASES)
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if not any(word in name for name in CASES):
            raise ValueError(f"no case has {word!r} in its name: {', '.join(CASES)}")
    return [name for name in CASES if any(word in name for word in words)]
