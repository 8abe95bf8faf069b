"""The kernel suite in its smallest form, in real processes; and what its verdicts say."""

import json

import pytest
import torch

from bench import accuracy, cpu, step
from bench.cases import CASES, chosen


@pytest.mark.slow
def test_a_case_runs_and_is_right(tmp_path, capsys):
    path = tmp_path / "out.json"
    arguments = ["--quick", "--sides", "eager,fusec", "--only", "softmax", "--json", str(path)]
    assert cpu.main(arguments) == 0
    out = capsys.readouterr().out
    assert "softmax 4096x1024" in out
    assert "geomean against eager" in out
    result = json.loads(path.read_text())
    case = result["cases"]["softmax 4096x1024"]
    assert case["errors"]["fusec"]["right"]
    assert case["cold"]["fusec"]["first_s"] > 0
    assert case["cold"]["fusec"]["memory_bytes"] > 0
    assert case["fusec_against"]["eager"]["median"] > 0
    assert result["summary"]["counted"] == 1


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_is_made_and_judged_right(name):
    """Eager against itself, in float64: the inputs, the steps and the reference fit together."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    work = CASES[name](generator, True)
    gradients = accuracy.outputs_like(work, generator)
    eager = step.Step(work, work.function, gradients).named()
    exact = accuracy.reference(work, gradients)
    assert exact.keys() == eager.keys()
    assert all(x.dtype is torch.float64 for x in exact.values())
    verdict = accuracy.judge({"eager": eager}, exact)["eager"]
    assert verdict.right
    assert verdict.error < 1e-4


def test_a_wrong_side_is_seen():
    generator = torch.Generator().manual_seed(0)
    work = CASES["softmax 4096x1024"](generator, True)
    eager = step.Step(work, work.function, ()).named()
    exact = accuracy.reference(work, ())
    wrong = {"output 0": eager["output 0"].clone()}
    wrong["output 0"][3, 7] += 0.01
    verdicts = accuracy.judge({"eager": eager, "fusec": wrong}, exact)
    assert verdicts["eager"].right
    assert not verdicts["fusec"].right
    with pytest.raises(ValueError, match=r"output 0 is torch\.float64"):
        accuracy.judge({"eager": eager, "fusec": exact}, exact)


def _case(eager: float, inductor: float, *, right: bool = True) -> dict[str, object]:
    return {
        "fusec_against": {"eager": {"median": eager}, "inductor": {"median": inductor}},
        "errors": {"fusec": {"right": right, "tensor": "t", "error": 1.0, "allowed": 0.1}},
        "eager_runs": 0,
        "cold": {
            "fusec": {"first_s": 1.0, "once_s": 1.0},
            "inductor": {"first_s": 6.0, "once_s": 4.0},
        },
    }


def test_the_summary_counts_right_cases_against_the_better_peer():
    cases = {
        "a": _case(4.0, 2.0),
        "b": _case(0.5, 2.0),
        "wrong": _case(100.0, 100.0, right=False),
        "dead": {"failed": "it died"},
    }
    found = cpu.summary(cases)
    assert found["counted"] == 2
    assert found["geomean_against_inductor"] == pytest.approx(2.0)
    assert found["geomean_against_best"] == pytest.approx(1.0)
    assert found["below_0.95_of_best"] == {"b": 0.5}
    assert found["compile_speedup"] == pytest.approx(6.0)
    assert found["compile_speedup_with_one_off_costs"] == pytest.approx(5.0)
    assert "off by" in cpu.wrong(cases["wrong"])
    assert cpu.wrong(cases["dead"]) == "it died"
    assert "eager" in cpu.wrong({**_case(1.0, 1.0), "eager_runs": 1})


def test_choosing_cases():
    assert chosen(None) == list(CASES)
    assert chosen("norm, softmax") == [
        "softmax 4096x1024",
        "layer norm fwd+bwd 4096x768",
        "batch norm+relu fwd+bwd channels-last",
    ]
    with pytest.raises(ValueError, match="no case has 'sofmax'"):
        chosen("sofmax")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "sofmax"], "no case has"),
        (["--sides", "fusec"], "eager"),
        (["--clock", "cpu"], "--threads 1"),
    ],
)
def test_bad_arguments_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit):
        cpu.main(arguments)
    assert words in capsys.readouterr().err
