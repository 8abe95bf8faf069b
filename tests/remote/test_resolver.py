"""Policies, tickets in flight, and what the user is shown."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.memory import MemoryStore
from cache.protocol import Value
from farm.embedded import EmbeddedFarm, embedded_farm
from fusec.errors import CompileError, LoadError, OptionsError, PolicyError
from fusec.options import Options
from fusec.remote.farm import FarmClient
from fusec.remote.journal import Journal
from fusec.remote.notices import Notices
from fusec.remote.progress import LogLines, Silent, TerminalLine, detail, open_progress
from fusec.remote.protocol import JobState, JobStatus
from fusec.remote.resolve import Resolver
from fusec.remote.ticket import Means, Ticket
from fusec.remote.tiers import Source, Tiers
from fusec.trace import Recorder
from tests.farm.clients import NewClient
from tests.farm.tiny_stages import TinyStages, graph_job, operators


@pytest.fixture
def farm(stages: TinyStages) -> Iterator[EmbeddedFarm]:
    with embedded_farm(stages=stages, workers=2) as running:
        yield running


def test_off_compiles_here_and_still_takes_hits(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    client(farm.url, stages.compile_local).resolver.submit(graph_job("t.a")).result()
    here = client(farm.url, stages.compile_local, policy="off")
    hit, miss = here.resolver.submit(graph_job("t.a")), here.resolver.submit(graph_job("t.b"))
    hit.result()
    miss.result()
    assert (hit.source, miss.source) == (Source.REMOTE_STORE, Source.COMPILED_HERE)
    assert here.counters() == {"graph_hits": 1, "graph_misses": 1, "local_compiles": 1}


def test_require_raises_instead_of_compiling_here(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local, policy="require")
    ticket = here.resolver.submit(graph_job("t.a"))
    ticket.result()
    assert ticket.source is Source.FARM
    with pytest.raises(PolicyError, match=r"gcc: no") as caught:
        here.resolver.submit(graph_job("t.bad")).result()
    assert caught.value.hint
    assert stages.count("local") == 0


def test_require_without_a_remote_takes_hits_only(client: NewClient, stages: TinyStages) -> None:
    local = client(None, stages.compile_local)
    local.resolver.submit(graph_job("t.a")).result()
    here = client(None, stages.compile_local, policy="require", local=local.local)
    assert operators(here.resolver.submit(graph_job("t.a")).result()) == ["t.a"]
    with pytest.raises(PolicyError):
        here.resolver.submit(graph_job("t.b")).result()
    dead = client("http://127.0.0.1:1", stages.compile_local, policy="require")
    with pytest.raises(PolicyError):
        dead.resolver.submit(graph_job("t.b")).result()


def test_wait_ends_at_its_limit(client: NewClient, tmp_path: Path) -> None:
    stages = TinyStages(str(tmp_path), slow_s=3.0)

    class Quick(TinyStages):
        def build(self, source: bytes, target: object) -> bytes:
            return b"binary of " + source

    with embedded_farm(stages=stages, workers=1) as farm:
        here = client(farm.url, Quick(stages.log).compile_local, wait_s=0.3)
        started = time.monotonic()
        ticket = here.resolver.submit(graph_job("t.slow"))
        ticket.result()
        assert time.monotonic() - started < 2.0
    assert ticket.source is Source.COMPILED_HERE
    assert here.counters()["remote_errors"] == 1


def test_submit_returns_at_once_and_results_come_in_any_order(
    client: NewClient, tmp_path: Path
) -> None:
    stages = TinyStages(str(tmp_path))
    with embedded_farm(stages=stages, workers=2) as farm:
        here = client(farm.url, stages.compile_local)
        forward = here.resolver.submit(graph_job("t.held"))
        backward = here.resolver.submit(graph_job("t.a"))
        assert operators(backward.result()) == ["t.a"]
        assert not forward.done(), "both were in flight together"
        stages.go()
        assert operators(forward.result()) == ["t.held"]
        assert forward.done()
        assert forward.result() is forward.result()
    assert here.recorder.stages["submit"] > 0


def test_the_same_graph_in_flight_is_one_ticket(
    client: NewClient, farm: EmbeddedFarm, stages: TinyStages
) -> None:
    here = client(farm.url, stages.compile_local)
    one, two = (here.resolver.submit(graph_job("t.slow")) for _ in range(2))
    assert one is two
    one.cancel()
    assert operators(two.result()) == ["t.slow"]
    assert two.source is Source.FARM


def test_who_leaves_while_the_graph_is_on_its_way_takes_it_back(stages: TinyStages) -> None:
    job, recorder = graph_job("t.a"), Recorder()
    sent, go, withdrawn = (threading.Event() for _ in range(3))

    class Slow:
        def request(self, method: str, path: str, **_: object) -> tuple[int, Value]:
            if method == "DELETE":
                withdrawn.set()
                return 200, {}
            sent.set()
            assert go.wait(60.0)
            return 200, JobStatus(job.fingerprint.hex, JobState.QUEUED, seq=1).to_wire()

    notices = Notices(recorder)
    means = Means(
        Tiers(MemoryStore(), None, notices, recorder),
        FarmClient(Slow()),
        Options(),
        recorder,
        notices,
        Silent(),
        stages.compile_local,
        Journal(None),
    )
    ticket = Ticket(job, means, lambda _: None)
    thread = threading.Thread(target=ticket.start)
    thread.start()
    assert sent.wait(60.0)
    ticket.cancel()
    go.set()
    thread.join(60.0)
    assert withdrawn.is_set()


def test_a_failed_local_compile_is_the_callers(client: NewClient, stages: TinyStages) -> None:
    here = client(None, stages.compile_local)
    ticket = here.resolver.submit(graph_job("t.bad"))
    with pytest.raises(CompileError):
        ticket.result()
    with pytest.raises(CompileError):
        ticket.result()


def test_what_will_not_load_is_compiled_again(
    client: NewClient, stages: TinyStages, caplog: pytest.LogCaptureFixture
) -> None:
    here = client(None, stages.compile_local)
    job = graph_job("t.a")
    here.resolver.submit(job).result()
    assert operators(here.resolver.compile_again(job, LoadError("no such symbol"))) == ["t.a"]
    assert here.counters()["corrupt"] == 1
    assert stages.count("local") == 2
    assert "no such symbol" in caplog.text


def test_open(tmp_path: Path, caplog: pytest.LogCaptureFixture, stages: TinyStages) -> None:
    options = replace(Options(), cache_dir=tmp_path / "cache")
    recorder = Recorder()
    resolver = Resolver.open(options, recorder, compile_local=stages.compile_local)
    resolver.submit(graph_job("t.a")).result()
    resolver.close()
    second = Resolver.open(options, recorder, compile_local=stages.compile_local)
    assert second.lookup(graph_job("t.a").key) is not None
    assert not caplog.records

    (tmp_path / "file").write_text("in the way")
    blocked = replace(options, cache_dir=tmp_path / "file")
    third = Resolver.open(blocked, recorder, compile_local=stages.compile_local)
    third.submit(graph_job("t.a")).result()
    assert recorder.counters["store_full"] == 1
    assert "in memory only" in caplog.text


def test_open_names_what_is_wrong_with_the_settings(tmp_path: Path) -> None:
    options = replace(Options(), cache_dir=tmp_path)
    with pytest.raises(OptionsError, match="http"):
        Resolver.open(replace(options, remote="ftp://somewhere"), Recorder())
    missing = replace(options, remote="http://127.0.0.1:1", token_file=tmp_path / "none")
    with pytest.raises(OptionsError, match="token file"):
        Resolver.open(missing, Recorder())


def test_open_reads_the_token_file(tmp_path: Path, stages: TinyStages) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = ServiceConfig(port=0, tokens=(Grant("submit", hash_token("secret")),))
    with serve_in_thread(config) as cache:
        options = replace(
            Options(), cache_dir=tmp_path / "c", remote=cache.url, token_file=tmp_path / "token"
        )
        recorder = Recorder()
        resolver = Resolver.open(options, recorder, compile_local=stages.compile_local)
        assert resolver.lookup("graph/" + "0" * 64) is None
        assert "remote_errors" not in recorder.counters
        resolver.close()


def test_a_warm_client_loads_no_compiler() -> None:
    code = (
        "import sys; import fusec.remote.resolve\n"
        "bad = {'torch', 'fusec.pipeline', 'ray', 'starlette'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@contextmanager
def _terminal() -> Iterator[tuple[io.TextIOWrapper, int]]:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        yield stream, master
    os.close(master)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_gets_a_bar_once_a_wait_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status = JobStatus("a" * 64, JobState.COMPILING, 1, 5, 12, left_s=40.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with _terminal() as (stream, master):
        monkeypatch.setattr(sys, "stderr", stream)
        assert isinstance(open_progress(False), Silent)
        assert isinstance(open_progress(True), TerminalLine)
        clock = _Clock()
        progress = TerminalLine(clock)
        with progress.waiting("forward 0") as report:
            report(replace(status, kernels_done=4))
            clock.now = 3.5
            with progress.waiting("backward 0") as other:
                report(status)
                clock.now = 9.0
                other(status)  # the terminal is taken
            time.sleep(0.15)
        shown = os.read(master, 1 << 16).decode()
    assert "forward 0" in shown
    assert "kernels 5/12, about 40 s left" in shown
    assert "4/12" not in shown, "a short wait shows nothing"
    assert "backward" not in shown
    assert capfd.readouterr().out == ""


def test_a_pipe_gets_a_line_of_the_log_once_a_wait_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(open_progress(True), LogLines)
    caplog.set_level("INFO", "fusec.remote")
    clock = _Clock()
    lines = LogLines(clock)
    with lines.waiting("forward 0") as report:
        for second in range(60):
            clock.now = float(second)
            report(JobStatus("a" * 64, JobState.COMPILING, 1, second // 10, 12))
        report(JobStatus("a" * 64, JobState.DONE, 1, 12, 12))
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert told[0][1].startswith("fusec: waiting for the farm: forward 0: kernels 0/12")
    assert "kernels 3/12" in told[1][1]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (JobStatus("a" * 64, JobState.QUEUED, position=3), "queued, 3 before"),
        (JobStatus("a" * 64, JobState.QUEUED), "queued, next"),
        (
            JobStatus("a" * 64, JobState.QUEUED, position=3, left_s=200.0),
            "queued, 3 before, about 3 min left",
        ),
        (JobStatus("a" * 64, JobState.LOWERING, left_s=0.2), "lowering, about 1 s left"),
        (JobStatus("a" * 64, JobState.LOWERING, left_s=7200.0), "lowering, about 2 h left"),
        (JobStatus("a" * 64, JobState.LOWERING), "lowering"),
        (JobStatus("a" * 64, JobState.PUBLISHING, 9, 12, 12), "publishing"),
    ],
)
def test_progress_in_words(status: JobStatus, words: str) -> None:
    assert detail(status) == words
