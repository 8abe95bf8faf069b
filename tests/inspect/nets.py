"""Functions to explain. Golden files hold the numbers of these lines: add at the end only."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def layers() -> tuple[nn.Module, Tensor]:
    """Three equal layers and a triangular solve, for which there is no loop."""
    return Layers(), torch.zeros(32, 64)


class Layer(nn.Module):
    """A residual layer; (rows, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer(), Layer())

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(self.layers(x), dim=-1)
        return torch.linalg.solve_triangular(y[:, :32], y, upper=True) * 2


def block() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two equal blocks and a sum over everything, to be trained."""
    return Blocks(), (torch.zeros(32, 64, requires_grad=True),)


class Block(nn.Module):
    """A residual block; (rows, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + torch.tanh(self.linear(y))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).sum()


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """Keywords and symbolic sizes."""
    return torch.softmax(x * factor, dim=-1)


def scaled() -> tuple[object, dict[str, Tensor]]:
    return scale, {"x": torch.zeros(8, 40), "factor": torch.zeros(40)}


def wrong() -> int:
    return 3
