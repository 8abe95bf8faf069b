"""Dissolve producers into their consumers.

Before: every operation fills a buffer. After: an elementwise computation whose value costs nothing
to repeat, or that is used at one place only, is written out at its use and its buffer is gone.

    b1[i] = exp(b0[i]);  b2[i] = b1[i] + 1     →     b2[i] = exp(b0[i]) + 1
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.dtypes import DTYPES
from fusec.ir.loop import (
    BufferView,
    Compute,
    Const,
    Index,
    Load,
    LoopProgram,
    Op,
    Scalar,
    external_reads,
)
from fusec.ir.written_out import written_out

_LIGHT: Final = frozenset(
    "add sub mul neg abs min max lt le gt ge eq ne and or xor not where within round_bf16 "
    "round_f16".split()
)
_SMALL: Final = 4096  # elements
MAX_BODY: Final = 192  # operations in one value; more would spill and be slow to compile


@dataclass(slots=True)
class _Uses:
    """Where a buffer is read: ``sites`` counts distinct loads over all computations; ``indirect``:
    one of them at an index that is itself loaded."""

    sites: int = 0
    consumers: list[int] = field(default_factory=list)
    external: bool = False
    indirect: bool = False


def dissolve(program: LoopProgram) -> LoopProgram:
    """See the module docstring. The result computes the same outputs."""
    uses = _count_uses(program)
    overwriters = _overwriters(program)
    values: dict[int, Compute] = {}
    picked: dict[int, Compute] = {}  # written out only where few elements are taken
    steps: list[lp.Step] = []
    for step in program.steps:
        if not isinstance(step, Compute):
            steps.append(step)
            continue
        step = _substitute(step, values, picked)
        use = uses.get(step.output)
        if _dissolves(step, use, program, overwriters):
            values[step.output] = step
        else:
            steps.append(step)
            if _pickable(step, use, program, overwriters):
                picked[step.output] = step
    return _sweep(replace(program, steps=tuple(_without_passed_checks(steps))))


def _count_uses(program: LoopProgram) -> dict[int, _Uses]:
    uses: dict[int, _Uses] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            for load in lp.loads(step.value):
                use = uses.setdefault(load.buffer, _Uses())
                use.sites += 1
                if not use.consumers or use.consumers[-1] != number:
                    use.consumers.append(number)
                use.indirect |= bool(load.indirect)
        else:
            for view in external_reads(step):
                uses.setdefault(view.buffer, _Uses()).external = True
    for output in program.outputs:
        if isinstance(output, BufferView):
            uses.setdefault(output.buffer, _Uses()).external = True
    return uses


def _dissolves(
    step: Compute, use: _Uses | None, program: LoopProgram, overwriters: dict[int, int]
) -> bool:
    if use is None or use.external or step.reduction is not None or step.scatters:
        return False
    if step.output in overwriters:
        return False  # a scatter changes it
    if use.indirect and step.value.size:
        return _picked(step, use, program, overwriters)
    if program.buffers[step.output].kind != "temp" or step.value.size > MAX_BODY // 2:
        return False
    loads = list(lp.loads(step.value))
    if not loads:
        return step.value.size <= 8
    if not use.consumers:
        return False
    last = use.consumers[-1]
    if any(overwriters.get(load.buffer, last) < last for load in loads):
        return False  # the input it reads is another by then
    consumers = [program.steps[number] for number in use.consumers]
    if any(isinstance(c, Compute) and _clobbers(step, c, program) for c in consumers):
        return False
    if _is_copy(step.value) and (use.sites == 1 or _same_layout(step, loads[0])):
        return True
    if _is_light(step.value) and (
        (len(loads) == 1 and _is_small(step))
        or _bytes_read(step, loads, program) <= _size(step, program)
    ):
        return True
    (consumer, *others) = consumers
    if use.sites != 1 or others or not isinstance(consumer, Compute):
        return False
    return not _amplified(step, consumer)


def _picked(step: Compute, use: _Uses, program: LoopProgram, overwriters: dict[int, int]) -> bool:
    """Whether all that is ever read are a few elements, at places known at run time."""
    if use.sites != 1 or not _pickable(step, use, program, overwriters):
        return False
    (reader,) = (program.steps[number] for number in use.consumers)
    return isinstance(reader, Compute) and _takes_few(reader, step)


def _pickable(
    step: Compute, use: _Uses | None, program: LoopProgram, overwriters: dict[int, int]
) -> bool:
    """Whether single elements can be computed where they are taken, at places known at run time:
    a cross entropy takes one of the thousands of probabilities of a row, and the whole need not be
    stored for its sake."""
    if use is None or use.external or program.buffers[step.output].kind != "temp":
        return False
    if step.reduction is not None or step.scatters or step.value.size > MAX_BODY // 2:
        return False
    if step.output in overwriters:
        return False
    for node in lp.walk((step.value,)):
        if isinstance(node, Index) or (isinstance(node, Load) and node.indirect):
            return False  # a place known at run time is no index expression
        if isinstance(node, Load) and node.buffer in overwriters:
            return False
    return True


def _takes_few(reader: Compute, producer: Compute) -> bool:
    return _points(reader) * 4 <= _points(producer)


def _points(step: Compute) -> int:
    order = step.axes if step.reduction is None else step.reduction.order
    return ex.as_int(ex.product(a.upper for a in order if a.upper is not None)) or 0


def _overwriters(program: LoopProgram) -> dict[int, int]:
    """Input, or temp that a scatter changes → the first step that overwrites it."""
    found: dict[int, int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute) and program.buffers[step.output].kind == "alias":
            found.setdefault(program.buffers[step.output].base, number)
    return found


def _clobbers(step: Compute, consumer: Compute, program: LoopProgram) -> bool:
    """Whether the consumer overwrites an input that the producer reads at another place."""
    target = program.buffers[consumer.output]
    if target.kind != "alias":
        return False
    reads = [load for load in lp.loads(step.value) if load.buffer == target.base]
    if not reads:
        return False
    use = next(load for load in lp.loads(consumer.value) if load.buffer == step.output)
    straight = use.index == consumer.axes and all(load.index == step.axes for load in reads)
    return consumer.scatters or not straight


def _is_light(value: Scalar) -> bool:
    """At most two cheap operations on one load: repeating them costs less than memory does."""
    operations = [n for n in lp.walk((value,)) if isinstance(n, Op) and n.name != "cast"]
    return len(operations) <= 2 and all(o.name in _LIGHT for o in operations)


def _is_small(step: Compute) -> bool:
    """Whether the cache holds what is read: a value for each channel."""
    size = ex.as_int(ex.product(a.upper for a in step.axes if a.upper is not None))
    return size is not None and size <= _SMALL


def _bytes_read(step: Compute, loads: list[Load], program: LoopProgram) -> int:
    """Bytes that a point takes from memory; what many points share, as all of a channel do, comes
    from the cache."""
    axes = {a for a in step.axes if a.upper is not ex.ONE}
    return sum(
        DTYPES[program.buffers[load.buffer].dtype].size
        for load in loads
        if load.indirect or axes.issubset(s for e in load.index for s in ex.symbols(e))
    )


def _size(step: Compute, program: LoopProgram) -> int:
    """Bytes of one element of the result."""
    return DTYPES[program.buffers[step.output].dtype].size


def _is_copy(value: Scalar) -> bool:
    """A load, perhaps converted."""
    while isinstance(value, Op) and value.name == "cast":
        value = value.args[0]
    return isinstance(value, Load) and not value.indirect


def _same_layout(step: Compute, load: Load) -> bool:
    return load.index == step.axes and load.guard is None


def _amplified(step: Compute, consumer: Compute) -> bool:
    """Whether the consumer visits more points than the producer has elements."""
    order = consumer.axes if consumer.reduction is None else consumer.reduction.order
    many = ex.product(a.upper for a in order if a.upper is not None)
    few = ex.product(a.upper for a in step.axes if a.upper is not None)
    a, b = ex.as_int(many), ex.as_int(few)
    if a is not None and b is not None:
        return a > b
    return many is not few


def _substitute(step: Compute, values: dict[int, Compute], picked: dict[int, Compute]) -> Compute:
    """The step with loads of dissolved buffers replaced by what they held, and so loads of picked
    buffers at places known at run time."""
    if not any(load.buffer in values or load.buffer in picked for load in lp.loads(step.value)):
        return step
    memo: dict[Scalar, Scalar] = {}
    origin = set(step.origin)
    changed = False

    def leaf(node: Scalar) -> Scalar | None:
        nonlocal changed
        if not isinstance(node, Load):
            return None
        producer = values.get(node.buffer)
        if producer is None and node.indirect and node.buffer in picked:
            producer = picked[node.buffer] if _takes_few(step, picked[node.buffer]) else None
        if producer is None:
            return None
        changed = True
        origin.update(producer.origin)
        bound = tuple((symbol, memo[value]) for symbol, value in node.indirect)
        return written_out(node, producer.axes, producer.value, bound)

    value = lp.rewrite(step.value, leaf, memo)
    if not changed:
        return step
    # Written out, a value may take single elements of what it read straight before.
    return _substitute(replace(step, value=value, origin=tuple(sorted(origin))), values, picked)


def _without_passed_checks(steps: list[lp.Step]) -> list[lp.Step]:
    """Drop assertions that are known to hold: ranges of indices computed from positions."""
    true: set[int] = set()
    kept: list[lp.Step] = []
    for step in steps:
        if isinstance(step, Compute):
            always = isinstance(step.value, Const) and step.value.value is True
            if always and (step.reduction is None or step.reduction.op == "and"):
                true.add(step.output)
        elif step.reason == "check" and all(v.buffer in true for v in external_reads(step)):
            continue
        kept.append(step)
    return kept


def _sweep(program: LoopProgram) -> LoopProgram:
    """Drop computations that nothing reads."""
    live: set[int] = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    kept: list[lp.Step] = []
    for step in reversed(program.steps):
        if isinstance(step, Compute):
            effect = lp.overwrites_input(program.buffers, step.output)
            if step.output not in live and not effect:
                continue
            live.update(load.buffer for load in lp.loads(step.value))
        else:
            live.update(view.buffer for view in external_reads(step))
        kept.append(step)
    return replace(program, steps=tuple(reversed(kept)))
