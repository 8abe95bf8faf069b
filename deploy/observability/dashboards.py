"""Writes the dashboards for Grafana from `boards`: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from deploy.observability.boards import BOARDS
from deploy.observability.panels import Board, Panel

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/helm/fusec/files/dashboards"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH: Final = 12  # of 24: two panels beside each other
_HEIGHT: Final = 8


def path_of(board: Board) -> Path:
    """The file of a dashboard."""
    return FOLDER / f"{board.name}.json"


def text_of(board: Board) -> str:
    """A dashboard as Grafana imports it."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.name)
        .description(board.about)
        .tags(["fusec"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )
    for title, panels in board.rows:
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(_graph(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _graph(panel: Panel) -> timeseries.Panel:
    about = " ".join(filter(None, (panel.about, panel.empty and f"Shown {panel.empty}.")))
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(about)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(_WIDTH)
        .height(_HEIGHT)
        .fill_opacity(10)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for number, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend)
        made = made.with_target(query.ref_id(chr(ord("A") + number)))
    return made


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        path_of(board).write_text(text_of(board))
        print(f"wrote {path_of(board).relative_to(ROOT)}", file=sys.stderr)
