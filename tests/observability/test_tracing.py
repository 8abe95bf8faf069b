"""One start in several processes is one connected trace; nobody pays who does not ask for it."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from cache.errors import ConfigError
from cache.open_tracing import open_tracing
from cache.tracing import OFF, headers_of
from farm.job import JobId
from farm.pool import Task, TaskFailed
from farm.tracing import FarmTracing, stamped
from fusec.demo.farm_process import importable
from fusec.trace import Lap, Recorder
from tests.observability.load import PARENT


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
def test_a_cold_and_a_warm_start_are_a_connected_trace_each(load):
    served = spans(load.farm_spans)
    cold, warm = map(spans, load.client_spans)

    # The two starts say the same parent, so all is one trace, connected up to that parent.
    everything = [*cold, *warm, *served]
    assert {each["context"]["trace_id"] for each in everything} == {"0x" + "1" * 32}
    known = {each["context"]["span_id"] for each in everything} | {"0x" + "2" * 16}
    assert [each["name"] for each in everything if each["parent_id"] not in known] == []
    assert Counter(each["name"] for each in everything)["start"] == 2

    def names_below(roots):
        """(service, name) of all spans that descend from the client's `start` spans in `roots`."""
        found, todo = set(), {each["context"]["span_id"] for each in roots}
        while todo:
            children = [each for each in everything if each["parent_id"] in todo]
            found |= {(service(each), each["name"]) for each in children}
            todo = {each["context"]["span_id"] for each in children}
        return found

    below_cold = names_below([each for each in cold if each["name"] == "start"])
    assert {name for who, name in below_cold if who == "fusec-client"} >= {
        "graph", "key", "lookup", "trace", "submit", "load", "fetch", "POST", "GET"
    }  # fmt: skip
    assert {name for who, name in below_cold if who == "fusec-cache"} >= {
        "entry_lookup", "compile_submit", "compile_poll", "read graph"
    }  # fmt: skip
    assert {name for who, name in below_cold if who == "fusec-farm"} >= {
        "submit", "poll", "queue", "job", "plan", "lookup", "build", "assemble", "publish"
    }  # fmt: skip
    assert {name for who, name in below_cold if who == "fusec-worker"} >= {
        "task plan", "task build", "lower", "schedule", "codegen"
    }  # fmt: skip
    below_warm = names_below([each for each in warm if each["name"] == "start"])
    assert {"graph", "key", "lookup", "load"} <= {
        name for who, name in below_warm if who == "fusec-client"
    }
    assert {who for who, _ in below_warm} == {"fusec-client", "fusec-cache"}


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
    setting = f"file:{tmp_path}/x"
    tracing, job, task = FarmTracing(setting), JobId("", "f" * 64), Task("build", b"in", "kernel")
    result = stamped(setting, lambda each: each.payload + b"!")(task)
    with tracing.gateway.serving("submit", PARENT):
        tracing.submitted(job)
    with tracing.job(job):
        assert tracing.opened(task, result) == b"in!"
    with tracing.job(job):  # nobody follows it any more
        assert tracing.opened(task, result) == b"in!"
    with pytest.raises(TaskFailed, match="stamp"):
        tracing.opened(task, b"in!")
    tracing.close()
    made = spans(tmp_path / "x")
    assert [(service(each), each["name"]) for each in made] == [
        ("fusec-farm", "submit"),
        ("fusec-farm", "queue"),
        ("fusec-farm", "job"),
        ("fusec-worker", "task build"),
    ]
    assert FarmTracing().opened(task, b"in!") == b"in!"
