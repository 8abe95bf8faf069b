"""Classes of devices: their names, and which of them a target can be run on."""

from __future__ import annotations

import json

import pytest

from farm.__main__ import main
from farm.devices import CPU, detected, is_gpu_class, ray_resources, serves
from fusec.options import Target
from fusec.tune.device import device_class, visible_gpus


@pytest.mark.parametrize(
    ("name", "isa", "expected"),
    [
        ("NVIDIA H200", "sm_90", "gpu:sm_90:nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "gpu:sm_80:nvidia-a100-sxm4-80gb"),
        ("NVIDIA H200 MIG 1g.18gb", "sm_90", "gpu:sm_90:nvidia-h200-mig-1g.18gb"),
        ("Größe (R)", "sm_90", "gpu:sm_90:gr-e-r"),
        ("", "sm_90", "gpu:sm_90:unknown"),
        ("x" * 200, "sm_90", "gpu:sm_90:" + "x" * 64),
    ],
)
def test_names_of_classes(name: str, isa: str, expected: str) -> None:
    assert device_class(name, isa) == expected
    assert is_gpu_class(expected)


def test_what_is_no_class_of_a_gpu() -> None:
    for text in ("CPU", "GPU", "cpu", "node:127.0.0.1", "accelerator_type:H200", "gpu:sm_90"):
        assert not is_gpu_class(text)


def test_a_class_serves_the_targets_of_its_capability() -> None:
    hopper = device_class("NVIDIA H200", "sm_90")
    assert serves(hopper, Target("cuda", "sm_90"))
    assert not serves(hopper, Target("cuda", "sm_80"))
    assert not serves(hopper, Target("cpu", "x86-64-v3"))
    assert serves(CPU, Target("cpu", "x86-64-v3"))
    assert not serves(CPU, Target("cuda", "sm_90"))


def test_what_a_node_offers(capsys: pytest.CaptureFixture[str]) -> None:
    assert ray_resources(["gpu:b:x", "gpu:a:x", "gpu:b:x"]) == {"gpu:a:x": 1.0, "gpu:b:x": 2.0}
    assert main(["resources"]) == 0
    offered = json.loads(capsys.readouterr().out)
    assert sum(offered.values()) == len(visible_gpus())
    assert offered.keys() == detected().keys()
