"""Small models of plain torch: a residual net, a UNet block, a recommender, a recurrent net."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusec.demo.models import Classifier, Example, build


class Block(nn.Module):
    """Group norm, SiLU and convolution twice, beside a shortcut; (batch, channels, h, w)."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.shortcut = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.conv2(functional.silu(self.norm2(y))) + self.shortcut(x)


class UNet(nn.Module):
    """Down, middle, up with a skip connection; forward(noisy, noise) gives (loss, guess)."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, channels, 3, padding=1)
        self.left = Block(channels, channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = Block(2 * channels, 2 * channels)
        self.right = Block(3 * channels, channels)
        self.head = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, noisy: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left(self.stem(noisy))
        low = self.middle(self.down(left))
        up = functional.interpolate(low, scale_factor=2.0, mode="nearest")
        guess = self.head(functional.silu(self.right(torch.cat([up, left], dim=1))))
        return functional.mse_loss(guess, noise), guess


class Recommender(nn.Module):
    """Bags of features, dense features, their products, a click; (loss, score (batch,)).

    forward(bags, starts, dense, clicks): bags int64 of all rows in one line, starts where each
    row's begin, (batch,); dense (batch, 8); clicks (batch,).
    """

    def __init__(self, features: int = 200, width: int = 16) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(features, width, mode="mean")
        self.users = nn.Embedding(features, width)
        self.dense = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 3, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(
        self, bags: Tensor, starts: Tensor, users: Tensor, dense: Tensor, clicks: Tensor
    ) -> tuple[Tensor, Tensor]:
        parts = [self.bags(bags, starts), self.users(users), self.dense(dense)]
        stacked = torch.stack(parts, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs = torch.stack([products[:, 0, 1], products[:, 0, 2], products[:, 1, 2]], dim=1)
        score = self.top(torch.cat([parts[2], pairs], dim=1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, clicks), score


class Recurrent(nn.Module):
    """A GRU cell unrolled over time; forward(x, labels): x (batch, time, 12)."""

    def __init__(self, width: int = 24, classes: int = 10) -> None:
        super().__init__()
        self.cell = nn.GRUCell(12, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        classes = self.head(state)
        return functional.cross_entropy(classes.float(), labels), classes


class Perceptron(nn.Module):
    """Wide layers with dropout off, GELU and layer norm; (batch, 32) to 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def example(name: str) -> Example:
    """A small model by name, one of `MODELS`. Raises KeyError for another name."""
    if name == "resnet":
        return build("convnet", layers=3, hidden=8, batch=4, length=16, vocab=10)
    make, inputs = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Example(name, make(), inputs())


def _pictures() -> tuple[Tensor, ...]:
    return torch.randn(2, 4, 16, 16), torch.randn(2, 4, 16, 16)


def _visits() -> tuple[Tensor, ...]:
    starts = torch.tensor([0, 3, 3, 7, 8, 20, 21, 30])  # one bag is empty
    bags, users = torch.randint(0, 200, (36,)), torch.randint(0, 200, (8,))
    return bags, starts, users, torch.randn(8, 8), torch.rand(8).round()


def _series() -> tuple[Tensor, ...]:
    return torch.randn(4, 20, 12), torch.randint(0, 10, (4,))


def _rows() -> tuple[Tensor, ...]:
    return torch.randn(16, 32), torch.randint(0, 10, (16,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "unet": (UNet, _pictures),
    "recommender": (Recommender, _visits),
    "gru": (Recurrent, _series),
    "mlp": (lambda: Classifier(Perceptron()), _rows),
}
