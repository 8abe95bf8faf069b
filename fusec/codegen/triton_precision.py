"""Which values of a kernel have to be as good as their types.

What ends in half precision alone may come from the GPU's fast functions: they are off by a few last
places of f32, thousands of times less than the rounding. A comparison, a conversion to whole
numbers or a stored f32 shows the last place, so what leads there is computed as eager does.
"""

from __future__ import annotations

from typing import Final

from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import Load, Op, Reduced, Scalar

_SHOWING: Final = frozenset(
    "lt le gt ge eq ne isnan isinf isfinite floor ceil trunc rint rem fmod divt divf sign "
    "sin cos tan".split()
)


def precise_values(loop: KernelLoop) -> frozenset[Scalar]:
    """The values that need full precision, found from the stores back to the loads."""
    found: set[Scalar] = set()
    waiting: set[int] = set()  # reductions whose results need it
    todo: list[Scalar] = []
    for s in loop.statements:
        if s.fold is None and not _half(loop.buffers[s.buffer].dtype):
            todo.append(s.value)
        if s.fold in ("argmax", "argmin"):
            todo.append(s.value)
        todo.extend(n for n in lp.walk(s.scalars) if _shows(n))
        todo.extend(v for _, v in s.indirect)
    while todo:
        node = todo.pop()
        if node in found:
            continue
        found.add(node)
        todo.extend(lp.children(node))
        if isinstance(node, Reduced) and node.buffer not in waiting:
            waiting.add(node.buffer)
            todo.extend(s.value for s in loop.statements if s.fold and s.buffer == node.buffer)
    return frozenset(found)


def _half(dtype: str) -> bool:
    return DTYPES[dtype].is_float and DTYPES[dtype].size <= 2


def _shows(node: Scalar) -> bool:
    """Whether an operation makes small differences of its operands large."""
    if isinstance(node, Load):
        return bool(node.indirect)
    if not isinstance(node, Op):
        return False
    whole = node.name == "cast" and not DTYPES[node.dtype].is_float
    return node.name in _SHOWING or whole
