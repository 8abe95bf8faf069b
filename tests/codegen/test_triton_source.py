"""The Triton text of typical kernels, as golden files.

After a change that is meant: ``pytest tests/codegen/test_triton_source.py --update-golden``, then
read the difference.
"""

from __future__ import annotations

from functools import partial

import pytest

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import MAX_VARIANTS, GpuSource
from fusec.codegen.host import Emit, EmitOnce, Emitted, build_host_plan
from fusec.codegen.triton_tile import Tile
from fusec.codegen.triton_variants import tiles
from fusec.ir.kernel import KernelLoop
from fusec.parts import finish
from tests.codegen.kernels import KERNELS
from tests.codegen.triton_cases import grouped, walked
from tests.codegen.triton_corpus import LOOPED
from tests.conftest import Golden

_EMIT = gpu_emitter("sm_90")
_SHOWN = (
    "pointwise_tail pointwise_dynamic guard_pad tile_transpose rows_softmax columns_remainder "
    "argmax fold_dynamic rows_and_columns rows_of_two_axes_and_columns scan_rows overwrite"
).split()


def sources(text: str, emit: Emit = _EMIT) -> list[GpuSource]:
    made = finish(build_host_plan(grouped(text), EmitOnce(emit)))
    found = [k for k in made.kernels if isinstance(k, GpuSource)]
    assert found
    return found


@pytest.mark.parametrize("name", _SHOWN)
def test_the_text_is_as_it_was(name: str, golden: Golden) -> None:
    golden(f"triton/{name}.txt", _texts(sources(KERNELS[name])))


@pytest.mark.parametrize("name", ["log_softmax", "moments"])
def test_the_text_of_long_rows_is_as_it_was(name: str, golden: Golden) -> None:
    emit = gpu_emitter("sm_90", partial(walked, 64))
    golden(f"triton/{name}.txt", _texts(sources(LOOPED[name], emit)))


@pytest.mark.parametrize(("rows", "least"), [(8192, 8), (64, 4)])
def test_threads_with_much_to_do_access_sixteen_bytes(rows: int, least: int) -> None:
    """Of bf16; what is read a row is f32 and does not count."""
    text = (
        f'%0 = input "x": bf16[{rows}, 1024]\n'
        f'%1 = input "w": f32[1024]\n'
        f"%2 = call aten.mul.Tensor(%0, %1): f32[{rows}, 1024]\n"
        f"%3 = call aten._to_copy.default(%2, dtype=dtype:bf16): bf16[{rows}, 1024]\n"
        "return %3\n"
    )
    (source,) = sources(text)
    assert min(v.constants[0][1] // (32 * v.warps) for v in source.variants) == least


@pytest.mark.parametrize("name", KERNELS)
def test_variants_are_few_and_differ(name: str) -> None:
    for source in sources(KERNELS[name]):
        assert 1 <= len(source.variants) <= min(MAX_VARIANTS, 10)
        assert len(set(source.variants)) == len(source.variants)
        assert GpuSource.from_bytes(source.to_bytes()) == source


@pytest.mark.parametrize("name", KERNELS)
def test_variants_that_share_a_text_have_the_one_that_each_would_have_alone(name: str) -> None:
    def only(number: int, loop: KernelLoop) -> list[Tile]:
        return tiles(loop)[number : number + 1]

    def emit(loop: KernelLoop) -> Emitted:
        made = _EMIT(loop)
        for number, variant in enumerate(made.kernel.variants):
            kernel = gpu_emitter("sm_90", partial(only, number))(loop).kernel
            assert kernel.source.replace(kernel.name, made.kernel.name) == variant.source
        return made

    sources(KERNELS[name], emit)


def test_text_is_the_same_however_often_it_is_made() -> None:
    for text in KERNELS.values():
        assert [s.digest for s in sources(text)] == [s.digest for s in sources(text)]


def _texts(found: list[GpuSource]) -> str:
    """The first variant of every kernel under what it is launched with."""
    parts = []
    for source in found:
        v = source.variants[0]
        blocks = ", ".join(f"{name} = {size}" for name, size in v.constants)
        head = f"# {blocks or 'one element'}; {v.warps} warps; grid {v.programs[0]}"
        parts.append(f"{head}\n{v.source}")
    return "\n".join(parts)
