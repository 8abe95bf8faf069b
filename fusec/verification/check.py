"""One artifact's verification, in the process that may be lost over it, a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from cache.artifacts import Found
from fusec.artifact.quality import Outcome, Verification
from fusec.errors import FusecError
from fusec.ir import expr as ex
from fusec.ir.graph import Graph, Ref, TensorType
from fusec.ir.typical import typical_sizes
from fusec.ir.verify_device import device_of
from fusec.runtime.loader import load
from fusec.trace import Recorder
from fusec.verification import reference
from fusec.verification.compare import BOUND, Compared, compare, first_wrong
from fusec.verification.inputs import random_inputs
from fusec.verification.memory import needed_bytes

NOISY_RUNS: Final = 8
_FREE_PART: Final = 0.8  # of a GPU's memory
# What running a program on arbitrary values may raise; eager's own refusals are among them.
RAISED: Final = (FusecError, RuntimeError, IndexError, TypeError, ValueError, ArithmeticError)


@dataclass
class _Ran:
    """What a run gave, and its inputs as it left them."""

    outputs: list[Any]
    inputs: list[Any]


class Check:
    """graph: what eager runs; found: what it became; memory: bytes that tensors may take, None for
    most of what the GPU has free."""

    def __init__(self, graph: Graph, found: Found, *, seed: int, memory: int | None) -> None:
        self._graph = graph
        self._found = found
        self._seed = seed
        self._memory = memory
        self._kind = device_of(graph)
        self._device = torch.device(self._kind)
        self._positive = self._safe = False
        self._no_exact = ""  # why there is no float64 reference
        self._eager: _Ran | None = None
        self._mine: _Ran | None = None

    @property
    def device(self) -> str:
        """The device in words."""
        return torch.cuda.get_device_name() if self._kind == "cuda" else "cpu"

    def too_large(self) -> str | None:
        """Why there is no memory for it, or None. Where there is none for the float64 reference
        alone, eager is compared with, and the bound is what rounding does to that."""
        needed, limit = needed_bytes(self._graph), self._memory
        if limit is None:
            limit = int(torch.cuda.mem_get_info()[0] * _FREE_PART)
        if needed <= limit:
            return None
        large = f"it takes {needed / 2**30:.1f} GiB, the limit is {limit / 2**30:.1f}"
        if needed_bytes(self._graph, exact=False) > limit:
            return large
        self._no_exact = large
        return None

    def run_eager(self, *, safe: bool, positive: bool) -> float:
        """Run eager, on inputs as `random_inputs` makes them; what part of the values of its
        floating-point results is finite. Raises what eager raises."""
        self._safe, self._positive = safe, positive
        self._eager = None
        inputs = self._inputs()
        program = reference.eager(self._graph, {})
        outputs = reference.run(program, inputs, self._seed)
        self._wait()
        self._eager = _Ran(outputs, inputs)
        return _finite_part(outputs)

    def run_artifact(self) -> None:
        """Load and run the artifact on equal inputs. Raises what that raises."""
        inputs = self._inputs()
        run = load(self._found, recorder=Recorder())
        torch.manual_seed(self._seed)
        with torch.no_grad():
            outputs = run(list(inputs))
        self._wait()
        self._mine = _Ran(outputs, inputs)

    def judge(self) -> Verification:
        """Compare what the two runs gave."""
        assert self._eager is not None, "eager has run"
        assert self._mine is not None, "the artifact has run"
        draws = reference.known_draws(self._graph, self._mine.outputs) if self._own_draws else {}
        hidden = reference.undetermined(self._graph, self._kind, draws)
        if draws:
            self._run_eager_again(draws)
        verdict = _Verdict(self, self._exact(draws), hidden, draws)
        return verdict.verification()

    # -- for the verdict ------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def seed(self) -> int:
        return self._seed

    def runs(self) -> tuple[_Ran, _Ran]:
        """The artifact's and eager's."""
        assert self._mine is not None, "the artifact has run"
        assert self._eager is not None, "eager has run"
        return self._mine, self._eager

    def noisy(self, seed: int, draws: reference.Draws) -> _Ran:
        """Eager with its rounding moved."""
        inputs = self._inputs()
        program = reference.moved(self._graph, draws, inputs, seed)
        return _Ran(reference.run(program, inputs, self._seed), inputs)

    @property
    def _own_draws(self) -> bool:
        return self._kind != "cpu"

    def _run_eager_again(self, draws: reference.Draws) -> None:
        inputs = self._inputs()
        program = reference.eager(self._graph, draws)
        self._eager = _Ran(reference.run(program, inputs, self._seed), inputs)

    def _exact(self, draws: reference.Draws) -> _Ran | None:
        if self._no_exact:
            return None
        try:
            inputs = reference.widened(self._inputs())
            program = reference.wide(self._graph, draws)
            return _Ran(reference.run(program, inputs, self._seed), inputs)
        except (*RAISED, reference.NoReference) as error:
            # The record says that eager alone was there to compare with.
            self._no_exact = f"{type(error).__name__}: {error}"[:100]
            return None

    @property
    def no_exact(self) -> str:
        """Why eager alone was there to compare with; empty where there was a reference."""
        return self._no_exact

    def _inputs(self) -> list[Any]:
        return random_inputs(
            self._graph, self._seed, self._device, positive=self._positive, safe=self._safe
        )

    def _wait(self) -> None:
        """Until what was started is done: a kernel's fault shows no sooner."""
        if self._kind == "cuda":
            torch.cuda.synchronize()


