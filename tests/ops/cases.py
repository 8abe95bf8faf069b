"""One OpInfo and one dtype, compiled by fusec and compared with eager: forward and gradients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from cache.store import Store
from fusec.errors import CaptureUnsupported, LoweringError
from tests.lower.harness import Compiled, copied, values_differ

# Not what a compiler's graph can hold or repeat: memory that nobody wrote, and process state.
SKIPPED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided "
    "nn.functional.feature_alpha_dropout torch.ops.aten._unsafe_masked_index "
    "to_sparse sparse.mm sparse.sampled_addmm "
    # CUDA only.
    "jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args "
    "jiterator_binary_return_by_ref jiterator_2inputs_2outputs".split()
)

# What torch's samples of random operators seed themselves with, which a compiled graph cannot hold.
_SEED = 42
# Images of uint8 go through float32, as torch breaks these down, and may differ by one.
_OFF_BY_ONE: Final = frozenset(("nn.functional.interpolate", "nn.functional.upsample_bilinear"))
_ALIKE: Final = 3  # samples of one graph that are run, at most
_LOOKED_AT: Final = 60  # samples an operator


@dataclass
class Outcome:
    """What came of one operation and dtype.

    status: ok, wrong, eager (fusec refuses the graph, eager runs it), error (a fault of fusec),
    none (eager or the tracer refuses every sample). fallbacks: ATen operators called without a
    rule; library: whether others were called on purpose.
    """

    status: str
    detail: str = ""
    samples: int = 0
    fallbacks: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    kernels: int = 0
    gradients: bool = False
    random: bool = False


@dataclass
class _Sample:
    leaves: list[Any]
    spec: Any
    positions: list[int]  # leaves that are tensors, passed as inputs

    def tensors(self) -> list[torch.Tensor]:
        return [self.leaves[i] for i in self.positions]

    def call(self, op: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        leaves = list(self.leaves)
        for i, tensor in zip(self.positions, tensors):
            leaves[i] = tensor
        input_, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return op(input_, *args, **kwargs)

    def graph(self) -> Hashable:
        """Equal for samples that make equal graphs: all but the tensors' values."""
        leaves = [
            (x.shape, x.stride(), x.storage_offset(), x.dtype, x.requires_grad)
            if isinstance(x, torch.Tensor)
            else (type(x).__name__, repr(x))
            for x in self.leaves
        ]
        return repr(leaves), str(self.spec)


_Alike = list[_Sample]  # samples of one graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log: samples that eager or we refuse would fill it."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def run(
    info: Any, dtype: torch.dtype, *, gradients: bool, limit: int, store: Store | None = None
) -> Outcome:
    """Compile samples of up to ``limit`` distinct graphs of an operation, in one, and compare.

    store: of kernels built before.
    """
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = _samples(info, dtype, gradients, limit)
        if not samples:
            return Outcome("none", "eager runs no sample")
        together = _compare(info, samples, gradients, store)
        if together.status in ("ok", "none") or len(samples) == 1:
            return together
        return _one_by_one(info, samples, gradients, store, together)


def _one_by_one(
    info: Any, samples: list[_Alike], gradients: bool, store: Store | None, together: Outcome
) -> Outcome:
    """Find the samples at fault; those that the graph refuses do not spoil the others."""
    worst: Outcome | None = None
    good = 0
    rank = {"ok": 0, "none": 1, "eager": 2, "error": 3, "wrong": 4}
    for number, sample in enumerate(samples):
        one = _compare(info, [sample], gradients, store)
        one.detail = f"sample {number}: {one.detail}" if one.detail else ""
        good += one.status == "ok"
        if worst is None or rank[one.status] > rank[worst.status]:
            worst = one
    assert worst is not None
    worst.samples = good
    if worst.status in ("ok", "none"):
        # Several samples of an operator that seeds itself draw from one stream in one graph.
        return worst if together.random else together
    if worst.status == "eager" and good:
        return Outcome(
            "ok", f"some samples run eager: {worst.detail}", good, worst.fallbacks, worst.library,
            worst.kernels, gradients,
        )  # fmt: skip
    return worst


def _samples(info: Any, dtype: torch.dtype, gradients: bool, limit: int) -> list[_Alike]:
    """Samples that we can judge, those of equal graphs together."""
    found: dict[Hashable, _Alike] = {}
    made = info.sample_inputs("cpu", dtype, requires_grad=gradients)
    for number, sample in enumerate(made):
        if number == max(_LOOKED_AT, 4 * limit):
            break
        leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), sample.kwargs))
        positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        made_sample = _Sample(leaves, spec, positions)
        graph = made_sample.graph()
        alike = found.get(graph, [])
        full = len(alike) == _ALIKE or (not alike and len(found) == limit)
        if not full and _usable(info, made_sample):
            found[graph] = [*alike, made_sample]
    return list(found.values())


def _usable(info: Any, sample: _Sample) -> bool:
    """Whether eager takes a sample, and a graph could hold what goes in and comes out."""
    if any(isinstance(x, torch.Generator) for x in sample.leaves):
        return False
    tensors = sample.tensors()
    if any(t.layout is not torch.strided or t.is_conj() or t.is_neg() for t in tensors):
        return False
    if not all(_owns_memory(t) for t in tensors):
        return False
    try:
        result = sample.call(info.op, copied(tensors))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return False
    outputs = [o for o in pytree.tree_leaves(result) if isinstance(o, torch.Tensor)]
    return bool(outputs) and all(o.layout is torch.strided for o in outputs)


def _owns_memory(x: torch.Tensor) -> bool:
    return x.untyped_storage().nbytes() % x.element_size() == 0


