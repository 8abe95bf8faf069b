"""Models of many families, trained for one step: eager, fusec and float64 agree.

The first six run always. The others are `extended`:  make test-extended
"""

from __future__ import annotations

import pytest
import torch

from fusec.demo.models import Example
from tests.models import torch_zoo, transformers_zoo
from tests.models.training import Backend, compare

ALWAYS = ("llama", "gpt2", "bert", "t5", "resnet", "unet")
SLOW = ("qwen2", "mistral", "whisper", "vit", "convnext", "recommender", "gru", "mlp")


# Dynamo looks at the gradient of an activation where it breaks a graph (Whisper's encoder does).
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def _example(name: str, dtype: torch.dtype = torch.float32) -> Example:
    if name in torch_zoo.MODELS or name == "resnet":
        return torch_zoo.example(name)
    return transformers_zoo.example(name, dtype)


def _check(example: Example, *, foreach: bool = False) -> None:
    backend = Backend()
    faults = compare(example, backend, foreach=foreach)
    assert not backend.fallbacks()
    assert not faults, "\n".join(faults)
    assert backend.count("graphs") >= 3  # forward, backward, optimizer


@pytest.mark.parametrize("name", ALWAYS)
def test_trains_as_eager_does(name):
    _check(_example(name))


@pytest.mark.extended
@pytest.mark.parametrize("name", SLOW)
def test_trains_as_eager_does_too(name):
    _check(_example(name))


@pytest.mark.extended
def test_llama_in_bfloat16():
    _check(_example("llama", torch.bfloat16))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_optimizer_that_groups_its_parameters(name):
    _check(_example(name), foreach=True)
