"""The hazards that touch memory, once more with the real compiler in place of the interpreter."""

from __future__ import annotations

import pytest
import torch

from fusec.codegen.isa import host_target
from fusec.pipeline import compile_local
from fusec.runtime.loader import load
from tests.capture import twin
from tests.capture.test_gradient_hazards import (  # collected here a second time
    test_inputs_that_are_not_used,
    test_outputs_without_gradients_and_of_integers,
    test_retained_graph,
)
from tests.capture.test_memory_hazards import (  # collected here a second time
    pytestmark,
    test_batch_norm_training,
    test_cache_written_under_no_grad,
    test_channels_last_model,
    test_gradients_of_other_layouts,
    test_input_changed_in_place,
    test_inputs_that_share_memory_and_change,
    test_output_that_is_a_view_of_an_input,
    test_outputs_that_share_memory,
    test_views_as_inputs,
)
from tests.capture.test_state_hazards import (  # collected here a second time
    test_dropout_draws_anew_and_as_eager_does,
    test_dynamic_shapes,
)

__all__ = [
    "pytestmark",
    "test_batch_norm_training",
    "test_cache_written_under_no_grad",
    "test_channels_last_model",
    "test_dropout_draws_anew_and_as_eager_does",
    "test_dynamic_shapes",
    "test_gradients_of_other_layouts",
    "test_input_changed_in_place",
    "test_inputs_that_are_not_used",
    "test_inputs_that_share_memory_and_change",
    "test_output_that_is_a_view_of_an_input",
    "test_outputs_that_share_memory",
    "test_outputs_without_gradients_and_of_integers",
    "test_retained_graph",
    "test_views_as_inputs",
]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins made in these tests compile and load for this machine."""
    monkeypatch.setattr(twin, "eager_compile", compile_local)
    monkeypatch.setattr(twin, "eager_load", load)
    monkeypatch.setattr(twin, "TARGET", host_target())


@pytest.mark.parametrize("inside", [False, True])
def test_lazy_negation(inside: bool) -> None:
    """The imaginary part of a conjugate lies in memory with the other sign."""
    x = torch.randn(8, dtype=torch.complex64)

    def fn(a: torch.Tensor) -> torch.Tensor:
        return (a.conj().imag if inside else a) * 2 + 1

    value = x if inside else x.conj().imag
    compiled = torch.compile(fn, backend=twin.Twin())
    assert torch.equal(compiled(value), fn(value))
