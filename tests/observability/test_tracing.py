"""One start in several processes is one connected trace; nobody pays who does not ask for it."""

import json
import os
import subprocess
import sys

import pytest

from cache.errors import ConfigError
from cache.open_tracing import open_tracing
from cache.tracing import OFF, headers_of
from farm.job import JobId
from farm.pool import Task, TaskFailed
from farm.retry import ErrorKind
from farm.stamp import split, stamped
from farm.tracing import FarmTracing
from fusec.demo.farm_process import importable
from fusec.parts import finish
from fusec.trace import Lap, Recorder
from tests.observability.load import SPAN, trace_of, unconnected


def spans(path):
    """The exported spans: (service, name, its span, its parent), all times in order."""
    made = [json.loads(line) for line in path.read_text().splitlines()]
    for each in made:
        assert each["start_time"] <= each["end_time"]
    return made


def service(span):
    return span["resource"]["attributes"]["service.name"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the load: processes that import torch
@pytest.mark.xdist_group("observed")
def test_a_start_is_one_connected_trace_at_a_collector(load):
    """A slow start is followed through client, service, gateway and worker by its trace alone."""
    assert load.collector.refused == []
    assert unconnected(load.collector) == []
    cold, warm = (load.collector.spans(trace_of(number)) for number in range(2))
    assert len(cold) + len(warm) == len(load.collector.spans()), "nobody else is followed"
    for spans in (cold, warm):
        (start,) = (each for each in spans if each.name == "start")
        assert start.parent_id == SPAN
        assert [each.name for each in spans if each.failed] == []
        assert all(each.start_ns <= each.end_ns for each in spans)

    def names(spans, who):
        return {each.name for each in spans if each.service == who}

    assert names(cold, "fusec-client") >= {
        "graph", "key", "lookup", "trace", "submit", "load", "fetch", "POST", "GET"
    }  # fmt: skip
    assert names(cold, "fusec-cache") >= {
        "entry_lookup", "compile_submit", "compile_poll", "read graph"
    }  # fmt: skip
    assert names(cold, "fusec-farm") >= {
        "submit", "poll", "queue", "job", "plan", "attempt", "lookup", "build", "assemble",
        "publish",
    }  # fmt: skip
    assert names(cold, "fusec-worker") >= {
        "task plan", "task build", "lower", "schedule", "codegen"
    }  # fmt: skip
    # From a kernel's build in a worker up to the start that wanted it.
    by_id = {each.span_id: each for each in cold}
    (build, *_) = (each for each in cold if each.name == "task build")
    way = [build]
    while way[-1].parent_id in by_id:
        way.append(by_id[way[-1].parent_id])
    services = list(dict.fromkeys(each.service for each in way))
    assert services == ["fusec-worker", "fusec-farm", "fusec-cache", "fusec-client"]
    assert way[-1].name == "start"
    assert build.attributes["worker"]

    assert names(warm, "fusec-client") >= {"graph", "key", "lookup", "load"}
    assert {each.service for each in warm} == {"fusec-client", "fusec-cache"}


def test_off_makes_nothing_and_loads_nothing():
    code = (
        "import sys, fusec.api, cache.service, farm.open_farm\n"
        "from fusec.trace import Recorder\n"
        "with Recorder().span('key'): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=importable({k: v for k, v in os.environ.items() if not k.startswith("FUSEC_")}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert open_tracing("", "x") is OFF
    assert headers_of(OFF) == {}


@pytest.mark.parametrize("setting", ["jaeger", "file:relative", "otlp:x", "file:/no/such/folder/x"])
def test_a_setting_that_makes_no_sense_is_refused(setting):
    with pytest.raises(ConfigError, match="tracing"):
        open_tracing(setting, "x")


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", "00-" + "z" * 32 + "-2-01"])
def test_a_request_without_a_usable_traceparent_does_no_harm(tmp_path, header):
    tracing = open_tracing(f"file:{tmp_path}/x", "service")
    with tracing.serving("route", header):
        pass
    tracing.close()
    assert spans(tmp_path / "x") == []


def test_stages_and_spans_are_one_instrumentation(tmp_path):
    tracing = open_tracing(f"file:{tmp_path}/x", "client", root="start")
    laps: list[Lap] = []
    recorder = Recorder(tracing=tracing, laps=laps)
    with recorder.span("trace"), recorder.span("key"):
        pass
    tracing.close()
    start, key, trace = spans(tmp_path / "x")
    assert (start["name"], key["name"], trace["name"]) == ("start", "key", "trace")
    assert key["parent_id"] == trace["context"]["span_id"]
    assert trace["parent_id"] == start["context"]["span_id"]
    assert set(recorder.stages) == {lap.stage for lap in laps} == {"key", "trace"}


def test_what_a_worker_did_comes_back_with_its_result(tmp_path):
    tracing = FarmTracing(f"file:{tmp_path}/x")
    job, task = JobId("", "f" * 64), Task("build", b"in", "kernel")

    def exclaim(task):
        yield from ()
        return task.payload + b"!"

    def attempt():
        with tracing.attempt(task) as sent:
            return tracing.opened(sent, finish(stamped(exclaim, sent)))

    with tracing.gateway.serving("submit", f"00-{trace_of(0)}-{SPAN}-01"):
        tracing.submitted(job)
    with tracing.job(job):
        assert attempt() == b"in!"
        with pytest.raises(TaskFailed), tracing.attempt(task):
            raise TaskFailed(ErrorKind.OUT_OF_MEMORY, "what the user wrote")
    with tracing.job(job):  # nobody follows it any more
        assert attempt() == b"in!"
    tracing.close()
    made = spans(tmp_path / "x")
    assert sorted((service(each), each["name"]) for each in made) == [
        ("fusec-farm", "attempt"),
        ("fusec-farm", "attempt"),
        ("fusec-farm", "job"),
        ("fusec-farm", "queue"),
        ("fusec-farm", "submit"),
        ("fusec-worker", "task build"),
    ]
    well, ill = (each for each in made if each["name"] == "attempt")
    (worked,) = (each for each in made if each["name"] == "task build")
    assert worked["parent_id"] == well["context"]["span_id"]
    assert (well["status"]["status_code"], ill["status"]["status_code"]) == ("UNSET", "ERROR")
    assert ill["status"]["description"] == "out_of_memory"
    assert "user" not in (tmp_path / "x").read_text(), "what failed is told, not what it held"


def test_a_result_without_the_stamp_that_was_asked_for_is_a_failure():
    with pytest.raises(TaskFailed, match="stamp"):
        split(b"in!")
