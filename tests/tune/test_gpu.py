"""Tuning on a GPU: the fastest variant wins, faults cost one variant, nothing is timed twice."""

import ctypes
import os
import time
from collections.abc import Iterator

import pytest
import torch

from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.memory import MemoryStore
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.triton_toolchain import compile_variant
from fusec.ir.text import parse_graph
from fusec.options import Options, Target
from fusec.pipeline import compile_local
from fusec.runtime.loader import load
from fusec.trace import Recorder
from fusec.tune.cuda import Cuda
from fusec.tune.device import Device
from fusec.tune.problem import Problem
from fusec.tune.timing import Timer
from fusec.tune.tuner import tune
from tests import inductor_jobs
from tests.lower.on_cpu import cuda_graph
from tests.tune.kernels import HANG, ILLEGAL, SCALE, problem, variant

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None, reason="needs a GPU"
)
COUNT = 64 << 20  # elements: two buffers of 256 MiB


@pytest.fixture
def timer() -> Iterator[Timer]:
    made = Timer(0)
    yield made
    made.close()


def isa() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def binaries(made: Problem) -> dict[int, GpuBinary]:
    count = len(made.source.variants)
    return {n: compile_variant(made.source, n, 60) for n in range(count)}


def read(cuda: Cuda, address: int, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    cuda._call("cuMemcpyDtoH_v2", data, ctypes.c_ulonglong(address), ctypes.c_size_t(size))
    return data.raw


def far() -> float:
    return time.monotonic() + 300.0


def test_the_device_is_described(timer: Timer) -> None:
    device = timer.open()
    properties = torch.cuda.get_device_properties(0)
    assert device.name == properties.name
    assert device.isa == isa()
    assert device.multiprocessors == properties.multi_processor_count
    assert device.memory == properties.total_memory
    assert device.cache == properties.L2_cache_size
    assert device.shared_program >= 64 << 10
    assert isinstance(device, Device)


def test_the_driver_computes_what_the_kernel_says() -> None:
    made = problem(1000, variant(), isa=isa())
    cuda = Cuda(0)
    address = cuda.allocate(8192)
    values = torch.arange(1000, dtype=torch.float32)
    cuda.fill(address, 4000, values.numpy().tobytes())
    kernel = cuda.load(compile_variant(made.source, 0, 60), made.grid(made.source.variants[0]))
    cuda.launch(
        kernel,
        [ctypes.c_uint64(address), ctypes.c_uint64(address + 4096), ctypes.c_int64(1000)],
    )
    cuda.wait()
    out = torch.frombuffer(bytearray(read(cuda, address + 4096, 4000)), dtype=torch.float32)
    assert torch.equal(out, values * 2)
    cuda.release(address)


def test_patterns_repeat_over_memory() -> None:
    cuda = Cuda(0)
    address = cuda.allocate(1 << 20)
    cuda.fill(address, 1000, bytes(range(7)))
    cuda.fill_from(address, 1000, 5)
    cuda.wait()
    one = bytes(i % 7 for i in range(1000))
    assert read(cuda, address, 5000) == one * 5
    cuda.release(address)


def test_times_are_those_of_memory(timer: Timer) -> None:
    """512 MiB take as long as torch's own copy of as many bytes, within a third."""
    made = problem(COUNT, variant(), variant(block=2048, warps=8), isa=isa())
    timer.open()
    outcome = timer.race(made, binaries(made), far())
    assert outcome.decided
    assert not outcome.failed
    a, b = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        start.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
    copy = start.elapsed_time(end)
    best = min(min(times) for times in outcome.samples.values())
    assert 0.67 * copy < best < 1.5 * copy


def test_what_is_in_the_cache_does_not_count(timer: Timer) -> None:
    """4 MiB are in the cache after a launch: rotating among copies keeps them out of it."""
    made = problem(1 << 20, variant(), isa=isa())
    device = timer.open()
    outcome = timer.race(made, binaries(made), far())
    ((time_ms,),) = [times[:1] for times in outcome.samples.values()]
    whole = problem(COUNT, variant(), isa=isa())
    large = timer.race(whole, binaries(whole), far()).samples[0][0]
    assert device.cache < 64 * made.bytes
    assert time_ms > large / 64 * 0.7


def test_the_faster_variant_wins(timer: Timer) -> None:
    slow = variant(block=32, warps=1)
    made = problem(COUNT, slow, variant(block=2048, warps=8), slow, isa=isa())
    recorder = Recorder()
    (tuned,) = tune([made], budget_s=60.0, recorder=recorder)
    assert tuned.record is not None
    assert tuned.record.variant == 1
    assert tuned.record.margin > 0.05
    assert tuned.binary == compile_variant(made.source, 1, 60)
    assert recorder.counters["kernels_tuned"] == 1


def test_a_fast_and_wrong_variant_is_never_chosen() -> None:
    """It leaves the last two thirds of its work out."""
    lazy = SCALE.replace("a * 2.0, i < n0)", "a * 2.0, i < n0 // 3)")
    assert lazy != SCALE
    made = problem(COUNT, variant(), variant(lazy), variant(block=2048, warps=8), isa=isa())
    (tuned,) = tune([made], budget_s=100.0, recorder=Recorder())
    assert tuned.record is not None
    assert tuned.record.variant in (0, 2)
    assert "results are not those of variant 0" in tuned.record.left_out[1]


@pytest.mark.parametrize("text", [ILLEGAL, HANG], ids=["illegal", "hang"])
def test_a_fault_costs_one_variant(text: str, timer: Timer) -> None:
    made = problem(1 << 20, variant(text), variant(), variant(block=2048), isa=isa())
    timer.open()
    outcome = timer.race(made, binaries(made), far())
    assert outcome.decided
    assert list(outcome.failed) == [0]
    assert {n for n, times in outcome.samples.items() if times} == {1, 2}
    assert torch.ones(3, device="cuda").sum().item() == 3.0  # this process is well


def test_a_fault_after_probing_keeps_the_others_samples(timer: Timer) -> None:
    """The child dies between rounds: it is replaced and the race goes on."""
    made = problem(1 << 20, variant(), variant(block=512), variant(block=2048), isa=isa())
    built = binaries(made)
    timer.open()
    timer.race(made, built, far())
    assert timer._child is not None
    os.kill(timer._child._process.pid, 9)
    again = timer.race(made, built, far())
    assert again.decided
    assert len(again.failed) <= 1


def test_all_at_fault_is_not_tuned() -> None:
    made = problem(1 << 20, variant(ILLEGAL), variant(ILLEGAL, block=512), isa=isa())
    good = problem(1 << 20, variant(), variant(block=512), isa=isa())
    first, second = tune([made, good], budget_s=100.0, recorder=Recorder())
    assert first.record is None
    assert first.binary is None
    assert first.why
    assert second.record is not None


def test_a_kernel_that_does_not_fit_into_memory_is_not_tuned() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    (tuned,) = tune(
        [problem(total // 4, variant(), variant(block=512), isa=isa())],
        budget_s=60.0,
        recorder=Recorder(),
    )
    assert tuned.record is None
    assert tuned.binary is None


def test_the_second_run_times_nothing() -> None:
    store = MemoryStore()
    made = [problem(1 << 20, variant(), variant(block=b), isa=isa()) for b in (256, 512)]
    first, second = Recorder(), Recorder()
    tuned = tune(made, budget_s=60.0, recorder=first, store=store)
    assert tune(made, budget_s=60.0, recorder=second, store=store) == tuned
    counters = second.counters
    assert counters["tuning_hits"] == 2
    assert "variants_timed" not in counters
    assert first.counters["variants_timed"] >= 2


def test_a_descent_finds_what_is_not_among_the_variants() -> None:
    """One warp a program of 8192 elements is far from the best: more warps are found."""
    made = problem(COUNT, variant(block=8192, warps=1), isa=isa())
    store = MemoryStore()
    (tuned,) = tune([made], budget_s=60.0, recorder=Recorder(), store=store, descend=True)
    assert tuned.record is not None
    assert tuned.record.warps > 1
    assert tuned.binary is not None
    assert tuned.binary.threads == 32 * tuned.record.warps
    again = Recorder()
    assert tune([made], budget_s=60.0, recorder=again, store=store, descend=True) == [tuned]
    assert "variants_timed" not in again.counters


def test_a_graph_compiled_here_is_tuned() -> None:
    """The artifact holds the winners; `tune_s=0` leaves the first variants in it."""
    text = cuda_graph(
        parse_graph(
            '%0 = input "x": f32[4096, 4096]\n'
            "%1 = call aten.exp.default(%0): f32[4096, 4096]\n"
            "%2 = call aten.sum.dim_IntList(%1, [1]): f32[4096]\n"
            "return %2\n"
        )
    )
    target, recorder = Target("cuda", isa()), Recorder()
    found = compile_local(text, target, Options(), MemoryStore(), recorder=recorder)
    assert recorder.counters["kernels_tuned"] >= 1
    x = torch.randn(4096, 4096, device="cuda")
    (out,) = load(found, recorder=recorder)([x])
    torch.testing.assert_close(out, x.exp().sum(1))
    plain = Recorder()
    compile_local(text, target, Options(tune_s=0.0), MemoryStore(), recorder=plain)
    assert "kernels_tuned" not in plain.counters


def test_the_budget_ends_it() -> None:
    many = [
        problem(COUNT + n, *(variant(SCALE, block=b, warps=4) for b in (256, 512, 1024, 2048)),
                isa=isa())
        for n in range(20)
    ]  # fmt: skip
    started = time.monotonic()
    tuned = tune(many, budget_s=0.2, recorder=Recorder())
    assert time.monotonic() - started < 30.0
    assert any(t.record is None and t.why for t in tuned)


def test_another_gpus_kernels_are_not_tuned() -> None:
    other = "sm_80" if isa() != "sm_80" else "sm_90"
    (tuned,) = tune(
        [problem(1000, variant(), variant(block=512), isa=other)],
        budget_s=10.0,
        recorder=Recorder(),
    )
    assert other in tuned.why


def test_stock_inductor_finds_in_the_service_how_another_job_tuned_a_graph(tmp_path):
    """`fusec.inductor`: autotune entries, which only a GPU makes, beside those of graphs."""
    with serve_in_thread(ServiceConfig(port=0)) as service:
        cold, warm = inductor_jobs.cold_and_warm(service, tmp_path, "cuda")
    for kind in ("RemoteBundledAutotuneCache", "RemoteAOTAutogradCache", "RemoteFxGraphCache"):
        assert cold[kind]["hit"] == 0, (kind, cold)
        assert cold[kind]["put"] > 0, (kind, cold)
        assert warm[kind]["hit"] > 0, (kind, warm)
        assert warm[kind]["put"] == 0, (kind, warm)
