"""One real load for the tests of dashboards, metrics, traces and pages, and for docs' figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cache.client import CacheClient
from fusec.demo.farm_process import FarmProcess, farm_process
from tests.observability.collector import Collector, collector
from tests.observability.live import (
    Live,
    client_process,
    prometheus,
    text_files,
    wait_until,
)
from tests.observability.programs import ROOT, program

SPAN = "2" * 16
"""What the client processes are told by TRACEPARENT: this span, of a trace for each start."""


def trace_of(start: int) -> str:
    """The trace of a start, the cold one being 0."""
    return f"{start + 1:032x}"


@dataclass(frozen=True)
class Load:
    """What a load has left: the farm, a Prometheus, a collector of spans, texts of the last scrape.

    ``began`` and ``ended`` are seconds of the epoch between which it was scraped.
    """

    farm: FarmProcess
    prometheus: Live
    collector: Collector
    began: float
    ended: float
    service_text: str
    farm_text: str
    client_text: str


@contextmanager
def real_load(folder: Path, starts: int) -> Iterator[Load]:
    """A cold start of a small model through a service and a farm, then warm ones, all watched."""
    texts = folder / "textfiles"
    texts.mkdir()
    rules = ROOT / "deploy/helm/fusec/files/alerts.yaml"
    began = time.time()
    with collector() as spans, text_files(texts) as exporter:
        # Else spans that are not exported yet are waited for up to five seconds.
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": spans.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with (
            farm_process(
                pool="memory",
                store=f"file://{folder}/store",
                log=folder / "log",
                tracing="otlp",
                env=otlp,
            ) as farm,
            prometheus(
                program("prometheus"),
                folder,
                {
                    "cache": farm.url.removeprefix("http://"),
                    "farm": farm.gateway_url.removeprefix("http://"),
                    "node": exporter,
                },
                rules,
            ) as live,
        ):
            for number in range(starts):
                client_process(
                    farm.url,
                    farm.public_key,
                    folder,
                    FUSEC_CACHE_DIR=str(folder / f"store-{number}"),
                    FUSEC_TRACING="otlp",
                    FUSEC_METRICS_DIR=str(texts),
                    TRACEPARENT=f"00-{trace_of(number)}-{SPAN}-01",
                    **otlp,
                )
            with CacheClient(farm.url) as untraced:
                assert untraced.get_entry("graph/" + "0" * 64) is None
            last = 'fusec_client_graphs_total{source="stored"} > 0 and on() fusec_farm_jobs_total'
            wait_until(lambda: live.scraped(last), f"no last scrape: see {folder}")
            ended = time.time()
            wait_until(lambda: _whole(spans), f"no whole trace: {spans.refused} see {folder}")
            yield Load(
                farm,
                live,
                spans,
                began,
                ended,
                httpx.get(farm.url + "/metrics").text,
                httpx.get(farm.gateway_url + "/metrics").text,
                (texts / "fusec-0.prom").read_text(),
            )


def unconnected(spans: Collector) -> list[str]:
    """The names of spans whose parent has not come."""
    known = {each.span_id for each in spans.spans()} | {SPAN}
    return [each.name for each in spans.spans() if each.parent_id not in known]


def _whole(spans: Collector) -> bool:
    """Both jobs, a forward and its backward, are over, and no span's parent is still to come."""
    names = Counter(each.name for each in spans.spans())
    return names["job"] == 2 and not unconnected(spans)
