"""The recorder: exclusive spans, threads, differences."""

import threading
import time

from fusec.trace import Recorder, Snapshot


def test_nested_spans_share_out_the_time():
    recorder = Recorder()
    start = time.perf_counter()
    with recorder.span("trace"):
        time.sleep(0.02)
        with recorder.span("build"):
            time.sleep(0.05)
        with recorder.span("trace"):
            time.sleep(0.01)
    wall = time.perf_counter() - start
    assert recorder.stages["build"] >= 0.05
    assert recorder.stages["trace"] >= 0.03
    assert sum(recorder.stages.values()) <= wall
    assert sum(recorder.stages.values()) > 0.9 * wall


def test_a_span_counts_when_its_block_raises():
    recorder = Recorder()
    try:
        with recorder.span("load"):
            raise KeyError
    except KeyError:
        pass
    assert "load" in recorder.stages
    with recorder.span("key"):
        pass
    assert set(recorder.stages) == {"load", "key"}


def test_threads_do_not_nest_into_each_other():
    recorder = Recorder()

    def work() -> None:
        for _ in range(200):
            with recorder.span("build"):
                recorder.count("kernel_compiles")

    threads = [threading.Thread(target=work) for _ in range(4)]
    with recorder.span("submit"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.counters == {"kernel_compiles": 800}
    assert recorder.stages["submit"] > 0


def test_snapshots_subtract_and_add():
    recorder = Recorder()
    recorder.count("graph_hits")
    before = recorder.snapshot()
    recorder.count("graph_hits", 2)
    recorder.count("lowerings", 0)
    change = recorder.snapshot().minus(before)
    assert change.counters == {"graph_hits": 2}
    assert recorder.counters["lowerings"] == 0
    other = Recorder()
    other.add(Snapshot({"load": 1.5}, {"graph_hits": 1}))
    other.add(change)
    assert other.counters == {"graph_hits": 3}
    assert other.stages == {"load": 1.5}
