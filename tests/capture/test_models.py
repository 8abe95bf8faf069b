"""Whole models, forward and backward: eager, captured, and from a front hit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusec.demo.models import build
from tests.capture.harness import three_ways

SIZES = {
    "mlp": {"hidden": 64},
    "convnet": {"layers": 1, "hidden": 16, "batch": 2, "length": 16},
    "llama": {"layers": 2, "hidden": 64, "batch": 2, "length": 16, "vocab": 50},
    "gpt2": {"layers": 2, "hidden": 64, "batch": 2, "length": 16, "vocab": 50},
    "bert": {"layers": 2, "hidden": 64, "batch": 2, "length": 16, "vocab": 50},
}


@pytest.mark.parametrize("name", SIZES)
def test_model(name: str) -> None:
    example = build(name, **SIZES[name])

    def case(compiled: Any, model: torch.nn.Module) -> Any:
        loss, output = compiled(model)(*example.inputs)
        loss.backward()
        return loss, output, model

    three_ways(case, example.model)
