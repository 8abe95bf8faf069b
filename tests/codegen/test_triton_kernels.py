"""Every form of Triton kernel, run in Triton's interpreter beside eager and float64."""

from __future__ import annotations

from pathlib import Path

from tests.codegen.kernels import KERNELS
from tests.codegen.triton_cases import Case, run_cases
from tests.codegen.triton_corpus import LOOPED

_SIZES: tuple[dict[str, int], ...] = ({"s0": 37, "s1": 1000}, {"s0": 2, "s1": 5})


def test_every_form_is_right(tmp_path: Path) -> None:
    cases = [
        Case(name, text, (0, 1, 2), sizes=sizes)
        for name, text in KERNELS.items()
        for sizes in (_SIZES if "symbol" in text else ({},))
    ]
    found = run_cases(cases, tmp_path)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_rows_that_a_program_walks_along_are_right(tmp_path: Path) -> None:
    cases = [Case(name, text, (0, 1), block=64) for name, text in LOOPED.items()]
    found = run_cases(cases, tmp_path)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
