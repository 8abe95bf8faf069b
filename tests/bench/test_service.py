"""The benchmark of the service in its smallest form, over real servers."""

import json
import shutil

import pytest

from bench import service


def test_every_case_is_measured(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert service.main(["--quick", "--connections", "2", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert set(result["cases"]) == set(service.SIZES)
    sides = {"memory", "disk"} | ({"redis"} if shutil.which("redis-server") else set())
    for row in result["cases"].values():
        assert set(row) == sides
        assert all(each["requests"] > 0 for each in row.values())
    assert "a CPU-second" in capsys.readouterr().out


def test_an_answer_that_is_no_hit_is_an_error(tmp_path):
    _, blobs = service._fill(tmp_path)
    with service._service(tmp_path, 1 << 20) as (pid, port):
        case = service._http_case("entry 1 KB", ["graph/" + "f" * 64], blobs)
        with pytest.raises(ValueError, match="404"):
            service._load(pid, port, case, 0.1, 1)
