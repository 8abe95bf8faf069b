"""What the runtime takes from torch's private API, beside the public forms that stand in for it."""

from __future__ import annotations

import pytest
import torch

from fusec.runtime import seams


def test_this_torch_has_all_of_it() -> None:
    for made in (seams.empty_cpu, seams.empty_gpu, seams.window):
        assert type(made).__name__ == "builtin_function_or_method"
    if torch.version.cuda:
        assert type(seams.raw_stream).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize("empty", [seams.empty_cpu, seams._public_empty("cpu")])
def test_new_tensors(empty) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e5m2):
        made = empty((3, 4), (1, 5), dtype)
        assert (made.shape, made.stride(), made.dtype) == ((3, 4), (1, 5), dtype)
        assert made.device.type == "cpu"


@pytest.mark.parametrize("window", [seams.window, seams._public_window])
def test_windows(window) -> None:
    base = torch.arange(20.0)[2:].requires_grad_()
    made = window(base, (2, 3), (6, 2), 1)
    assert made.tolist() == [[3.0, 5.0, 7.0], [9.0, 11.0, 13.0]]
    assert made.storage_offset() == 3
    assert not made.requires_grad
    made[0, 0] = -1
    assert base[1] == -1


def test_holders_of_a_storage() -> None:
    tensor = torch.zeros(4, 4)
    storage = tensor.untyped_storage()
    alone = seams.holders(storage)
    view = tensor[1:]
    assert seams.holders(storage) == alone + 1
    del view
    leaf = torch.ones(4, 4, requires_grad=True)
    product = leaf * tensor.data
    assert seams.holders(storage) > alone
    del product
    assert seams.holders(storage) == alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_tensors_of_a_gpu() -> None:
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        assert seams.raw_stream(0) == seams._public_stream(0) != 0
    made = seams.empty_gpu((2, 2), (2, 1), torch.float32)
    assert made.device == torch.device("cuda", torch.cuda.current_device())
