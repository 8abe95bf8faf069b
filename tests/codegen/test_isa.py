"""Targets are what a device can run, never which of several it is."""

import pytest
import torch

from fusec.codegen.isa import gpu_target, host_target, target_of


def test_no_ordinal_is_the_cpu():
    assert target_of(None) == host_target()
    assert host_target().device == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_its_capability():
    major, minor = torch.cuda.get_device_capability(0)
    assert target_of(0) == gpu_target(0)
    assert gpu_target(0).isa == f"sm_{major}{minor}" or torch.version.hip
