"""The chart over its own values files: lint, schemas, policy, and what its parts promise."""

import json
import re

import pytest
import yaml

from tests.deploy import policy, schemas
from tests.deploy.manifests import load, of_kind, pods, program
from tests.deploy.tools import CHART, run, template, try_template

KEYS = (
    "signing.existingSecret=fusec-signing",
    "signing.existingConfigMap=fusec-trusted",
)
VALUES = sorted(path.name for path in CHART.glob("values-*.yaml"))
S3 = ("store.type=s3", "store.s3.bucket=kernels", "store.s3.existingSecret=s3")
PROBES = ("startup", "liveness", "readiness")


def _render(name, *sets):
    return load(template(*([CHART / name] if name else []), sets=(*KEYS, *sets)))


def test_the_values_files_are_there():
    assert VALUES == ["values-laptop.yaml", "values-s3-aws.yaml", "values-s3-in-cluster.yaml"]


@pytest.mark.parametrize("name", ["values.yaml", *VALUES])
def test_lint(name):
    sets = [part for text in KEYS for part in ("--set", text)]
    run("helm", "lint", "--strict", "--quiet", CHART, "--values", CHART / name, *sets)


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
@pytest.mark.parametrize("name", ["", *VALUES])
def test_what_it_renders_is_valid_and_keeps_the_policy(name, version):
    documents = _render(name)
    assert [text for item in documents for text in schemas.errors(item, version)] == []
    assert policy.broken(documents) == []
    assert len({(d["kind"], d["metadata"]["name"]) for d in documents}) == len(documents)


@pytest.mark.parametrize("disk", ["emptyDir", "hostPath", "claim"])
def test_disks_in_front_of_s3(disk):
    sets = (*S3, f"store.disk.type={disk}", "store.disk.hostPath=/mnt/nvme/fusec")
    documents = load(template(sets=sets))
    assert [text for item in documents for text in schemas.errors(item, schemas.NEWEST)] == []
    assert policy.broken(documents) == []
    (pod,) = (pod for pod in pods(documents) if pod.where == "Deployment/fusec-cache")
    (volume,) = (item for item in pod.spec["volumes"] if item["name"] == "disk")
    assert {"claim": "ephemeral"}.get(disk, disk) in volume


def test_the_private_key_is_the_gateways_alone():
    documents = _render("values-s3-aws.yaml")
    holders = [
        pod.where
        for pod in pods(documents)
        if any(
            v.get("secret", {}).get("secretName") == "fusec-signing" for v in pod.spec["volumes"]
        )
    ]
    assert holders == ["Deployment/fusec-gateway"]
    for pod in pods(documents):
        if pod.where.startswith("RayCluster"):
            text = json.dumps(pod.spec)
            assert "secretKeyRef" not in text, "workers hold no secret of ours"
            assert "signing" not in text


