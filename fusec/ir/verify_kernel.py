"""The verifier of kernels: scopes of axes, stages of reductions, what is loaded and stored."""

from __future__ import annotations

from fusec.errors import VerifyError
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.expr import Expr, Sym, symbols
from fusec.ir.kernel import KernelLoop, Statement, linear
from fusec.ir.loop import Index, Load, Reduced

FOLDS = frozenset("sum prod min max or and argmax argmin".split()) | set(lp.SCANS)


def verify_kernel(loop: KernelLoop) -> None:
    """Check the invariants of `fusec.ir.kernel`. Raises VerifyError that names the statement."""
    if len({a.name for a in loop.axes}) != len(loop.axes):
        raise VerifyError("two axes of a kernel have one name")
    if not loop.folded <= set(loop.axes):
        raise VerifyError("a kernel folds an axis that it does not have")
    if loop.carried is not None and loop.carried not in loop.kept:
        raise VerifyError("a kernel carries results along an axis that it does not keep")
    if loop.carried is not None and loop.scans:
        raise VerifyError("a kernel scans rows whose columns it folds")
    ready = _results(loop)
    across = {s.buffer for s in loop.statements if s.across and s.fold is not None}
    scanned: dict[int, int] = {}  # scan → its stage, once it is behind us
    stored: set[int] = set()
    scans = {s.buffer for s in loop.statements if s.fold in lp.SCANS}
    for number, s in enumerate(loop.statements):
        where = f"statement {number} (b{s.buffer})"
        _verify_target(loop, s, stored, where)
        _verify_across(loop, s, across, where)
        scope = set(loop.axes) if s.inner else set(loop.kept)
        if s.across and s.fold is None:
            scope -= {loop.carried}
        for node in lp.walk(s.scalars):
            if isinstance(node, Load):
                _verify_load(loop, node, scope, where)
            elif isinstance(node, Index):
                _verify_scope(node.expr, scope, where)
            elif isinstance(node, Reduced):
                if node.buffer not in ready:
                    raise VerifyError(f"{where}: b{node.buffer} is no reduction of this kernel")
                if node.buffer in scans:
                    if not s.inner or scanned.get(node.buffer) != s.stage:
                        raise VerifyError(f"{where}: uses the scan b{node.buffer} elsewhere")
                elif s.stage < ready[node.buffer]:
                    raise VerifyError(f"{where}: uses b{node.buffer} before it is complete")
        if s.fold in lp.SCANS:
            scanned[s.buffer] = s.stage
    _verify_memory(loop, stored)


def _results(loop: KernelLoop) -> dict[int, int]:
    """Reduction → the first stage in which its result can be used."""
    ready: dict[int, int] = {}
    for s in loop.statements:
        if s.fold is None:
            continue
        where = f"reduction b{s.buffer}"
        if s.fold not in FOLDS or s.buffer in ready or s.buffer not in loop.results:
            raise VerifyError(f"{where}: an unknown fold {s.fold!r}, or folded twice")
        if not s.inner or not loop.folded:
            raise VerifyError(f"{where}: folds outside the folded loops")
        if loop.results[s.buffer] not in DTYPES:
            raise VerifyError(f"{where}: unknown accumulator {loop.results[s.buffer]!r}")
        ready[s.buffer] = s.stage + 1
    if set(ready) != set(loop.results):
        raise VerifyError("a kernel names results that it does not compute")
    return ready