class _Verdict:
    """Goes through results and inputs; asks for noisy runs where rounding may have decided."""

    def __init__(
        self, check: Check, exact: _Ran | None, hidden: frozenset[int], draws: reference.Draws
    ) -> None:
        self._check = check
        self._exact = exact
        self._hidden = hidden
        self._draws = draws
        self._noisy: list[_Ran] = []
        self._compared = 0
        self._error = self._eager_error = 0.0
        self._by_noise = 0
        self._left_out = 0

    def verification(self) -> Verification:
        mine, eager = self._check.runs()
        fault = self._outputs(mine, eager) or self._inputs(mine, eager)
        outcome, why = Outcome.PASSED, ""
        if fault is not None:
            outcome, why = Outcome.FAILED, fault
        elif self._left_out and not self._compared:
            outcome = Outcome.INCONCLUSIVE
            why = "all its results depend on random numbers that it draws by itself"
        elif self._left_out:
            why = f"{self._left_out} results depend on random numbers that it draws by itself"
        elif self._by_noise:
            why = f"{self._by_noise} results were within what rounding does to eager's"
        bound = BOUND
        if self._exact is None:
            bound += f"; there was no float64 reference: {self._check.no_exact}"
        return Verification(
            outcome,
            self._check.device,
            self._check.seed,
            self._compared,
            self._error,
            self._eager_error,
            bound,
            why,
        )

    def _outputs(self, mine: _Ran, eager: _Ran) -> str | None:
        graph = self._check.graph
        if len(mine.outputs) != len(eager.outputs):
            return f"{len(mine.outputs)} results, eager has {len(eager.outputs)}"
        for number, output in enumerate(graph.outputs):
            if isinstance(output, Ref) and output.index in self._hidden:
                self._left_out += 1
                continue
            a, b = mine.outputs[number], eager.outputs[number]
            fault = _form(a, b, graph, output)
            if fault is None and isinstance(b, torch.Tensor):
                exact = b if self._exact is None else self._exact.outputs[number]
                fault = self._values(a, b, exact, number, "outputs")
            if fault is not None:
                return f"result {number}: {fault}"
        return None

    def _inputs(self, mine: _Ran, eager: _Ran) -> str | None:
        for number, (a, b) in enumerate(zip(mine.inputs, eager.inputs, strict=True)):
            if not isinstance(b, torch.Tensor) or torch.equal(a, b):
                continue
            if self._left_out:
                continue  # it may have been overwritten with what is not compared
            exact = b if self._exact is None else self._exact.inputs[number]
            fault = self._values(a, b, exact, number, "inputs")
            if fault is not None:
                return f"input {number} afterwards: {fault}"
        return None

    def _values(
        self, mine: torch.Tensor, eager: torch.Tensor, exact: Any, number: int, where: str
    ) -> str | None:
        if not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
            exact = eager
        found: Compared = compare(mine, eager, exact)
        self._compared += eager.numel()
        if found.wrong is None:
            self._note(found)
            return None
        self._note(found)
        for count in range(1, NOISY_RUNS + 1):
            runs = [getattr(run, where)[number] for run in self._noisy_runs(count)]
            if within_noise(mine, eager, runs, exact):
                self._by_noise += 1
                return None
        return first_wrong(found.wrong, mine, eager, exact)

    def _note(self, found: Compared) -> None:
        self._error = max(self._error, found.error)
        self._eager_error = max(self._eager_error, found.eager_error)

    def _noisy_runs(self, count: int) -> list[_Ran]:
        while len(self._noisy) < count:
            self._noisy.append(self._check.noisy(len(self._noisy) + 1, self._draws))
        return self._noisy[:count]


