"""CUDA graphs on a real GPU: recordings that replay, share memory, and stand inside the user's."""

from __future__ import annotations

import torch

from fusec.ir import expr as ex
from fusec.ir.program import Program
from fusec.runtime.gpu_devices import Gpus
from fusec.runtime.gpu_place import GpuPlace
from fusec.runtime.graph_pool import GraphPools
from fusec.runtime.graphs import GraphRunner
from fusec.runtime.program import ProgramRunner
from fusec.trace import Recorder
from tests.runtime.gpu_programs import chain, in_place
from tests.runtime.real_gpu import BIG, ON_A_GPU, after, native, no_waiting, own_affine

pytestmark = ON_A_GPU


def _graphed(program: Program, pools: GraphPools) -> tuple[GraphRunner, Recorder]:
    recorder = Recorder()
    place = GpuPlace(program, [own_affine()], native(), Gpus())
    return GraphRunner(ProgramRunner(program, place), place, pools, recorder), recorder


def test_recordings_replay_with_new_numbers() -> None:
    run, recorder = _graphed(chain(ex.integer(BIG), 20), GraphPools())
    x = torch.empty(BIG, device="cuda")
    for step in range(8):
        x.normal_()
        wanted = after(x, 20)
        if step >= 3:
            with no_waiting():
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
        assert torch.equal(out, after(x, 5))
    assert recorder.counters["graph_records"] == 2
    assert recorder.counters["graph_skips"] < 8


def test_recordings_share_memory_and_feed_one_another() -> None:
    pools = GraphPools()
    stages = [_graphed(chain(ex.integer(BIG), 7), pools) for _ in range(4)]
    x = torch.empty(BIG, device="cuda")
    for _ in range(8):
        x.normal_()
        value = x
        for run, _ in stages:
            (value,) = run([value])
        torch.testing.assert_close(value, after(x, 28))
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
    assert torch.equal(out, after(x, 5))
