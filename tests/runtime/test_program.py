"""Programs as callables: aliasing, mutation, sizes, threads, memory."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fusec.runtime.arena import lease
from fusec.runtime.program import ProgramRunner
from tests.runtime.executables import executable

_DYNAMIC = """\
symbol s0 in [2, 100000]
symbol s1 in [2, 100000]
%0 = input "x": f32[s0, s1]
%1 = input "w": f32[s1, 3]
%2 = call aten.exp.default(%0): f32[s0, s1]
%3 = call aten.sum.dim_IntList(%2, [1], true): f32[s0, 1]
%4 = call aten.div.Tensor(%2, %3): f32[s0, s1]
%5 = call aten.mm.default(%4, %1): f32[s0, 3]
%6 = call aten.add.Tensor(%5, 1): f32[s0, 3]
return %6, <s0*s1>
"""

# Two values that live at once, across a library call.
_ARENA = """\
%0 = input "x": f32[{n}, {n}]
%1 = call aten.sin.default(%0): f32[{n}, {n}]
%2 = call aten.mm.default(%1, %0): f32[{n}, {n}]
%3 = call aten.cos.default(%2): f32[{n}, {n}]
%4 = call aten.mm.default(%3, %1): f32[{n}, {n}]
%5 = call aten.add.Tensor(%4, %3): f32[{n}, {n}]
return %5
"""


def _dynamic(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1) @ w + 1


def _arena(x: torch.Tensor) -> torch.Tensor:
    b = (x.sin() @ x).cos()
    return b @ x.sin() + b


def test_outputs_that_are_inputs_are_the_same_tensors() -> None:
    run = executable("""\
%0 = input "x": f32[4, 6]
%1 = call aten.permute.default(%0, [1, 0]): f32[6, 4] stride [1, 6]
%2 = call aten.select.int(%0, 0, 2): f32[6] offset (12)
return %0, %1, %2, none, <3>
""")
    x = torch.randn(4, 6)
    same, turned, row, nothing, number = run([x])
    assert same is x
    assert torch.equal(turned, x.t())
    assert torch.equal(row, x[2])
    assert turned.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert row.storage_offset() == 12
    assert nothing is None
    assert number == 3


def test_inputs_with_an_offset_and_views_of_them() -> None:
    run = executable("""\
%0 = input "x": f32[4, 3] stride [10, 2]
%1 = call aten.select.int(%0, 1, 1): f32[4] stride [10] offset (2)
%2 = call aten.mul.Tensor(%0, 2): f32[4, 3]
return %1, %2
""")
    x = torch.randn(5, 10)[1:, 3:9:2]
    column, doubled = run([x])
    assert torch.equal(column, x[:, 1])
    assert column.data_ptr() == x[:, 1].data_ptr()
    assert torch.equal(doubled, x * 2)


def test_overwritten_inputs_change_in_place() -> None:
    run = executable("""\
%0 = input "x": f32[3, 5]
%1 = input "y": f32[3, 5]
%2 = call aten.add.Tensor(%0, 1): f32[3, 5]
%3 = call aten.mul.Tensor(%1, 2): f32[3, 5]
%4 = call aten.copy_.default(%0, %3): f32[3, 5]
%5 = call aten.copy_.default(%1, %2): f32[3, 5]
return %2
""")
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    was_x, was_y = x.clone(), y.clone()
    (out,) = run([x, y])
    assert torch.equal(x, was_y * 2)
    assert torch.equal(y, was_x + 1)
    assert torch.equal(out, was_x + 1)


def test_a_cache_written_at_a_place() -> None:
    run = executable("""\
