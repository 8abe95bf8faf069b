"""Programs on a real GPU: launches, inputs, streams, threads, devices, what a launch costs."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from fusec.codegen.isa import gpu_target
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.program import Launch, Program
from fusec.runtime.gpu_launches import run_by_ctypes
from tests.runtime.gpu_programs import S0, affine, chain, dot, in_place, together, vector, view
from tests.runtime.real_gpu import BIG, ON_A_GPU, after, native, no_waiting, own_affine, run_of

pytestmark = ON_A_GPU


# -- launches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["native", "ctypes"])
@pytest.mark.parametrize("middle", ["arena", "fresh"])
def test_a_chain_of_launches(how: str, middle: str) -> None:
    run = run_of(
        chain(ex.integer(BIG + 3), 5, middle),
        own_affine(),
        run=native() if how == "native" else run_by_ctypes,
    )
    for _ in range(3):
        x = torch.randn(BIG + 3, device="cuda")
        wanted = after(x, 5)
        with no_waiting():
            (out,) = run([x])
        assert torch.equal(out, wanted)
        assert out.device == x.device


def test_sizes_of_the_call() -> None:
    run = run_of(chain(S0, 4, "fresh"), own_affine())
    for n in (1, 1023, 1024, 1025, BIG, 1025, 0, 7):
        x = torch.randn(n, device="cuda")
        with no_waiting():
            (out,) = run([x])
        assert torch.equal(out, after(x, 4))


def test_more_than_two_to_the_31_elements() -> None:
    n = (1 << 31) + 5
    if torch.cuda.mem_get_info()[0] < 3 * 4 * n:
        pytest.skip("needs 24 GiB of a GPU's memory")
    x = torch.zeros(n, device="cuda")
    x[-1] = 3
    (out,) = run_of(chain(S0, 1, "fresh"), own_affine())([x])
    assert out[-2:].tolist() == [1.0, 7.0]
    narrow = run_of(chain(S0, 1, "fresh"), affine(gpu_target(0).isa, size="i32"))
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
    (out,) = run_of(program, binary)([a.view(-1), b.view(-1)])
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
    run_of(program, together(gpu_target(0).isa))([x, counter, y])
    assert y.tolist() == [count * (count - 1) / 2] * (count + 1)


def test_images_that_do_not_load() -> None:
    x = torch.randn(8, device="cuda")
    for broken in (
        replace(own_affine(), image=b"junk" * 100),
        replace(own_affine(), name="other"),
        replace(own_affine(), shared=900 << 10),
    ):
        with pytest.raises(LoadError, match=r"does not load: .*error"):
            run_of(chain(ex.integer(8), 1), broken)([x])
    assert torch.equal(run_of(chain(ex.integer(8), 1), own_affine())([x])[0], 2 * x + 1)


def test_a_launch_that_the_driver_refuses() -> None:
    n = 1 << 26  # more programs than can be resident
    x = torch.zeros(n, device="cuda")
    with pytest.raises(LoadError, match=r"affine does not start on GPU 0: .*error"):
        run_of(chain(ex.integer(n), 1), replace(own_affine(), cooperative=True))([x])
    torch.cuda.synchronize()
    x = torch.randn(8, device="cuda")
    assert torch.equal(run_of(chain(ex.integer(8), 1), own_affine())([x])[0], 2 * x + 1)


# -- inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_inputs_that_are_not_aligned(offset: int) -> None:
    n = ex.integer(1000)
    x = torch.randn(1000 + offset, device="cuda")[offset:]
    with no_waiting():
        (out,) = run_of(chain(n, 2), own_affine())([x])
    assert torch.equal(out, after(x, 2))
    base = torch.zeros(1000 + offset + 3, device="cuda")
    with no_waiting():
        run_of(in_place(n), own_affine())([base[offset : offset + 1000], out])
    assert torch.equal(base[offset : offset + 1000], 2 * out + 1)
    assert not base[:offset].any()
    assert not base[offset + 1000 :].any()


def test_inputs_on_the_cpu() -> None:
    run = run_of(in_place(ex.ONE), own_affine())
    x, w = torch.zeros(1, device="cuda"), torch.full((1,), 3.0)
    with no_waiting():
        run([x, w])
    assert x.item() == 7
    x, w = torch.zeros(1), torch.full((1,), 3.0, device="cuda")
    run([x, w])
    assert x.item() == 7


# -- streams, threads, devices -------------------------------------------------------------------


def test_the_current_stream() -> None:
    run = run_of(chain(ex.integer(BIG), 3), own_affine())
    x = torch.zeros(BIG, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.fill_(5)  # after the sleep: a launch on any other stream would read zeros
        (out,) = run([x])
        wanted = after(x, 3)
    side.synchronize()
    assert torch.equal(out, wanted)


def test_a_thread_without_a_context() -> None:
    run = run_of(in_place(ex.integer(64)), own_affine())
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
    run = run_of(chain(S0, 6, "fresh"), own_affine())
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(1000 + 500 * seed, device="cuda")
            wanted = after(x, 6)
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
    run = run_of(chain(ex.integer(1000), 3), own_affine())
    for ordinal in (1, 0, 1):
        x = torch.randn(1000, device=f"cuda:{ordinal}")
        (out,) = run([x])
        assert out.device == x.device
        assert torch.equal(out, after(x, 3))
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        x = torch.randn(1000, device="cuda:0")
        assert torch.equal(run([x])[0], after(x, 3))
        assert torch.cuda.current_device() == 1
    both = run_of(in_place(ex.integer(8)), own_affine())
    with pytest.raises(LoadError, match="on GPU 0 and on GPU 1"):
        both([torch.zeros(8, device="cuda:0"), torch.zeros(8, device="cuda:1")])


@pytest.mark.parametrize(("n", "vectors"), [(BIG, 1), (16 * BIG, 3)])
def test_memory_is_given_back(n: int, vectors: int) -> None:
    """vectors: the result, and two slots where they are too large to stay."""
    run = run_of(chain(ex.integer(n), 5), own_affine())
    x = torch.randn(n, device="cuda")
    run([x])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(10):
        run([x])
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == vectors * 4 * n


# -- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_what_a_launch_costs(how: str) -> None:
    """Printed with -s; the bound only says that nothing slow is done for each launch."""
    launches = 100
    fast = how == "native"
    run = run_of(
        chain(ex.integer(1024), launches), own_affine(), run=None if fast else run_by_ctypes
    )
    one = run_of(chain(ex.integer(1024), 1), own_affine(), run=None if fast else run_by_ctypes)
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
