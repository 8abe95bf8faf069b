"""Whatever values the schema takes: the chart renders valid manifests, or says what to set."""

import json

import pytest

from cache.config import ServiceConfig
from farm.config import FarmConfig
from tests.deploy import policy, schemas
from tests.deploy.manifests import Program, environment, load, pods
from tests.deploy.tools import try_template
from tests.deploy.values import Values

SEEDS = 12
GRACE = {"preStopSeconds": 5, "terminationGracePeriodSeconds": 60}
COUNTS = {"minReplicas": 1, "maxReplicas": 2}
CONFIGS = {"cache": ServiceConfig, "collector": ServiceConfig, "gateway": FarmConfig}


class _Held(dict):
    """What Secrets that are not rendered here hold."""

    def __missing__(self, name):
        return "submit:" + "0" * 64 if name.endswith("/grants") else "something"


def _render(path, made):
    """The documents; None where the chart refuses the values by a message of its own."""
    path.write_text(json.dumps(made))
    text, error = try_template(path)
    if error:
        assert "execution error" in error, error
        assert ": fusec: " in error, error
        return None
    return load(text)


def _check(documents, root):
    assert [text for item in documents for text in schemas.errors(item, schemas.NEWEST)] == []
    assert policy.broken(documents) == []
    for pod in pods(documents):
        for container in pod.containers():
            if container["name"] in CONFIGS:
                found = environment(Program(pod, container), documents, _Held(), root)
                CONFIGS[container["name"]].load(found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_values(tmp_path, seed):
    documents = _render(tmp_path / "values.json", Values(seed).any())
    if documents is not None:
        _check(documents, tmp_path)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_values_beside_what_the_chart_asks_for(tmp_path, seed):
    """Hardly any values at random hold all that a farm needs; here they all do."""
    made = Values(seed).any()
    store, farm = made.setdefault("store", {}), made.setdefault("farm", {})
    store["type"] = "s3"
    store.setdefault("s3", {}).update(bucket="kernels", existingSecret="s3")
    store.setdefault("disk", {}).update(hostPath="/mnt/nvme")
    made.update(auth={}, signing={"existingSecret": "key", "existingConfigMap": "trusted"})
    farm["enabled"] = True
    farm.setdefault("gateway", {}).update(GRACE)
    farm.setdefault("cpuGroup", {}).update(COUNTS)
    for number, group in enumerate(farm.get("gpuGroups", [])):
        group.update(COUNTS, name=f"g{number}")
    farm.setdefault("ray", {}).setdefault("faultTolerance", {})["redisAddress"] = "redis:6379"
    cache = made.setdefault("cache", {})
    cache.update(GRACE)
    cache.setdefault("ingress", {})["host"] = "fusec.example.com"
    cache.setdefault("autoscaling", {}).update(minReplicas=2, maxReplicas=5, cpuPercent=80)
    documents = _render(tmp_path / "values.json", made)
    assert documents is not None
    _check(documents, tmp_path)
