"""The alerts: valid, each with tests both ways and a runbook, over series that are emitted."""

import re

import pytest
import yaml

from deploy.observability import metrics_doc
from deploy.observability.expressions import selectors, unknown
from tests.observability.programs import ROOT, check

RULES = ROOT / "deploy/helm/fusec/files/alerts.yaml"
TESTS = ROOT / "tests/observability/alerts_test.yaml"
ALERTMANAGER = ROOT / "deploy/observability/alertmanager.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
SERIES = [each for part in metrics_doc.all_series().values() for each in part]


def anchors(text):
    """The anchors of a document's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_rules_are_valid():
    assert "SUCCESS" in check("promtool", "check", "rules", RULES)


@pytest.mark.timeout(600)
def test_each_alert_fires_when_it_should_and_only_then():
    check("promtool", "test", "rules", TESTS.name, cwd=TESTS.parent)
    outcomes = {}
    for case in yaml.safe_load(TESTS.read_text())["tests"]:
        for test in case["promql_expr_test"]:
            (name,) = re.findall(r'alertname="(\w+)"', test["expr"])
            outcomes.setdefault(name, set()).add(test["exp_samples"][0]["value"])
    assert outcomes == {name: {0, 1} for name in ALERTS}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_means_and_where_its_runbook_is(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    path, anchor = annotations["runbook_url"].split("#")
    assert anchor == name.lower()
    assert anchor in anchors((ROOT / path).read_text())


def test_a_runbook_says_what_it_means_how_to_look_and_what_to_do():
    runbooks = (ROOT / "docs/operations.md").read_text().split("\n### ")[1:]
    found = {text.partition("\n")[0]: text for text in runbooks}
    assert set(ALERTS) <= set(found)
    for name in ALERTS:
        for part in ("**Means**", "**Look**", "**Do**"):
            assert found[name].count(part) == 1, f"{name}: {part}"


def test_alerts_read_only_what_is_emitted():
    for group in GROUPS:
        for rule in group["rules"]:
            assert unknown(rule["expr"], SERIES, RECORDED) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(fusec_cache_hit_total[5m])", "fusec_cache_hit_total is not emitted"),
        ('sum(fusec_cache_hits_total{level="x"})', "has no label level"),
        ('fusec_cache_hits_total{tier=~"memory|disk"} > 0', "tier is never 'disk'"),
        ("1 - (fusec_cache_request_seconds > 1)", "fusec_cache_request_seconds is not emitted"),
    ],
)
def test_what_nobody_emits_is_found(expression, fault):
    (found,) = unknown(expression, SERIES)
    assert fault in found


def test_unit_tests_feed_only_what_is_emitted():
    """A test over a misspelt series would show that an alert does not fire, whatever it says."""
    for case in yaml.safe_load(TESTS.read_text())["tests"]:
        for item in case["input_series"]:
            assert unknown(item["series"], SERIES, RECORDED) == []
            assert len(selectors(item["series"])) == 1


def test_the_example_of_an_alertmanager_is_valid():
    assert "SUCCESS" in check("amtool", "check-config", ALERTMANAGER)


def test_the_alertmanager_routes_by_severity():
    for severity, receiver in (("critical", "fusec-on-duty"), ("warning", "fusec-by-day")):
        told = check(
            "amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}",
            "alertname=FusecStoreErrors", f"severity={severity}",
        )  # fmt: skip
        assert told.strip() == receiver


def test_an_inhibition_names_alerts_that_exist():
    text = ALERTMANAGER.read_text()
    named = set(re.findall(r"Fusec[A-Za-z]+", text))
    assert named <= set(ALERTS)
