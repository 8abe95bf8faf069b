"""What the chart sets, the programs know: each container's environment is read by its own code."""

import dataclasses
import json
from pathlib import Path

import pytest

from cache.auth import allows, role_of
from cache.config import ServiceConfig
from farm import ray_settings
from farm.config import FarmConfig
from tests.deploy.manifests import environment, load, of_kind, pods, program
from tests.deploy.test_chart import KEYS, VALUES
from tests.deploy.tools import CHART, template

AWS = CHART / "values-s3-aws.yaml"
GIVEN = {"fusec-s3/access-key-id": "id", "fusec-s3/secret-access-key": "secret"}


@pytest.fixture(params=VALUES)
def documents(request):
    return load(template(CHART / request.param, sets=KEYS))


@pytest.fixture
def read(tmp_path):
    """The environment of a container, and files for those that are mounted."""

    def read(documents, where, name):
        found = program(documents, where, name)
        return environment(found, documents, GIVEN, tmp_path / name)

    return read


def test_the_service_starts_with_what_it_is_given(documents, read):
    found = read(documents, "Deployment/fusec-cache", "cache")
    config = ServiceConfig.load(found)
    assert config.tokens
    assert not config.insecure
    assert config.farm_url == "http://fusec-gateway.fusec.svc:8701"
    assert config.policy().needs_use, "what the collector goes by is written down"


def test_the_gateway_starts_with_what_it_is_given(documents, read):
    config = FarmConfig.load(read(documents, "Deployment/fusec-gateway", "gateway"))
    service = ServiceConfig.load(read(documents, "Deployment/fusec-cache", "cache"))
    assert config.token == service.farm_token
    role = role_of(service.tokens, f"Bearer {config.cache_token}", "any-namespace")
    assert role is not None
    assert allows(role, "write")
    assert config.cache_url == "http://fusec-cache.fusec.svc:8700"
    assert config.signing_key
    assert config.trusted_keys
    assert config.address() == "http://10.0.0.9:8701", "no other pod knows its host name"


def test_rays_head_notices_lost_nodes_quickly(read):
    documents = load(template(AWS, sets=KEYS))
    found = read(documents, "RayCluster/fusec-ray/head", "ray-head")
    assert found == {"RAY_USAGE_STATS_ENABLED": "0", **ray_settings.environment()}


@pytest.mark.parametrize("autoscaler", ["true", "false"])
def test_rays_workers_have_no_token_of_the_api_server(autoscaler):
    sets = (*KEYS, f"farm.autoscaler.enabled={autoscaler}")
    found = {pod.where: pod.spec for pod in pods(load(template(AWS, sets=sets)))}
    for group in ("cpu", "gpu-h200"):
        worker = found[f"RayCluster/fusec-ray/{group}"]
        assert worker["automountServiceAccountToken"] is False
        assert not any("projected" in volume for volume in worker["volumes"])


def test_addresses_of_ipv6(read):
    sets = (*KEYS, "farm.enabled=true", "cache.listenAddress=::")
    documents = load(template(sets=sets))
    config = FarmConfig.load(read(documents, "Deployment/fusec-gateway", "gateway"))
    assert config.address() == "http://[10.0.0.9]:8701"
    assert config.host == "::"


def test_the_collector_has_the_services_store_and_rules(read):
    documents = load(template(AWS, sets=KEYS))
    collector = ServiceConfig.load(read(documents, "CronJob/fusec-collector", "collector"))
    service = ServiceConfig.load(read(documents, "Deployment/fusec-cache", "cache"))
    for name in ("store", "s3_endpoint", "s3_region"):
        assert getattr(collector, name) == getattr(service, name)
    assert collector.policy() == service.policy()
    assert not collector.tokens


def test_a_store_on_a_volume_is_collected_by_the_service(read):
    found = ServiceConfig.load(
        read(load(template(sets=("store.type=file",))), "Deployment/fusec-cache", "cache")
    )
    assert found.store == "file:///var/lib/fusec"
    assert found.gc_every_s == 86400


def test_tls_inside_the_cluster(read):
    sets = ("cache.tls.secret=cache-tls", "farm.gateway.tls.secret=gateway-tls")
    documents = load(template(CHART / "values-s3-in-cluster.yaml", sets=sets))
    service = ServiceConfig.load(read(documents, "Deployment/fusec-cache", "cache"))
    gateway = FarmConfig.load(read(documents, "Deployment/fusec-gateway", "gateway"))
    assert service.farm_url == "https://fusec-gateway.fusec.svc:8701"
    assert gateway.cache_url == "https://fusec-cache.fusec.svc:8700"
    assert (service.tls().scheme, gateway.tls().scheme) == ("https", "https")
    paths = (service.farm_ca, service.tls_key, gateway.cache_ca, gateway.tls_key, gateway.peer_ca)
    for path in paths:
        assert Path(path).exists(), "it is not mounted"
    assert of_kind(documents, "Deployment")["fusec-gateway"]["spec"]["replicas"] > 1
    assert gateway.peer_name == "fusec-gateway.fusec.svc", "what their one certificate names"
    for where, name in (("cache", "cache"), ("gateway", "gateway")):
        found = program(documents, f"Deployment/fusec-{where}", name).container
        assert found["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_tracing_is_set_in_both_and_let_through(read):
    sets = ("tracing.otlpEndpoint=http://collector.observability.svc:4318",)
    documents = load(template(CHART / "values-laptop.yaml", sets=(*KEYS, *sets)))
    for where, name, config in (
        ("cache", "cache", ServiceConfig),
        ("gateway", "gateway", FarmConfig),
    ):
        found = read(documents, f"Deployment/fusec-{where}", name)
        assert config.load(found).tracing == "otlp"
        assert found["OTEL_EXPORTER_OTLP_ENDPOINT"].endswith(":4318")
        policy = of_kind(documents, "NetworkPolicy")[f"fusec-{where}"]
        open_ports = [
            port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())
        ]
        assert 4318 in open_ports


@pytest.mark.parametrize(
    ("part", "config"), [("cache", ServiceConfig), ("farm.gateway", FarmConfig)]
)
def test_settings_are_fields_of_the_configuration(part, config):
    node = json.loads((CHART / "values.schema.json").read_text())
    for name in part.split("."):
        node = node["properties"][name]
    settings = node["properties"]["settings"]["properties"]
    fields = {item.name: item for item in dataclasses.fields(config)}
    assert set(settings) <= set(fields)
    kinds = {"integer": int, "number": float, "boolean": bool, "string": str}
    for name, node in settings.items():
        kind = kinds[node.get("type", "string")]
        assert type(fields[name].default) is kind, name


def test_large_and_small_numbers_arrive_as_they_were_written(read, tmp_path):
    given = tmp_path / "values.json"
    settings = {"queue_limit": 123456789, "keep_s": 0.25, "task_s": 86400}
    made = {"enabled": True, "gateway": {"settings": settings}}
    cache = {"settings": {"memory_bytes": 68719476736}}
    given.write_text(json.dumps({"farm": made, "cache": cache}))
    documents = load(template(given, sets=KEYS))
    gateway = FarmConfig.load(read(documents, "Deployment/fusec-gateway", "gateway"))
    assert (gateway.queue_limit, gateway.keep_s, gateway.task_s) == (123456789, 0.25, 86400)
    service = ServiceConfig.load(read(documents, "Deployment/fusec-cache", "cache"))
    assert service.memory_bytes == 68719476736
