"""A few of torch's own operator samples; `python -m tests.ops.opinfo` runs them all."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator samples need expecttest")

from torch.testing._internal.common_methods_invocations import op_db

from tests.ops.cases import run

_GRADIENTS = (
    "add mul div pow where clamp sum mean var amax prod softmax log_softmax logsumexp cumsum "
    "gather index_select index_put scatter_add cat expand permute slice_scatter diagonal "
    "nn.functional.gelu nn.functional.layer_norm nn.functional.cross_entropy "
    "nn.functional.embedding nn.functional.max_pool2d nn.functional.pad nn.functional.conv2d "
    "nn.functional.batch_norm nn.functional.dropout"
).split()
_FORWARD = (
    "add floor_divide remainder sum argmax max_binary sort masked_fill roll as_strided one_hot "
    "bitwise_and cat any nn.functional.softmin clamp"
).split()
_INFOS = {(i.name, i.variant_test_name): i for i in op_db}


@pytest.mark.parametrize("name", _GRADIENTS)
def test_forward_and_gradient(name: str) -> None:
    info = next(i for key, i in _INFOS.items() if key[0] == name)
    outcome = run(info, torch.float32, gradients=True, limit=2)
    assert outcome.status == "ok", outcome.detail


@pytest.mark.parametrize("name", [n for n in _FORWARD if any(k[0] == n for k in _INFOS)])
def test_other_dtypes(name: str) -> None:
    info = next(i for key, i in _INFOS.items() if key[0] == name)
    for dtype in (torch.bfloat16, torch.int32):
        if dtype in info.supported_dtypes("cpu"):
            outcome = run(info, dtype, gradients=False, limit=2)
            assert outcome.status in ("ok", "none"), f"{dtype}: {outcome.detail}"
