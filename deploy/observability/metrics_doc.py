"""Writes docs/metrics.md from the declarations in the code: `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from cache.counters import Counters
from cache.lru import ByteLRU
from cache.metrics import ServiceMetrics
from cache.series import Catalogue, Series
from cache.service import ROUTE_NAMES
from farm.metrics import FarmMetrics
from fusec.metrics import declare
from fusec.trace import Snapshot

ROOT: Final = Path(__file__).parents[2]
PATH: Final = ROOT / "docs" / "metrics.md"
_HEAD: Final = """\
# Metrics

Made by `make docs` from the declarations in the code; do not edit. Labels have the values that are
listed and no others: what is not declared is counted under `other`. A histogram `x` is scraped as
`x_bucket`, `x_sum` and `x_count`. Up to 64 combinations of labels, a counter or histogram shows
them all from the start, at 0, so that its first event is part of a rate.

The service and the gateway of the farm answer at `/metrics`, without a token. Each is one process:
scrape every replica. A training process emits nothing unless `FUSEC_METRICS_DIR` (a directory of
node_exporter's textfile collector) or `FUSEC_METRICS_PUSH` (a Pushgateway) is set
(`fusec[metrics]`); its series then also have the label `local_rank`. `docs/operations.md`
says what the alerts over these series mean; the dashboards are in
`deploy/helm/fusec/files/dashboards`. Their panels' own queries over a cold and three warm starts,
drawn by matplotlib (`python -m tests.observability.figures`), not by Grafana:
[service](figures/fusec-cache.svg), [farm](figures/fusec-farm.svg),
[training jobs](figures/fusec-clients.svg).
"""
_COLUMNS: Final = "| series | type | unit | labels | meaning |\n|---|---|---|---|---|\n"


def service_series() -> list[Series]:
    """What a cache service emits, with a disk."""
    metrics = ServiceMetrics(CollectorRegistry(), ROUTE_NAMES)
    metrics.watch_store(Counters())
    metrics.watch_memory(ByteLRU(0))
    metrics.watch_disk(Path("/"))
    return metrics.catalogue.series


def farm_series() -> list[Series]:
    """What a farm's gateway emits."""
    return FarmMetrics(CollectorRegistry()).catalogue.series


def client_series() -> list[Series]:
    """What a training process emits."""
    catalogue = Catalogue(CollectorRegistry())
    declare(catalogue, Snapshot, tuple)
    return catalogue.series


def all_series() -> Mapping[str, Sequence[Series]]:
    """The series by the part of fusec that emits them."""
    return {
        "Cache service": service_series(),
        "Farm": farm_series(),
        "Client": client_series(),
    }


def document() -> str:
    """The text of docs/metrics.md."""
    parts = [_HEAD]
    for title, series in all_series().items():
        rows = "".join(map(_row, sorted(series, key=lambda each: each.name)))
        parts.append(f"\n## {title}\n\n{_COLUMNS}{rows}")
    return "".join(parts)


def _row(series: Series) -> str:
    labels = "<br>".join(f"`{name}`: {', '.join(values)}" for name, values in series.labels)
    meaning = series.help
    if series.buckets:
        meaning += " Buckets: " + ", ".join(f"{bound:g}" for bound in series.buckets) + "."
    cells = (f"`{series.name}`", series.kind, series.unit, labels, meaning)
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PATH.write_text(document())
    print(f"wrote {PATH.relative_to(ROOT)}", file=sys.stderr)
