"""Programs on a GPU made of the host: arguments, sizes, grids, alignment, refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.graph import SymbolRange
from fusec.ir.loop import BufferView
from fusec.ir.program import Call, Constant, Launch, Program, Slot
from fusec.ir.verify_program import verify_host_program
from fusec.runtime.arena import MOST_KEPT, Block, lease_on_gpu
from fusec.runtime.gpu_driver import INVALID_CONTEXT
from tests.runtime.host_gpu import image, runner, seen, tell

_N0, _N1 = ex.symbol("n0"), ex.symbol("n1")
_AFFINE = GpuBinary("affine", image("affine"), ((_N0 + 3) // 4,), 128, 0, 1, ("i32",))
_TURN = GpuBinary("turn", image("turn"), (_N0, _N1), 64, 0, 0, ("i64", "i32"))
_S, _T = ex.symbol("s0"), ex.symbol("s1")


def _vector(kind: str, number: int, n: ex.Expr) -> Slot:
    return Slot(kind, number, "f32", (n,), (ex.ONE,))


def _program(n: ex.Expr, middle: str, outputs: tuple[int, ...] = (2,), device: str = "cuda"):
    """y = 2 (2 x + 1) + 1 by way of a slot of one kind."""
    slots = (_vector("input", 0, n), _vector(middle, 0, n), _vector("fresh", 0, n))
    free = (1,) if middle == "fresh" else ()
    program = Program(
        (0,), slots, (), (Launch(0, (0, 1), (n,)), Launch(0, (1, 2), (n,), free)),
        tuple(BufferView(o, (n,), (ex.ONE,), ex.ZERO) for o in outputs),
        (("kernel/a", "affine"),),
        () if ex.is_int(n) else (SymbolRange("s0", 0, None),),
        4096 if middle == "arena" else 0,
        device,
    )  # fmt: skip
    verify_host_program(program)
    return program


def _overwrites(n: int, call: bool = False) -> Program:
    """x = 2 x + 1 in place (by a call, then by a kernel), and returns x."""
    size = ex.integer(n)
    square = (ex.integer(4), ex.integer(n // 4)), (ex.integer(n // 4), ex.ONE)
    view = BufferView(1, *square, ex.ZERO)
    slots = (_vector("input", 0, size), _vector("alias", 0, size), _vector("input", 1, size))
    steps: list = [Launch(0, (2, 1), (size,))]
    if call:
        slots = (
            Slot("input", 0, "f32", *square), Slot("alias", 0, "f32", *square), *slots[2:]
        )  # fmt: skip
        eye = Slot("input", 2, "f32", (ex.integer(4),) * 2, (ex.integer(4), ex.ONE))
        slots = (*slots, eye)
        other = BufferView(2, *square, ex.ZERO)
        eye_view = BufferView(3, eye.shape, eye.stride, ex.ZERO)
        steps.append(
            Call("aten.mm.out", (eye_view, other), (), (1,), False, True, "external"),
        )
        steps.append(Launch(0, (1, 1), (size,)))
    inputs = (0, 2, 3) if call else (0, 2)
    program = Program(
        inputs, slots, (), tuple(steps),
        (view if call else BufferView(1, (size,), (ex.ONE,), ex.ZERO),),
        (("kernel/a", "affine"),), (), 0, "cuda",
    )  # fmt: skip
    return program


@pytest.mark.parametrize("how", ["native", "ctypes"])
@pytest.mark.parametrize("middle", ["arena", "fresh"])
def test_launches_get_their_memory_and_sizes(how: str, middle: str) -> None:
    run, gpus = runner(_program(ex.integer(37), middle), [_AFFINE], how)
    gpus.stream_handle = 4711
    x = torch.randn(37)
    (out,) = run([x])
    assert torch.equal(out, 2 * (2 * x + 1) + 1)
    assert (seen("threads"), seen("stream")) == (128, 4711)


@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_sizes_of_the_call(how: str) -> None:
    run, _ = runner(_program(_S, "fresh"), [_AFFINE], how)
    for n in (1, 3, 4, 5, 1000, 1000, 7):
        x = torch.randn(n)
        assert torch.equal(run([x])[0], 2 * (2 * x + 1) + 1)
    before = seen("launches")
    assert run([torch.randn(0)])[0].shape == (0,)
    assert seen("launches") == before  # a grid without programs starts nothing


@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_two_dimensions_of_programs_and_wide_sizes(how: str) -> None:
    shape, turned = (_S, _T), (_T, _S)
    program = Program(
        (0, 1),
        (
            Slot("input", 0, "f32", shape, ex.row_major(shape)),
            Slot("input", 1, "f32", turned, ex.row_major(turned)),
            Slot("alias", 1, "f32", turned, ex.row_major(turned)),
        ),
        (),
        (Launch(0, (0, 2), shape), Launch(0, (0, 2), shape)),
        (),
        (("kernel/t", "turn"),),
        (SymbolRange("s0", 0, None), SymbolRange("s1", 0, None)),
        0,
        "cuda",
    )
    verify_host_program(program)
    together = replace(_TURN, cooperative=True, shared=1024)
    run, _ = runner(program, [together], how)
    before = seen("together")
    for rows, columns in ((3, 5), (1, 9), (8, 2)):
        x, y = torch.randn(rows, columns), torch.randn(columns, rows)
        wanted = y + x.t() + x.t()
        run([x, y])
        torch.testing.assert_close(y, wanted)
    assert seen("together") == before + 6
    assert seen("shared") == 1024


def _products(n: int, arena_bytes: int = 4096) -> Program:
    """(2 x + 1) @ w by way of the arena, times 2 plus 1."""
    square = (ex.integer(n), ex.integer(n)), (ex.integer(n), ex.ONE)
    kinds = (("input", 0), ("input", 1), ("arena", 0), ("arena", 1024), ("fresh", 0))
    slots = tuple(Slot(kind, number, "f32", *square) for kind, number in kinds)
    size = (ex.integer(n * n),)
    views = [BufferView(i, *square, ex.ZERO) for i in range(5)]
    steps = (
        Launch(0, (0, 2), size),
        Call("aten.mm.out", (views[2], views[1]), (), (3,), False, True, "library"),
        Launch(0, (3, 4), size),
    )
    return Program(
        (0, 1), slots, (), steps, (views[4],), (("kernel/a", "affine"),), (), arena_bytes, "cuda"
    )


@pytest.mark.parametrize(("arena_bytes", "kept"), [(4096, True), (MOST_KEPT + 16, False)])
def test_small_scratch_memory_stays_and_serves_every_program(arena_bytes: int, kept: bool) -> None:
    runs = [runner(_products(n, arena_bytes), [_AFFINE]) for n in (4, 16, 8)]
    given: list[int] = []
    for _, gpus in runs:
        gpus.empty = _counting(given, arena_bytes)
    for _ in range(3):
        for (run, _), n in zip(runs, (4, 16, 8), strict=True):
            x, w = torch.randn(n, n), torch.randn(n, n)
            torch.testing.assert_close(run([x, w])[0], 2 * ((2 * x + 1) @ w) + 1)
    assert len(given) <= 1 if kept else len(given) == 9


def _counting(given: list[int], size: int) -> Any:
    def empty(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.uint8 and shape[0] >= size:
            given.append(shape[0])
        return torch.empty_strided(shape, stride, dtype=dtype)

    return empty


def test_scratch_memory_of_another_stream_and_of_a_recording_is_another() -> None:
    run, gpus = runner(_products(8), [_AFFINE])
    leases = []

    def block() -> Block:
        lease = lease_on_gpu(64, run, 0, gpus.stream(0), gpus)
        lease.give_back()
        leases.append(lease)
        return lease.block

    first = block()
    assert block() is first
    tell("recording", 1)
    recorded = block()
    assert recorded is not first
    assert recorded is not block()
    tell("recording", 0)
    assert block() is first
    gpus.stream_handle = 99
    assert block() is not first
    inner = lease_on_gpu(64, run, 0, 99, gpus)  # in use
    assert block() is not inner.block
    inner.give_back()
    assert block() is inner.block


def test_a_size_beyond_its_type_is_an_error() -> None:
    shape = (_S, _T)
    program = Program(
        (0,), (Slot("input", 0, "f32", shape, (ex.ZERO, ex.ZERO)),), (),
        (Launch(0, (0, 0), (_S * _T,)),), (), (("kernel/a", "affine"),),
        (SymbolRange("s0", 0, None), SymbolRange("s1", 0, None)), 0, "cuda",
    )  # fmt: skip
    run, _ = runner(program, [_AFFINE])
    with pytest.raises(LoadError, match="2147483647"):
        run([torch.zeros(1).as_strided((1 << 20, 1 << 11), (0, 0))])
    run([torch.zeros(4).as_strided((2, 2), (0, 0))])  # the call after it is not the worse for it


@pytest.mark.parametrize("middle", ["arena", "fresh"])
def test_inputs_that_are_not_aligned(middle: str) -> None:
    run, _ = runner(_program(ex.integer(37), middle, outputs=(0, 2)), [_AFFINE])
    x = torch.randn(38)[1:]
    same, out = run([x])
    assert torch.equal(out, 2 * (2 * x + 1) + 1)
    assert same is x


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize("offset", [0, 1])
def test_overwritten_inputs_change_in_place(offset: int, call: bool) -> None:
    n = 40
    run, _ = runner(_overwrites(n, call), [_AFFINE])
    shape = (4, 10) if call else (n,)
    x, other = torch.randn(n + offset)[offset:].view(shape), torch.randn(n)
    version = x._version
    inputs = [x, other, torch.eye(4)] if call else [x, other]
    (out,) = run(inputs)
    wanted = 2 * other.view(shape) + 1
    torch.testing.assert_close(x, wanted)
    assert out.data_ptr() == x.data_ptr()
    assert call or x._version == version


def test_copies_keep_gaps_and_overlaps() -> None:
    n = ex.integer(12)
    for stride, extent in ((0, 1), (3, 34)):
        slots = (Slot("input", 0, "f32", (n,), (ex.integer(stride),)), _vector("fresh", 0, n))
        # Reads x as it lies in memory: as many elements as the strides span.
        count = ex.integer(extent if stride else 1)
        program = Program(
            (0,), slots, (), (Launch(0, (0, 1), (count if not stride else n,)),),
            (BufferView(1, (n,), (ex.ONE,), ex.ZERO),), (("kernel/a", "affine"),), (), 0, "cuda",
        )  # fmt: skip
        run, _ = runner(program, [_AFFINE])
        memory = torch.randn(40)
        x = memory[1:].as_strided((12,), (stride,), 1)
        (out,) = run([x])
        taken = 12 if stride else 1
        assert torch.equal(out[:taken], 2 * memory[1 : 1 + taken] + 1)


def test_inputs_on_the_cpu_are_copied_and_written_back() -> None:
    run, gpus = runner(_overwrites(8), [_AFFINE])
    x, other = torch.randn(8), torch.randn(8)
    gpus.elsewhere[id(x)] = -1
    (out,) = run([x, other])
    assert torch.equal(x, 2 * other + 1)
    assert out is x


def test_inputs_on_two_gpus_are_refused() -> None:
    run, gpus = runner(_overwrites(8), [_AFFINE])
    x, other = torch.randn(8), torch.randn(8)
    gpus.elsewhere[id(other)] = 1
    with pytest.raises(LoadError, match="on GPU 0 and on GPU 1"):
        run([x, other])


def test_the_gpu_of_the_inputs_is_selected_for_the_call() -> None:
    run, gpus = runner(_overwrites(8), [_AFFINE])
    x, other = torch.randn(8), torch.randn(8)
    gpus.elsewhere.update({id(x): 3, id(other): 3})
    run([x, other])
    assert gpus.selected == [3, 0]
    with pytest.raises(LoadError):
        run([x, torch.randn(8)])
    assert gpus.selected == [3, 0, 3, 0]


def test_constants() -> None:
    n = ex.integer(4)
    data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    program = Program(
        (), (_vector("result", 0, n), _vector("fresh", 0, n)),
        (Constant(0, data.numpy().tobytes()),), (Launch(0, (0, 1), (n,)),),
        (BufferView(1, (n,), (ex.ONE,), ex.ZERO),), (("kernel/a", "affine"),), (), 0, "cuda",
    )  # fmt: skip
    run, _ = runner(program, [_AFFINE])
    assert run([])[0].tolist() == [3.0, 5.0, 7.0, 9.0]


def test_results_of_calls_that_are_not_aligned() -> None:
    n = ex.integer(7)
    slots = (_vector("input", 0, ex.integer(8)), _vector("result", 0, n), _vector("fresh", 0, n))
    whole = BufferView(0, (ex.integer(8),), (ex.ONE,), ex.ZERO)
    program = Program(
        (0,), slots, (),
        (
            Call("aten.slice.Tensor", (whole, 0, 1, 8), (), (1,), False, False, "fallback"),
            Launch(0, (1, 2), (n,)),
        ),
        tuple(BufferView(i, (n,), (ex.ONE,), ex.ZERO) for i in (1, 2)),
        (("kernel/a", "affine"),), (), 0, "cuda",
    )  # fmt: skip
    run, _ = runner(program, [_AFFINE])
    x = torch.randn(8)
    view, out = run([x])
    assert view.data_ptr() == x[1:].data_ptr()
    assert torch.equal(out, 2 * x[1:] + 1)


def test_images_are_loaded_once_a_gpu() -> None:
    run, gpus = runner(_program(ex.integer(8), "fresh"), [_AFFINE])
    before = seen("loads")
    for _ in range(3):
        run([torch.randn(8)])
    assert seen("loads") == before + 1
    large = replace(_AFFINE, name="affine2", shared=60_000)
    gpus.driver().function(large, 0)
    assert seen("attribute") == 8_060_000


@pytest.mark.parametrize(
    "broken", [replace(_AFFINE, image=b"junk"), replace(_AFFINE, name="zip")], ids=["image", "name"]
)
def test_a_binary_that_does_not_load(broken: GpuBinary) -> None:
    run, _ = runner(_program(ex.integer(8), "fresh"), [broken])
    with pytest.raises(LoadError, match=r"does not load: (device kernel|something)"):
        run([torch.randn(8)])


def test_a_binary_of_other_sizes() -> None:
    with pytest.raises(LoadError, match="takes 2 sizes, not 1"):
        runner(_program(ex.integer(8), "fresh"), [_TURN])
    with pytest.raises(LoadError, match="no size n1"):
        runner(_program(ex.integer(8), "fresh"), [replace(_AFFINE, grid=(_N1,))])


@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_a_launch_that_is_refused(how: str) -> None:
    run, _ = runner(_program(ex.integer(8), "fresh"), [_AFFINE], how)
    x = torch.randn(8)
    tell("refuse", 701)
    with pytest.raises(LoadError, match="affine does not start on GPU 0: something else"):
        run([x])
    tell("refuse", INVALID_CONTEXT)  # a thread without a context gets one
    tell("contexts", 0)
    assert torch.equal(run([x])[0], 2 * (2 * x + 1) + 1)
    assert seen("contexts") == 1


def test_threads_with_different_sizes_do_not_meet() -> None:
    run, _ = runner(_program(_S, "fresh"), [_AFFINE])

    def work(seed: int) -> None:
        x = torch.randn(1000 + 501 * seed, generator=torch.Generator().manual_seed(seed))
        for _ in range(50):
            assert torch.equal(run([x])[0], 2 * (2 * x + 1) + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_gradients_are_not_recorded() -> None:
    run, _ = runner(_program(ex.integer(8), "arena"), [_AFFINE])
    x = torch.randn(9, requires_grad=True)[1:]
    assert not run([x])[0].requires_grad


def test_what_is_no_tensor_is_an_error_and_the_next_call_works() -> None:
    run, _ = runner(_program(ex.integer(8), "arena"), [_AFFINE])
    with pytest.raises(AttributeError):
        run(["no tensor"])
    x = torch.randn(8)
    assert torch.equal(run([x])[0], 2 * (2 * x + 1) + 1)
