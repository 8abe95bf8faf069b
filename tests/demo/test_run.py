"""The demo in small, with a real farm, service and processes: it passes, and it can fail."""

import pytest

from fusec.cli.parser import run
from fusec.demo.farm_process import farm_process
from fusec.demo.run import DemoConfig, DemoFailed, run_demo
from fusec.errors import RemoteError


@pytest.mark.slow
@pytest.mark.timeout(600)  # five processes that import torch, on whatever else runs here
def test_mlp_cold_and_warm_through_a_farm(tmp_path):
    phases: list[str] = []
    config = DemoConfig(model="mlp", store="disk", pool="memory", layers=1, keep=tmp_path)
    report = run_demo(config, lambda phase, doing: phases.append(phase))
    assert report.violations == []
    assert list(dict.fromkeys(phases)) == ["eager", "float64", "farm", "cold", "warm"]
    assert report.cold.counters["farm_compiles"] > 0
    assert report.warm.counters["front_hits"] > 0
    assert report.warm.counters["kernels"] == report.cold.counters["kernels"] > 0
    assert any((tmp_path / "store").rglob("*.zst"))


def test_a_process_that_dies_shows_its_last_words(tmp_path):
    config = DemoConfig(model="no such model", pool="memory", keep=tmp_path)
    with pytest.raises(DemoFailed, match="no such model"):
        run_demo(config, lambda phase, doing: None)


def test_a_farm_that_cannot_start_shows_its_last_words(tmp_path):
    with (
        pytest.raises(RemoteError, match="did not start"),
        farm_process(pool="memory", store="nonsense:", log=tmp_path / "log"),
    ):
        pass


def test_the_command_refuses_an_unknown_model(capsys):
    with pytest.raises(SystemExit):
        run(["demo", "--model", "resnet"])
    assert "invalid choice" in capsys.readouterr().err
