"""Every form of GPU kernel compiles for every target on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, build_host_plan
from fusec.codegen.triton_toolchain import ISAS, compile_variants
from fusec.ir.text import parse_graph
from fusec.lower.lowering import lower
from fusec.parts import finish
from fusec.schedule.cost import GPU
from fusec.schedule.dissolve import dissolve
from fusec.schedule.search import schedule
from fusec.schedule.single import drop_single_folds
from fusec.schedule.split_folds import split_folds
from tests.codegen.kernels import KERNELS

# One of each kind: the rest differ in what Triton's front end sees, not in the target's part.
FOR_ALL = ("half", "tile_transpose", "rows_softmax", "argmax", "scan_rows")


def sources(names: Sequence[str], isa: str) -> Iterator[GpuSource]:
    for name in names:
        loops = dissolve(drop_single_folds(lower(parse_graph(KERNELS[name]))))
        grouped = schedule(split_folds(loops, GPU), machine=GPU)
        for kernel in finish(build_host_plan(grouped, EmitOnce(gpu_emitter(isa)), "cuda")).kernels:
            assert isinstance(kernel, GpuSource)
            yield kernel


def compiled(jobs: Sequence[tuple[GpuSource, int]]) -> list[GpuBinary]:
    done = dict(compile_variants(jobs, 60.0))
    faults = [str(done[i]) for i in range(len(jobs)) if not isinstance(done[i], GpuBinary)]
    assert not faults, "\n".join(faults)
    return [done[i] for i in range(len(jobs))]


def check(source: GpuSource, binary: GpuBinary) -> None:
    assert binary.name == source.name
    assert 0 < binary.registers <= (512 if source.isa.startswith("gfx") else 255)
    assert binary.spills >= 0
    assert binary.shared <= 99 << 10  # what every target has
    assert binary.scratch == 2


def test_all_forms_compile() -> None:
    found = list(sources(list(KERNELS), "sm_90"))
    for source, binary in zip(found, compiled([(s, 0) for s in found]), strict=True):
        check(source, binary)
        assert binary.spills <= 64, source.name


def test_the_kinds_compile_for_every_target() -> None:
    found = [s for isa in ISAS for s in sources(FOR_ALL, isa)]
    assert {s.name.split("_")[1] for s in found} >= {"poi", "per"}
    for source, binary in zip(found, compiled([(s, 0) for s in found]), strict=True):
        check(source, binary)


@pytest.mark.extended
@pytest.mark.parametrize("isa", ISAS)
def test_all_variants_compile_for_every_target(isa: str) -> None:
    found = list(sources(list(KERNELS), isa))
    jobs = [(s, n) for s in found for n in range(len(s.variants))]
    for (source, _), binary in zip(jobs, compiled(jobs), strict=True):
        check(source, binary)