def test_rules_and_dashboards_are_the_files():
    documents = _render("values-s3-aws.yaml")
    rules = of_kind(documents, "PrometheusRule")["fusec"]["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    held = {}
    for name, item in of_kind(documents, "ConfigMap").items():
        if name.startswith("fusec-dashboard-"):
            held |= item["data"]
    files = {path.name: path.read_text() for path in (CHART / "files/dashboards").glob("*.json")}
    assert held == files


def test_a_pod_ends_after_its_requests():
    # What both commands give requests in flight.
    for package in ("cache", "farm"):
        text = (CHART.parents[2] / package / "__main__.py").read_text()
        assert "drain_s=30" in text
    documents = _render("values-s3-aws.yaml")
    for where, name in (("cache", "cache"), ("gateway", "gateway")):
        (pod,) = (pod for pod in pods(documents) if pod.where == f"Deployment/fusec-{where}")
        hook = program(documents, pod.where, name).container["lifecycle"]["preStop"]["exec"][
            "command"
        ]
        assert pod.spec["terminationGracePeriodSeconds"] >= int(hook[1]) + 30 + 5


def test_probes_ask_routes_that_there_are():
    from cache.service import ROUTES

    known = {route.path.pattern.removesuffix("()") for route in ROUTES if not route.role}
    documents = _render("values-s3-aws.yaml")
    for where, name in (("cache", "cache"), ("gateway", "gateway")):
        found = program(documents, f"Deployment/fusec-{where}", name).container
        for probe in PROBES:
            assert found[f"{probe}Probe"]["httpGet"]["path"] in known


def test_whether_a_pod_is_ready_does_not_hang_on_the_store():
    """All replicas would be away at once when S3 is; one that starts must have reached it."""
    documents = _render("values-s3-aws.yaml")
    for where, name in (("cache", "cache"), ("gateway", "gateway")):
        found = program(documents, f"Deployment/fusec-{where}", name).container
        asked = {probe: found[f"{probe}Probe"]["httpGet"]["path"] for probe in PROBES}
        assert asked == {"startup": "/readyz", "liveness": "/healthz", "readiness": "/healthz"}


@pytest.mark.parametrize("name", VALUES)
def test_disruption_budgets_let_nodes_be_drained(name):
    documents = _render(name)
    scaled = {
        item["spec"]["scaleTargetRef"]["name"]: item["spec"]["minReplicas"]
        for item in of_kind(documents, "HorizontalPodAutoscaler").values()
    }
    deployments = of_kind(documents, "Deployment")
    budgets = of_kind(documents, "PodDisruptionBudget")
    for budget in budgets.values():
        assert budget["spec"]["maxUnavailable"] >= 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    many = {of for of, d in deployments.items() if d["spec"].get("replicas", scaled.get(of)) > 1}
    assert set(budgets) == many


def test_an_autoscaler_has_what_it_goes_by():
    documents = _render("values-s3-aws.yaml")
    (hpa,) = of_kind(documents, "HorizontalPodAutoscaler").values()
    deployment = of_kind(documents, "Deployment")[hpa["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in deployment["spec"], "each upgrade would undo what it has scaled to"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "cpu" in container["resources"]["requests"], "a share of the request is aimed at"


def test_copies_on_a_nodes_own_disk_are_asked_for():
    documents = _render("values-s3-aws.yaml")
    found = program(documents, "Deployment/fusec-cache", "cache")
    (disk,) = (v for v in found.pod.spec["volumes"] if v["name"] == "disk")
    asked = found.container["resources"]["requests"]["ephemeral-storage"]
    assert asked == disk["emptyDir"]["sizeLimit"]
    bytes_of = {v["name"]: v["value"] for v in found.container["env"] if "value" in v}
    assert int(bytes_of["FUSEC_CACHE_DISK_BYTES"]) <= int(asked.removesuffix("Gi")) * 2**30 * 0.9


def test_the_ingress_shows_nothing_that_takes_no_token():
    from cache.service import ROUTES

    (ingress,) = of_kind(_render("values-s3-aws.yaml"), "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    shown = [path["path"] for path in rule["http"]["paths"]]
    for path in ("/", "/metrics"):
        assert path not in shown
    for route in ROUTES:
        path = route.path.pattern
        if route.role:
            assert any(path.replace("(", "").startswith(prefix) for prefix in shown), path


@pytest.mark.parametrize("name", ["values-s3-aws.yaml", "values-s3-in-cluster.yaml"])
def test_a_worker_has_room_for_its_tasks(name):
    (cpu, *_) = of_kind(_render(name), "RayCluster")["fusec-ray"]["spec"]["workerGroupSpecs"]
    (worker,) = cpu["template"]["spec"]["containers"]
    cpus = int(cpu["rayStartParams"]["num-cpus"])
    assert worker["resources"]["limits"]["cpu"] == str(cpus), "one for each task at once"
    assert int(worker["resources"]["limits"]["memory"].removesuffix("Gi")) >= 3 * cpus


def test_the_ray_cluster_is_tuned():
    documents = _render("values-s3-aws.yaml")
    spec = of_kind(documents, "RayCluster")["fusec-ray"]["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert spec["gcsFaultToleranceOptions"]["redisAddress"]
    kept = spec["headGroupSpec"]["template"]["metadata"]["annotations"]
    assert kept["karpenter.sh/do-not-disrupt"] == "true"
    cpu, gpu = spec["workerGroupSpecs"]
    assert {g["template"]["spec"]["restartPolicy"] for g in (cpu, gpu)} == {"Never"}
    assert gpu["rayStartParams"]["num-cpus"] == "0"
    # Ray's own way of quoting: a JSON string that holds JSON.
    resources = json.loads(json.loads(gpu["rayStartParams"]["resources"]))
    assert resources == {"gpu:sm_90:nvidia-h200": 1}
    (worker,) = gpu["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert gpu["template"]["spec"]["tolerations"]


def test_scaling_on_requests_a_second():
    sets = (*S3, "cache.autoscaling.enabled=true", "cache.autoscaling.requestsPerSecond=500")
    documents = load(template(sets=sets))
    (hpa,) = of_kind(documents, "HorizontalPodAutoscaler").values()
    assert schemas.errors(hpa, schemas.NEWEST) == []
    cpu, requests = hpa["spec"]["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    assert requests["pods"]["metric"]["name"] == "fusec_cache_requests_per_second"
    assert "replicas" not in of_kind(documents, "Deployment")["fusec-cache"]["spec"]


def test_tokens_that_are_made_and_what_the_service_is_told_fit():
    from cache.auth import Grant, hash_token

    (secret,) = of_kind(load(template()), "Secret").values()
    held = secret["stringData"]
    granted = {grant.role: grant for grant in map(Grant.parse, held["grants"].split(","))}
    for role in ("submit", "write", "admin"):
        assert granted[role].sha256 == hash_token(held[f"{role}-token"])
    assert len({held[f"{name}-token"] for name in ("gateway", *granted)}) == 4
    assert all(len(held[f"{name}-token"]) >= 43 for name in granted)


WRONG = {
    "store.type=disk": "store",
    "store.typo=s3": "typo",
    "cache.settings.memory_byte=1": "memory_byte",
    "images.cache.tag=latest": "tag",
    "cache.replicas=2": "several replicas",
    "store.type=s3": "store.s3.bucket",
    "store.disk.type=emptyDir": "in front of S3",
    "farm.enabled=true": "signing key",
    "cache.ingress.enabled=true": "cache.ingress.host",
    "cache.preStopSeconds=60": "terminationGracePeriodSeconds",
}


def test_static_keys_need_keys():
    _, error = try_template(sets=("store.type=s3", "store.s3.bucket=kernels"))
    assert "store.s3.existingSecret" in error


@pytest.mark.parametrize("setting", WRONG)
def test_wrong_values_are_refused_and_named(setting):
    _, error = try_template(sets=(setting,))
    assert WRONG[setting] in error


def test_every_value_has_a_comment_and_a_schema():
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    schema = json.loads((CHART / "values.schema.json").read_text())
    without = set()

    def walk(node, held, path):
        if "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        known = node.get("properties")
        if not known:
            return
        assert node["additionalProperties"] is False, path
        for name in known:
            if name != "global" and name not in held and path != "settings":
                without.add(f"{path}.{name}")
        for name, item in held.items():
            assert name in known, f"{path}.{name} is not in the schema"
            if isinstance(item, dict) and name not in ("settings", "resources", "rayletResources"):
                walk(known[name], item, f"{path}.{name}")

    walk(schema, values, "")
    assert without == set()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*[a-zA-Z]+:", line) and not re.match(r"\s+(requests|limits):", line):
            is_leaf = not line.rstrip().endswith(":") or lines[number + 1].lstrip().startswith(
                "requests"
            )
            assert not is_leaf or lines[number - 1].lstrip().startswith("#"), line
