"""One real load for the tests of dashboards, metrics and traces, and for the docs' figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cache.client import CacheClient
from fusec.demo.farm_process import farm_process
from tests.observability.live import (
    Live,
    client_process,
    prometheus,
    text_files,
    wait_until,
)
from tests.observability.programs import ROOT, program

PARENT = "00-11111111111111111111111111111111-2222222222222222-01"
"""What the client processes are told by TRACEPARENT."""


@dataclass(frozen=True)
class Load:
    """What a load has left: a Prometheus, texts of the last scrape, and the exported spans.

    ``began`` and ``ended`` are seconds of the epoch between which it was scraped; ``client_spans``
    has a file for each start, the cold one first.
    """

    prometheus: Live
    began: float
    ended: float
    service_text: str
    farm_text: str
    client_text: str
    farm_spans: Path
    client_spans: tuple[Path, ...]


@contextmanager
def real_load(folder: Path, starts: int) -> Iterator[Load]:
    """A cold start of a small model through a service and a farm, then warm ones, all watched."""
    texts = folder / "textfiles"
    texts.mkdir()
    rules = ROOT / "deploy/helm/fusec/files/alerts.yaml"
    spans = tuple(folder / f"start-{number}.jsonl" for number in range(starts))
    began = time.time()
    with (
        farm_process(
            pool="memory",
            store=f"file://{folder}/store",
            log=folder / "log",
            tracing=f"file:{folder}/farm.jsonl",
        ) as farm,
        text_files(texts) as exporter,
    ):
        targets = {
            "cache": farm.url.removeprefix("http://"),
            "farm": farm.gateway_url.removeprefix("http://"),
            "node": exporter,
        }
        with prometheus(program("prometheus"), folder, targets, rules) as live:
            for number, path in enumerate(spans):
                client_process(
                    farm.url,
                    farm.public_key,
                    folder,
                    FUSEC_CACHE_DIR=str(folder / f"store-{number}"),
                    FUSEC_TRACING=f"file:{path}",
                    FUSEC_METRICS_DIR=str(texts),
                    TRACEPARENT=PARENT,
                )
            with CacheClient(farm.url) as untraced:
                assert untraced.get_entry("graph/" + "0" * 64) is None
            last = 'fusec_client_graphs_total{source="stored"} > 0 and on() fusec_farm_jobs_total'
            wait_until(lambda: live.scraped(last), f"no last scrape: see {folder}")
            ended = time.time()
            service_text = httpx.get(farm.url + "/metrics").text
            farm_text = httpx.get(farm.gateway_url + "/metrics").text
            assert farm.process.stdin is not None
            farm.process.stdin.close()  # it ends in order, and exports its last spans
            farm.process.wait(60)
            client_text = (texts / "fusec-0.prom").read_text()
            yield Load(
                live,
                began,
                ended,
                service_text,
                farm_text,
                client_text,
                folder / "farm.jsonl",
                spans,
            )
