"""The benches that look at starts, keys, depth and calls, each in its smallest form."""

import json
import os
import subprocess
import sys

import pytest

from bench import cold_warm, cpu, depth, keys, launch, process


@pytest.mark.slow
def test_cold_and_warm(tmp_path, capsys):
    path = tmp_path / "out.json"
    arguments = ["--model", "mlp", "--layers", "1", "--sides", "fusec", "--farm", "none"]
    assert cold_warm.main([*arguments, "--repeats", "1", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    cold, warm = (result["samples"][f"fusec {phase}"][0] for phase in ("cold", "warm"))
    assert cold["counters"]["local_compiles"] > 0
    assert cold_warm.compiled_anything(warm["counters"]) == ""
    assert warm["counters"]["front_hits"] > 0
    assert 0 < warm["first_forward_s"] < warm["first_step_s"] < warm["start_to_step_s"]
    assert "backend's own part of a warm start" in capsys.readouterr().out


def test_work_of_a_warm_process_is_named():
    counters = {"lowerings": 2, "kernel_compiles": 0, "front_hits": 1}
    assert cold_warm.compiled_anything(counters) == "lowerings 2"
    figures = {
        "fusec warm": dict.fromkeys(cold_warm.RATIOS, 1.0),
        "inductor warm": dict.fromkeys(cold_warm.RATIOS, 4.0),
    }
    assert set(cold_warm.ratios(figures).values()) == {0.25}


@pytest.mark.slow
def test_keys(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert keys.main(["--layers", "1", "--processes", "2", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["distinct"] == {"front": 1, "graph": 1, "kernel": 1}
    found = result["samples"][0]["keys"]
    assert len(found["front"]) == 1
    assert [key.split()[0] for key in found["graph"]] == ["forward", "backward"]
    assert "UNSTABLE" not in capsys.readouterr().out


def test_unstable_keys_are_named():
    def sample(graph: str) -> dict[str, object]:
        return {"entries": [[["graph", graph * 64], ["options", "0" * 64]]]}

    assert keys.differing([sample("a"), sample("a")]) == []
    assert keys.differing([sample("a"), sample("b")]) == ["graph"]
    assert keys.unstable({"front": 2, "graph": 1, "kernel": 1}) == ["front"]


@pytest.mark.slow
def test_depth(tmp_path):
    path = tmp_path / "out.json"
    assert depth.main(["--model", "mlp", "--layers", "2,3", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    two, three = result["depths"]["2"], result["depths"]["3"]
    assert three["kernels"] > two["kernels"] > 0
    assert three["distinct_kernels"] == two["distinct_kernels"] > 0
    assert 0 < two["zstd_bytes"] < two["bytes"]
    assert result["growth"]["kernels a layer"] == three["kernels"] - two["kernels"]


@pytest.mark.slow
def test_launch(tmp_path):
    path = tmp_path / "out.json"
    arguments = ["--inputs", "2", "--sides", "eager,fusec", "--seconds", "0.01"]
    assert launch.main([*arguments, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    assert [case["training"] for case in cases] == [False, True]
    assert all(case["fusec_against"]["eager"]["median"] > 0 for case in cases)
    assert all(case["eager_runs"] == 0 for case in cases)


def test_a_child_that_fails_shows_its_last_words(tmp_path):
    with pytest.raises(process.ChildFailedError, match="arguments are required: --name"):
        process.run("bench.keys_process", ["--model", "mlp"], folder=tmp_path)


def test_a_child_gets_no_setting_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_REMOTE", "http://127.0.0.1:9")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    env = process.environment(tmp_path, {"FUSEC_CACHE_DIR": "here"})
    assert env["HOME"] == str(tmp_path)
    assert env["FUSEC_CACHE_DIR"] == "here"
    assert not {"FUSEC_REMOTE", "TORCHINDUCTOR_CACHE_DIR"} & set(env)


def test_a_child_ends_with_its_parent():
    code = "import time; from bench import process; process.die_with_parent(); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=process.ROOT, env=os.environ
    )
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 1


@pytest.mark.parametrize("bench", [cpu, cold_warm, depth, keys, launch], ids=lambda b: b.__name__)
def test_help_teaches(bench, capsys):
    with pytest.raises(SystemExit) as end:
        bench.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"python -m {bench.__name__}" in out
    assert "examples:" in out
