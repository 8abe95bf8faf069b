"""Run generated Triton in Triton's interpreter and compare it with eager and with float64.

A program of its own, since the interpreter has to be asked for before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.codegen.triton_interpreter FOLDER`` reads cases from standard
input and writes one line of JSON a case. ``tests.codegen.triton_cases`` is the other side.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import InterpreterError
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

from fusec.capture.eager import EagerProgram
from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.triton_batch import batch
from fusec.codegen.triton_expr import INT32
from fusec.codegen.triton_variants import tiles
from fusec.ir import expr as ex
from fusec.ir.dtypes import DTYPES
from fusec.ir.graph import Graph, TensorType
from fusec.ir.loop import BufferView, Compute, LoopProgram
from fusec.ir.text import parse_graph
from fusec.ir.verify_kernel import verify_kernel
from fusec.runtime.operators import TORCH_DTYPES
from fusec.schedule.axes import simplify_axes
from fusec.schedule.cost import GPU
from fusec.schedule.groups import Schedule
from fusec.schedule.kernel_loop import build_kernel_loop, read_outside
from fusec.schedule.search import schedule
from fusec.tune.neighbours import neighbours
from tests.codegen import triton_philox
from tests.codegen.triton_cases import grouped, walked
from tests.codegen.triton_host import host_plan, run_host

_LOWER = re.compile(r"\b(f32|bf16|f16)\b")
_HEAD = """\
import triton
import triton.language as tl
from fusec.codegen.triton_library import *
from tests.codegen.triton_interpreter import libdevice


@triton.jit
"""


def _splat_masks(builder: InterpreterBuilder) -> None:
    """The interpreter makes int32 of a mask that it spreads over a tile, and then refuses it."""
    splat = builder.create_splat

    def create_splat(ret_ty: Any, arg: TensorHandle) -> TensorHandle:
        made = splat(ret_ty, arg)
        if arg.data.dtype == bool:
            made.data = made.data.astype(bool)
        return made

    builder.create_splat = create_splat


_splat_masks(interpreter_builder)
# Assertions are checked, as in compiled kernels that have any.
interpreter_builder.options = replace(
    interpreter_builder.options, debug=True, sanitize_overflow=False
)


class Libdevice:
    """What libdevice computes, for the interpreter: torch's functions on the values."""

    def __getattr__(self, name: str) -> Callable[..., tl.tensor]:
        function = getattr(torch, {"rint": "round", "pow": "pow"}.get(name, name))

        def call(*args: Any) -> tl.tensor:
            given = [a for a in args if isinstance(a, tl.tensor)]
            dtype = given[0].dtype
            like = given[0].handle.data.dtype
            values = [
                torch.from_numpy(np.array(a.handle.data if isinstance(a, tl.tensor) else a, like))
                for a in args
            ]
            result = function(*values).numpy()
            kind = tl.block_type(dtype, list(result.shape)) if given_block(given) else dtype
            return tl.tensor(TensorHandle(result, dtype), kind)

        return call


def given_block(args: Sequence[tl.tensor]) -> bool:
    return any(a.type.is_block() for a in args)


libdevice = Libdevice()


