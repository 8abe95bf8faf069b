"""Names of GPU kernels: their kind and what they compute, the same for the same loop."""

from __future__ import annotations

from typing import Final

from fusec.ir import loop as lp
from fusec.ir.kernel import KernelLoop
from fusec.ir.loop import Op

_MOST: Final = 5
_MINOR: Final = frozenset(
    "cast where round_bf16 round_f16 lt le gt ge eq ne and or not xor neg".split()
)


def kernel_name(loop: KernelLoop, kind: str) -> str:
    """kind: ``poi`` (pointwise), ``per`` (a whole row at a time), ``red`` (block by block)."""
    counts: dict[str, int] = {}
    for s in loop.statements:
        if s.fold is not None:
            counts[s.fold] = counts.get(s.fold, 0) + 1
        if s.scatter is not None:
            counts[f"scatter_{s.scatter}"] = 1
        for node in lp.walk((s.value,)):
            if isinstance(node, Op) and node.name not in _MINOR:
                counts[node.name] = counts.get(node.name, 0) + 1
    names = list(counts)[:_MOST]
    return "_".join(["triton", kind, "fused", *names]) if names else f"triton_{kind}_copy"
