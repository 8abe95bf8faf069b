"""The dashboards: up to date, over series that are emitted, and with data after a real load."""

import json
import math

import pytest

from deploy.observability import dashboards, metrics_doc
from deploy.observability.boards import BOARDS
from deploy.observability.expressions import unknown
from deploy.observability.panels import INTERVAL, Panel
from tests.observability.test_alerts import RECORDED, RULES

SERIES = [each for part in metrics_doc.all_series().values() for each in part]
PANELS = [panel for board in BOARDS for panel in board.panels()]

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("observed")]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboard_is_up_to_date(board):
    assert dashboards.path_of(board).read_text() == dashboards.text_of(board), "run `make docs`"


def test_there_is_no_dashboard_of_old():
    assert set(dashboards.FOLDER.iterdir()) == {dashboards.path_of(board) for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboard_holds_all_panels(board):
    made = json.loads(dashboards.path_of(board).read_text())
    graphs = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in graphs] == [panel.title for panel in board.panels()]
    asked = [[target["expr"] for target in panel["targets"]] for panel in graphs]
    assert asked == [[expression for expression, _ in panel.queries] for panel in board.panels()]
    for panel in graphs:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= 24 - place["w"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_reads_only_what_is_emitted(panel):
    for expression, _ in panel.queries:
        assert unknown(expression.replace(INTERVAL, "1m"), SERIES, RECORDED) == []


def samples(load, expression):
    found = load.prometheus.query(expression, load.ended)
    return [each for each in found if not math.isnan(float(each["value"][1]))]


@pytest.mark.slow
def test_every_panel_shows_data_after_a_real_load(load):
    """Or says why it may be empty; one that says so and has data is fine."""
    silent = [
        f"{panel.title}: {expression}"
        for panel in PANELS
        for expression, _ in panel.queries
        if not panel.empty and not samples(load, expression)
    ]
    assert silent == []


@pytest.mark.slow
def test_a_panel_without_data_is_found(load):
    panel = Panel("x", "s", (('sum(fusec_cache_hits_total{tier="none"})', "x"),))
    assert samples(load, panel.queries[0][0]) == []


@pytest.mark.slow
def test_the_numbers_are_those_of_the_load(load):
    def value(expression):
        (only,) = samples(load, expression)
        return float(only["value"][1])

    assert value('fusec_farm_jobs_total{state="done"}') == 2  # a forward and its backward
    assert value('sum(fusec_farm_kernels_total{source="built"})') > 0
    assert value('sum(fusec_farm_stage_seconds_count{stage="total",target="cpu"})') == 2
    assert value('sum(fusec_cache_hits_total{kind="front"})') >= 1
    assert value('sum(fusec_client_graphs_total{source="stored"})') == 2
    assert value("sum(fusec_client_breaker_open)") == 0
    assert value("fusec:cache_lookups:rate15m") > 0


@pytest.mark.slow
def test_nothing_that_is_emitted_is_undeclared(load):
    from tests.observability.test_series import undeclared

    assert undeclared(load.service_text, metrics_doc.service_series()) == []
    assert undeclared(load.farm_text, metrics_doc.farm_series()) == []
    assert undeclared(load.client_text, metrics_doc.client_series(), {"local_rank": "0"}) == []


@pytest.mark.slow
def test_no_alert_is_on_after_a_load_without_faults(load):
    found = load.prometheus.query('ALERTS{alertname=~"Fusec.*"}', load.ended)
    # The disk is this machine's, and no matter of ours.
    assert [each for each in found if each["metric"]["alertname"] != "FusecDiskNearlyFull"] == []
    assert RULES.exists()
