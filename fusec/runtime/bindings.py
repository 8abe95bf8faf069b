"""What a program's steps and inputs tell beforehand: where sizes come from, when slots are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.program import Launch, Program


def _number_at(position: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position])


def _size_at(position: int, dim: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position].shape[dim])


def _stride_at(position: int, dim: int) -> Callable[[list[Any]], int]:
    return lambda inputs: int(inputs[position].stride(dim))


def bindings(program: Program) -> list[tuple[str, Callable[[list[Any]], int]]]:
    """For each symbol how to read it from the inputs. Raises LoadError where none has it."""
    found: dict[str, Callable[[list[Any]], int]] = {}
    for position, item in enumerate(program.inputs):
        if isinstance(item, ex.Sym):
            found.setdefault(item.name, _number_at(position))
        elif isinstance(item, int):
            slot = program.slots[item]
            for dim, (size, step) in enumerate(zip(slot.shape, slot.stride, strict=True)):
                if isinstance(size, ex.Sym):
                    found.setdefault(size.name, _size_at(position, dim))
                if isinstance(step, ex.Sym):
                    found.setdefault(step.name, _stride_at(position, dim))
    missing = [s.name for s in program.symbols if s.name not in found]
    if missing:
        raise LoadError(f"no input tells the size {missing[0]}")
    return [(s.name, found[s.name]) for s in program.symbols]


def fresh_before(program: Program) -> list[list[int]]:
    """For each step the fresh slots that it is the first to use."""
    seen: set[int] = set()
    fresh: list[list[int]] = []
    for step in program.steps:
        used = step.slots if isinstance(step, Launch) else step.outputs
        first = [
            u for u in used if u is not None and program.slots[u].kind == "fresh" and u not in seen
        ]
        seen.update(first)
        fresh.append(first)
    return fresh
