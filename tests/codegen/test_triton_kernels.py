"""Every form of Triton kernel and every operation: run in Triton's interpreter beside eager and
float64, and compiled for both vendors' GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from fusec.codegen.gpu import gpu_emitter
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.host import EmitOnce, build_host_plan
from fusec.codegen.triton_toolchain import compile_variants
from fusec.errors import CompileError
from fusec.parts import finish
from tests.codegen.kernels import KERNELS
from tests.codegen.triton_cases import Case, grouped, run_cases, walked
from tests.codegen.triton_corpus import (
    DYNAMIC,
    EMPTY,
    FEW_PLACES,
    LOOPED,
    OPERATIONS,
    OUT_OF_RANGE,
    PLACES,
    QUOTIENTS,
    SCATTERS,
)

_STEPS = ("tile_transpose", "columns_remainder", "rows_and_columns")
_SIZES: tuple[dict[str, int], ...] = ({"s0": 37, "s1": 1000}, {"s0": 2, "s1": 5})


def check(cases: Iterable[Case], folder: Path) -> None:
    found = run_cases(cases, folder)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def forms(picks: tuple[int, ...]) -> list[Case]:
    return [
        Case(name, text, picks, sizes=sizes)
        for name, text in KERNELS.items()
        for sizes in (_SIZES if "symbol" in text else ({},))
    ]


def test_every_form_is_right(tmp_path: Path) -> None:
    check(forms((0, 1)), tmp_path)


@pytest.mark.extended
def test_every_variant_is_right(tmp_path: Path) -> None:
    check(forms(tuple(range(2, 10))), tmp_path)


def test_rows_that_a_program_walks_along_are_right(tmp_path: Path) -> None:
    check([Case(name, text, (0, 1, 2), block=64) for name, text in LOOPED.items()], tmp_path)


def test_what_is_a_step_away_is_right(tmp_path: Path) -> None:
    """Blocks and stages that the text was not written for."""
    picks = (2, 3)  # the first block doubled and halved, or the stages of a loop
    cases = [Case(name, KERNELS[name], picks, near=True) for name in _STEPS]
    cases.append(Case("norm", LOOPED["norm"], picks, block=64, near=True))
    check(cases, tmp_path)


def test_sizes_that_32_bits_are_not_enough_for(tmp_path: Path) -> None:
    """As if 32 bits held a hundred: of each pair of kernels the right one runs."""
    sizes = {"s0": 5, "s1": 37}
    cases = [Case(f"{name}_{n}", text, sizes=sizes, narrow=n)
             for name, text in DYNAMIC.items() for n in (0, 100)]  # fmt: skip
    check(cases, tmp_path)


def test_quotients_of_rows_and_one_number_are_rounded_correctly(tmp_path: Path) -> None:
    once = EmitOnce(gpu_emitter("sm_90"))
    text = finish(build_host_plan(grouped(QUOTIENTS), once)).kernels[0].source
    assert text.count("divide_by(") == 2
    check([Case("quotients", QUOTIENTS, (0, 1, 2), equal=True)], tmp_path)


def test_every_operation_is_right(tmp_path: Path) -> None:
    check([Case(name, text) for name, text in OPERATIONS.items()], tmp_path)


def test_scatters_are_right(tmp_path: Path) -> None:
    check([Case(name, text, (0, 1, 2)) for name, text in SCATTERS.items()], tmp_path)


def test_additions_at_few_places_are_sums(tmp_path: Path) -> None:
    for text in FEW_PLACES.values():
        plan = finish(build_host_plan(grouped(text), EmitOnce(gpu_emitter("sm_90"))))
        assert not any("atomic" in k.source for k in plan.kernels)
    check([Case(name, text) for name, text in FEW_PLACES.items()], tmp_path)


def test_places_in_range_are_right_and_others_assert(tmp_path: Path) -> None:
    sizes = {"s0": 2}
    right = [Case(name, text, (0, 1, 2), sizes=sizes) for name, text in PLACES.items()]
    wrong = [
        Case(f"{name}_out_of_range", text, asserts=True, sizes=sizes)
        for name, text in OUT_OF_RANGE.items()
    ]
    check([*right, *wrong], tmp_path)


def test_random_numbers_are_those_of_every_target(tmp_path: Path) -> None:
    shapes = {
        "rows": (6, 100, 0),
        "from_a_block": (6, 100, 8),
        "odd": (6, 99, 0),
        "off": (6, 100, 3),
    }
    check([Case(name, "", random=arguments) for name, arguments in shapes.items()], tmp_path)


def test_axes_of_no_points_are_right(tmp_path: Path) -> None:
    check([Case(name, text) for name, text in EMPTY.items()], tmp_path)


@pytest.mark.parametrize("isa", ["sm_90", "gfx942"])
def test_every_operation_and_long_rows_compile(isa: str) -> None:
    plain = [
        (t, gpu_emitter(isa)) for t in (*OPERATIONS.values(), *SCATTERS.values(), *PLACES.values())
    ]
    long = [(text, gpu_emitter(isa, partial(walked, 64))) for text in LOOPED.values()]
    jobs = [
        (kernel, variant)
        for text, emit in (*plain, *long)
        for kernel in finish(build_host_plan(grouped(text), EmitOnce(emit))).kernels
        if isinstance(kernel, GpuSource)
        for variant in ((0, 2) if len(kernel.variants) == 3 else (0,))
    ]
    assert len(jobs) >= len(plain) + len(long)
    done = [made for _, made in compile_variants(jobs, 60.0)]
    assert [str(made) for made in done if isinstance(made, CompileError)] == []
