"""Keys of a few models, made without a GPU and on one: the outputs must be equal.

    python -m bench.prewarm_keys keys             on any machine
    python -m bench.prewarm_keys native           on the GPU
    python -m bench.prewarm_keys fill --cache DIR on any machine: compile and keep
    python -m bench.prewarm_keys run --cache DIR  on the GPU: nothing is compiled

--target is cuda:sm_90 where none is given.
`keys` and `native` print a line a key, to be compared with diff. `run` trains a step of each model
with a copy of the folder that `fill` filled, prints what was found and compiled, and ends with 1
when anything was compiled. torch's release must be the same on both machines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusec.cli.prewarm import target_from
from fusec.options import Options, Target
from fusec.prewarm import Example, Warmed, prewarm
from fusec.remote.resolve import Resolver
from fusec.trace import Recorder

WIDTH, HEADS, ROWS = 256, 4, 64


def attended(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Attention over (B, S, H·D)."""
    q, k, v = (x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).flatten(2)


class Llama(nn.Module):
    """RMS norms, rotated queries and keys, grouped heads, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        k, v = self.kv(h).chunk(2, -1)
        q, k = rotated(self.q(h)), rotated(k)
        x = x + self.out(attended(q, k, v, is_causal=True, enable_gqa=True))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x: Tensor) -> Tensor:
    d = WIDTH // HEADS
    x = x.unflatten(-1, (-1, d))
    place = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    rate = 10000.0 ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = torch.outer(place, rate).repeat(1, 2)[:, None]
    a, b = x.chunk(2, -1)
    turned = x * angle.cos().to(x.dtype) + torch.cat((-b, a), -1) * angle.sin().to(x.dtype)
    return turned.flatten(2)


class Gpt(nn.Module):
    """Layer norms, dropout everywhere, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.drop(self.out(attended(q, k, v, dropout_p=0.1, is_causal=True)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class Bert(Gpt):
    """A mask of what is padding."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        mask = (place < lengths[:, None])[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        q, k, v = self.qkv(x).chunk(3, -1)
        x = self.first(x + self.out(attended(q, k, v, attn_mask=mask)))
        return self.second(x + self.down(F.gelu(self.up(x))))


class ConvNet(nn.Module):
    """Convolutions, batch norms with running statistics, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.m, self.n = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.m(self.a(x)))
        x = F.relu(self.n(self.b(x)) + x)
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Case:
    make: Callable[[], Example]
    grad: bool = True
    dynamic: bool | None = None


def block(kind: type[nn.Module], dtype: torch.dtype, *more: Callable[[], Tensor]) -> Example:
    model = kind().to(dtype)
    return model, (torch.randn(2, ROWS, WIDTH, dtype=dtype), *(f() for f in more)), {}


def under_autocast() -> Example:
    model, args, _ = block(Gpt, torch.float32)

    def step(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return model(x)

    return step, args, {}


def lengths() -> Tensor:
    return torch.tensor([ROWS, ROWS // 3])


CASES = {
    "llama-fp32": Case(lambda: block(Llama, torch.float32)),
    "llama-bf16": Case(lambda: block(Llama, torch.bfloat16)),
    "llama-inference": Case(lambda: block(Llama, torch.bfloat16), grad=False),
    "llama-dynamic": Case(lambda: block(Llama, torch.bfloat16), dynamic=True),
    "gpt-dropout": Case(lambda: block(Gpt, torch.bfloat16)),
    "gpt-autocast": Case(under_autocast),
    "bert-mask": Case(lambda: block(Bert, torch.bfloat16, lengths)),
    "conv": Case(lambda: (ConvNet(), (torch.randn(4, 3, 16, 16),), {})),
}


def keys(name: str, target: Target, options: Options, *, real: bool, resolver: Any) -> list[Warmed]:
    case = CASES[name]
    torch.compiler.reset()
    return prewarm(
        case.make,
        target,
        options,
        resolver,
        recorder=Recorder(),
        grad=case.grad,
        dynamic=case.dynamic,
        real=real,
    )


def show(name: str, graphs: list[Warmed]) -> None:
    for number, graph in enumerate(graphs):
        print(f"{name} {number} front {graph.front} {graph.eager or ''}".rstrip())
        for part in graph.parts:
            print(f"{name} {number} {part.role} {part.key}")


def run(name: str, cache: Path) -> bool:
    """Train a step with the backend `fusec` and a warm store; True when nothing was compiled."""
    import fusec.api as api

    case = CASES[name]
    torch.compiler.reset()
    api.reset()
    with torch.device("cuda"):
        function, args, kwargs = case.make()
    compiled = torch.compile(
        function, backend="fusec", dynamic=case.dynamic, options={"cache_dir": str(cache)}
    )
    with torch.set_grad_enabled(case.grad):
        out = compiled(*args, **kwargs)
        if case.grad:
            out.float().sum().backward()
    torch.cuda.synchronize()
    counted = api.snapshot().counters
    print(name, {k: counted.get(k, 0) for k in _TOLD}, flush=True)
    return not any(
        counted.get(k) for k in ("kernel_compiles", "graph_misses", "fallbacks_to_eager")
    )


_TOLD = (
    *("front_hits", "front_misses", "front_ineligible", "graph_hits", "graph_misses"),
    *("local_compiles", "kernel_compiles", "fallbacks_to_eager", "kernels"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("keys", "native", "fill", "run"))
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/fusec"))
    parser.add_argument("--only", default=",".join(CASES))
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if arguments.mode == "run":
        cold = [name for name in names if not run(name, arguments.cache)]
        return 1 if cold else 0
    options = Options.from_env(overrides={"cache_dir": str(arguments.cache)})
    target = target_from(arguments.target)
    resolver = Resolver.open(options, Recorder()) if arguments.mode == "fill" else None
    for name in names:
        real = arguments.mode == "native"
        show(name, keys(name, target, options, real=real, resolver=resolver))
    if resolver is not None:
        resolver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
