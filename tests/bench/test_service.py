"""The benchmark of the service in its smallest form, over real servers."""

import json
import shutil

import pytest

from bench import load, service


def test_every_case_is_measured(tmp_path, capsys):
    path = tmp_path / "out.json"
    arguments = ["--quick", "--memory", "--connections", "2", "--json", str(path)]
    assert service.main([*arguments, "--sides", *service.SIDES]) == 0
    result = json.loads(path.read_text())
    sides = {"memory", "disk"} | ({"redis"} if shutil.which("redis-server") else set())
    assert {name: set(row) for name, row in result["cases"].items()} == {
        **dict.fromkeys(service.SIZES, sides),
        "mixed": {service.CHURN},
    }
    for row in result["cases"].values():
        for each in row.values():
            assert each["requests"] > 0
            assert len(each["samples"]) == 10
            assert all(sample["resident"] > 1 << 20 for sample in each["samples"])
    lines = capsys.readouterr().out.splitlines()
    # Each case is told as it goes on, and at its end: a run that is interrupted has said so much.
    cases = [["in memory;" in line for line in lines[1:]][at : at + 11] for at in range(0, 77, 11)]
    assert cases[0] == [True] * 10 + [False]
    assert all(case == cases[0] for case in cases if case)


def test_an_answer_that_is_no_hit_is_an_error(tmp_path):
    _, blobs = service._fill(tmp_path)
    with service._service(tmp_path, 1 << 20, 1.0) as (pid, port):
        case = service._http_case("entry 1 KB", ["graph/" + "f" * 64], blobs)
        with pytest.raises(ValueError, match="404"):
            load.run(pid, port, case, 0.1, 1)
