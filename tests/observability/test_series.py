"""The declared series: bounded, documented, and the only ones that there are."""

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cache.client import CacheClient
from cache.series import Catalogue
from deploy.observability import metrics_doc
from farm.embedded import embedded_farm
from fusec.remote.farm import FarmClient
from tests.farm.tiny_stages import TinyStages, farm_job


def test_the_document_is_up_to_date():
    assert metrics_doc.PATH.read_text() == metrics_doc.document(), "run `make docs`"


def test_names_follow_the_conventions():
    prefixes = {"Cache service": "fusec_cache_", "Farm": "fusec_farm_", "Client": "fusec_client_"}
    seen = set()
    for part, series in metrics_doc.all_series().items():
        for each in series:
            assert each.name.startswith(prefixes[part])
            assert each.name.endswith("_total") == (each.kind == "counter"), each.name
            assert each.help.endswith("."), each.name
            assert each.name not in seen
            seen.add(each.name)
            if each.kind == "histogram":
                assert list(each.buckets) == sorted(set(each.buckets))
                assert each.unit == "seconds"


def test_labels_are_of_small_closed_sets():
    for series in metrics_doc.all_series().values():
        for each in series:
            for label, values in each.labels:
                assert 0 < len(values) <= 40, f"{each.name}{{{label}}}"
                assert len(set(values)) == len(values)


def test_a_value_that_nobody_declared_is_counted_as_other():
    registry = CollectorRegistry()
    made = Catalogue(registry).counter("x", "X.", {"kind": ("a", "b")})
    for number in range(1000):
        made.labels(f"user{number}").inc()
    made.labels("a").inc()
    values = {
        sample.labels["kind"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "x_total"
    }
    assert values == {"a": 1.0, "b": 0.0, "other": 1000.0}


def test_every_label_needs_a_value():
    made = Catalogue(CollectorRegistry()).gauge("x", "X.", {"kind": ("a",), "of": ("b",)})
    with pytest.raises(ValueError, match="argument"):
        made.labels("a")


def undeclared(text, series, added=None):
    """Samples of a scrape that no declaration covers, by name or by the value of a label; `added`
    are labels that all of them have."""
    declared = {name: each for each in series for name in each.sample_names()}
    wrong = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            each = declared.get(sample.name)
            closed = {name: {*values, "other"} for name, values in each.labels} if each else {}
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            closed |= {name: {value} for name, value in (added or {}).items()}
            if each is None or any(value not in closed.get(n, ()) for n, value in labels.items()):
                wrong.append(f"{sample.name} {labels}")
    return wrong


@pytest.fixture
def farm(tmp_path):
    with embedded_farm(store=f"file://{tmp_path}/store", stages=TinyStages(str(tmp_path))) as farm:
        yield farm


def test_a_running_service_and_farm_emit_what_is_declared(farm):
    """In both directions: nothing undeclared, and no declaration of what is never emitted."""
    with CacheClient(farm.url) as remote:
        FarmClient(remote).wait(farm_job("t.a", "t.b"), timeout_s=120)
    httpx.get(farm.url + "/no-such-path")
    for url, series in (
        (farm.url, metrics_doc.service_series()),
        (farm.gateway_url, metrics_doc.farm_series()),
    ):
        text = httpx.get(url + "/metrics").text
        assert undeclared(text, series) == []
        families = {family.name for family in text_string_to_metric_families(text)}
        assert {each.name.removesuffix("_total") for each in series} <= families
