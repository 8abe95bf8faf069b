"""Recorded programs on a GPU made of the host: signatures, inputs that move, outputs in use."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from fusec.codegen.gpu_binary import GpuBinary
from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.graph import Attr, SymbolRange
from fusec.ir.loop import BufferView
from fusec.ir.program import Call, Launch, Program, Slot
from fusec.runtime.graph_pool import GraphPools, Recording
from fusec.runtime.graphs import GraphRunner
from fusec.runtime.recordable import refusal
from fusec.trace import Recorder
from tests.runtime.host_gpu import HostGpus, graphed, image, seen, tell

_N0, _S = ex.symbol("n0"), ex.symbol("s0")
_AFFINE = GpuBinary("affine", image("affine"), ((_N0 + 3) // 4,), 128, 0, 1, ("i32",))


def _vector(kind: str, number: int, n: ex.Expr) -> Slot:
    return Slot(kind, number, "f32", (n,), (ex.ONE,))


def _view(slot: int, n: ex.Expr) -> BufferView:
    return BufferView(slot, (n,), (ex.ONE,), ex.ZERO)


def _program(n: ex.Expr = ex.integer(16), extra: tuple[int, ...] = ()) -> Program:
    """y = 2 x + 1 of the first input; the second is not used."""
    slots = (_vector("input", 0, n), _vector("input", 1, n), _vector("fresh", 0, n))
    symbols = () if ex.is_int(n) else (SymbolRange("s0", 0, None),)
    outputs = tuple(_view(s, n) for s in (2, *extra))
    launch = Launch(0, (0, 2), (n,))
    return Program(
        (0, 1), slots, (), (launch,), (*outputs, n), (("k", "affine"),), symbols, 0, "cuda"
    )


def _in_place(n: ex.Expr = ex.integer(16)) -> Program:
    """x = 2 w + 1, in place."""
    slots = (_vector("input", 0, n), _vector("input", 1, n), _vector("alias", 0, n))
    return Program(
        (0, 1), slots, (), (Launch(0, (1, 2), (n,)),), (), (("k", "affine"),), (), 0, "cuda"
    )


class _Case:
    def __init__(self, program: Program, pools: GraphPools | None = None) -> None:
        self.recorder = Recorder()
        made = graphed(program, [_AFFINE], pools or GraphPools(), self.recorder)
        self.run: GraphRunner = made[0]
        self.gpus: HostGpus = made[1]

    def __call__(self, *inputs: torch.Tensor) -> list:
        """The results, checked to be those of a replay or not by what was counted."""
        skips = self.skips
        results = self.run(list(inputs))
        self.replayed = self.skips == skips
        return results

    @property
    def skips(self) -> int:
        return self.recorder.counters.get("graph_skips", 0)

    @property
    def records(self) -> int:
        return self.recorder.counters.get("graph_records", 0)


def _warm(case: _Case, *inputs: torch.Tensor) -> None:
    for _ in range(2):
        case(*inputs)
        assert not case.replayed


def test_a_recording_replays() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    for step in range(5):
        x.fill_(step)  # the same memory with other numbers
        launches = seen("launches")
        out, n = case(x, w)
        assert case.replayed
        assert seen("launches") == launches + (step == 0)  # the recording's own
        assert out.tolist() == [2 * step + 1.0] * 16
        assert n == 16
        del out
    assert case.records == 1


def test_inputs_that_move_are_copied() -> None:
    case = _Case(_program())
    w = torch.nn.Parameter(torch.randn(16))
    keep = []
    for step in range(6):
        keep.append(torch.randn(16 + step)[step:])
        out, _ = case(keep[-1], w)
        assert torch.equal(out, 2 * keep[-1] + 1)
        assert case.replayed == (step >= 2)
        del out
    assert case.records == 1


def test_an_input_that_moves_late_is_copied_after_a_while() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    case(x, w)
    assert case.replayed
    keep = []
    for step in range(5):
        keep.append(torch.randn(16))
        out, _ = case(keep[-1], w)
        assert torch.equal(out, 2 * keep[-1] + 1)
        assert case.replayed == (step >= 3)
        del out
    assert case.records == 2


def test_parameters_at_other_addresses_have_recordings_of_their_own() -> None:
    case = _Case(_program())
    w = torch.randn(16)
    layers = [torch.nn.Parameter(torch.randn(16)) for _ in range(3)]
    for step in range(5):
        for layer in layers:
            out, _ = case(layer, w)
            assert case.replayed == (step >= 2)
            torch.testing.assert_close(out, (2 * layer + 1).detach())
            del out
    assert case.records == 3


def test_sizes_have_recordings_of_their_own() -> None:
    case = _Case(_program(_S))
    tensors = {n: (torch.randn(n), torch.randn(n)) for n in (5, 8, 33)}
    for step in range(4):
        for n, (x, w) in tensors.items():
            out, number = case(x, w)
            assert torch.equal(out, 2 * x + 1)
            assert number == n
            assert case.replayed == (step >= 2)
            del out
    assert case.records == 3


def test_outputs_in_use_are_never_overwritten() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    held = []
    for step in range(12):
        x.fill_(step)
        held.append(case(x, w)[0])
    for step, out in enumerate(held):
        assert out.tolist() == [2 * step + 1.0] * 16
    # The first was in use for good: new memory, and then outputs are copies.
    assert case.replayed
    assert case.records == 2


def test_a_result_held_until_the_next_is_copied_from_then_on() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    out = None
    replayed = []
    for step in range(8):
        x.fill_(step)
        out = case(x, w)[0]
        assert out.tolist() == [2 * step + 1.0] * 16
        replayed.append(case.replayed)
    assert replayed == [False, False, True, False, True, True, True, True]
    assert case.records == 1


@pytest.mark.parametrize("hold", ["view", "saved"])
def test_what_holds_an_output_need_not_be_the_output(hold: str) -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    x.fill_(1)
    out = case(x, w)[0]
    if hold == "view":
        held = out[3:].view(-1)
        del out
        case(x.fill_(2), w)
        assert not case.replayed
        assert held.tolist() == [3.0] * 13
    else:
        leaf = torch.ones(16, requires_grad=True)
        product = (leaf * out).sum()
        del out
        case(x.fill_(2), w)
        assert not case.replayed
        product.backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [3.0] * 16
        del product
    gc.collect()
    held = None
    case(x, w)
    assert case.replayed


def test_outputs_of_one_recording_are_read_in_place_by_another() -> None:
    pools = GraphPools()
    first, second = _Case(_program(), pools), _Case(_program(), pools)
    x, w = torch.randn(16), torch.randn(16)
    for step in range(6):
        x.fill_(step)
        middle = first(x, w)[0]
        out = second(middle, w)[0]
        assert out.tolist() == [2 * (2 * step + 1.0) + 1] * 16
        assert (first.replayed, second.replayed) == (step >= 2, step >= 2)
        del middle, out
    assert (first.records, second.records) == (1, 1)
    assert second.run._signatures  # and nothing of the middle was copied
    assert all(not s.buffers for s in second.run._signatures.values())


def test_a_replay_waits_for_outputs_recorded_after_it() -> None:
    pools = GraphPools()
    first, second = _Case(_program(), pools), _Case(_program(), pools)
    x, w = torch.randn(16), torch.randn(16)
    for case in (first, second):
        _warm(case, x, w)
        case(x, w)
        assert case.replayed
    late = second(x, w)[0]
    early = first(x, w)[0]
    assert not first.replayed  # what it needs while it runs may be the memory of `late`
    del late
    assert torch.equal(early, 2 * x + 1)
    early = first(x, w)[0]
    assert first.replayed
    late = second(x, w)[0]
    assert second.replayed  # `early` lies before it
    assert torch.equal(early, late)


@pytest.mark.parametrize("move", [False, True])
def test_overwritten_inputs(move: bool) -> None:
    case = _Case(_in_place())
    w = torch.randn(16)
    x = torch.zeros(16)
    keep = []
    for step in range(5):
        w.fill_(step)
        if move:
            x = torch.zeros(16)
            keep.append(x)
        version = x._version
        case(x, w)
        assert x.tolist() == [2 * step + 1.0] * 16
        assert x._version == version
        assert case.replayed == (step >= 2)


def test_outputs_that_are_inputs_are_the_callers_own() -> None:
    case = _Case(_program(extra=(0, 1)))
    w = torch.randn(16)
    for step in range(5):
        x = torch.randn(16)
        out, same, other, _ = case(x, w)
        assert same is x
        assert other is w
        assert torch.equal(out, 2 * x + 1)
        assert case.replayed == (step >= 2)
        del out


def test_inputs_are_cleared_and_gradients_not_recorded() -> None:
    case = _Case(_program())
    x = torch.nn.Parameter(torch.randn(16))
    for _ in range(4):
        inputs = [x, torch.randn(16, requires_grad=True)]
        (out, _) = case.run(inputs)
        assert inputs == []
        assert not out.requires_grad
        assert out._version == 0
        out.requires_grad_()
        del out


def test_the_gpu_of_the_inputs_has_recordings_of_its_own() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    for ordinal in (0, 3):
        case.gpus.elsewhere.update({id(x): ordinal, id(w): ordinal})
        for step in range(4):
            case.gpus.selected.clear()
            assert torch.equal(case(x, w)[0], 2 * x + 1)
            assert case.replayed == (step >= 2)
            assert case.gpus.selected == ([3, 0] if ordinal else [])
    assert case.records == 2


def test_streams_have_recordings_of_their_own() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    for stream in (0, 77):
        case.gpus.stream_handle = stream
        for step in range(4):
            assert torch.equal(case(x, w)[0], 2 * x + 1)
            assert case.replayed == (step >= 2)
    assert case.records == 2


def test_a_call_while_the_pool_is_busy_runs_as_always() -> None:
    pools = GraphPools()
    case = _Case(_program(), pools)
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    launches = seen("launches")
    with pools.of(case.gpus, 0, 0).lock:
        assert torch.equal(case(x, w)[0], 2 * x + 1)
    assert seen("launches") == launches + 1
    assert case.records == 0


def test_a_failed_recording_runs_as_always() -> None:
    case = _Case(_program())
    x, w = torch.randn(16), torch.randn(16)
    _warm(case, x, w)
    tell("refuse", 900)
    assert torch.equal(case(x, w)[0], 2 * x + 1)
    assert case.recorder.counters["graphs_refused"] == 1
    assert torch.equal(case(x, w)[0], 2 * x + 1)


def test_a_refused_launch_of_the_program_is_an_error_still() -> None:
    case = _Case(_program())
    tell("refuse", 700)
    with pytest.raises(LoadError):
        case(torch.randn(16), torch.randn(16))


def test_storages_in_use_are_seen() -> None:
    class Nothing:
        def replay(self) -> None: ...

    base = torch.zeros(4, 4)
    recording = Recording(1, Nothing(), [base, None, base[1]], set())
    assert recording.in_use() == []
    given = recording.outputs()
    assert recording.in_use() == [0, 2]  # one storage
    given[0] = None
    assert recording.in_use() == [0, 2]
    del given
    assert recording.in_use() == []
    recording.kept.update((0, 2))
    given = recording.outputs()
    assert recording.in_use() == []
    assert given[2] is not None


@pytest.mark.parametrize(
    ("target", "args", "reason"),
    [
        ("aten.nonzero.default", (_view(0, _S),), "waits"),
        ("aten._local_scalar_dense.default", (_view(0, _S),), "waits"),
        ("aten.mm.default", (_view(0, _S), _view(0, _S)), None),
        ("aten.index.Tensor", (_view(0, _S), (_view(1, _S),)), "mask"),
        ("aten.index.Tensor", (_view(0, _S), (None, _view(2, _S))), None),
        ("aten.index_put.default", (_view(0, _S), (_view(1, _S),), _view(0, _S)), "mask"),
        ("aten.rand_like.default", (_view(0, _S),), None),
        ("_c10d_functional.all_reduce.default", (_view(0, _S), "sum", "0"), "collective"),
        ("aten._to_copy.default", (_view(0, _S), Attr("device", "cpu")), "moves data"),
    ],
)
def test_programs_that_wait_are_refused(target: str, args: tuple, reason: str | None) -> None:
    slots = (
        _vector("input", 0, _S),
        Slot("input", 1, "bool", (_S,), (ex.ONE,)),
        Slot("input", 2, "i64", (_S,), (ex.ONE,)),
        _vector("result", 0, _S),
    )
    call = Call(target, args, (), (3,), False, False, "fallback")
    program = Program((0, 1, 2), slots, (), (call,), (), (), (SymbolRange("s0", 0, None),), 0)
    found = refusal(program)
    assert refusal(replace(program, steps=())) == "there is nothing to record"
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")
