"""What `fusec explain` says about known functions."""

from __future__ import annotations

import importlib.util
import io
import json
import re

import pytest
import torch
from rich.console import Console

from fusec.capture.export import export
from fusec.cli.parser import run
from fusec.inspect.captured import capture
from fusec.inspect.explain import Call, Explanation, Kernel, explain
from fusec.inspect.outline import as_json, outline, show, text
from fusec.inspect.source_line import source_line
from fusec.ir.wire import graph_to_bytes
from fusec.options import Options, Target
from tests.inspect import nets

TARGET = Target("cpu", "x86-64-v3")


def _explained(made, **how) -> list[Explanation]:
    torch._dynamo.reset()
    function, inputs = made
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    args = args if isinstance(args, tuple) else (args,)
    return [
        explain(part.graph, TARGET, Options(), traces=part.traces, title=title)
        for title, part in capture(function, args, kwargs, **how)
    ]


@pytest.fixture(scope="module")
def blocks() -> list[Explanation]:
    return _explained(nets.block())


def _kernels(e: Explanation) -> list[Kernel]:
    return [entry for entry in e.entries if isinstance(entry, Kernel)]


def test_text(golden):
    golden("inspect/layers.txt", text(_explained(nets.layers(), grad=False)))


def test_repeated_kernels_are_folded():
    (e,) = _explained(nets.layers(), grad=False)
    kernel = next(k for k in _kernels(e) if "aten.tanh.default" in {o.name for o in k.operations})
    assert kernel.count == 2  # the third is part of the softmax
    assert e.launches > len(_kernels(e))
    linear = [entry for entry in e.entries if isinstance(entry, Call)]
    assert [(c.operation.name, c.reason, c.count) for c in linear] == [
        ("aten.addmm.default", "library", 3),
        ("aten.linalg_solve_triangular.default", "fallback", 1),
    ]
    assert (e.calls("library"), e.calls("fallback")) == (3, 1)


def test_graphs_are_named(blocks):
    assert [e.title for e in blocks] == ["forward", "backward"]


def test_operations_name_the_users_lines(blocks):
    for explanation in blocks:
        for kernel in _kernels(explanation):
            for operation in kernel.operations:
                if operation.source is not None:
                    assert operation.source.file == nets.__file__
    lines = {o.source.code for k in _kernels(blocks[0]) for o in k.operations if o.source}
    assert "y = self.norm(x)" in lines
    assert any("torch.tanh" in line for line in lines)


VIEWS = re.compile(r"aten\.(view|t|permute|expand|unsqueeze|slice|select|squeeze)\.|py\.getitem")


def test_every_operation_is_somewhere():
    """Nothing that computes is left out: kernels and calls hold all nodes that are no views."""
    torch._dynamo.reset()
    function, inputs = nets.block()
    for title, part in capture(function, inputs):
        e = explain(part.graph, TARGET, Options(), title=title)
        found = {o.node for k in _kernels(e) for o in k.operations}
        found |= {entry.operation.node for entry in e.entries if isinstance(entry, Call)}
        compute = {
            i
            for i, node in enumerate(part.graph.nodes)
            if node.op == "call" and not VIEWS.match(node.target)
        }
        folded = sum(entry.count for entry in e.entries) > len(e.entries)
        assert found <= set(range(len(part.graph.nodes)))
        names = {part.graph.nodes[i].target for i in found}
        if folded:  # equal entries show the nodes of the first
            assert names >= {part.graph.nodes[i].target for i in compute}
        else:
            assert found >= compute


def test_bytes_of_one_kernel():
    """A product and its softmax over rows: one kernel reads both inputs and writes one output."""
    (e,) = _explained(nets.scaled())
    (kernel,) = _kernels(e)
    rows, columns, item = 8, 40, 4
    assert kernel.read == (rows * columns + columns) * item
    assert kernel.written == rows * columns * item
    assert kernel.saved > 3 * rows * columns * item
    assert (e.peak.arena, e.peak.peak) == (0, rows * columns * item)
    assert kernel.space == ("8", "fold 40")


def test_a_gather_alone_reads_what_it_gives():
    table, rows = torch.zeros(1000, 16), torch.zeros(5, dtype=torch.int64)
    (e,) = _explained((torch.nn.functional.embedding, (rows, table)), grad=False)
    kernels = [k for k in _kernels(e) if not any(o.counted for o in k.operations)]
    assert [k.alone for k in kernels] == [5 * 8 + 2 * 5 * 16 * 4]


def test_an_operation_is_counted_once(blocks):
    """What several kernels compute names the one that counts it; the sums are the graph's."""
    for explanation in blocks:
        labels = {entry.label for entry in explanation.entries}
        counted = [o for k in _kernels(explanation) for o in k.operations if not o.counted]
        assert len(counted) == len({o.node for o in counted})
        assert all(o.counted in labels | {""} for k in _kernels(explanation) for o in k.operations)


def test_without_fusion_nothing_is_saved_by_sharing():
    torch._dynamo.reset()
    function, inputs = nets.scaled()
    ((_, part),) = capture(function, (), inputs)
    fused = explain(part.graph, TARGET, Options())
    apart = explain(part.graph, TARGET, Options(fusion=False))
    assert len(_kernels(apart)) > len(_kernels(fused))
    assert apart.moved > fused.moved
    assert apart.alone == fused.alone


