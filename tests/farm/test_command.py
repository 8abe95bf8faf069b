"""`python -m farm`, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from farm.__main__ import main
from fusec.pipeline import compile_local
from fusec.remote.tiers import Source
from tests.farm.clients import NewClient
from tests.farm.real_jobs import real_job

ROOT = Path(__file__).parents[2]


@contextmanager
def _process(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("end", ["stdin", "SIGTERM"])
def test_embedded(client: NewClient, tmp_path: Path, end: str) -> None:
    store = f"file://{tmp_path}/store"
    command = ("-m", "farm", "embedded", "--pool", "memory", "--store", store)
    with _process(*command) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["pool"], ready["store"]) == ("memory", store)
        if end == "stdin":
            ticket = client(ready["url"], compile_local).resolver.submit(real_job(8))
            ticket.result()
            assert ticket.source is Source.FARM
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert process.stdout.read() == "", "one line and no more"


def test_serve_behind_a_cache_service(client: NewClient, tmp_path: Path) -> None:
    ports = [_free_port(), _free_port()]
    cache = (
        "-m",
        "cache",
        "serve",
        "--port",
        str(ports[0]),
        "--farm-url",
        f"http://127.0.0.1:{ports[1]}",
    )
    farm = (
        "-m",
        "farm",
        "serve",
        "--pool",
        "memory",
        "--port",
        str(ports[1]),
        "--cache-url",
        f"http://127.0.0.1:{ports[0]}",
    )
    with _process(*cache), _process(*farm) as process:
        for port in ports:
            _wait_for(f"http://127.0.0.1:{port}/readyz")
        url = f"http://127.0.0.1:{ports[0]}"
        ticket = client(url, compile_local).resolver.submit(real_job(8))
        ticket.result()
        assert ticket.source is Source.FARM
        again = client(url, compile_local).resolver.submit(real_job(8))
        again.result()
        assert again.source is Source.REMOTE_STORE
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (0, -signal.SIGTERM)


def test_wrong_settings_are_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", "--pool", "threads"]) == 2
    assert "one of ray, memory" in capsys.readouterr().err
    assert main(["serve", "--pool", "memory"]) == 2
    assert "--cache-url" in capsys.readouterr().err
    monkeypatch.setenv("FUSEC_FARM_TYPO", "1")
    assert main(["serve"]) == 2
    assert "FUSEC_FARM_TYPO" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "FUSEC_FARM_CACHE_TOKEN only" in text
    assert "--cache-token" not in text, "no secrets on a command line"


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 30.0
    while True:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, f"{url} did not come up"
        time.sleep(0.05)