class Runner:
    """Runs the kernels of a graph, each in one of its variants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: set[str] = set()  # kernels by name
        self.modules: dict[str, ModuleType] = {}

    def run(
        self,
        grouped: Schedule,
        inputs: Sequence[torch.Tensor],
        sizes: dict[str, int],
        pick: int,
        block: int,
        times: int = 1,
        near: bool = False,
        narrow: int = INT32,
    ) -> list[torch.Tensor]:
        """The outputs of a program; ``pick`` chooses the variants. Overwrites inputs.

        block: rows are walked in blocks of this size; 0: as the variants say. times: each launch
        stands for this many, on copies of its buffers. near: the variants are a step away from the
        first one. narrow: as of `gpu_emitter`."""
        program = grouped.program
        memory = _allocate(program, inputs, sizes)
        needed = read_outside(grouped)
        for position, group in enumerate(grouped.groups):
            if not isinstance(program.steps[group.members[0]], Compute):
                raise NotImplementedError("an external call")
            loop = simplify_axes(build_kernel_loop(program, group, needed[position]))
            verify_kernel(loop)
            choose = partial(walked, block) if block else tiles
            made = gpu_emitter("sm_90", choose, narrow)(loop)
            assert isinstance(made.kernel, GpuSource)
            assert GpuSource.from_bytes(made.kernel.to_bytes()) == made.kernel
            numbers = [ex.evaluate(e, sizes) for e in made.sizes]
            tensors = [memory[b] for b in made.buffers]
            if times == 1:
                for kernel in (made.kernel, *([made.wide] if made.wide else [])):
                    variants = kernel.variants
                    found = neighbours(variants[0], ()) if near else variants
                    self.launch(kernel, found[pick % len(found)], tensors, numbers)
                continue
            together = batch([made] * times)
            assert isinstance(together.kernel, GpuSource)
            variants = together.kernel.variants
            variant = variants[pick % len(variants)]
            others = [_copies(tensors) for _ in range(times - 1)]
            everything = [t for one in (tensors, *others) for t in one]
            self.launch(together.kernel, variant, everything, numbers)
            for other in others:
                for a, b in zip(tensors, other, strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        results = []
        for output in program.outputs:
            assert isinstance(output, BufferView)
            shape, stride = (
                [ex.evaluate(e, sizes) for e in p] for p in (output.shape, output.stride)
            )
            offset = ex.evaluate(output.offset, sizes)
            results.append(memory[output.buffer].as_strided(shape, stride, offset))
        return results

    def launch(
        self,
        kernel: GpuSource,
        variant: Variant,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
    ) -> None:
        grid = variant.counts(sizes)
        if 0 in grid:
            return
        self.started.add(kernel.name)
        function = getattr(self._module(variant.source), kernel.name)
        function[grid](*tensors, *sizes, **dict(variant.constants))

    def _module(self, source: str) -> ModuleType:
        if source not in self.modules:
            name = f"kernel{len(self.modules)}"
            path = self.folder / f"{name}.py"
            path.write_text(_HEAD + source)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.modules[source] = module
        return self.modules[source]


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides; what is one memory stays one."""
    made: dict[int, torch.Tensor] = {}
    for t in tensors:
        if t.data_ptr() not in made:
            made[t.data_ptr()] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)
    return [made[t.data_ptr()] for t in tensors]


def _allocate(
    program: LoopProgram, inputs: Sequence[torch.Tensor], sizes: dict[str, int]
) -> list[torch.Tensor]:
    memory: list[Any] = [None] * len(program.buffers)
    for number, tensor in zip(program.inputs, inputs, strict=True):
        assert isinstance(number, int)
        memory[number] = tensor
    for number, buffer in enumerate(program.buffers):
        if buffer.kind == "alias":
            memory[number] = memory[buffer.base]
        elif memory[number] is None:
            shape = [ex.evaluate(e, sizes) for e in buffer.shape]
            stride = [ex.evaluate(e, sizes) for e in buffer.stride]
            count = (
                1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
                if all(shape)
                else 0
            )
            memory[number] = _poisoned(count, buffer.dtype).as_strided(shape, stride)
    return memory


def _poisoned(count: int, dtype: str) -> torch.Tensor:
    """Memory whose content shows where nothing was written."""
    kind = TORCH_DTYPES[dtype]
    if kind.is_floating_point:
        return torch.full((count,), float("nan"), dtype=kind)
    return torch.full((count,), 1 if dtype == "bool" else 77, dtype=kind)


def make_inputs(graph: Graph, sizes: dict[str, int], seed: int) -> list[torch.Tensor]:
    """Random tensors of the graph's input types."""
    rng = torch.Generator().manual_seed(seed)
    made: list[torch.Tensor] = []
    for number in graph.inputs:
        t = graph.nodes[number].type
        assert isinstance(t, TensorType)
        shape = [ex.evaluate(e, sizes) for e in t.shape]
        stride = [ex.evaluate(e, sizes) for e in t.stride]
        count = (
            1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        )
        values = torch.randn(count, generator=rng)
        if DTYPES[t.dtype].is_integer:
            values = values.abs() * 5 if DTYPES[t.dtype].kind == "uint" else values * 100
        if t.dtype == "bool":
            values = values > 0
        made.append(values.to(TORCH_DTYPES[t.dtype]).as_strided(shape, stride))
    return made


