"""Captures models for a GPU without one, and prints what came out as JSON: run in fresh processes.

argv: where the stand-in for a GPU is kept; names of `SUBJECTS`, `inference` or `dynamic`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusec.capture.weightless import weightless
from fusec.capture.without_gpu import pretended_gpu
from fusec.ir.graph import Graph, TensorType, refs
from fusec.options import Target
from tests.capture.keys import Keys

TARGET = Target("cuda", "sm_90")


class Attention(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p
        self.norm = nn.RMSNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, mask, self.p, is_causal=mask is None)
        return F.silu(self.out(y.transpose(1, 2).flatten(2)))


def attention() -> Any:
    return Attention(), (torch.randn(2, 16, 32),)


def dropout() -> Any:
    return Attention(0.1).bfloat16(), (torch.randn(2, 16, 32, dtype=torch.bfloat16),)


def masked() -> Any:
    """The mask is made on the CPU, as many models do."""
    model = Attention()

    def step(x: Tensor) -> Tensor:
        mask = torch.ones(16, 16, dtype=torch.bool, device="cpu").tril().to(x.device)
        with torch.autocast("cuda", torch.bfloat16):
            return model(x, mask)

    return step, (torch.randn(2, 16, 32),)


def mish() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Mish()), (torch.randn(4, 8),)


def tied() -> Any:
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64, bias=False))
    model[1].weight = model[0].weight
    model = model.to(torch.bfloat16)
    assert model[1].weight is model[0].weight
    return model, (torch.randint(0, 64, (2, 8)),)


def vocabulary() -> Any:
    """Logits of a length that libraries are slow for; their gradient needs them."""
    head = nn.Linear(256, 1002).to(torch.bfloat16)

    def step(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(head(x), t)

    x = torch.randn(8192, 256, dtype=torch.bfloat16, requires_grad=True)
    return step, (x, torch.randint(0, 1002, (8192,)))


SUBJECTS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (attention, dropout, masked, mish, tied, vocabulary)
}


def _returned(graph: Graph) -> list[int]:
    return [number for output in graph.outputs for number in refs(output)]


def captured(name: str, dynamic: bool | None = None, grad: bool = True) -> dict[str, Any]:
    with torch.device("cuda"):
        function, args = SUBJECTS[name]()
    torch.compiler.reset()
    keys = Keys(aot=True, target=TARGET, toolchain_digest="0" * 64)
    with torch.set_grad_enabled(grad):
        torch.compile(function, backend=keys, dynamic=dynamic)(*args)
    graphs = keys.traced[-2:] if grad else keys.traced[-1:]
    calls: dict[str, int] = {}
    devices: set[str] = set()
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call":
                calls[node.target] = calls.get(node.target, 0) + 1
            kinds = node.type if isinstance(node.type, tuple) else (node.type,)
            devices.update(kind.device for kind in kinds if isinstance(kind, TensorType))
    front = keys.fronts[-1]
    return {
        "front": getattr(front, "entries", str(front)),
        "graphs": [k.entries for k in keys.graphs[-len(graphs) :]],
        "calls": calls,
        "devices": sorted(devices),
        "shapes": sorted({str(graphs[0].nodes[n].type) for n in _returned(graphs[0])}),
    }


def main() -> None:
    cache, *names = sys.argv[1:]
    found = {}
    with pretended_gpu(Path(cache)), weightless():
        for name in names:
            if name == "inference":
                found[name] = captured("attention", grad=False)
            elif name == "dynamic":
                found[name] = captured("dropout", dynamic=True)
            else:
                found[name] = captured(name)
    # All is as it was: there is no GPU.
    try:
        torch.empty(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        found["afterwards"] = type(error).__name__
    found["moved"] = nn.Linear(2, 2).to(torch.float64).weight.dtype == torch.float64
    sys.stdout.write(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main()
