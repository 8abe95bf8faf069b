"""Programs on a real GPU: launches, streams, threads, devices, graphs, compiled models."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import fusec.api
from cache.memory import MemoryStore
from fusec.capture.eager import EagerProgram
from fusec.codegen.c_toolchain import compile_shared
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.isa import gpu_target
from fusec.codegen.runner import GPU_RUNNER_NAME, gpu_runner_source
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.program import Launch, Program
from fusec.ir.text import parse_graph
from fusec.options import Options
from fusec.pipeline import compile_local
from fusec.runtime.gpu_devices import Gpus
from fusec.runtime.gpu_launches import NativeRun, native_run, run_by_ctypes
from fusec.runtime.gpu_place import GpuPlace
from fusec.runtime.graph_pool import GraphPools
from fusec.runtime.graphs import GraphRunner
from fusec.runtime.libraries import function_address
from fusec.runtime.loader import load
from fusec.runtime.program import ProgramRunner
from fusec.trace import Recorder
from tests.codegen.optimizers import adamw
from tests.runtime.gpu_programs import S0, affine, chain, dot, in_place, together, vector, view

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(600),
]

_BIG = 1 << 20


@functools.cache
def _native() -> NativeRun:
    source = gpu_runner_source()
    return native_run(
        function_address(compile_shared(source.source, source.isa, 60), GPU_RUNNER_NAME)
    )


def _run(program: Program, *binaries: GpuBinary, run: NativeRun | None = None) -> ProgramRunner:
    return ProgramRunner(program, GpuPlace(program, binaries, run or _native(), Gpus()))


def _affine() -> GpuBinary:
    return affine(gpu_target(0).isa)


def _wanted(x: torch.Tensor, launches: int) -> torch.Tensor:
    for _ in range(launches):
        x = 2 * x + 1
    return x


@contextmanager
def _no_waiting() -> Iterator[None]:
    """What waits for the GPU is an error inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- launches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["native", "ctypes"])
@pytest.mark.parametrize("middle", ["arena", "fresh"])
def test_a_chain_of_launches(how: str, middle: str) -> None:
    run = _run(
        chain(ex.integer(_BIG + 3), 5, middle),
        _affine(),
        run=_native() if how == "native" else run_by_ctypes,
    )
    for _ in range(3):
        x = torch.randn(_BIG + 3, device="cuda")
        wanted = _wanted(x, 5)
        with _no_waiting():
            (out,) = run([x])
        assert torch.equal(out, wanted)
        assert out.device == x.device


def test_sizes_of_the_call() -> None:
    run = _run(chain(S0, 4, "fresh"), _affine())
    for n in (1, 1023, 1024, 1025, _BIG, 1025, 0, 7):
        x = torch.randn(n, device="cuda")
        with _no_waiting():
            (out,) = run([x])
        assert torch.equal(out, _wanted(x, 4))


def test_more_than_two_to_the_31_elements() -> None:
    n = (1 << 31) + 5
    if torch.cuda.mem_get_info()[0] < 3 * 4 * n:
        pytest.skip("needs 24 GiB of a GPU's memory")
    x = torch.zeros(n, device="cuda")
    x[-1] = 3
    (out,) = _run(chain(S0, 1, "fresh"), _affine())([x])
    assert out[-2:].tolist() == [1.0, 7.0]
    narrow = _run(chain(S0, 1, "fresh"), affine(gpu_target(0).isa, size="i32"))
    with pytest.raises(LoadError, match="2147483647"):
        narrow([x])


def test_much_shared_memory() -> None:
    n, side, inner = ex.integer(128 * 512), ex.integer(128 * 128), ex.integer(512)
    slots = (vector("input", 0, n, "f16"), vector("input", 1, n, "f16"), vector("fresh", 0, side))
    program = Program(
        (0, 1), slots, (), (Launch(0, (0, 1, 2), (inner,)),), (view(2, side),),
        (("kernel/dot", "dot"),), (), 0, "cuda",
    )  # fmt: skip
    binary = dot(gpu_target(0).isa)
    assert binary.shared > 48 << 10
    a = torch.randn(128, 512, device="cuda", dtype=torch.half)
    b = torch.randn(512, 128, device="cuda", dtype=torch.half)
    (out,) = _run(program, binary)([a.view(-1), b.view(-1)])
    torch.testing.assert_close(out.view(128, 128), a.float() @ b.float(), rtol=1e-2, atol=1e-2)


