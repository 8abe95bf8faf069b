"""`attend` and its operators against torch's attention and float64, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusec.attention import exact
from fusec.attention.allowed import ALL, EFFICIENT, FLASH, MATH, enabled
from fusec.attention.attend import attend
from fusec.attention.backends import Call, prepare

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ("cpu", pytest.param("cuda", marks=GPU))


@dataclass(frozen=True)
class Case:
    """Sizes of one attention; mask: None, or which kind."""

    heads: int = 4
    groups: int = 4
    rows: int = 8
    columns: int = 8
    width: int = 16
    value: int = 16
    causal: bool = False
    mask: str | None = None
    scale: float | None = None
    batched: bool = True


CASES = {
    "causal": Case(causal=True),
    "grouped": Case(groups=2, causal=True),
    "wide": Case(rows=33, columns=70, width=64, value=64, scale=0.3),
    "odd": Case(heads=3, groups=3, rows=5, columns=7, width=12, value=20),
    "rows masked": Case(rows=5, columns=7, mask="bool"),
    "padding masked": Case(rows=9, columns=9, width=10, value=10, mask="padding"),
    "bias": Case(rows=5, columns=7, mask="bias"),
    "no batch": Case(rows=5, columns=7, batched=False, mask="heads"),
    "one": Case(1, 1, 1, 9, 8, 8),
}


def inputs(case: Case, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor | None]:
    """Query, key, value in the layout that projections give them; the mask."""
    shapes = (
        (3, case.rows, case.heads, case.width),
        (3, case.columns, case.groups, case.width),
        (3, case.columns, case.groups, case.value),
    )
    made = [torch.randn(s, device=device).to(dtype).transpose(1, 2) for s in shapes]
    if not case.batched:
        made = [x[0] for x in made]
    mask = None
    if case.mask == "bool":
        mask = torch.rand(3, 1, case.rows, case.columns, device=device) > 0.4
        mask[0, 0, 0] = False  # a row that sees nothing
    elif case.mask == "padding":
        lengths = torch.tensor([9, 4, 1], device=device)
        mask = (torch.arange(9, device=device) < lengths[:, None])[:, None, None, :]
    elif case.mask == "bias":
        mask = torch.randn(1, case.heads, case.rows, case.columns, device=device).to(dtype)
    elif case.mask == "heads":
        mask = torch.randn(case.heads, case.rows, case.columns, device=device).to(dtype)
    return [x.detach().requires_grad_() for x in made], mask


def results(fn: Any, tensors: list[Tensor], mask: Tensor | None, case: Case) -> list[Tensor]:
    """Result and gradients; of the mask too where it is of numbers."""
    gqa = case.groups != case.heads
    wanted = list(tensors)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.detach().requires_grad_()
        wanted.append(mask)
    out = fn(*tensors, mask, 0.0, case.causal, scale=case.scale, enable_gqa=gqa)
    grad = torch.sin(torch.arange(out.numel(), device=out.device, dtype=torch.float64))
    return [out, *torch.autograd.grad(out, wanted, grad.view(out.shape).to(out.dtype))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_as_torch_does(name: str, dtype: torch.dtype, device: str) -> None:
    case = CASES[name]
    torch.manual_seed(len(name))
    tensors, mask = inputs(case, dtype, device)
    ours = results(attend, tensors, mask, case)
    eager = results(F.scaled_dot_product_attention, tensors, mask, case)
    exact64 = results(
        F.scaled_dot_product_attention,
        [x.detach().double().requires_grad_() for x in tensors],
        mask if mask is None or mask.dtype == torch.bool else mask.double(),
        case,
    )
    for mine, theirs, truth in zip(ours, eager, exact64, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        error = (mine.double() - truth).abs().max().item()
        of_eager = (theirs.double() - truth).abs().max().item()
        size = max(1.0, truth.abs().max().item())
        # Gradients are differences of larger products. In float64 eager is taken for exact.
        units = {torch.float64: 64, torch.float32: 16}.get(dtype, 8)
        assert error <= max(2 * of_eager, units * torch.finfo(dtype).eps * size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["causal", "grouped", "odd", "rows masked", "bias"])
def test_without_gradients_the_same_comes_out(name: str, device: str) -> None:
    case = CASES[name]
    tensors, mask = inputs(case, torch.float32, device)
    gqa = case.groups != case.heads
    with torch.no_grad():
        out = attend(*tensors, mask, 0.0, case.causal, enable_gqa=gqa)
    assert not out.requires_grad
    trained = attend(*tensors, mask, 0.0, case.causal, enable_gqa=gqa)
    torch.testing.assert_close(out, trained, rtol=1e-6, atol=1e-6)
    # The next projection reads (B, S, H·V): no copy is needed for it.
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["causal", "grouped", "odd", "bias"])
def test_schemas_and_shapes_tell_the_truth(name: str, device: str) -> None:
    case = CASES[name]
    tensors, mask = inputs(case, torch.float32, device)
    with torch.no_grad():
        q, k, v = (x.detach() for x in tensors)
        mask = None if mask is None else mask.expand(3, case.heads, case.rows, case.columns)
        how = (case.causal, None, case.groups != case.heads, ALL)
        ops = torch.ops.fusec
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(ops.attention.default, (q, k, v, mask, *how), test_utils=checks)
        args = (q, k, v, mask, *how, False)
        torch.library.opcheck(ops.attention_training.default, args, test_utils=checks)
        out, lse = ops.attention_training(*args)
        args = (torch.randn_like(out), q, k, v, mask, out, lse, None, 0.0, *how, mask is not None)
        torch.library.opcheck(ops.attention_backward.default, args, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_backward_drops_what_the_forward_dropped(device: str, dtype: torch.dtype) -> None:
    """With values that are unit vectors the result is the dropped weights themselves."""
    n, p = 64, 0.25
    q, k = (torch.randn(2, 3, n, 64, device=device, dtype=dtype) for _ in range(2))
    v = torch.eye(n, device=device, dtype=dtype).expand(2, 3, n, n).clone().requires_grad_()
    out = attend(q, k, v, None, p)
    kept = (out != 0).double()
    share = kept.mean().item()
    assert abs(share - (1 - p)) < 0.03
    whole = attend(q, k, v, None, 0.0)
    torch.testing.assert_close(out.double(), whole.double() * kept / (1 - p), rtol=2e-2, atol=1e-3)
    (grad,) = torch.autograd.grad(
        out, v, torch.eye(n, device=device, dtype=dtype).expand(out.shape)
    )
    torch.testing.assert_close(grad.double(), out.double().transpose(-2, -1), rtol=2e-2, atol=1e-3)
    again = attend(q, k, v, None, p)
    assert (again != out).any()


def test_the_exact_form_drops_the_same_at_every_call() -> None:
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    rng = torch.tensor([5, 7])
    first, _ = exact.forward(q, k, v, None, 0.5, False, None, rng)
    second, _ = exact.forward(q, k, v, None, 0.5, False, None, rng)
    other, _ = exact.forward(q, k, v, None, 0.5, False, None, rng + 1)
    assert first.equal(second)
    assert not first.equal(other)


@pytest.mark.parametrize("enabled_", [True, False])
def test_autocast_casts_as_torch_does(enabled_: bool) -> None:
    tensors, mask = inputs(CASES["bias"], torch.float32, "cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled_):
        ours = attend(*tensors, mask)
        theirs = F.scaled_dot_product_attention(*tensors, mask)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def backend(case: Case, dtype: torch.dtype, p: float = 0.0, backends: int = ALL) -> int:
    tensors, mask = inputs(case, dtype, "cuda")
    q, k, v = (x.detach() for x in tensors)
    if mask is not None:
        mask = torch.zeros_like(mask, dtype=dtype).expand(*q.shape[:3], k.shape[2])
    gqa = case.groups != case.heads
    call = Call(q, k, v, mask, p, case.causal, None, gqa, backends, True, False)
    return prepare(call)[1]


@GPU
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_training_reaches_a_fused_kernel(name: str, p: float) -> None:
    if not CASES[name].batched:
        pytest.skip("`attend` makes it a batch")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert backend(CASES[name], dtype, p) != MATH


@GPU
def test_the_user_chooses() -> None:
    assert backend(CASES["causal"], torch.bfloat16, backends=1 << FLASH) == FLASH
    assert backend(CASES["causal"], torch.bfloat16, backends=1 << EFFICIENT) == EFFICIENT
    assert backend(CASES["causal"], torch.bfloat16, backends=1 << MATH) == MATH


def test_what_the_user_allows_is_put_in_the_graph() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert enabled() == 1 << FLASH
    assert enabled() == ALL
