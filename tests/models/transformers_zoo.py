"""Tiny models of the transformers library with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusec.demo.models import Example, build

BATCH, LENGTH, VOCAB, HIDDEN = 2, 24, 96, 64


class Sequences(nn.Module):
    """An encoder and a decoder, and the cross entropy of its logits.

    forward(source, tokens, labels): source as the encoder takes it under the name `source`.
    """

    def __init__(self, model: nn.Module, source: str) -> None:
        super().__init__()
        self.model = model
        self.source = source

    def forward(self, source: Tensor, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inputs = {self.source: source, "decoder_input_ids": tokens, "use_cache": False}
        logits: Tensor = self.model(**inputs, return_dict=True).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()), logits


class Tokens(nn.Module):
    """A language model and the cross entropy of its logits; forward(tokens, labels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, return_dict=True).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()), logits


class Images(nn.Module):
    """A classifier of images and the cross entropy of its classes; forward(pixels, labels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.model(pixel_values=pixels, return_dict=True).logits
        return functional.cross_entropy(logits.float(), labels), logits


def example(name: str, dtype: torch.dtype = torch.float32) -> Example:
    """A tiny model of a family, one of `FAMILIES`. Raises KeyError for another name."""
    if name in ("llama", "gpt2", "bert"):
        small = {"layers": 2, "hidden": 128, "batch": BATCH, "length": LENGTH, "vocab": VOCAB}
        return build(name, dtype=dtype, **small)
    make, inputs = FAMILIES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        given = inputs()
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in given)
    return Example(name, model.to(dtype), cast)


def _decoder(kind: str, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            attention_dropout=0.0,
            **more,
        )
        return Tokens(getattr(transformers, f"{kind}ForCausalLM")(config))

    return make


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB,
        d_model=HIDDEN,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    return Sequences(T5ForConditionalGeneration(config), "input_ids")


def _whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=16,
        d_model=HIDDEN,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=20,
        max_target_positions=LENGTH,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    return Sequences(WhisperForConditionalGeneration(config), "input_features")


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return Images(ViTForImageClassification(config))


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1], drop_path_rate=0.0, num_labels=10
    )
    return Images(ConvNextForImageClassification(config))


def _tokens() -> tuple[Tensor, ...]:
    return tuple(torch.randint(3, VOCAB, (2, BATCH, LENGTH)))


def _text_pairs() -> tuple[Tensor, ...]:
    return (torch.randint(3, VOCAB, (BATCH, 20)), *_tokens())


def _speech() -> tuple[Tensor, ...]:
    return (torch.randn(BATCH, 16, 40), *_tokens())


def _images() -> tuple[Tensor, ...]:
    return torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "qwen2": (_decoder("Qwen2"), _tokens),
    "mistral": (_decoder("Mistral", sliding_window=8), _tokens),
    "t5": (_t5, _text_pairs),
    "whisper": (_whisper, _speech),
    "vit": (_vit, _images),
    "convnext": (_convnext, _images),
}
