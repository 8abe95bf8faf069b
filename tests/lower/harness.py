"""Compiles a function by fusec and compares all it gives with eager and a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch.utils import _pytree as pytree

from cache.artifacts import Found
from cache.memory import MemoryStore
from cache.store import Store
from fusec.capture import seams
from fusec.capture.decompositions import table
from fusec.capture.export import export
from fusec.codegen.isa import host_target
from fusec.ir.expr import as_int
from fusec.ir.graph import Graph, Ref, TensorType
from fusec.ir.program import Call
from fusec.ir.program_wire import program_from_bytes
from fusec.options import Options
from fusec.pipeline import compile_local
from fusec.runtime.format import PROGRAM_BLOB
from fusec.runtime.loader import load
from fusec.trace import Recorder
from fusec.verification.compare import compare, first_wrong

_STORE = MemoryStore(512 << 20)  # kernels that several tests share are built once


class Differs(AssertionError):
    """Results that are not eager's, one line each."""


@dataclass
class Compiled:
    """A function compiled through AOTAutograd; ``graphs`` and ``calls`` as they were made."""

    fn: Callable[..., Any]
    options: Options = field(default_factory=lambda: Options(progress=False))
    dynamic: bool = False
    store: Store = _STORE
    graphs: list[Graph] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)  # (operator, reason)
    recorder: Recorder = field(default_factory=Recorder)
    run: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.run = aot_function(
            self.fn,
            fw_compiler=self._compile,
            bw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=table(),
            keep_inference_input_mutations=True,
            dynamic=self.dynamic,
        )

    @staticmethod
    def plain(**options: Any) -> Options:
        return Options(progress=False, **options)

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    def _compile(self, gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        exported = export(gm)
        self.graphs.append(exported.graph)
        found: Found = compile_local(
            exported.graph, host_target(), self.options, self.store, recorder=self.recorder
        )
        program = program_from_bytes(found.blobs[PROGRAM_BLOB])
        self.calls += [(s.target, s.reason) for s in program.steps if isinstance(s, Call)]
        loaded: list[Any] = []

        def boxed(inputs: list[Any]) -> list[Any]:
            # `aot_function` calls what it has compiled with its own modes on, where some of torch's
            # operators give other results; a session's programs never see those.
            with seams.no_modes():
                if not loaded:
                    loaded.append(load(found, recorder=self.recorder))
                inputs.extend(exported.constants)
                return loaded[0](inputs)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    @property
    def fallbacks(self) -> int:
        return self.recorder.counters.get("fallback_calls", 0)


def compile_and_compare(
    fn: Callable[..., Any], *inputs: Any, names: Sequence[str] = (), **options: Any
) -> Compiled:
    """Compile ``fn``, run it on copies of ``inputs`` and compare outputs and mutated inputs.

    names: of the outputs, for messages. Fails with every difference found.
    """
    compiled = Compiled(fn, Options(progress=False, **options))
    compare_with_eager(compiled, fn, *inputs, names=names)
    return compiled


def compare_with_eager(
    compiled: Callable[..., Any], fn: Callable[..., Any], *inputs: Any, names: Sequence[str] = ()
) -> None:
    """Run a compiled function and eager on copies of the inputs and compare all they give."""
    mine, theirs, wide = copied(inputs), copied(inputs), widened(copied(inputs))
    got = pytree.tree_leaves(compiled(*mine))
    eager = pytree.tree_leaves(fn(*theirs))
    exact = pytree.tree_leaves(fn(*wide)) if wide is not None else eager
    assert len(got) == len(eager) == len(exact)
    faults = []
    labels = list(names) + [f"output {i}" for i in range(len(names), len(got))]
    promised = _promised(compiled)
    for label, a, b, c in zip(labels, got, eager, exact):
        fault = difference(a, b, c, promised)
        if fault:
            faults.append(f"{label}: {fault}")
    for i, (a, b) in enumerate(zip(mine, theirs)):
        if isinstance(a, torch.Tensor):
            fault = difference(a, b, b)
            if fault:
                faults.append(f"input {i} afterwards: {fault}")
    if faults:
        raise Differs("\n".join(faults))


def copied(inputs: Sequence[Any]) -> list[Any]:
    """Copies with the same strides (memory of overlapping tensors copied as it lies)."""
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(x: torch.Tensor) -> torch.Tensor:
    size = x.untyped_storage().nbytes() // x.element_size()
    memory = x.detach().as_strided((size,), (1,), 0).clone()
    made = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    return made.detach().requires_grad_(x.requires_grad)


def widened(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with floating point tensors in float64."""
    return [
        x.detach().double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in inputs
    ]


def _promised(compiled: Any) -> set[tuple[Any, ...]]:
    """Strides that capture promised for outputs: torch's fake tensors are not always eager's."""
    found: set[tuple[Any, ...]] = set()
    for graph in getattr(compiled, "graphs", ()):
        for output in graph.outputs:
            if isinstance(output, Ref):
                kind = graph.nodes[output.index].type
                if isinstance(kind, TensorType):
                    found.add(tuple(map(as_int, (*kind.shape, *kind.stride))))
    return found


def difference(
    got: Any, eager: Any, exact: Any, promised: Collection[tuple[Any, ...]] = ()
) -> str | None:
    """What is wrong with a result, or None.

    The bound for floating point: an error (against ``exact``) at most twice eager's, or a few units
    in the last place of the element or one of the largest element.
    """
    if not isinstance(eager, torch.Tensor):
        same = got == eager or (isinstance(eager, float) and math.isnan(eager) and math.isnan(got))
        return None if same else f"{got!r} is not {eager!r}"
    if not isinstance(got, torch.Tensor):
        return f"{got!r} is no tensor"
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype}{list(got.shape)} is not {eager.dtype}{list(eager.shape)}"
    right = _strides(got) == _strides(eager) or (*got.shape, *got.stride()) in promised
    # Eager keeps strides of windows that lie on one another; a result of ours has its own places.
    right = right or _reach(eager) < eager.numel()
    if eager.numel() > 1 and not right:
        return f"strides {got.stride()} are not {eager.stride()}"
    if got.requires_grad != eager.requires_grad:
        return f"requires_grad is {got.requires_grad}"
    return values_differ(got.detach(), eager.detach(), exact)


def _reach(x: torch.Tensor) -> int:
    """Elements of memory from the first to the last."""
    return 1 + sum((size - 1) * step for step, size in zip(x.stride(), x.shape))


def _strides(x: torch.Tensor) -> list[int]:
    return [step for step, size in zip(x.stride(), x.shape) if size != 1]


def values_differ(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str | None:
    wrong = compare(got, eager, exact, of_worst=1.0).wrong
    return None if wrong is None else first_wrong(wrong, got, eager, exact)


def check_batch(
    cases: Sequence[tuple[str, Callable[..., Any]]], *inputs: Any, size: int = 40, **options: Any
) -> dict[str, str]:
    """Compile many functions of the same inputs, ``size`` in one graph; returns faults by name.

    Functions that eager refuses for these inputs are left out. A graph that does not compile is
    cut into its parts to name the one at fault.
    """
    usable = []
    for name, fn in cases:
        try:
            with torch.no_grad():
                fn(*copied(inputs))
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
            continue
        usable.append((name, fn))
    faults: dict[str, str] = {}
    batches = [usable[i : i + size] for i in range(0, len(usable), size)]
    for batch in batches:
        faults.update(_batch(batch, inputs, options))
    return faults


def _batch(
    batch: Sequence[tuple[str, Callable[..., Any]]], inputs: Sequence[Any], options: dict[str, Any]
) -> dict[str, str]:
    def together(*args: Any) -> list[Any]:
        return [fn(*args) for _, fn in batch]

    labels: list[str] = []
    with torch.no_grad():
        for name, fn in batch:
            count = len(pytree.tree_leaves(fn(*copied(inputs))))
            labels += [name] * count
    try:
        compile_and_compare(together, *inputs, names=labels, **options)
    except Differs as error:
        found = {}
        for line in str(error).splitlines():
            name, _, text = line.partition(": ")
            found.setdefault(name, text)
        return found
    except Exception as error:  # noqa: BLE001 - whatever it is, name the operation
        if len(batch) == 1:
            return {batch[0][0]: f"{type(error).__name__}: {error}"[:2000]}
        middle = len(batch) // 2
        faults = _batch(batch[:middle], inputs, options)
        faults.update(_batch(batch[middle:], inputs, options))
        return faults or {"+".join(n for n, _ in batch): f"only together: {error}"[:2000]}
    return {}


def in_parallel(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks on two threads: compiling is mostly waiting for the C compiler."""
    with ThreadPoolExecutor(2) as pool:
        return [f.result() for f in [pool.submit(t) for t in tasks]]
