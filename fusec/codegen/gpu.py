"""GPU targets: Triton text in the variants that are worth trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.host import Emitted
from fusec.codegen.triton_frame import shared_pointers
from fusec.codegen.triton_kernel import emit_text
from fusec.codegen.triton_names import kernel_name
from fusec.codegen.triton_ops import POINTERS
from fusec.codegen.triton_order import order_axes
from fusec.codegen.triton_places import places_below
from fusec.codegen.triton_simplify import simplify
from fusec.codegen.triton_tile import Tile, upper
from fusec.codegen.triton_variants import tiles
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, expressions

# Of the largest GPU of each architecture; where there are fewer, some programs wait for others.
_PROCESSORS: Final = {
    "sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148, "gfx90a": 104,
    "gfx942": 304,
}  # fmt: skip
_TYPICAL: Final = 128
_SIZE: Final = "i64"  # of a size known only at the call: nothing bounds it


def gpu_emitter(
    isa: str, choose: Callable[[KernelLoop], list[Tile]] = tiles
) -> Callable[[KernelLoop], Emitted]:
    """The code generator for one GPU architecture (``sm_90``, ``gfx942``); ``choose`` gives the
    tiles of a kernel's variants."""

    def emit(loop: KernelLoop) -> Emitted:
        ordered = order_axes(simplify(loop))
        sizes = _sizes(ordered)
        found = choose(ordered)
        kind = "poi" if not ordered.folded else "red" if found[0].looped else "per"
        name = kernel_name(ordered, kind)
        numbered: dict[Expr, Expr] = {s: ex.symbol(f"n{i}") for i, s in enumerate(sizes)}
        pointers = shared_pointers(ordered)
        buffers = tuple(dict.fromkeys(pointers.values()))
        below = dict.fromkeys(buffers, 0)
        for buffer, bound in zip(ordered.buffers, places_below(ordered), strict=True):
            known = below[pointers[buffer]]
            below[pointers[buffer]] = min(known, bound) if known and bound else known or bound
        signature = (
            *(POINTERS[ordered.buffers[b].dtype] for b in buffers),
            *(_SIZE for _ in sizes),
        )
        variants = tuple(_variant(ordered, tile, isa, name, sizes, numbered) for tile in found)
        kernel = GpuSource(name, isa, signature, variants, tuple(below.values()))
        return Emitted(kernel, buffers, sizes)

    return emit


def _variant(
    loop: KernelLoop,
    tile: Tile,
    isa: str,
    name: str,
    sizes: tuple[Sym, ...],
    numbered: dict[Expr, Expr],
) -> Variant:
    return Variant(
        emit_text(loop, tile, isa, name, sizes),
        tuple((d.constant, d.block) for d in tile.dims),
        tile.warps,
        tile.stages,
        (ex.substitute(_programs(tile, isa), numbered),),
    )


def _programs(tile: Tile, isa: str) -> Expr:
    if not tile.walkers:
        return tile.programs
    return ex.minimum(tile.programs, ex.integer(tile.walkers * _PROCESSORS.get(isa, _TYPICAL)))


def _sizes(loop: KernelLoop) -> tuple[Sym, ...]:
    """The sizes known only at the call that the kernel depends on."""
    bound = {symbol for s in loop.statements for symbol, _ in s.indirect}
    for node in lp.walk(v for s in loop.statements for v in s.scalars):
        if isinstance(node, lp.Load):
            bound.update(symbol for symbol, _ in node.indirect)
    found: dict[Sym, None] = {}
    for e in (*(upper(a) for a in loop.axes), *expressions(loop)):
        for s in ex.symbols(e):
            if s.upper is None and s not in bound:
                found[s] = None
    return tuple(found)
