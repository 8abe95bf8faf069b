"""Random numbers in Triton text: four of a Philox block at a time where places lie side by side.

A block gives four numbers for the price of one. Where the places of a tile's row are consecutive
and start at a multiple of four, the blocks are computed and their numbers laid side by side; else
each place computes its block and takes its number.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.codegen.triton_tile import Dim, Tile
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.loop import Index, Op, Scalar

NAME = "philox_uniform"


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tile's places as whole blocks: ``first`` (in blocks) and those along ``dim`` from there."""

    dim: Dim
    first: Expr


def place_of(node: Scalar) -> Expr | None:
    """The place of a random number that is a function of positions alone."""
    if isinstance(node, Op) and node.name == NAME and isinstance(node.args[1], Index):
        return node.args[1].expr
    return None


def whole_blocks(place: Expr, tile: Tile) -> Blocks | None:
    """The places of a tile as whole blocks; None where they are not."""
    if not tile.dims or tile.dims[-1].block < 4:
        return None
    dim = tile.dims[-1]
    rest = tile.as_linear(place) - dim.linear
    const, terms = ex.linear_terms(rest)
    if any(s is dim.linear or s in dim.axes for s in ex.symbols(rest)):
        return None
    if const % 4 or any(coefficient % 4 for _, coefficient in terms):
        return None
    return Blocks(dim, ex.floordiv(rest, 4))
