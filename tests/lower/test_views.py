"""Views, shapes, concatenation, padding, creation: against eager, values and strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.harness import check_batch, compile_and_compare
from tests.lower.samples import layouts, values

_VIEWS = {
    "view": lambda x: x.view(12, -1) + 1,
    "reshape": lambda x: x.reshape(-1, 10),
    "reshape_transposed": lambda x: x.transpose(1, 3).reshape(2, -1) + 1,
    "reshape_split": lambda x: x.transpose(1, 3).reshape(2, 3, 3, 5, 2, 3) + 1,
    "flatten": lambda x: x.transpose(0, 2).flatten(1) * 2,
    "permute": lambda x: x.permute(3, 0, 2, 1) + 1,
    "permute_alone": lambda x: x.permute(3, 0, 2, 1),
    "transpose_negative": lambda x: x.transpose(-1, -3),
    "movedim": lambda x: x.movedim(0, -1) * 2,
    "unsqueeze": lambda x: x.unsqueeze(-2) + x.unsqueeze(2),
    "squeeze": lambda x: (
        x[:1].squeeze(),
        x[:, :1].squeeze(1),
        x.squeeze(0),
        x[:1].squeeze((0, 1)),
    ),
    "expand": lambda x: (x[:1].expand(4, -1, -1, -1), x[:, :, :1].expand(-1, -1, 7, -1) + 1),
    "broadcast_to": lambda x: torch.broadcast_to(x, (3, *x.shape)) * 2,
    "slice": lambda x: (x[:, 1:4], x[..., ::2] + 1, x[:, -3:-1], x[:, 4:100] * 2, x[:, 5:2]),
    "slice_steps": lambda x: x[:, 1::3, ::2, 2:8:3] + 1,
    "select": lambda x: (x[0], x[-1] + 1, x.select(2, -2), x[:, 3, :, 4] * 2),
    "narrow": lambda x: x.narrow(1, 2, 3) + 1,
    "split": lambda x: [t + 1 for t in x.split(4, 1)],
    "split_sizes": lambda x: [t + 1 for t in x.split([1, 2, 3], 1)],
    "chunk": lambda x: [t * 2 for t in x.chunk(4, 3)],
    "tensor_split": lambda x: [t * 2 for t in x.tensor_split(4, 3)],
    "unbind": lambda x: [t + 1 for t in x.unbind(2)],
    "flip": lambda x: (x.flip(0), x.flip((1, 3)) + 1, x.flip(-1).flip(2)),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "roll": lambda x: (x.roll(2, 1), x.roll((1, -2), (0, 3)) + 1, x.roll(3)),
    "unfold": lambda x: x.unfold(3, 4, 2) + 1,
    "unfold_overlapping": lambda x: x.unfold(3, 4, 1),
    "repeat": lambda x: (x.repeat(2, 1, 1, 3), x.repeat(2, 1, 1, 1, 2), x.repeat(1, 1, 0, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "tile": lambda x: x.tile(2, 2) + 1,
    "diagonal": lambda x: (x.diagonal(0, 1, 2) + 1, x.diagonal(1, 2, 3), x.diagonal(-2, 1, 3)),
    "diag_embed": lambda x: torch.diag_embed(x[0, 0]),
    "as_strided": lambda x: x.as_strided((3, 4), (2, 1), 1) + 1,
    "tril": lambda x: (x.tril(), x.tril(-1), x.triu(2) + 1, x.triu(-3)),
    "view_dtype": lambda x: x.contiguous().view(torch.uint8) if x.dtype != torch.bool else x,
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="ij"),
    "real": lambda x: x.real,
    "cat": lambda x: (
        torch.cat((x, x), 0),
        torch.cat((x, x[:, :2], x[:, 4:]), 1) + 1,
        torch.cat((x, x[..., 1:]), -1),
    ),
    "cat_empty": lambda x: torch.cat((x.new_empty(0), x, x[:, :0]), 1),
    "cat_views": lambda x: torch.cat((x.transpose(1, 2), x.transpose(1, 2).flip(1)), 1),
    "cat_promoted": lambda x: torch.cat((x, torch.ones(2, 6, 5, 9, dtype=torch.float64)), 2),
    "cat_many": lambda x: torch.cat([x[:, i : i + 1] for i in range(6)] * 4, 1) * 2,
    "cat_computed": lambda x: torch.cat((x + 1, x * 2), 3) - 1,
    "stack": lambda x: (torch.stack((x, x + 1), 2), torch.stack([x[0]] * 3, -1)),
    "pad": lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 0, 2, 3), value=3),
        F.pad(x, (-1, 2, 1, -2)) + 1,
    ),
    "pad_sum": lambda x: F.pad(x, (2, 2), value=2).sum(-1),
    "pad_modes": lambda x: (
        F.pad(x.float(), (1, 2, 1, 1), mode="reflect"),
        F.pad(x.float(), (1, 2, 1, 1), mode="replicate"),
        F.pad(x.float(), (1, 2, 1, 1), mode="circular"),
    ),
    "slice_scatter": lambda x: (
        torch.slice_scatter(x, x[:, :2] + 1, 1, 2, 4),
        torch.slice_scatter(x, x[:, ::2], 1, 1, 6, 2),
        torch.slice_scatter(x, x[..., :3], 3, -3),
    ),
    "select_scatter": lambda x: (
        torch.select_scatter(x, x[1], 0, 0),
        torch.select_scatter(x, x[:, :, 0], 2, -1),
    ),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[0, 0], x[0, 0].diagonal() + 1),
    "set_slice": lambda x: _assign(x, (slice(None), slice(1, 3)), 5),
    "set_row": lambda x: _assign(x, (0, 2), x[1, 1]),
    "add_in_place": lambda x: x.clone().add_(1).mul_(2),
}


def _assign(x: torch.Tensor, where: tuple[object, ...], value: object) -> torch.Tensor:
    copy = x.clone()
    copy[where] = value
    return copy


@pytest.mark.parametrize(
    "layout", ["contiguous", "channels_last", "sliced", "permuted", "expanded"]
)
def test_views_of_layouts(layout: str) -> None:
    x = layouts(torch.float32)[layout]
    assert check_batch(list(_VIEWS.items()), x) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_views_of_dtypes(dtype: torch.dtype) -> None:
    x = values((2, 6, 5, 9), dtype)
    cases = [(n, f) for n, f in _VIEWS.items() if dtype is not torch.bool or n != "view_dtype"]
    assert check_batch(cases, x) == {}


def test_creation() -> None:
    cases = [
        ("zeros", lambda x: (torch.zeros(3, 4) + x[0, 0], torch.ones(2, dtype=torch.int8))),
        ("full", lambda x: (torch.full((2, 3), 1.5), torch.full((2,), 7), torch.full((), True))),
        ("new", lambda x: (x.new_zeros(3), x.new_ones(2, 2) * 2, x.new_full((2,), 3))),
        ("arange", lambda x: (torch.arange(10), torch.arange(3, 20, 4), torch.arange(9, 1, -3))),
        ("arange_float", lambda x: (torch.arange(0, 1, 0.1), torch.arange(5.0), torch.arange(3.5))),
        ("arange_dtype", lambda x: (torch.arange(5, dtype=torch.int32) * 2,
                                    torch.arange(7, dtype=torch.bfloat16))),
        ("arange_empty", lambda x: torch.arange(3, 3)),
        ("linspace", lambda x: (torch.linspace(0, 1, 7), torch.logspace(0, 2, 5))),
        ("eye", lambda x: (torch.eye(4), torch.eye(3, 5, dtype=torch.int64))),
        ("tril_indices", lambda x: torch.tril_indices(4, 5, 1)),
        ("scalar_tensor", lambda x: (torch.tensor(2.5) + x[0, 0], torch.tensor(3))),
        ("constant", lambda x: torch.tensor([1.0, 2.0, 4.0])[None] * x[:, :3]),
        ("empty_filled", lambda x: torch.empty(3, 2).fill_(2.0)),
        ("rank", lambda x: (x.new_zeros(()), torch.zeros(0, 3))),
        ("one_hot", lambda x: F.one_hot(torch.arange(4) % 3, 5)),
        ("large", lambda x: torch.arange(5) * 3_000_000_000),
    ]  # fmt: skip
    assert check_batch(cases, values((4, 5), torch.float32)) == {}


def test_outputs_are_real_views_of_inputs() -> None:
    x = values((4, 6), torch.float32)
    compiled = compile_and_compare(lambda x: (x[1:], x.t(), x.view(-1), x), x)
    y = x.clone()
    rows, turned, flat, same = compiled(y)
    y[2, 3] = 100
    assert rows[1, 3] == turned[3, 2] == flat[15] == same[2, 3] == 100


def test_inputs_are_mutated() -> None:
    def step(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[:, 1:3] = x[:, :2] * 2
        t.t().mul_(2)
        return x + y.sum()

    compile_and_compare(step, values((4, 6), torch.float32), values((4, 6), torch.float32, 1),
                        values((3, 5), torch.float32, 2))  # fmt: skip
    compile_and_compare(step, values((4, 6), torch.bfloat16), values((4, 6), torch.int64, 1),
                        values((5, 3), torch.float64, 2).t())  # fmt: skip


def test_what_is_put_into_windows_that_overlap_shows_in_each_of_them() -> None:
    """Eager writes the memory of the windows, so the neighbours change with the one written."""

    def scatter(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        windows = x.unfold(0, 3, 1)
        return (
            torch.select_scatter(windows, windows.select(0, -10) * 2, 0, -10),
            torch.slice_scatter(windows, windows[2:5] * 2, 0, 2, 5),
            torch.diagonal_scatter(windows, windows.diagonal(0, 0, 3) * 3, 0, 0, 3),
        )

    compile_and_compare(scatter, values((18, 1, 2), torch.float32))
