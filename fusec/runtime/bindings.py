"""What a program tells beforehand: where sizes come from, when slots are made and done with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fusec.errors import LoadError
from fusec.ir import expr as ex
from fusec.ir.loop import BufferView, extern_views
from fusec.ir.program import Launch, Program, ProgramStep
from fusec.ir.verify_program import slot_bytes
from fusec.runtime.frame import memory_of


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


def done_after(program: Program) -> list[tuple[int, ...]]:
    """For each step the slots whose tensors nobody needs after it: what the program frees, and
    inputs that are read no more. The caller gave those away; a backward's are most of its memory.
    """
    returned = {memory_of(program, o.buffer) for o in program.outputs if isinstance(o, BufferView)}
    seen = set(returned)
    done: list[tuple[int, ...]] = []
    for step in reversed(program.steps):
        named = {memory_of(program, s) for s in _named(step)}
        last = [s for s in named - seen if program.slots[s].kind == "input"]
        seen |= named
        done.append((*step.free, *sorted(last)))
    return done[::-1]


def _named(step: ProgramStep) -> list[int]:
    if isinstance(step, Launch):
        return list(step.slots)
    arguments = (*step.args, *(value for _, value in step.kwargs))
    used = [view.buffer for arg in arguments for view in extern_views(arg)]
    return used + [o for o in step.outputs if o is not None]


_MUCH: Final = 1 << 20  # bytes that are worth another call of the native runner


def runs_of(
    program: Program, steps: range, fresh: Sequence[list[int]], done: Sequence[tuple[int, ...]]
) -> list[range]:
    """Steps, all of them launches, in runs that are started together; fresh: of `fresh_before`;
    done: of `done_after`.

    A run ends where much memory is free for a slot that the next launch is the first to use.
    """
    runs: list[range] = []
    start, free = steps.start, 0
    for number in steps:
        if free >= _MUCH and fresh[number]:
            runs.append(range(start, number))
            start, free = number, 0
        for slot in done[number]:
            size = slot_bytes(program.slots[slot])
            free += _MUCH if size is None else size
    return [*runs, range(start, steps.stop)]
