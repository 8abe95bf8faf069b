"""Compiled graphs and models on a real GPU: artifacts, training, inference, places out of range."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import fusec.api
from cache.memory import MemoryStore
from fusec.capture.eager import EagerProgram
from fusec.codegen.isa import gpu_target
from fusec.ir.text import parse_graph
from fusec.options import Options
from fusec.pipeline import compile_local
from fusec.runtime.loader import load
from fusec.trace import Recorder
from tests.codegen.optimizers import adamw
from tests.runtime.real_gpu import ON_A_GPU, no_waiting

pytestmark = ON_A_GPU


_GRAPH = """\
symbol s0 in [2, 100000]
%0 = input "x": f32[s0, 256] @cuda
%1 = input "w": f32[256, 256] @cuda
%2 = call aten.sin.default(%0): f32[s0, 256] @cuda
%3 = call aten.mm.default(%2, %1): f32[s0, 256] @cuda
%4 = call aten.sum.dim_IntList(%3, [1], true): f32[s0, 1] @cuda
%5 = call aten.sub.Tensor(%2, %4): f32[s0, 256] @cuda
%6 = call aten.rand_like.default(%0): f32[s0, 256] @cuda
return %5, %6, <s0*2>
"""


def test_an_artifact_made_here_runs() -> None:
    found = compile_local(
        parse_graph(_GRAPH),
        gpu_target(torch.cuda.current_device()),
        Options(progress=False),
        MemoryStore(64 << 20),
        recorder=Recorder(),
    )
    run = load(found, recorder=Recorder())
    w = torch.randn(256, 256, device="cuda")
    for n in (2, 1000, 77):
        x = torch.randn(n, 256, device="cuda")
        with no_waiting():
            out, noise, number = run([x, w])
        wanted = x.sin() - (x.sin() @ w).sum(1, keepdim=True)
        torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-2)
        assert number == 2 * n
        assert 0 <= noise.min() < noise.max() < 1


@pytest.mark.parametrize("offset", [0, 1])
def test_batches_overwrite_all_their_inputs(offset: int) -> None:
    sizes = ["33, 20", "1024, 513"] * 5
    graph = parse_graph(re.sub(r"(f32\[[^]]*\])", r"\1 @cuda", adamw(sizes, clipped=True)))
    found = compile_local(
        graph,
        gpu_target(torch.cuda.current_device()),
        Options(progress=False),
        MemoryStore(64 << 20),
        recorder=Recorder(),
    )
    run = load(found, recorder=Recorder())
    mine: list[torch.Tensor] = []
    for size in sizes:
        rows, columns = map(int, size.split(","))
        for _ in range(4):
            memory = torch.randn(rows * columns + offset, device="cuda")
            mine.append(memory[offset:].view(rows, columns))
    theirs = [x.clone() for x in mine]
    for _ in range(3):
        with no_waiting():
            run(list(mine))
        EagerProgram(graph)(list(theirs))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 256)
        self.norm = torch.nn.LayerNorm(256)
        self.last = torch.nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.nn.functional.gelu(self.first(x))))


def _nets() -> tuple[_Net, _Net]:
    torch.manual_seed(0)
    eager, compiled = _Net().cuda(), _Net().cuda()
    compiled.load_state_dict(eager.state_dict())
    return eager, compiled


@pytest.fixture
def _fresh_process(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    fusec.api.reset()
    yield
    torch._dynamo.reset()
    fusec.api.reset()


@pytest.mark.usefixtures("_fresh_process")
@pytest.mark.parametrize("zero_late", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_follows_eager(mode: str, zero_late: bool) -> None:
    """zero_late: gradients live on while the next forward runs."""
    eager, model = _nets()
    compiled = torch.compile(model, backend="fusec", mode=mode)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (eager, model)]
    losses: list[list[torch.Tensor]] = [[], []]
    for step in range(12):
        torch.manual_seed(step)
        x, y = torch.randn(32, 64, device="cuda"), torch.randint(10, (32,), device="cuda")
        for side, (net, optimizer) in enumerate(zip((eager, compiled), optimizers, strict=True)):
            if not zero_late:
                optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            if zero_late:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[side].append(loss.detach())
    for a, b in zip(*losses, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    counters = fusec.api.snapshot().counters
    assert counters.get("fallbacks_to_eager", 0) == 0
    if mode == "reduce-overhead":
        assert counters["graph_records"] >= 2
        assert counters["graph_skips"] < 12  # of 24 calls


@pytest.mark.usefixtures("_fresh_process")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inference_in_all_its_modes(mode: str) -> None:
    eager, model = _nets()
    compiled = torch.compile(model, backend="fusec", mode=mode)
    x = torch.randn(16, 64, device="cuda")
    for _ in range(5):
        x.normal_()
        with torch.inference_mode():
            wanted = eager(x)
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), wanted.clone(), rtol=1e-3, atol=1e-3)
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            torch.testing.assert_close(compiled(x), eager(x), rtol=5e-2, atol=5e-2)
    assert fusec.api.snapshot().counters.get("fallbacks_to_eager", 0) == 0


@pytest.mark.usefixtures("_fresh_process")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_cache_that_is_written_in_place(mode: str) -> None:
    def step(cache: torch.Tensor, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, place, new)
        return (cache * 2).sum(1)

    compiled = torch.compile(step, backend="fusec", mode=mode)
    caches = [torch.zeros(4, 16, 8, device="cuda") for _ in range(2)]
    for i in range(10):
        new = torch.randn(4, 1, 8, device="cuda")
        place = torch.tensor([i], device="cuda")
        wanted, out = step(caches[0], new, place), compiled(caches[1], new, place)
        torch.testing.assert_close(out, wanted)
        assert torch.equal(*caches)


_OUT_OF_RANGE = """
import os, sys, torch, fusec
import torch.nn.functional as F

w, i = torch.randn(64, 33, device="cuda"), torch.tensor([0, 5, 63], device="cuda")
compiled = torch.compile(lambda i, w: F.embedding(i, w).sum(1), backend="fusec", dynamic=False)
torch.testing.assert_close(compiled(i, w), F.embedding(i, w).sum(1))
try:
    compiled(i + int(sys.argv[1]), w)
    torch.cuda.synchronize()
except RuntimeError as error:
    print(error, flush=True)
    os._exit(3)  # its context releases nothing any more
"""


@pytest.mark.parametrize("far", [1, 1 << 40, -6])
def test_a_place_out_of_range_is_asserted_in_the_kernel(far: int) -> None:
    """In a process of its own: its context is lost, as with eager."""
    done = subprocess.run(
        [sys.executable, "-c", _OUT_OF_RANGE, str(far)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr[-2000:]
    assert "device-side assert" in done.stdout
    assert "index out of range" in done.stderr
