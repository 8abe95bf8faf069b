"""Many launches of one kernel as one: an optimizer's step over a hundred parameters.

Before: launches of the same kernel with the same sizes and other buffers. After: one launch of a
kernel that takes the buffers of all of them; the second dimension of its grid tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.host import Emitted
from fusec.codegen.kernel_source import KernelSource
from fusec.errors import CodegenError
from fusec.ir import expr as ex

MOST_LAUNCHES: Final = 32
_MOST_POINTERS: Final = 480  # 4 KB of arguments hold 512
_INDENT: Final = "    "


def most_launches(kernel: KernelSource | GpuSource) -> int:
    """How many launches of a kernel one can stand for."""
    if not isinstance(kernel, GpuSource):
        return 1
    if any(len(v.grid) != 1 or v.cooperative for v in kernel.variants):
        return 1
    return min(MOST_LAUNCHES, _MOST_POINTERS // max(1, _pointers(kernel)))


def batch(launches: Sequence[Emitted]) -> Emitted:
    """One launch for all. They must not depend on each other, and be of one kernel and one list of
    sizes. Raises CodegenError where they are not, or too many. ``in_place`` of the result is empty:
    what one of them may overwrite, another may read."""
    first = launches[0]
    kernel = first.kernel
    if not isinstance(kernel, GpuSource) or len(launches) > most_launches(kernel):
        raise CodegenError(f"{len(launches)} launches of {kernel.name} are not one")
    if any(other.kernel != kernel or other.sizes != first.sizes for other in launches):
        raise CodegenError(f"launches of {kernel.name} differ in more than their buffers")
    buffers = tuple(b for launch in launches for b in launch.buffers)
    count = len(launches)
    wide = None if first.wide is None else _batched(first.wide, count)
    return Emitted(_batched(kernel, count), buffers, first.sizes, (), count, wide)


def _batched(kernel: GpuSource, count: int) -> GpuSource:
    pointers = _pointers(kernel)
    name = f"{kernel.name}_times_{count}"
    signature = kernel.signature[:pointers] * count + kernel.signature[pointers:]
    variants = tuple(_variant(kernel, v, name, pointers, count) for v in kernel.variants)
    below = kernel.below * count
    return replace(kernel, name=name, signature=signature, variants=variants, below=below)


def _variant(kernel: GpuSource, v: Variant, name: str, pointers: int, count: int) -> Variant:
    head, body = v.source.split("\n", 1)
    parameters = head.removeprefix(f"def {kernel.name}(").removesuffix("):").split(", ")
    own, rest = parameters[:pointers], parameters[pointers:]
    taken = [f"{b}_{i}" for i in range(count) for b in own]
    lines = [
        f"def {name}({', '.join([*taken, *rest])}):",
        f"{_INDENT}which = tl.program_id(1)",
        *_choice(own, 0, count, 1),
    ]
    source = "\n".join(lines) + "\n" + body
    return replace(v, source=source, grid=(*v.grid, ex.integer(count)))


def _choice(names: list[str], first: int, last: int, depth: int) -> list[str]:
    """The buffers of one launch, found by halving."""
    pad = _INDENT * depth
    if last - first == 1:
        return [f"{pad}{name} = {name}_{first}" for name in names]
    middle = (first + last) // 2
    return [
        f"{pad}if which < {middle}:",
        *_choice(names, first, middle, depth + 1),
        f"{pad}else:",
        *_choice(names, middle, last, depth + 1),
    ]


def _pointers(kernel: GpuSource) -> int:
    return sum(kind.startswith("*") for kind in kernel.signature)
