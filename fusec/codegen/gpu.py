"""GPU targets: Triton text in the variants that are worth trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.host import Emitted
from fusec.codegen.triton_expr import INT32
from fusec.codegen.triton_frame import shared_pointers
from fusec.codegen.triton_kernel import Text, emit_text, text_key
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


def gpu_emitter(
    isa: str, choose: Callable[[KernelLoop], list[Tile]] = tiles, narrow: int = INT32
) -> Callable[[KernelLoop], Emitted]:
    """The code generator for one GPU architecture (``sm_90``, ``gfx942``); ``choose`` gives the
    tiles of a kernel's variants; ``narrow``: what the sizes of a call lead to may be so large for
    the kernel that computes with them in 32 bits."""

    def emit(loop: KernelLoop) -> Emitted:
        ordered = order_axes(simplify(loop))
        sizes = _sizes(ordered)
        found = choose(ordered)
        kind = "poi" if not ordered.folded else "red" if found[0].looped else "per"
        name = kernel_name(ordered, kind)
        below = _places_below(ordered)
        pointers = tuple(POINTERS[ordered.buffers[b].dtype] for b in below)

        def source(name: str, made: list[tuple[Tile, Text]], size: str, when: Expr) -> GpuSource:
            numbered: dict[Expr, Expr] = {s: ex.symbol(f"n{i}") for i, s in enumerate(sizes)}
            variants = tuple(
                _variant(tile, text, ex.substitute(_programs(tile, isa) * when, numbered))
                for tile, text in made
            )
            signature = (*pointers, *(size for _ in sizes))
            return GpuSource(name, isa, signature, variants, tuple(below.values()))

        texts: dict[tuple[object, ...], Text] = {}
        for tile in found:
            key = text_key(tile)
            if key not in texts:
                texts[key] = emit_text(ordered, tile, isa, name, sizes, narrow=bool(sizes))
        made = [(tile, texts[text_key(tile)]) for tile in found]
        reached = _largest({*sizes, *(e for text in texts.values() for e in text.reached)})
        kernel = source(name, made, "i32", ex.compare("<=", reached, narrow))
        beyond = ex.compare("<", narrow, reached)
        if beyond is ex.ZERO:
            return Emitted(kernel, tuple(below), sizes)
        name = f"{name}_wide"
        one = [(found[0], emit_text(ordered, found[0], isa, name, sizes, narrow=False))]
        return Emitted(kernel, tuple(below), sizes, wide=source(name, one, "i64", beyond))

    return emit


def _largest(reached: set[Expr]) -> Expr:
    """The maximum, without what is known to be no more than another one."""
    left: list[Expr] = []
    for e in sorted(reached, key=lambda e: e.order, reverse=True):
        if not any(ex.compare("<=", e, other) is ex.ONE for other in left):
            left = [other for other in left if ex.compare("<=", other, e) is not ex.ONE]
            left.append(e)
    return ex.maximum(0, *left)


def _places_below(loop: KernelLoop) -> dict[int, int]:
    """The buffers that the kernel's pointers are to, in order, each with what is known of the
    integers in it (`GpuSource.below`)."""
    pointers = shared_pointers(loop)
    below = dict.fromkeys(pointers.values(), 0)
    for buffer, bound in zip(loop.buffers, places_below(loop), strict=True):
        known = below[pointers[buffer]]
        below[pointers[buffer]] = min(known, bound) if known and bound else known or bound
    return below


def _variant(tile: Tile, text: Text, grid: Expr) -> Variant:
    return Variant(text.text, tile.constants, tile.warps, (grid,), ranges=tile.ranges)


def _programs(tile: Tile, isa: str) -> Expr:
    if not tile.walkers:
        return tile.grid
    return ex.minimum(tile.grid, ex.integer(tile.walkers * _PROCESSORS.get(isa, _TYPICAL)))


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
