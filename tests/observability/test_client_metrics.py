"""A training process's metrics: a text file, a push, and no trouble of either for the training."""

import http.server
import logging
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache.client import CacheClient
from cache.errors import NotReachable
from fusec.metrics import EVENTS, Exporter
from fusec.options import Options
from fusec.trace import COUNTERS, Recorder


def values(text):
    """Samples by name and labels, as they would be scraped."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def recorder():
    recorder = Recorder()
    with recorder.span("lookup"):
        recorder.count("graph_hits", 3)
    recorder.count("front_hits")
    recorder.count("fallbacks_to_eager", 2)
    recorder.count("bad_signature")
    recorder.count("kernel_compiles", 7)
    return recorder


def check(found, **rank):
    assert found[("fusec_client_graphs_total", *rank.items(), ("source", "stored"))] == 3
    assert found[("fusec_client_graphs_total", *rank.items(), ("source", "eager"))] == 2
    assert found[("fusec_client_graphs_total", *rank.items(), ("source", "farm"))] == 0
    assert found[("fusec_client_lookups_total", *rank.items(), ("outcome", "front_hit"))] == 1
    assert found[("fusec_client_rejected_total", *rank.items(), ("reason", "bad_signature"))] == 1
    events = rank.items()
    assert found[("fusec_client_events_total", ("event", "kernel_compiles"), *events)] == 7
    assert found[("fusec_client_stage_seconds_total", *rank.items(), ("stage", "lookup"))] > 0
    assert found[("fusec_client_breaker_open", *rank.items())] == 0


def test_a_text_file_is_written_at_the_end_and_now_and_then(recorder, tmp_path):
    exporter = Exporter(tmp_path, None, recorder.snapshot, tuple, local_rank=3, every_s=0.05)
    exporter.start()
    path, appeared = tmp_path / "fusec-3.prom", threading.Event()
    while not path.exists():
        assert not appeared.wait(0.01)  # the test's own time limit is the deadline
    recorder.count("graph_hits", 0)
    exporter.close()
    check(values(path.read_text()), local_rank="3")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]  # no half file is left
    recorder.count("graph_hits")
    exporter.close()
    check(values(path.read_text()), local_rank="3")


def test_a_pushgateway_gets_the_same(recorder):
    received = []

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, body.decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        Exporter(None, address, recorder.snapshot, tuple, local_rank=1).export()
        server.shutdown()
    ((path, text),) = received
    assert path.startswith("/metrics/job/fusec_client/")
    assert "/local_rank/1" in path
    assert "/instance/" in path
    check(values(text))


def test_a_dead_service_shows_in_breaker_budget_and_counts(tmp_path):
    with CacheClient("http://127.0.0.1:1") as remote:
        for _ in range(3):
            with pytest.raises(NotReachable):
                remote.get_entry("graph/" + "0" * 64)
        Exporter(tmp_path, None, Recorder().snapshot, lambda: (remote,)).export()
    found = values((tmp_path / "fusec-0.prom").read_text())
    rank = ("local_rank", "0")
    assert found[("fusec_client_breaker_open", rank)] == 1
    assert found[("fusec_client_budget_seconds", rank)] < 2.0
    assert found[("fusec_client_exchanges_total", ("event", "errors"), rank)] > 0
    assert found[("fusec_client_exchanges_total", ("event", "short_circuits"), rank)] > 0


@pytest.mark.parametrize("push", ["http://127.0.0.1:1", "http://[nonsense", "nonsense:x"])
def test_a_fault_is_told_once_and_never_raised(recorder, tmp_path, caplog, push):
    exporter = Exporter(tmp_path / "absent", push, recorder.snapshot, tuple)
    with caplog.at_level(logging.WARNING, "fusec"):
        for _ in range(3):
            exporter.export()
    assert len(caplog.records) == 2  # one for the folder, one for the gateway
    assert "training goes on" in caplog.text


def test_every_counter_is_exported_once():
    from fusec.metrics import GRAPHS, LOOKUPS, REJECTED

    exported = {*GRAPHS.values(), *LOOKUPS.values(), *REJECTED, *EVENTS}
    assert exported == set(COUNTERS)


def test_it_is_off_by_default():
    options = Options.from_env({})
    assert options.metrics_dir is None
    assert options.metrics_push is None
