"""The checks themselves: each finds what it is there to find."""

import copy

import pytest
import yaml

from tests.deploy import policy, schemas
from tests.deploy.manifests import load, of_kind
from tests.deploy.test_chart import KEYS
from tests.deploy.tools import CHART, template


@pytest.fixture(scope="module")
def documents():
    return load(template(CHART / "values-s3-aws.yaml", sets=KEYS))


def _changed(documents, kind, name, change):
    made = copy.deepcopy(documents)
    change(of_kind(made, kind)[name])
    return made


def _pod(deployment):
    return deployment["spec"]["template"]["spec"]


def _first(deployment):
    return _pod(deployment)["containers"][0]


BREAKS = {
    "may run as root": lambda d: _pod(d)["securityContext"].pop("runAsNonRoot"),
    "has no seccomp profile": lambda d: _pod(d)["securityContext"].pop("seccompProfile"),
    "sets hostNetwork": lambda d: _pod(d).update(hostNetwork=True),
    "mounts a token": lambda d: _pod(d).pop("automountServiceAccountToken"),
    "variables of Services": lambda d: _pod(d).pop("enableServiceLinks"),
    "may fill the node": lambda d: _pod(d)["volumes"][0]["emptyDir"].clear(),
    "may gain privileges": lambda d: _first(d)["securityContext"].pop("allowPrivilegeEscalation"),
    "may write to its image": lambda d: _first(d)["securityContext"].pop("readOnlyRootFilesystem"),
    "keeps capabilities": lambda d: _first(d)["securityContext"].pop("capabilities"),
    "is privileged": lambda d: _first(d)["securityContext"].update(privileged=True),
    "has no limits of memory": lambda d: _first(d)["resources"]["limits"].pop("memory"),
    "has no requests of cpu": lambda d: _first(d)["resources"]["requests"].pop("cpu"),
    "has no fixed version": lambda d: _first(d).update(image="registry.example.com/x:latest"),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_the_policy_finds(rule, documents):
    found = policy.broken(_changed(documents, "Deployment", "fusec-cache", BREAKS[rule]))
    assert len(found) == 1
    assert rule in found[0]
    assert found[0].startswith("Deployment/fusec-cache")


def test_the_policy_sees_rays_pods(documents):
    def change(cluster):
        for group in cluster["spec"]["workerGroupSpecs"]:
            group["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = True

    found = policy.broken(_changed(documents, "RayCluster", "fusec-ray", change))
    assert [text.partition(":")[0] for text in found] == [
        "RayCluster/fusec-ray/cpu/ray-worker",
        "RayCluster/fusec-ray/gpu-h200/ray-worker",
    ]


TYPOS = {
    ("Deployment", "fusec-cache"): lambda d: d["spec"].update(replica=3),
    ("NetworkPolicy", "fusec-ray"): lambda d: d["spec"].update(ingres=[]),
    ("RayCluster", "fusec-ray"): lambda d: d["spec"]["autoscalerOptions"].update(idleTimeout=3),
    ("ServiceMonitor", "fusec-cache"): lambda d: d["spec"]["endpoints"][0].update(intervall="3s"),
    ("CronJob", "fusec-collector"): lambda d: d["spec"]["jobTemplate"]["spec"].update(parallel=1),
}


@pytest.mark.parametrize(("kind", "name"), TYPOS)
def test_the_schemas_find(kind, name, documents):
    made = of_kind(_changed(documents, kind, name, TYPOS[kind, name]), kind)[name]
    assert len(schemas.errors(made, schemas.NEWEST)) == 1


def test_the_schemas_see_rays_pods(documents):
    def change(cluster):
        pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
        pod["containers"][0]["volumeMount"] = []

    made = of_kind(_changed(documents, "RayCluster", "fusec-ray", change), "RayCluster")
    (error,) = schemas.errors(made["fusec-ray"], schemas.NEWEST)
    assert "volumeMount" in error


def test_a_name_that_stands_twice_is_no_document():
    with pytest.raises(yaml.YAMLError, match="twice"):
        load("a: 1\na: 2\n")