def _compare(info: Any, samples: list[_Alike], gradients: bool, store: Store | None) -> Outcome:
    """One compiled function of the first sample of each graph, called with the others too."""
    counts = [len(alike[0].positions) for alike in samples]

    def fn(*tensors: Any) -> list[list[Any]]:
        results = []
        start = 0
        for alike, count in zip(samples, counts):
            out = alike[0].call(info.op, tensors[start : start + count])
            results.append([o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor)])
            start += count
        return results

    compiled = Compiled(fn) if store is None else Compiled(fn, store=store)
    outcome = Outcome("ok", samples=sum(len(alike) for alike in samples), gradients=gradients)
    for turn in range(max(len(alike) for alike in samples)):
        inputs = [t for alike in samples for t in alike[min(turn, len(alike) - 1)].tensors()]
        slack = int(info.name in _OFF_BY_ONE)
        fault = _call_and_compare(compiled, fn, inputs, gradients, slack)
        if fault is not None:
            outcome.status, outcome.detail = fault
            break
    names = compiled.calls
    outcome.fallbacks = tuple(sorted({n for n, reason in names if reason == "fallback"}))
    outcome.library = tuple(sorted({n for n, reason in names if reason in ("library", "random")}))
    outcome.random = any(reason == "random" for _, reason in names)
    outcome.kernels = compiled.recorder.counters.get("kernels", 0)
    return outcome


def _call_and_compare(
    compiled: Compiled,
    fn: Callable[..., Any],
    inputs: list[torch.Tensor],
    gradients: bool,
    slack: int,
) -> tuple[str, str] | None:
    """(status, detail) of what is not as it should be. slack: by which results of uint8 may
    differ."""
    mine, theirs = copied(inputs), copied(inputs)
    try:
        torch.manual_seed(_SEED)
        got = compiled(*mine)
        got_grads = _gradients(got, mine) if gradients else []
    except (CaptureUnsupported, LoweringError) as error:
        return "eager", f"{type(error).__name__}: {error}"[:300]
    except Exception as error:  # noqa: BLE001 - whatever it is belongs into the table
        kind = type(error)
        if kind.__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
            return "eager", f"decided by data: {error}"[:200]
        if "fusec" not in kind.__module__ and not compiled.graphs:
            return "none", f"tracing refuses: {kind.__name__}: {error}"[:200]
        return "error", f"{kind.__name__}: {error}"[:600]
    torch.manual_seed(_SEED)
    want = fn(*theirs)
    try:
        want_grads = _gradients(want, theirs) if gradients else []
    except RuntimeError as error:  # such as eigenvectors, of which only some functions have any
        return "none", f"eager refuses the gradient: {error}"[:200]
    exact, exact_grads, exact_inputs = _exact(fn, inputs, gradients)
    fault = _difference(got, want, exact, "output", slack)
    fault = fault or _difference([got_grads], [want_grads], exact_grads, "gradient")
    fault = fault or _difference([mine], [theirs], exact_inputs, "input afterwards")
    return ("wrong", fault) if fault else None


def _gradients(outputs: list[list[Any]], inputs: Sequence[Any]) -> list[Any]:
    """Gradients of a fixed weighting of all differentiable outputs."""
    total = None
    for position, out in enumerate(pytree.tree_leaves(outputs)):
        if not out.requires_grad or not (out.is_floating_point() or out.is_complex()):
            continue
        weight = torch.linspace(0.5, 1.5, max(out.numel(), 1), dtype=torch.float64)
        weight = weight[: out.numel()].reshape(out.shape) * (1 + position % 3)
        term = (out.to(torch.complex128 if out.is_complex() else torch.float64) * weight).sum()
        term = term.real if term.is_complex() else term
        total = term if total is None else total + term
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if total is None or not wanted:
        return []
    return list(torch.autograd.grad(total, wanted, allow_unused=True))


def _exact(
    fn: Callable[..., Any], inputs: list[torch.Tensor], gradients: bool
) -> tuple[Any, Any, Any]:
    """The same in float64; None where that does not work."""
    try:
        wide = [_widened(x) for x in copied(inputs)]
        torch.manual_seed(_SEED)
        results = fn(*wide)
        return results, [_gradients(results, wide) if gradients else []], [wide]
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None, None, None


def _widened(x: torch.Tensor) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return x
    wide = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to(wide).requires_grad_(x.requires_grad)


def _difference(got: Any, want: Any, exact: Any, what: str, slack: int = 0) -> str | None:
    for number, (a_list, b_list) in enumerate(zip(got, want)):
        if len(a_list) != len(b_list):
            return f"{what}s of sample {number}: {len(a_list)} are not {len(b_list)}"
        for position, (a, b) in enumerate(zip(a_list, b_list)):
            where = f"{what} {position} of sample {number}"
            if (a is None) != (b is None):
                return f"{where}: {a if a is None else 'a tensor'} is not {b if b is None else ''}"
            if a is None:
                continue
            small = slack and a.dtype == b.dtype == torch.uint8 and a.shape == b.shape
            if small and (a.int() - b.int()).abs().le(slack).all():
                continue
            c = None
            if exact is not None and number < len(exact) and position < len(exact[number]):
                c = exact[number][position]
            fault = _tensors_differ(a, b, c)
            if fault:
                return f"{where}: {fault}"
    return None


def _tensors_differ(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> str | None:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)} is not {b.dtype}{list(b.shape)}"
    a, b = a.detach(), b.detach()
    try:
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False)
    except AssertionError:
        pass
    else:
        return None
    usable = isinstance(c, torch.Tensor) and c.shape == b.shape
    return values_differ(a, b, c.detach() if usable and c is not None else b)