def test_programs_that_wait_for_each_other() -> None:
    count = 64
    n = ex.integer(count)
    slots = (
        vector("input", 0, n),
        vector("input", 1, ex.ONE, "i32"),
        vector("input", 2, ex.integer(count + 1)),
    )
    program = Program(
        (0, 1, 2), slots, (), (Launch(0, (0, 1, 2), (n,)),), (), (("kernel/t", "together"),), (),
        0, "cuda",
    )  # fmt: skip
    x = torch.arange(count, device="cuda", dtype=torch.float32)
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)
    y = torch.zeros(count + 1, device="cuda")
    _run(program, together(gpu_target(0).isa))([x, counter, y])
    assert y.tolist() == [count * (count - 1) / 2] * (count + 1)


def test_images_that_do_not_load() -> None:
    x = torch.randn(8, device="cuda")
    for broken in (
        replace(_affine(), image=b"junk" * 100),
        replace(_affine(), name="other"),
        replace(_affine(), shared=900 << 10),
    ):
        with pytest.raises(LoadError, match=r"does not load: .*error"):
            _run(chain(ex.integer(8), 1), broken)([x])
    assert torch.equal(_run(chain(ex.integer(8), 1), _affine())([x])[0], 2 * x + 1)


def test_a_launch_that_the_driver_refuses() -> None:
    n = 1 << 26  # more programs than can be resident
    x = torch.zeros(n, device="cuda")
    with pytest.raises(LoadError, match=r"affine does not start on GPU 0: .*error"):
        _run(chain(ex.integer(n), 1), replace(_affine(), cooperative=True))([x])
    torch.cuda.synchronize()
    x = torch.randn(8, device="cuda")
    assert torch.equal(_run(chain(ex.integer(8), 1), _affine())([x])[0], 2 * x + 1)


# -- inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_inputs_that_are_not_aligned(offset: int) -> None:
    n = ex.integer(1000)
    x = torch.randn(1000 + offset, device="cuda")[offset:]
    with _no_waiting():
        (out,) = _run(chain(n, 2), _affine())([x])
    assert torch.equal(out, _wanted(x, 2))
    base = torch.zeros(1000 + offset + 3, device="cuda")
    with _no_waiting():
        _run(in_place(n), _affine())([base[offset : offset + 1000], out])
    assert torch.equal(base[offset : offset + 1000], 2 * out + 1)
    assert not base[:offset].any()
    assert not base[offset + 1000 :].any()


def test_inputs_on_the_cpu() -> None:
    run = _run(in_place(ex.ONE), _affine())
    x, w = torch.zeros(1, device="cuda"), torch.full((1,), 3.0)
    with _no_waiting():
        run([x, w])
    assert x.item() == 7
    x, w = torch.zeros(1), torch.full((1,), 3.0, device="cuda")
    run([x, w])
    assert x.item() == 7


# -- streams, threads, devices -------------------------------------------------------------------


