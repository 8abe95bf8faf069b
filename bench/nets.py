"""Two whole models of the suite with random weights: BERT-base and a net shaped like ResNet-50."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class _LastHidden(nn.Module):
    """tokens int64 (batch, length) -> the last hidden state, (batch, length, 768)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids=tokens, return_dict=True).last_hidden_state
        return hidden


def bert_base(layers: int = 12) -> nn.Module:
    """The transformers library's BERT at the size of bert-base, without its pooler."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=layers)
    return _LastHidden(BertModel(config, add_pooling_layer=False))


def _conv_norm(inside: int, outside: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)
    )


class _Bottleneck(nn.Module):
    """1x1 to `width` channels, 3x3, 1x1 to four times as many, beside a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.reduce = _conv_norm(inside, width, 1)
        self.middle = _conv_norm(width, width, 3, stride)
        self.expand = _conv_norm(width, outside, 1)
        plain = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if plain else _conv_norm(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.reduce(x))
        y = functional.relu(self.middle(y))
        return functional.relu(self.expand(y) + self.shortcut(x))


class ResNet50(nn.Module):
    """images (batch, 3, h, w) -> classes (batch, 1000). blocks: of each of the four stages."""

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = _conv_norm(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        inside, layers = 64, list[nn.Module]()
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for block in range(count):
                layers.append(_Bottleneck(inside, width, 2 if stage and not block else 1))
                inside = 4 * width
        self.blocks = nn.Sequential(*layers)
        self.classes = nn.Linear(inside, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.pool(functional.relu(self.stem(x))))
        classes: Tensor = self.classes(torch.flatten(functional.adaptive_avg_pool2d(y, 1), 1))
        return classes
