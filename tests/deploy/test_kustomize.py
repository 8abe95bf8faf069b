"""k8s/: every overlay is valid, keeps the policy and says the same as the chart."""

import importlib.util
import json

import pytest
import yaml

from cache.config import ServiceConfig
from farm.config import FarmConfig
from fusec.options import Options
from tests.deploy import policy, schemas
from tests.deploy.manifests import environment, load, of_kind, pods, program
from tests.deploy.tools import CHART, ROOT, found, run, template

K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
GIVEN = {
    "fusec-tokens/grants": "submit:" + "0" * 64,
    "fusec-tokens/gateway-token": "gateway",
    "fusec-tokens/write-token": "write",
    "fusec-ray-auth/auth_token": "ray",
    "fusec-s3/access-key-id": "id",
    "fusec-s3/secret-access-key": "secret",
}


def _overlay(name):
    return load(run("kubectl", "kustomize", K8S / "overlays" / name))


def test_the_overlays_are_there():
    assert OVERLAYS == ["development", "gpu", "production"]


@pytest.mark.parametrize(
    "folder", [f"overlays/{name}" for name in OVERLAYS] + ["examples/training-job"]
)
def test_what_it_builds_is_valid_and_keeps_the_policy(folder):
    documents = load(run("kubectl", "kustomize", K8S / folder))
    for version in (schemas.OLDEST, schemas.NEWEST):
        assert [text for item in documents for text in schemas.errors(item, version)] == []
    assert policy.broken(documents) == []
    assert len({item["metadata"]["namespace"] for item in documents}) == 1


def test_the_base_and_the_component_are_what_the_chart_says():
    spec = importlib.util.spec_from_file_location("generate", K8S / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.written() == generate.files(found("helm")), "run `make k8s`"


def test_production_is_watched():
    """The chart's alerts, dashboards and what is scraped; in development there is no operator."""
    documents = _overlay("production")
    (rules,) = of_kind(documents, "PrometheusRule").values()
    assert rules["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    boards = {}
    for item in of_kind(documents, "ConfigMap").values():
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        boards |= item["data"]
    kept = {path.name: path.read_text() for path in (CHART / "files/dashboards").glob("*.json")}
    assert boards == kept
    assert set(of_kind(documents, "ServiceMonitor")) == {"fusec-cache", "fusec-gateway"}
    assert set(of_kind(documents, "PodMonitor")) == {"fusec-ray"}
    assert {item["apiVersion"].partition("/")[0] for item in _overlay("development")} == {
        "v1", "apps", "networking.k8s.io", "ray.io",
    }  # fmt: skip


@pytest.mark.parametrize("name", OVERLAYS)
def test_its_programs_start_with_what_they_are_given(name, tmp_path):
    documents = _overlay(name)
    cache = program(documents, "Deployment/fusec-cache", "cache")
    gateway = program(documents, "Deployment/fusec-gateway", "gateway")
    service = ServiceConfig.load(environment(cache, documents, GIVEN, tmp_path))
    farm = FarmConfig.load(environment(gateway, documents, GIVEN, tmp_path))
    assert service.farm_token == farm.token
    assert farm.pool == "ray"
    assert service.store == {"development": "memory:"}.get(name, "s3://fusec/fusec")


def test_it_and_the_chart_set_the_same(tmp_path):
    """Production and the chart's values for S3 in the cluster, but for sizes."""
    keys = ("signing.existingSecret=fusec-signing", "auth.existingSecret=fusec-tokens")
    chart = load(template(CHART / "values-s3-in-cluster.yaml", sets=keys))
    chart = [item for item in chart if item["kind"] != "Secret"]
    ours = _overlay("production")
    sizes = {"FUSEC_CACHE_DISK_BYTES", "FUSEC_CACHE_MEMORY_BYTES"}
    for where, name in (
        ("Deployment/fusec-cache", "cache"),
        ("Deployment/fusec-gateway", "gateway"),
        ("Deployment/fusec-gateway", "raylet"),
        ("CronJob/fusec-collector", "collector"),
        ("RayCluster/fusec-ray/head", "ray-head"),
        ("RayCluster/fusec-ray/cpu", "ray-worker"),
    ):
        one, other = (
            environment(program(documents, where, name), documents, GIVEN, tmp_path)
            for documents in (chart, ours)
        )
        assert {n: v for n, v in one.items() if n not in sizes} == {
            n: v for n, v in other.items() if n not in sizes
        }


def test_each_gpu_class_has_a_group_of_its_own():
    groups = of_kind(_overlay("gpu"), "RayCluster")["fusec-ray"]["spec"]["workerGroupSpecs"]
    classes = {
        group["groupName"]: json.loads(json.loads(group["rayStartParams"]["resources"]))
        for group in groups[1:]
    }
    assert classes == {
        "gpu-h200": {"gpu:sm_90:nvidia-h200": 1},
        "gpu-l40s": {"gpu:sm_89:nvidia-l40s": 1},
    }
    assert all(group["template"]["spec"]["restartPolicy"] == "Never" for group in groups)


def test_the_example_sets_what_a_client_reads(tmp_path):
    documents = load(run("kubectl", "kustomize", K8S / "examples" / "training-job"))
    (pod,) = pods(documents)
    for name in ("prewarm", "train"):
        found = environment(program(documents, pod.where, name), documents, {}, tmp_path / name)
        options = Options.from_env(found)
        assert options.remote == "http://fusec-cache.fusec.svc:8700"
        assert options.token_file.exists()
        assert options.trusted_keys.exists()
        known = {f"FUSEC_{item.upper()}" for item in Options.__dataclass_fields__}
        assert {item for item in found if item.startswith("FUSEC_")} <= known