def difference(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """Nothing, or how a result is worse than twice eager's error or its type's rounding."""
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype}{list(got.shape)} instead of {eager.dtype}{list(eager.shape)}"
    if not got.dtype.is_floating_point:
        return "" if torch.equal(got, eager) else f"{int((got != eager).sum())} values differ"
    mine, theirs, real = got.double(), eager.double(), exact.double()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    # Near a cancellation neither is better than the rounding of what cancels.
    rounding = torch.finfo(got.dtype).eps * real.abs()
    size = real[real.isfinite()].abs().max() if real.isfinite().any() else 0.0
    limit = 2 * (theirs - real).abs() + 4 * rounding + 16 * torch.finfo(got.dtype).eps * size
    wrong = ~same & ~((mine - real).abs() <= limit)
    if not wrong.any():
        return ""
    where = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} wrong; {where}: {got[where]} eager {eager[where]} exact {real[where]}"
    )


def check(
    runner: Runner,
    text: str,
    sizes: dict[str, int],
    picks: Sequence[int],
    block: int,
    times: int,
    host: bool,
    asserts: bool,
    equal: bool,
    near: bool,
    narrow: int,
) -> list[str]:
    """What is wrong with the variants of a graph's kernels."""
    graph = parse_graph(text)
    plan = grouped(text)
    found: list[str] = []
    for pick in picks:
        if asserts:
            try:
                runner.run(plan, make_inputs(graph, sizes, pick), sizes, pick, block, times)
            except InterpreterError as error:
                if "index out of range" not in str(error):
                    raise
            else:
                found.append(f"variant {pick}: nothing was asserted")
            continue
        mine, theirs, real = (make_inputs(graph, sizes, pick) for _ in range(3))
        wide = [t.double() if t.is_floating_point() else t for t in real]
        want = EagerProgram(graph)(list(theirs))
        exact = EagerProgram(parse_graph(_LOWER.sub("f64", text)))(list(wide))
        if host:
            got = run_host(host_plan(plan), runner.launch, mine, sizes, pick)
        else:
            runner.started.clear()
            got = runner.run(plan, mine, sizes, pick, block, times, near, narrow or INT32)
            if bool(narrow) is not any(name.endswith("_wide") for name in runner.started):
                found.append(f"variant {pick}: the other kernel ran")
        for i, (a, b, c) in enumerate(
            zip([*got, *mine], [*want, *theirs], [*exact, *wide], strict=True)
        ):
            wrong = difference(a, b, c)
            if equal and not torch.equal(a.view(torch.int32), b.view(torch.int32)):
                wrong = f"{int((a.view(torch.int32) != b.view(torch.int32)).sum())} bits differ"
            if wrong:
                found.append(f"variant {pick}, result {i}: {wrong}")
    return found


def check_random(runner: Runner, rows: int, columns: int, first: int) -> list[str]:
    """What is wrong with random numbers, in every form of their kernel."""
    plan = schedule(triton_philox.program(rows, columns, first), machine=GPU)
    want = triton_philox.expected(rows, columns, first)
    found: list[str] = []
    for pick, block in ((0, 0), (3, 0), (0, 64), (1, 64)):
        got = runner.run(plan, [torch.tensor([triton_philox.KEY])], {}, pick, block)
        if not all(torch.equal(a, b) for a, b in zip(got, want, strict=True)):
            found.append(f"variant {pick}, block {block}: other numbers")
    return found


def main() -> None:
    runner = Runner(Path(sys.argv[1]))
    for line in sys.stdin:
        case = json.loads(line)
        name = case.pop("name")
        try:
            random = case.pop("random")
            wrong = check_random(runner, *random) if random else check(runner, **case)
        except Exception as error:  # noqa: BLE001 - whatever it is, the case has failed
            wrong = [f"{type(error).__name__}: {error}"]
        sys.stdout.write(json.dumps({"name": name, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    # The kernels import this module by its name: let that be the same one.
    sys.modules["tests.codegen.triton_interpreter"] = sys.modules["__main__"]
    assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1"
    main()
