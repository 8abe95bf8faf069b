"""Small models of five families with random weights, each with its loss inside.

    example = build("llama", layers=2)
    loss, output = example.model(*example.inputs)

Nothing is downloaded. Dropout is off, so that runs can be compared bit for bit. The same seed
gives the same weights and inputs in every process of one machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """layers and hidden: of the model; batch and length: of one input; vocab: tokens or classes."""

    layers: int
    hidden: int
    batch: int
    length: int
    vocab: int


@dataclass(frozen=True)
class Example:
    """A model whose forward gives (loss, output), and one set of inputs for it.

    loss: shape (), float32 at least. output: logits, (batch, length, vocab) or (batch, vocab).
    """

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]


class LanguageModel(nn.Module):
    """A transformers model and the cross entropy of its logits.

    forward(tokens, labels): both int64 of shape (batch, length); gives (loss, logits).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.model(input_ids=tokens, return_dict=True).logits
        flat = logits.float().flatten(0, 1)
        return functional.cross_entropy(flat, labels.flatten()), logits


class Classifier(nn.Module):
    """A network of plain torch and the cross entropy of its classes.

    forward(x, labels): x as the network takes it, labels int64 (batch,); gives (loss, classes).
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        classes: Tensor = self.network(x)
        return functional.cross_entropy(classes.float(), labels), classes


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut; (batch, channels, h, w)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _llama(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(1, size.hidden // 64)
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=max(256, size.length),
        use_cache=False,
    )
    return LanguageModel(LlamaForCausalLM(config))


def _gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocab,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=max(1, size.hidden // 64),
        n_positions=max(256, size.length),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return LanguageModel(GPT2LMHeadModel(config))


def _bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.hidden // 64),
        max_position_embeddings=max(256, size.length),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return LanguageModel(BertForMaskedLM(config))


def _convnet(size: Size) -> nn.Module:
    width = size.hidden
    blocks: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inside = width
    for index in range(size.layers):
        outside = width * (1 + index // 2)
        blocks.append(Residual(inside, outside, 1 if index % 2 else 2))
        inside = outside
    blocks += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, size.vocab)]
    return Classifier(nn.Sequential(*blocks))


def _mlp(size: Size) -> nn.Module:
    blocks: list[nn.Module] = []
    for _ in range(size.layers):
        blocks += [nn.Linear(size.hidden, size.hidden), nn.LayerNorm(size.hidden), nn.GELU()]
    return Classifier(nn.Sequential(*blocks, nn.Linear(size.hidden, size.vocab)))


def _tokens(size: Size, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (size.batch, size.length)
    tokens = torch.randint(0, size.vocab, shape, generator=generator)
    return tokens, torch.randint(0, size.vocab, shape, generator=generator)


def _images(size: Size, generator: torch.Generator) -> tuple[Tensor, ...]:
    x = torch.randn(size.batch, 3, size.length, size.length, generator=generator)
    return x, torch.randint(0, size.vocab, (size.batch,), generator=generator)


def _rows(size: Size, generator: torch.Generator) -> tuple[Tensor, ...]:
    x = torch.randn(size.batch, size.hidden, generator=generator)
    return x, torch.randint(0, size.vocab, (size.batch,), generator=generator)


@dataclass(frozen=True)
class Family:
    """How one kind of model is made; size: what the demo runs."""

    model: Callable[[Size], nn.Module]
    inputs: Callable[[Size, torch.Generator], tuple[Tensor, ...]]
    size: Size


FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama, _tokens, Size(layers=8, hidden=512, batch=2, length=128, vocab=4096)),
    "gpt2": Family(_gpt2, _tokens, Size(layers=6, hidden=384, batch=2, length=128, vocab=4096)),
    "bert": Family(_bert, _tokens, Size(layers=6, hidden=384, batch=2, length=128, vocab=4096)),
    "convnet": Family(_convnet, _images, Size(layers=6, hidden=32, batch=8, length=32, vocab=10)),
    "mlp": Family(_mlp, _rows, Size(layers=4, hidden=512, batch=64, length=1, vocab=100)),
}


def build(
    name: str,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    batch: int | None = None,
    length: int | None = None,
    vocab: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Example:
    """An example of a family, one of `FAMILIES`, at the demo's size where nothing else is said.

    hidden: a multiple of 64 for the transformers; channels of the convnet. length: tokens, or the
    height and width of an image. dtype: of the weights and of floating inputs.
    Raises KeyError for an unknown family.
    """
    family = FAMILIES[name]
    chosen = {"layers": layers, "hidden": hidden, "batch": batch, "length": length, "vocab": vocab}
    size = Size(**{k: getattr(family.size, k) if v is None else v for k, v in chosen.items()})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = family.model(size).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = tuple(
        x.to(dtype) if x.is_floating_point() else x for x in family.inputs(size, generator)
    )
    return Example(name, model, inputs)
