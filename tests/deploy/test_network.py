"""The NetworkPolicies let through what the parts need of each other, and nothing else."""

import pytest

from tests.deploy.manifests import load
from tests.deploy.network import Party, pod_of, ray_pod, reaches
from tests.deploy.test_chart import KEYS
from tests.deploy.tools import CHART, ROOT, run, template

REDIS = Party({"app": "redis"})
CLIENT = Party({"app": "train"}, "training")
PROMETHEUS = Party({"app": "prometheus"}, "monitoring")
COLLECTOR = Party({"app": "otel"}, "monitoring")
DNS = Party({"k8s-app": "kube-dns"}, "kube-system")
INTERNET = Party(address="203.0.113.7")
POD_IDENTITY = Party(address="169.254.170.23")
CACHE, GATEWAY, CRON = "fusec-cache", "fusec-gateway", "fusec-collector"
HEAD, WORKER, CLEANUP = map(ray_pod, ("head", "worker", "redis-cleanup"))

S3_AWS, S3_HERE = (INTERNET, 443), (Party({"app": "seaweedfs"}, "storage"), 8333)


def _chart(name, *sets):
    return load(template(CHART / name, sets=(*KEYS, *sets)))


def _overlay(name):
    return load(run("kubectl", "kustomize", ROOT / "k8s" / "overlays" / name))


# What is installed, where its artifacts are, whether Ray's state is in Redis.
INSTALLED = {
    "values-s3-aws.yaml": (_chart, S3_AWS, True),
    "values-s3-in-cluster.yaml": (_chart, S3_HERE, False),
    "production": (_overlay, S3_HERE, True),
    "gpu": (_overlay, S3_HERE, True),
}


@pytest.fixture(scope="module", params=INSTALLED)
def installed(request):
    made, store, redis = INSTALLED[request.param]
    documents = made(request.param)
    return documents, store, redis


def test_what_the_parts_need_of_each_other_is_let_through(installed):
    documents, store, redis = installed
    cache, gateway, cron = (pod_of(documents, name) for name in (CACHE, GATEWAY, CRON))
    needed = [
        (CLIENT, cache, 8700),
        (PROMETHEUS, cache, 8700),
        (PROMETHEUS, gateway, 8701),
        (PROMETHEUS, HEAD, 8080),
        (PROMETHEUS, WORKER, 8080),
        (cache, gateway, 8701),
        (gateway, cache, 8700),
        (gateway, gateway, 8701),
        (cache, *store),
        (cron, *store),
        (HEAD, INTERNET, 443),  # the API server, for the autoscaler
        (HEAD, INTERNET, 6443),
        # Ray's nodes, of which the gateway has one, on ports that they choose.
        *((one, other, 6379) for one in (gateway, WORKER) for other in (HEAD,)),
        *((one, other, 23456) for one in (gateway, HEAD, WORKER) for other in (HEAD, WORKER)),
        *((one, gateway, 23456) for one in (HEAD, WORKER)),
    ]
    if redis:
        needed += [(HEAD, REDIS, 6379), (CLEANUP, REDIS, 6379)]
    for source, target, port in needed:
        assert reaches(documents, source, target, port), f"{source} -> {target}:{port}"
    for source in (cache, gateway, cron, HEAD, WORKER):
        assert reaches(documents, source, DNS, 53, "UDP")
        assert reaches(documents, source, DNS, 5353, "TCP")


def test_nothing_else_is(installed):
    documents, store, _ = installed
    cache, gateway, cron = (pod_of(documents, name) for name in (CACHE, GATEWAY, CRON))
    refused = [
        # Workers run compilers over what clients sent.
        (WORKER, cache, 8700),
        (WORKER, INTERNET, 443),
        (WORKER, INTERNET, 6443),
        (WORKER, *S3_HERE),
        (WORKER, REDIS, 6379),
        (gateway, INTERNET, 443),
        (gateway, *store),
        (cache, HEAD, 6379),
        (cache, INTERNET, 22),
        (cron, cache, 8700),
        # Whoever reaches Ray's ports can run anything there.
        *((one, HEAD, port) for one in (CLIENT, cache, cron) for port in (6379, 8265, 10001)),
        (CLIENT, WORKER, 23456),
        (CLIENT, gateway, 23456),
    ]
    for source, target, port in refused:
        assert not reaches(documents, source, target, port), f"{source} -> {target}:{port}"


def test_clients_and_scrapers_that_are_named_are_the_only_ones():
    peers = "networkPolicy.{}[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name={}"
    sets = (peers.format("clients", "training"), peers.format("scrapers", "monitoring"))
    documents = _chart("values-s3-in-cluster.yaml", *sets)
    cache, gateway = pod_of(documents, CACHE), pod_of(documents, GATEWAY)
    stranger = Party({"app": "x"}, "elsewhere")
    for source, seen in ((CLIENT, True), (PROMETHEUS, True), (gateway, True), (stranger, False)):
        assert reaches(documents, source, cache, 8700) is seen
    for source, seen in ((CLIENT, False), (PROMETHEUS, True), (cache, True), (stranger, False)):
        assert reaches(documents, source, gateway, 8701) is seen


def test_roles_of_eks_and_collectors_of_spans_are_reached():
    documents = _chart("values-s3-aws.yaml", "tracing.otlpEndpoint=http://otel.monitoring.svc:4318")
    cache, gateway, cron = (pod_of(documents, name) for name in (CACHE, GATEWAY, CRON))
    for source, asks in ((cache, True), (cron, True), (gateway, False), (WORKER, False)):
        assert reaches(documents, source, POD_IDENTITY, 80) is asks
    assert not reaches(documents, cache, INTERNET, 80)
    for source, sends in ((cache, True), (gateway, True), (WORKER, False)):
        assert reaches(documents, source, COLLECTOR, 4318) is sends


def test_an_autoscaler_reaches_the_api_server_where_it_listens():
    documents = _chart("values-s3-in-cluster.yaml", "networkPolicy.apiServerPorts={8443}")
    assert reaches(documents, HEAD, INTERNET, 8443)
    assert not reaches(documents, HEAD, INTERNET, 6443)
