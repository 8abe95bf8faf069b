"""Compile random programs by fusec, several in one graph, and find those that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function

from fusec import pipeline
from fusec.capture.decompositions import table
from fusec.capture.export import export
from fusec.ir import expr as ex
from fusec.ir.graph import Graph, Ref, TensorType
from fusec.ir.program_wire import program_from_bytes
from fusec.lower.context import dense_stride
from fusec.options import Options, Target
from fusec.pipeline import Plan
from fusec.runtime.cpu_place import CpuPlace
from fusec.runtime.operators import TORCH_DTYPES
from fusec.runtime.program import ProgramRunner
from fusec.trace import Recorder
from tests.fuzz.build import Kernels
from tests.fuzz.case import Case, runs, smaller, without_dead
from tests.fuzz.compare import faults

KERNELS = Kernels()


@dataclass(frozen=True)
class Failure:
    """A program that fails, as small as shrinking made it."""

    case: Case
    why: str
    options: Options

    def __str__(self) -> str:
        extra = [
            n
            for n in ("strict_rounding", "fusion")
            if getattr(self.options, n) != getattr(Options(), n)
        ]
        note = (
            f"# with {', '.join(f'{n}={getattr(self.options, n)}' for n in extra)}\n"
            if extra
            else ""
        )
        return f"{note}{self.case.pasteable(self.why)}\n# {self.why}\n"


class _NotBuilt(Exception):
    """The graph is planned; its kernels come with those of other graphs."""


@dataclass
class Batch:
    """Programs in one graph: planned first, run when their kernels are built."""

    cases: Sequence[Case]
    options: Options
    target: Target
    plans: list[Plan] = field(default_factory=list)
    error: Exception | None = None
    ready: bool = False
    run: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        functions = [case.function() for case in self.cases]
        counts = [len(case.inputs) for case in self.cases]

        def together(*inputs: torch.Tensor) -> list[torch.Tensor]:
            found: list[torch.Tensor] = []
            first = 0
            for function, count in zip(functions, counts, strict=True):
                found += function(*inputs[first : first + count])
                first += count
            return found

        self.run = aot_function(
            together,
            fw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=table(),
            keep_inference_input_mutations=True,
        )

    def plan(self) -> None:
        """Trace, lower, schedule, generate; a fault is kept in ``error``."""
        try:
            with torch.no_grad():
                self.run(*self._inputs())
        except _NotBuilt:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the programs show it
            self.error = error

    def _inputs(self) -> list[torch.Tensor]:
        return [t for case in self.cases for t in case.fresh()]

    def _compile(self, gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        exported = export(gm)
        plan = pipeline.plan(exported.graph, self.target, self.options, recorder=Recorder())
        self.plans.append(plan)
        loaded: list[ProgramRunner] = []

        def boxed(inputs: list[Any]) -> list[Any]:
            if not self.ready:
                raise _NotBuilt
            if not loaded:
                loaded.append(load(plan, self.target))
            inputs.extend(exported.constants)
            results = loaded[0](inputs)
            verify_types(exported.graph, results)
            return results

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    def check(self) -> list[tuple[Case, str]]:
        """Run and compare: each program that is wrong, and how."""
        if self.error is not None:
            return [(case, f"{type(self.error).__name__}: {self.error}") for case in self.cases]
        self.ready = True
        inputs = self._inputs()
        with torch.no_grad():
            results = self.run(*inputs)
        wrong: list[tuple[Case, str]] = []
        for case in self.cases:
            mine = inputs[: len(case.inputs)]
            got = results[: len(case.outputs)]
            inputs, results = inputs[len(mine) :], results[len(got) :]
            found = faults(case, mine, got)
            if found:
                wrong.append((case, "; ".join(found)))
        return wrong


def verify_types(graph: Graph, results: Sequence[Any]) -> None:
    """Results have the dtype, sizes and strides that the graph promises.

    Sizes known only at the call are not looked at, nor are strides that no copy could have.
    """
    for output, made in zip(graph.outputs, results, strict=True):
        wanted = graph.nodes[output.index].type if isinstance(output, Ref) else None
        if not isinstance(wanted, TensorType) or not made.numel():
            continue
        assert TORCH_DTYPES[wanted.dtype] == made.dtype
        dense = sorted(wanted.stride, key=repr) == sorted(dense_stride(wanted), key=repr)
        for size, step, n, s in zip(
            wanted.shape, wanted.stride, made.shape, made.stride(), strict=True
        ):
            assert ex.as_int(size) in (None, n)
            assert n == 1 or not dense or ex.as_int(step) in (None, s), (made.stride(), wanted)


def load(plan: Plan, target: Target) -> ProgramRunner:
    """A plan as a callable, from kernels built together."""
    program = program_from_bytes(plan.program)
    addresses = {k.digest: KERNELS.addresses[k.digest] for k in plan.kernels[:-1]}
    functions = [addresses[blob.removeprefix("kernel/")] for blob, _ in program.kernels]
    return ProgramRunner(program, CpuPlace(program, functions, KERNELS.runner(target.isa)))


def check_cases(
    cases: Sequence[Case], options: Options, target: Target, together: int = 12
) -> list[tuple[Case, str]]:
    """Each program that is wrong, and how; ``together`` programs share a graph."""
    batches = [
        Batch(cases[i : i + together], options, target) for i in range(0, len(cases), together)
    ]
    for batch in batches:
        batch.plan()
    try:
        KERNELS.add(k for batch in batches for plan in batch.plans for k in plan.kernels)
    except AssertionError as error:
        if len(cases) == 1:
            return [(cases[0], f"does not compile: {error}")]
        middle = (len(cases) + 1) // 2
        return check_cases(cases[:middle], options, target, together) + check_cases(
            cases[middle:], options, target, together
        )
    wrong: list[tuple[Case, str]] = []
    for batch in batches:
        if batch.error is not None and len(batch.cases) > 1:
            alone = [w for case in batch.cases for w in check_cases([case], options, target)]
            wrong += alone or [(batch.cases[0], f"only together: {batch.error}")]
        else:
            wrong += batch.check()
    return wrong


def _size(case: Case) -> tuple[int, int]:
    return len(case.steps), len(case.outputs)


def _kind(why: str) -> str:
    """What sort of fault: an error's name, or a difference."""
    head = why.split(":")[0]
    return head if head.endswith("Error") else "differs"


def shrink(case: Case, why: str, options: Options, target: Target, tries: int = 80) -> Failure:
    """The smallest program found that still fails."""
    case = without_dead(case)
    again = check_cases([case], options, target)
    if not again:
        return Failure(case, f"only in company of others: {why}", options)
    why = again[0][1]
    progress = True
    while progress:
        progress = False
        for candidate in smaller(case):
            if tries == 0:
                return Failure(case, why, options)
            tries -= 1
            if _size(candidate) >= _size(case):
                continue
            found = check_cases([candidate], options, target) if runs(candidate) else []
            if found and _kind(found[0][1]) == _kind(why):
                case, why, progress = candidate, found[0][1], True
                break
    return Failure(case, why, options)