def test_the_current_stream() -> None:
    run = _run(chain(ex.integer(_BIG), 3), _affine())
    x = torch.zeros(_BIG, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.fill_(5)  # after the sleep: a launch on any other stream would read zeros
        (out,) = run([x])
        wanted = _wanted(x, 3)
    side.synchronize()
    assert torch.equal(out, wanted)


def test_a_thread_without_a_context() -> None:
    run = _run(in_place(ex.integer(64)), _affine())
    x, w = torch.zeros(64, device="cuda"), torch.randn(64, device="cuda")
    torch.cuda.synchronize()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run([x, w])
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert torch.equal(x, 2 * w + 1)


def test_many_threads() -> None:
    run = _run(chain(S0, 6, "fresh"), _affine())
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(1000 + 500 * seed, device="cuda")
            wanted = _wanted(x, 6)
            for _ in range(200):
                if not torch.equal(run([x])[0], wanted):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_gpu_of_the_inputs() -> None:
    run = _run(chain(ex.integer(1000), 3), _affine())
    for ordinal in (1, 0, 1):
        x = torch.randn(1000, device=f"cuda:{ordinal}")
        (out,) = run([x])
        assert out.device == x.device
        assert torch.equal(out, _wanted(x, 3))
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        x = torch.randn(1000, device="cuda:0")
        assert torch.equal(run([x])[0], _wanted(x, 3))
        assert torch.cuda.current_device() == 1
    both = _run(in_place(ex.integer(8)), _affine())
    with pytest.raises(LoadError, match="on GPU 0 and on GPU 1"):
        both([torch.zeros(8, device="cuda:0"), torch.zeros(8, device="cuda:1")])


@pytest.mark.parametrize(("n", "vectors"), [(_BIG, 1), (16 * _BIG, 3)])
def test_memory_is_given_back(n: int, vectors: int) -> None:
    """vectors: the result, and two slots where they are too large to stay."""
    run = _run(chain(ex.integer(n), 5), _affine())
    x = torch.randn(n, device="cuda")
    run([x])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(10):
        run([x])
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == vectors * 4 * n


# -- CUDA graphs ----------------------------------------------------------------------------------


def _graphed(program: Program, pools: GraphPools) -> tuple[GraphRunner, Recorder]:
    recorder = Recorder()
    place = GpuPlace(program, [_affine()], _native(), Gpus())
    return GraphRunner(ProgramRunner(program, place), place, pools, recorder), recorder


def test_recordings_replay_with_new_numbers() -> None:
    run, recorder = _graphed(chain(ex.integer(_BIG), 20), GraphPools())
    x = torch.empty(_BIG, device="cuda")
    for step in range(8):
        x.normal_()
        wanted = _wanted(x, 20)
        if step >= 3:
            with _no_waiting():
                (out,) = run([x])
        else:
            (out,) = run([x])
        assert torch.equal(out, wanted)
        del out
    assert recorder.counters["graph_records"] == 1
    assert recorder.counters["graph_skips"] == 2


def test_recordings_of_inputs_that_move_and_results_that_stay() -> None:
    run, recorder = _graphed(chain(ex.integer(1000), 5), GraphPools())
    pairs = []
    for step in range(20):
        x = torch.randn(1000 + step, device="cuda")[step:]
        pairs.append((x, run([x])[0]))
    for x, out in pairs:
        assert torch.equal(out, _wanted(x, 5))
    assert recorder.counters["graph_records"] == 2
    assert recorder.counters["graph_skips"] < 8


def test_recordings_share_memory_and_feed_one_another() -> None:
    pools = GraphPools()
    stages = [_graphed(chain(ex.integer(_BIG), 7), pools) for _ in range(4)]
    x = torch.empty(_BIG, device="cuda")
    for _ in range(8):
        x.normal_()
        value = x
        for run, _ in stages:
            (value,) = run([value])
        torch.testing.assert_close(value, _wanted(x, 28))
        del value
    assert [r.counters["graph_records"] for _, r in stages] == [1] * 4
    assert [r.counters["graph_skips"] for _, r in stages] == [2] * 4


def test_recordings_of_overwritten_inputs() -> None:
    run, recorder = _graphed(in_place(ex.integer(512)), GraphPools())
    x, w = torch.zeros(512, device="cuda"), torch.zeros(512, device="cuda")
    for step in range(6):
        w.fill_(step)
        run([x, w])
        assert x.tolist() == [2.0 * step + 1] * 512
    assert recorder.counters["graph_records"] == 1


def test_a_recording_inside_the_users_own() -> None:
    run, _ = _graphed(chain(ex.integer(1000), 5), GraphPools())
    x = torch.zeros(1000, device="cuda")
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = run([x])
    x.normal_()
    graph.replay()
    assert torch.equal(out, _wanted(x, 5))


# -- compiled graphs and models -------------------------------------------------------------------

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
        with _no_waiting():
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
        with _no_waiting():
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


# -- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_what_a_launch_costs(how: str) -> None:
    """Printed with -s; the bound only says that nothing slow is done for each launch."""
    launches = 100
    fast = how == "native"
    run = _run(chain(ex.integer(1024), launches), _affine(), run=None if fast else run_by_ctypes)
    one = _run(chain(ex.integer(1024), 1), _affine(), run=None if fast else run_by_ctypes)
    x = torch.randn(1024, device="cuda")
    many_s, one_s = (_seconds(lambda r=r: r([x])) for r in (run, one))
    each = (many_s - one_s) / (launches - 1)
    line = f"{how}: {one_s * 1e6:.1f} us a call of one launch, {each * 1e6:.2f} us a launch more"
    sys.stdout.write(f"\n{line}\n")
    assert each < (10e-6 if fast else 100e-6)


def _seconds(call) -> float:
    for _ in range(20):
        call()
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            call()
        best = min(best, (time.perf_counter() - start) / 5)
    return best


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