def within_noise(
    mine: torch.Tensor, eager: torch.Tensor, runs: Sequence[torch.Tensor], exact: torch.Tensor
) -> bool:
    """Whether each value is within the spread of eager's noisy runs, or as in one of them."""
    if eager.is_complex():
        real = torch.view_as_real
        if not exact.is_complex():
            exact = eager
        return within_noise(
            real(mine.resolve_conj()),
            real(eager.resolve_conj()),
            [real(run.resolve_conj()) for run in runs],
            real(exact.resolve_conj()),
        )
    if not eager.is_floating_point():
        right = mine == exact
        for run in runs:
            right |= run != eager
        return bool((right | (mine == eager)).all())
    eps = torch.finfo(eager.dtype).eps
    a, b = mine.double(), eager.double()
    spread = torch.zeros_like(b)
    doubtful = torch.zeros_like(b, dtype=torch.bool)
    for run in runs:
        spread = torch.maximum(spread, (run.double() - b).abs().nan_to_num(0.0))
        doubtful |= run.isfinite() != eager.isfinite()
    size = b.abs().nan_to_num(0.0, 0.0, 0.0)
    bound = 4 * spread + 4 * eps * (size + size.mean())
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= bound)
    return bool((same | doubtful).all())


def _finite_part(outputs: Sequence[Any]) -> float:
    finite = total = 0
    for x in outputs:
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
            finite += int(torch.isfinite(x.float() if x.itemsize == 1 else x).sum())
            total += x.numel()
    return finite / total if total else 1.0


def _form(mine: Any, eager: Any, graph: Graph, output: Any) -> str | None:
    """What is wrong with a result, its values aside."""
    if not isinstance(eager, torch.Tensor):
        return None if mine == eager else f"{mine!r:.40} is not {eager!r:.40}"
    if not isinstance(mine, torch.Tensor):
        return f"{type(mine).__name__} is no tensor"
    if mine.dtype != eager.dtype or mine.shape != eager.shape:
        return f"{mine.dtype}{list(mine.shape)} is not {eager.dtype}{list(eager.shape)}"
    kind = graph.nodes[output.index].type if isinstance(output, Ref) else None
    if eager.numel() < 2 or not isinstance(kind, TensorType):
        return None
    sizes = typical_sizes(graph.symbols)
    promised = [ex.evaluate(step, sizes) for step in kind.stride]
    wrong = [
        dim
        for dim, size in enumerate(mine.shape)
        if size > 1 and mine.stride(dim) not in (promised[dim], eager.stride(dim))
    ]
    return f"strides {mine.stride()} are not {tuple(promised)}" if wrong else None
