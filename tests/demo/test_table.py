"""The report: the parts of a start add up, and the verdict is plain."""

import io
import json

import pytest
import torch
from rich.console import Console

from fusec.demo.check import Errors
from fusec.demo.results import Result, Times
from fusec.demo.table import Report, as_json, render, split, start_cost


@pytest.fixture
def report():
    stages = {"key": 0.5, "trace": 1.0, "submit": 4.0, "fetch": 0.25, "load": 0.25}
    tensors = {"loss 1": torch.tensor(1.0)}
    eager = Result(Times([1.0, 0.5, 0.5], [0.25, 0.25]), {}, {}, tensors)
    cold = Result(Times([8.0, 0.5, 0.5], [1.75, 0.25]), stages, {"kernels": 12}, tensors)
    warm = Result(Times([2.0, 0.5, 0.5], [0.75, 0.25]), {"load": 0.5}, {"kernels": 12}, tensors)
    errors = [Errors("loss 1", 1e-7, 2e-7, 3e-7, 4e-7)]
    return Report("mlp", eager, cold, warm, {"inductor cold": eager}, errors, [])


def test_the_parts_add_up_to_the_cost_of_the_start(report):
    assert start_cost(report.cold) == 9.0
    parts = split(report.cold)
    assert sum(parts.values()) == pytest.approx(9.0)
    # What no stage covers is Dynamo's.
    assert parts == pytest.approx({"trace": 4.5, "compile": 4.0, "fetch": 0.25, "load": 0.25})


@pytest.mark.parametrize("violations", [[], ["the warm process did work again: lowerings 2"]])
def test_the_verdict_is_printed(report, violations):
    report = Report(**{**vars(report), "violations": violations})
    out = io.StringIO()
    render(report, Console(file=out, width=120))
    text = out.getvalue()
    assert report.passed is (not violations)
    assert ("passed" in text) is (not violations)
    assert all(f"FAILED {violation}" in text for violation in violations)
    for word in ("fusec cold", "fusec warm", "inductor cold", "distinct kernels", "loss 1"):
        assert word in text


def test_numbers_for_a_program(report):
    numbers = json.loads(json.dumps(as_json(report)))
    assert numbers["passed"] is True
    assert numbers["runs"]["cold"]["counters"] == {"kernels": 12}
    assert set(numbers["runs"]) == {"eager", "cold", "warm", "inductor cold"}
