"""The command line itself: help that teaches, errors without tracebacks, stats of both stores."""

import json
import os
import subprocess
import sys

import pytest

from cache.artifacts import publish
from cache.config import ServiceConfig
from cache.digest import digest
from cache.embedded import serve_in_thread
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.protocol import pack
from fusec import __version__
from fusec.artifact.quality import Outcome, Quality, Tier, Verification, with_quality
from fusec.cli import serve
from fusec.cli.parser import parser, run
from fusec.cli.service import parse_metrics, total
from fusec.cli.stats import summary

COMMANDS = [
    "demo", "serve", "doctor", "stats", "farm", "explain", "prewarm", "keys", "cache", "gc",
    "why-miss",
]  # fmt: skip


def test_without_a_command_it_teaches(capsys):
    assert run([]) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command, capsys):
    with pytest.raises(SystemExit) as ended:
        run([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"fusec {command}" in text


def test_top_help_names_every_command(capsys):
    assert all(command in parser().format_help() for command in COMMANDS)


def test_the_command_starts_without_torch():
    code = "import sys; from fusec.__main__ import main\ntry: main(['--version'])\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"fusec {__version__}"


def test_errors_are_messages(monkeypatch, capsys):
    monkeypatch.setenv("FUSEC_POLICY", "nonsense")
    assert run(["doctor"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fusec: policy 'nonsense' is unknown")
    assert "hint:" in error


def _publish(store, kind="kernel", data=b"binary"):
    key = f"{kind}/{digest(data)}"
    manifest = Manifest(kind, (("binary", digest(data), len(data)),), b"")
    publish(store, key, manifest, {"binary": data})


def test_stats_of_a_local_store(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("FUSEC_REMOTE", raising=False)
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["local"]["entries"] == 0
    assert not (tmp_path / "cache").exists()
    _publish(LocalStore(tmp_path / "cache"))
    assert run(["stats", "--json"]) == 0
    local = json.loads(capsys.readouterr().out)["local"]
    assert (local["entries"], local["blobs"]) == (1, 1)
    assert run(["stats"]) == 0
    assert "entries" in capsys.readouterr().out


def test_stats_tells_which_graphs_were_tuned_and_verified(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("FUSEC_REMOTE", raising=False)
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["stats", "--graphs"]) == 0
    assert "no graph is kept" in capsys.readouterr().out
    store = LocalStore(tmp_path / "cache")
    passed = Verification(
        Outcome.PASSED, "gpu:sm_90:nvidia-h200", compared=6400, error=2e-7, eager_error=1e-7
    )
    skipped = Verification(Outcome.SKIPPED, why="no worker has a GPU of sm_90")
    for name, quality in (
        ("a", Quality(Tier.TUNED, "gpu:sm_90:nvidia-h200", 3, verification=passed)),
        ("b", Quality(Tier.UNTUNED, untuned=3, verification=skipped)),
        ("c", Quality(Tier.SINGLE)),
        ("e", Quality(Tier.TUNED, "gpu:sm_90:nvidia-h200", 3, unfinished=True)),
    ):
        blobs = {"program": name.encode()}
        manifest = with_quality(Manifest.of("graph", blobs, pack({})), quality)
        publish(store, f"graph/{name * 64}", manifest, blobs)
    store.put_entry(f"graph/{'d' * 64}", b"damaged")
    _publish(store)
    for item in store.list_entries():
        (path,) = (tmp_path / "cache").rglob(
            item.name.removeprefix("graph/").removeprefix("kernel/")
        )
        os.utime(path, (1e9, 1e9))
    assert run(["stats", "--graphs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "tuned, passed on gpu:sm_90:nvidia-h200: error 2.0e-07, eager's 1.0e-07, 6400 values",
        "untuned, skipped: no worker has a GPU of sm_90",
        "single, not verified: compiled here",
        "unreadable (fusec cache verify says more)",
        "tuned (a better one follows), not verified: compiled here",
    ]
    assert run(["stats", "--graphs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[f"graph/{'a' * 64}"]["verification"]["compared"] == 6400
    assert listed[f"graph/{'d' * 64}"] is None
    assert run(["stats", "--json"]) == 0
    local = json.loads(capsys.readouterr().out)["local"]
    assert local["graphs"] == {"tuned": 2, "untuned": 1, "single": 1}
    assert local["verification"] == {"passed": 1, "skipped": 1}
    assert {item.at for item in store.list_entries()} == {1e9}, "to look at it is no use"


def test_stats_of_a_service(monkeypatch, tmp_path, capsys):
    from cache.client import CacheClient

    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    with serve_in_thread(ServiceConfig(port=0)) as service:
        monkeypatch.setenv("FUSEC_REMOTE", service.url)
        with CacheClient(service.url) as client:
            _publish(client)
            assert client.get_entry(f"kernel/{digest(b'binary')}") is not None
            assert client.get_entry(f"kernel/{digest(b'other')}") is None
        assert run(["stats", "--json"]) == 0
    remote = json.loads(capsys.readouterr().out)["remote"]
    assert sum(remote["hits"].values()) >= 1
    assert sum(remote["misses"].values()) >= 1
    assert 0 < remote["hit_rate"] < 1


def test_stats_of_a_dead_service(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FUSEC_REMOTE", "http://127.0.0.1:1")
    assert run(["stats"]) == 1
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_metrics_text():
    samples = parse_metrics(
        "# HELP x what\n# TYPE x counter\n"
        'fusec_cache_hits_total{kind="graph",tier="memory"} 3.0\n'
        'fusec_cache_hits_total{kind="kernel",tier="memory"} 4 1700000000\n'
        'fusec_cache_hits_total{kind="kernel",tier="store"} 1e1\n'
        "plain 7\nbroken{ x\nnot_a_number one\n\n"
    )
    assert total(samples, "fusec_cache_hits_total", "tier") == {"memory": 7.0, "store": 10.0}
    assert samples["plain", ()] == 7.0
    assert summary({})["hit_rate"] is None


@pytest.mark.parametrize(
    ("text", "url"),
    [("s3://b/p", "s3://b/p"), ("memory:", "memory:"), ("/x/y", "file:///x/y")],
)
def test_store_addresses(text, url):
    assert serve.store_url(text) == url