def _verify_target(loop: KernelLoop, s: Statement, stored: set[int], where: str) -> None:
    if s.stage < 0:
        raise VerifyError(f"{where}: stage {s.stage}")
    if s.fold is not None:
        return
    if s.buffer not in loop.buffers or s.buffer in stored:
        raise VerifyError(f"{where}: stores a buffer that is not there, or twice")
    stored.add(s.buffer)
    if len(s.index) != len(loop.buffers[s.buffer].stride):
        raise VerifyError(f"{where}: {len(s.index)} indices for a buffer of another rank")
    scope = set(loop.axes) if s.inner else set(loop.kept)
    if s.scatter is not None:
        if s.scatter not in lp.SCATTERS.values() or len(loop.statements) > 1 or loop.folded:
            raise VerifyError(f"{where}: scatters beside something else")
        for e in s.index:
            _verify_scope(e, scope | {symbol for symbol, _ in s.indirect}, where)
        return
    used = {x for e in s.index for x in symbols(e)}
    carried = frozenset((loop.carried,)) if loop.carried is not None else frozenset()
    if not s.across and not carried <= used | _unit(carried):
        raise VerifyError(f"{where}: stores one element at many points of the carried loop")
    if loop.folded and s.inner and not loop.folded <= used | _unit(loop.folded):
        raise VerifyError(f"{where}: stores one element at many points of the folded loops")
    for e in s.index:
        _verify_scope(e, scope, where)


def _verify_across(loop: KernelLoop, s: Statement, across: set[int], where: str) -> None:
    """Results of columns go to stores after the rows, and nothing else does."""
    if s.across and (loop.carried is None or not s.inner):
        raise VerifyError(f"{where}: folds across rows where no axis is carried, or once a row")
    if s.across and s.fold in ("argmax", "argmin"):
        raise VerifyError(f"{where}: searches for a position across rows")
    after = s.across and s.fold is None
    used = {n.buffer for n in lp.walk((s.value,)) if isinstance(n, Reduced)}
    if (after and not used) or any((b in across) != after for b in used):
        raise VerifyError(f"{where}: mixes results of rows and of columns")
    if after and any(True for _ in lp.loads(s.value)):
        raise VerifyError(f"{where}: loads memory where results of columns are stored")
    if after and any(x is loop.carried for e in s.index for x in symbols(e)):
        raise VerifyError(f"{where}: stores results of columns once a row")


def _unit(axes: frozenset[Sym]) -> set[Sym]:
    """Axes that have at most one point."""
    return {a for a in axes if a.upper is not None and a.upper.key in (("int", 0), ("int", 1))}


def _verify_load(loop: KernelLoop, node: Load, scope: set[Sym], where: str) -> None:
    if node.buffer not in loop.buffers:
        raise VerifyError(f"{where}: loads b{node.buffer}, which is no argument")
    argument = loop.buffers[node.buffer]
    if len(node.index) != len(argument.stride):
        raise VerifyError(f"{where}: {node} has a wrong number of indices")
    if node.dtype != DTYPES[argument.dtype].compute:
        raise VerifyError(f"{where}: {node} loads {argument.dtype} as {node.dtype}")
    bound = {symbol for symbol, _ in node.indirect}
    for e in (*node.index, *((node.guard,) if node.guard is not None else ())):
        _verify_scope(e, scope | bound, where)


def _verify_scope(e: Expr, scope: set[Sym], where: str) -> None:
    """Axes must be in scope; a size (no upper bound) always is."""
    for symbol in symbols(e):
        if symbol.upper is not None and symbol not in scope:
            raise VerifyError(f"{where}: {symbol.name} is not in scope")


def _verify_memory(loop: KernelLoop, stored: set[int]) -> None:
    """What the kernel stores it never loads, but for an input overwritten point by point: by what
    stores there, and where nothing is folded by others at the same point."""
    overwritten = {loop.buffers[b].alias_of: b for b in stored if loop.buffers[b].alias_of >= 0}
    stores = {s.buffer: s for s in loop.statements if s.fold is None}
    for s in loop.statements:
        for load in lp.loads(s.value):
            if load.buffer in stored:
                raise VerifyError(f"b{load.buffer} is stored and loaded by one kernel")
            target = overwritten.get(load.buffer)
            if target is None:
                continue
            stride = loop.buffers[load.buffer].stride
            own = s.buffer == target and s.fold is None
            place = linear(stores[target].index, stride)
            plain = load.guard is None and not load.indirect
            same = own or (not loop.folded and plain)
            if not same or linear(load.index, stride) is not place:
                raise VerifyError(f"b{load.buffer} is overwritten while others load it")
