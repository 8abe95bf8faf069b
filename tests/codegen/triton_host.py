"""Run a GPU's whole program as the host's plan says, in Triton's interpreter: launches in batches,
over memory as it is planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import GpuSource, Variant
from fusec.codegen.host import Batching, EmitOnce, HostPlan, build_host_plan
from fusec.codegen.triton_batch import batch, most_launches
from fusec.ir import expr as ex
from fusec.ir.loop import BufferView
from fusec.ir.program import Launch, Slot
from fusec.parts import finish
from fusec.runtime.operators import TORCH_DTYPES
from fusec.schedule.groups import Schedule

Start = Callable[[GpuSource, Variant, Sequence[torch.Tensor], Sequence[int]], None]


def host_plan(grouped: Schedule) -> HostPlan:
    """The plan for a GPU that batches."""
    batching = Batching(most_launches, batch)
    return finish(build_host_plan(grouped, EmitOnce(gpu_emitter("sm_90")), "cuda", 256, batching))


def run_host(
    plan: HostPlan, start: Start, inputs: Sequence[torch.Tensor], sizes: dict[str, int], pick: int
) -> list[torch.Tensor]:
    """The outputs of a program of launches; ``start`` does one. Overwrites inputs."""
    program = plan.program
    arena = torch.full((program.arena_bytes,), 0xFF, dtype=torch.uint8)  # NaN in any float type
    memory: list[torch.Tensor | None] = [None] * len(program.slots)
    for number, slot in enumerate(program.slots):
        if slot.kind == "input":
            memory[number] = inputs[slot.number]
        elif slot.kind in ("arena", "fresh"):
            memory[number] = _place(slot, arena, sizes)

    def tensor(number: int) -> torch.Tensor:
        slot = program.slots[number]
        found = memory[slot.number if slot.kind == "alias" else number]
        assert found is not None, f"slot {number} has no memory"
        return found

    for step in program.steps:
        assert isinstance(step, Launch), "an external call"
        kernel = plan.kernels[step.kernel]
        assert isinstance(kernel, GpuSource)
        assert GpuSource.from_bytes(kernel.to_bytes()) == kernel
        variant = kernel.variants[pick % len(kernel.variants)]
        numbers = [ex.evaluate(e, sizes) for e in step.sizes]
        start(kernel, variant, [tensor(s) for s in step.slots], numbers)
        for freed in step.free:
            tensor(freed).fill_(77)
            memory[freed] = None
    outputs = [o for o in program.outputs if isinstance(o, BufferView)]
    return [tensor(o.buffer).as_strided(*_strided(o, sizes)) for o in outputs]


def _strided(view: BufferView, sizes: dict[str, int]) -> tuple[list[int], list[int], int]:
    shape, stride = ([ex.evaluate(e, sizes) for e in part] for part in (view.shape, view.stride))
    return shape, stride, ex.evaluate(view.offset, sizes)


def _place(slot: Slot, arena: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    shape, stride = ([ex.evaluate(e, sizes) for e in part] for part in (slot.shape, slot.stride))
    count = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
    dtype = TORCH_DTYPES[slot.dtype]
    if slot.kind == "arena":
        bytes_ = arena[slot.number : slot.number + count * dtype.itemsize]
        return bytes_.view(dtype).as_strided(shape, stride)
    fresh = torch.full((count * dtype.itemsize,), 0xFF, dtype=torch.uint8)
    return fresh.view(dtype).as_strided(shape, stride)
