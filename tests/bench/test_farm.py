"""The benchmark of the farm in its smallest form, over a real farm."""

import json

import pytest

from bench import farm


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_side_makes_the_same_artifacts(tmp_path, capsys):
    path = tmp_path / "out.json"
    arguments = ["--model", "mlp", "--layers", "1", "--workers", "1", "--repeats", "1"]
    assert farm.main([*arguments, "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    here, there = (result["runs"][name][0] for name in ("here", "farm, 1 workers"))
    assert here["artifacts"] == there["artifacts"]
    assert 0 < there["fetch_s"] + there["wait_s"] <= there["wall_s"] * 2
    assert there["alone_s"] > 0
    assert "speed-up" in capsys.readouterr().out


def test_speed_up_is_over_the_fewest_workers():
    runs = {
        "here": {"workers": 0, "wall_s": 4.0},
        "farm, 1 workers": {"workers": 1, "wall_s": 8.0},
        "farm, 2 workers": {"workers": 2, "wall_s": 5.0},
    }
    assert farm.speed_up(runs) == {"here": 2.0, "farm, 1 workers": 1.0, "farm, 2 workers": 1.6}
    assert farm.speed_up({"here": runs["here"]}) == {}
