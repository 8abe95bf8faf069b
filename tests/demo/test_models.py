"""The model families: shapes, determinism, and a float64 reference that is float64 throughout."""

import pytest
import torch

from fusec.demo.float64 import Float64
from fusec.demo.models import FAMILIES, build

SMALL = {"layers": 2, "hidden": 64, "batch": 2, "length": 16, "vocab": 50}
SIZES = {name: dict(SMALL) for name in FAMILIES} | {"convnet": {**SMALL, "hidden": 8}}


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_are_finite_and_repeat(name):
    runs = []
    for _ in range(2):
        example = build(name, **SIZES[name])
        loss, output = example.model(*example.inputs)
        loss.backward()
        runs.append([loss, output, *(p.grad for p in example.model.parameters())])
    assert runs[0][0].shape == ()
    for one, two in zip(*runs, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, two)


def test_seeds_differ():
    assert not torch.equal(
        build("mlp", **SMALL, seed=1).inputs[0], build("mlp", **SMALL, seed=2).inputs[0]
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_rounds_to_no_lower_dtype(name):
    """Its error against itself in another order of summation is float64's, not float32's."""
    example = build(name, **SIZES[name])
    model = example.model.double()
    inputs = [x.double() if x.is_floating_point() else x for x in example.inputs]
    with Float64():
        whole, output = model(*inputs)
        assert whole.dtype == output.dtype == torch.float64
        if name != "convnet":  # batch norm ties the rows of a batch together
            halves = [model(*(x[i : i + 1] for x in inputs))[0].detach() for i in range(2)]
            assert abs(float(sum(halves) / 2 - whole.detach())) < 1e-13


def test_bfloat16_weights_and_inputs():
    example = build("mlp", **SMALL, dtype=torch.bfloat16)
    assert {p.dtype for p in example.model.parameters()} == {torch.bfloat16}
    assert example.inputs[0].dtype == torch.bfloat16
    assert example.model(*example.inputs)[0].dtype == torch.float32
