"""Results that take the memory of what their kernel is the last to read."""

from __future__ import annotations

import pytest
import torch

from fusec.ir.program import Program
from fusec.ir.program_wire import program_from_bytes
from tests.ir.programs import planned
from tests.lower.harness import compile_and_compare


def _program(body: str) -> Program:
    return program_from_bytes(planned(body).program)


def test_a_dying_buffer_gives_its_memory_to_the_result() -> None:
    program = _program("""\
%0 = input "x": f32[64, 64]
%1 = call aten.mm.default(%0, %0): f32[64, 64]
%2 = call aten.exp.default(%1): f32[64, 64]
return %2
""")
    assert program.arena_bytes == 0
    assert [s.kind for s in program.slots] == ["input", "fresh"]


@pytest.mark.parametrize(
    "reader",
    [
        (
            "%2 = call aten.permute.default(%1, [1, 0]): f32[64, 64] stride [1, 64]\n"
            "%3 = call aten.add.Tensor(%1, %2): f32[64, 64]"
        ),  # read at other points too
        (
            "%2 = call aten.exp.default(%1): f32[64, 64]\n"
            "%3 = call aten.mm.default(%2, %1): f32[64, 64]"
        ),  # read again later
        "%2 = call aten._to_copy.default(%1, dtype=dtype:f64): f64[64, 64]",  # of another size
    ],
)
def test_a_buffer_that_is_still_needed_keeps_its_memory(reader: str) -> None:
    last = reader.splitlines()[-1].split()[0]
    program = _program(f"""\
%0 = input "x": f32[64, 64]
%1 = call aten.mm.default(%0, %0): f32[64, 64]
{reader}
return {last}
""")
    assert program.arena_bytes >= 64 * 64 * 4


def test_inputs_and_results_of_calls_are_left_alone() -> None:
    program = _program("""\
%0 = input "x": f32[64, 64]
%1 = call aten.exp.default(%0): f32[64, 64]
return %1
""")
    assert [s.kind for s in program.slots] == ["input", "fresh"]


def test_what_a_scatter_makes_of_a_result_goes_where_that_result_went() -> None:
    """The triangle takes the cosine's memory, and the scatter is into the triangle."""

    def f(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cosine = torch.cos(x)
        lower = torch.tril(cosine, -1)
        row = at.flatten()[:1].long() % 1025
        return lower.index_add(0, row, lower.select(0, 0).unsqueeze(0)), torch.minimum(cosine, x)

    x = torch.randn(1025, 257, generator=torch.Generator().manual_seed(0))
    compile_and_compare(f, x, torch.full((1025, 1), 7, dtype=torch.uint8))


def test_values_in_place() -> None:
    """Normed in place, stage after stage, and in rows of odd sizes."""

    def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        z = torch.softmax(y, -1)
        return torch.nn.functional.layer_norm(z @ w, (67,)), (z * 2).sum(0)

    generator = torch.Generator().manual_seed(3)
    x = torch.randn(33, 67, generator=generator)
    w = torch.randn(67, 67, generator=generator)
    compile_and_compare(chain, x, w)