%0 = input "cache": f32[2, 8, 4]
%1 = input "new": f32[2, 1, 4]
%2 = call aten.slice_scatter.default(%0, %1, 1, 5, 6): f32[2, 8, 4]
%3 = call aten.sum.dim_IntList(%2, [1]): f32[2, 4]
%4 = call aten.copy_.default(%0, %2): f32[2, 8, 4]
return %3
""")
    cache, new = torch.randn(2, 8, 4), torch.randn(2, 1, 4)
    wanted = cache.clone()
    wanted[:, 5:6] = new
    (total,) = run([cache, new])
    assert torch.equal(cache, wanted)
    torch.testing.assert_close(total, wanted.sum(1))


def test_the_list_of_inputs_is_cleared_and_inputs_can_die() -> None:
    run = executable(_ARENA.format(n=8))
    inputs = [torch.randn(8, 8)]
    died = weakref.ref(inputs[0])
    run(inputs)
    assert inputs == []
    gc.collect()
    assert died() is None


def test_one_artifact_at_many_sizes() -> None:
    run = executable(_DYNAMIC)
    for s, t in ((2, 2), (3, 1000), (17, 5), (1000, 33), (2, 2), (64, 64), (513, 129)):
        x, w = torch.randn(s, t), torch.randn(t, 3)
        out, count = run([x, w])
        assert count == s * t
        torch.testing.assert_close(out, _dynamic(x, w))


def test_results_of_earlier_calls_stay() -> None:
    run = executable(_ARENA.format(n=8))
    xs = [torch.randn(8, 8) for _ in range(5)]
    outs = [run([x])[0] for x in xs]
    for x, out in zip(xs, outs, strict=True):
        torch.testing.assert_close(out, _arena(x))


def test_the_arena_grows_and_cached_views_follow() -> None:
    runs = {n: executable(_ARENA.format(n=n)) for n in (8, 200, 16)}
    for n in (8, 16, 8, 200, 8, 16, 200, 8):
        x = torch.randn(n, n) / n
        torch.testing.assert_close(runs[n]([x])[0], _arena(x))


def test_inference_mode_and_out_of_it() -> None:
    run = executable(_ARENA.format(n=24))
    x = torch.randn(24, 24) / 24
    for inference in (True, False, True, False):
        with torch.inference_mode(inference), torch.no_grad():
            torch.testing.assert_close(run([x])[0], _arena(x))


def test_views_of_the_arena_go_with_their_program() -> None:
    run = executable(_ARENA.format(n=8))
    run([torch.randn(8, 8)])
    first = lease(16, run._place)
    views = [weakref.ref(view) for view in first.views.values()]
    first.give_back()
    assert len(views) > 1  # what the calls read and write
    del run, first
    gc.collect()
    assert all(view() is None for view in views)


def test_a_program_inside_a_program_has_its_own_memory() -> None:
    run = executable(_ARENA.format(n=16))
    x = torch.randn(16, 16)
    outer = lease(1 << 20, run)
    outer.block.memory.fill_(7)
    try:
        torch.testing.assert_close(run([x])[0], _arena(x))
        assert bool((outer.block.memory == 7).all())
    finally:
        outer.give_back()
    torch.testing.assert_close(run([x])[0], _arena(x))


@pytest.mark.parametrize("threads", [4])
def test_many_threads_share_one_program(threads: int) -> None:
    run = executable(_ARENA.format(n=32))

    def work(seed: int) -> None:
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(seed)) / 6
        wanted = _arena(x)
        for _ in range(40):
            torch.testing.assert_close(run([x])[0], wanted)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def test_threads_with_different_sizes_do_not_meet() -> None:
    run = executable(_DYNAMIC)

    def work(seed: int) -> None:
        s, t = 40 + 37 * seed, 900 - 150 * seed
        g = torch.Generator().manual_seed(seed)
        x, w = torch.randn(s, t, generator=g), torch.randn(t, 3, generator=g)
        wanted = _dynamic(x, w)
        for _ in range(60):
            torch.testing.assert_close(run([x, w])[0], wanted)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_an_error_in_a_call_gives_the_memory_back() -> None:
    run = executable(_ARENA.format(n=16))
    with pytest.raises((AttributeError, RuntimeError, TypeError)):
        run(["no tensor"])
    x = torch.randn(16, 16)
    torch.testing.assert_close(run([x])[0], _arena(x))
    first = lease(16, run)
    first.give_back()
    second = lease(16, run)
    second.give_back()
    assert first.block is second.block  # the thread's own


def test_constants_and_scalars() -> None:
    run = executable("""\
symbol s0 in [0, inf]
%0 = input "n": int(s0)
%1 = input "nothing"
%2 = input "x": i64[2]
%3 = const "c"(hex "01000000000000000200000000000000"): i64[2]
%4 = call aten.add.Tensor(%2, %3): i64[2]
%5 = call aten.add.Tensor(%4, <s0>): i64[2]
return %5, <s0 // 2>
""")
    for n in (0, 1, 7):
        out, half = run([n, None, torch.tensor([10, 20])])
        assert out.tolist() == [11 + n, 22 + n]
        assert half == n // 2


def test_random_numbers_follow_the_seed() -> None:
    run = executable("""\
%0 = input "x": f32[100]
%1 = call aten.rand_like.default(%0): f32[100]
%2 = call aten.randn_like.default(%0): f32[100]
%3 = call aten.add.Tensor(%1, %2): f32[100]
return %1, %3
""")
    x = torch.zeros(100)
    torch.manual_seed(5)
    a, b = torch.rand_like(x), torch.randn_like(x)
    torch.manual_seed(5)
    got_a, got_sum = run([x])
    assert torch.equal(got_a, a)
    assert torch.equal(got_sum, a + b)


def test_an_executable_is_a_boxed_callable() -> None:
    assert ProgramRunner._boxed_call is True


def test_inputs_die_when_they_are_read_no_more() -> None:
    """The first input is dead when the second call runs; what is returned lives on."""
    run = executable("""\
%0 = input "x": f32[256, 256]
%1 = input "w": f32[256, 256]
%2 = call aten.mm.default(%0, %1): f32[256, 256]
%3 = call aten.mm.default(%2, %1): f32[256, 256]
return %3, %1
""")
    alive: list[list[bool]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "mm" in str(func):
                alive.append([ref() is not None for ref in refs])
            return func(*args, **(kwargs or {}))

    inputs = [torch.randn(256, 256), torch.randn(256, 256)]
    refs = [weakref.ref(t) for t in inputs]
    wanted = inputs[0] @ inputs[1] @ inputs[1]
    with Watch():
        out, w = run(inputs)
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)
    assert alive == [[True, True], [False, True]]
    assert w is refs[1]()