def test_neighbours_have_one_reason_each(blocks):
    for explanation in blocks:
        labels = {entry.label for entry in explanation.entries}
        for kernel in _kernels(explanation):
            others = [refusal.other for refusal in kernel.refusals]
            assert len(others) == len(set(others))
            assert set(others) <= labels - {kernel.label}
            assert all(refusal.reason for refusal in kernel.refusals)
    reasons = " ".join(r.reason for k in _kernels(blocks[0]) for r in k.refusals)
    assert "aten.addmm.default runs in ATen" in reasons


def test_symbolic_sizes():
    (e,) = _explained(nets.scaled(), dynamic=True)
    assert set(e.sizes.values()) == {64}
    assert "s0=64" in text([e])
    torch._dynamo.reset()
    function, inputs = nets.scaled()
    ((_, part),) = capture(function, (), inputs, dynamic=True)
    larger = explain(part.graph, TARGET, Options(), sizes={"s0": 640})
    assert larger.moved > 2 * e.moved


def test_a_terminal_gets_tables_and_trees(blocks):
    file = io.StringIO()
    show(blocks, Console(file=file, force_terminal=True, width=200, color_system=None))
    shown = file.getvalue()
    assert "├──" in shown
    assert all(e.title in shown for e in blocks)
    for explanation in blocks:
        for entry in outline(explanation).children:
            assert entry.text in shown


def test_the_table_fits_a_narrow_terminal(blocks):
    file = io.StringIO()
    show(blocks, Console(file=file, force_terminal=True, width=80, color_system=None))
    heading, *rows = file.getvalue().splitlines()[:3]
    assert heading.split() == [
        *("graph", "ops", "runs", "kernels", "calls", "fallback", "moved", "alone", "peak")
    ]
    assert [row.split()[0] for row in rows] == ["forward", "backward"]
    assert not any("…" in line for line in (heading, *rows))


def test_a_pipe_gets_plain_text(blocks):
    file = io.StringIO()
    show(blocks, Console(file=file, force_terminal=False))
    assert file.getvalue() == text(blocks)
    assert "\x1b" not in file.getvalue()


def test_as_data(blocks):
    found = json.loads(json.dumps(as_json(blocks[0])))
    kernels = [entry for entry in found["entries"] if entry["kind"] == "kernel"]
    assert sum(entry["count"] for entry in kernels) == found["launches"]
    assert kernels[0]["operations"][0]["source"]["file"] == nets.__file__


def test_where_an_operation_comes_from_is_in_no_key(tmp_path):
    """The same function on another line gives the same bytes."""
    texts = ["def f(x):\n    return x.sin() + 1\n", "\n\n\ndef f(x):\n\n    return x.sin() + 1\n"]
    graphs, traces = [], []
    for number, source in enumerate(texts):
        path = tmp_path / f"place{number}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch._dynamo.reset()
        ((_, part),) = capture(module.f, (torch.zeros(4),))
        graphs.append(graph_to_bytes(part.graph))
        traces.append(part.traces)
    assert graphs[0] == graphs[1]
    assert traces[0] != traces[1]
    lines = [[s for t in part if (s := source_line(t))][-1] for part in traces]
    assert [s.line for s in lines] == [2, 6]
    assert [s.file for s in lines] == [str(tmp_path / f"place{n}.py") for n in (0, 1)]


def test_traces_stay_beside_their_nodes():
    """Numbers that become expressions leave the graph, and their traces with them."""

    def f(x):
        return x.reshape(x.shape[0] * x.shape[1]) * 2

    torch._dynamo.reset()
    ((_, part),) = capture(f, (torch.zeros(3, 5),), dynamic=True)
    assert len(part.traces) == len(part.graph.nodes)
    (mul,) = [i for i, n in enumerate(part.graph.nodes) if n.target == "aten.mul.Tensor"]
    assert source_line(part.traces[mul]).code.endswith("* 2")


def test_a_graph_without_traces():
    gm = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.sin.default(x),))
    for node in gm.graph.nodes:
        if node.op != "output":
            node.meta["val"] = torch.zeros(2)
    exported = export(gm)
    assert exported.traces == (None, None)
    (kernel,) = _kernels(explain(exported.graph, TARGET, Options(), traces=exported.traces))
    assert [o.source for o in kernel.operations] == [None]


def test_innermost_line_that_is_not_torchs():
    trace = (
        '  File "/home/me/net.py", line 7, in forward\n    y = self.norm(x)\n'
        '  File "/x/site-packages/torch/nn/modules/normalization.py", line 228, in forward\n'
        "    return F.layer_norm(\n"
    )
    found = source_line(trace)
    assert (found.file, found.line, found.code) == ("/home/me/net.py", 7, "y = self.norm(x)")
    assert found.short == "me/net.py:7"
    only_torch = source_line('  File "/x/site-packages/torch/optim/adam.py", line 3, in step\n')
    assert (only_torch.short, only_torch.code) == ("optim/adam.py:3", "")
    assert source_line("no frames") is None
    assert source_line(None) is None


def test_command(capsys):
    assert run(["explain", "tests.inspect.nets:layers", "--no-grad"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("inference: ")
    assert re.search(r"^  k\d+ \w+ x\d over \(32, 64\)", printed, re.MULTILINE)
    assert run(["explain", "tests.inspect.nets:scaled", "--json", "--dynamic"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sizes"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.inspect.nets", "is not MODULE:FUNCTION"),
        ("tests.inspect.nothing:f", "no module"),
        ("tests.inspect.nets:nothing", "has no function 'nothing'"),
        ("tests.inspect.nets:wrong", "returns int"),
    ],
)
def test_command_says_what_is_wrong(name, message, capsys):
    assert run(["explain", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fusec: ")
    assert message in error
