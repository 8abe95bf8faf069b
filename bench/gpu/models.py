"""The model cases: whole networks at sizes that people train and serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.kernels import Case

_LLAMA3 = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
}


def _transformer(name: str, batch: int, length: int, *, train: bool, **config: Any) -> Case:
    import transformers

    # A family's classes are named alike: LlamaForCausalLM and LlamaConfig.
    family = name.split("For")[0].removesuffix("LMHeadModel")
    made = getattr(transformers, f"{family}Config")(use_cache=False, **config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            module = getattr(transformers, name)(made)
    finally:
        torch.set_default_dtype(before)
    ids = torch.randint(0, made.vocab_size, (batch, length), device="cuda")
    if train:
        module.train()
        return Case(
            lambda ids: module(input_ids=ids, labels=ids).loss, (ids,), train=True, module=module
        )
    module.eval()
    return Case(lambda ids: module(input_ids=ids).logits[:, -1], (ids,), module=module)


def llama3_8b_prefill() -> Case:
    return _transformer("LlamaForCausalLM", 16, 2048, train=False, num_hidden_layers=8, **_LLAMA3)


def llama3_8b_decode() -> Case:
    return _transformer("LlamaForCausalLM", 16, 1, train=False, num_hidden_layers=32, **_LLAMA3)


def llama_1b_train() -> Case:
    return _transformer(
        "LlamaForCausalLM",
        4,
        2048,
        train=True,
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=8,
    )


def gpt2_train() -> Case:
    return _transformer("GPT2LMHeadModel", 8, 1024, train=True, vocab_size=50304, n_positions=1024)


def bert_train() -> Case:
    return _transformer("BertForMaskedLM", 32, 512, train=True, vocab_size=30522)


def resnet50_train() -> Case:
    import timm

    module = timm.create_model("resnet50")
    module = module.to("cuda", torch.bfloat16, memory_format=torch.channels_last).train()
    x = torch.randn(128, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    t = torch.randint(0, 1000, (128,), device="cuda")

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(module(x).float(), t)

    return Case(loss, (x, t), train=True, module=module)


def vit_b_inference() -> Case:
    import timm

    module = timm.create_model("vit_base_patch16_224").to("cuda", torch.bfloat16).eval()
    x = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return Case(lambda x: module(x), (x,), module=module)


CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (
        llama3_8b_prefill,
        llama3_8b_decode,
        llama_1b_train,
        gpt2_train,
        bert_train,
        resnet50_train,
        vit_b_inference,
    )
}
