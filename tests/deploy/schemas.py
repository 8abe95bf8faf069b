"""Checks rendered documents against Kubernetes' schemas and those of the operators' kinds."""

import functools
import json
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.deploy.manifests import Document, pods

CRDS = Path(__file__).parent / "crds"
OLDEST = "1.29"
NEWEST = "1.37"
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "fusec"


def errors(document: Document, version: str) -> list[str]:
    """What a document has that its kind does not know, or lacks. Raises for an unknown kind."""
    kind = document["kind"]
    checked = CRDS / f"{kind}.json"
    where = f"{kind}/{document['metadata']['name']}"
    if not checked.exists():
        return [f"{where}: {text}" for text in _found(_core(document, version), document)]
    found = [f"{where}: {text}" for text in _found(_own(checked), document)]
    if kind == "RayCluster":
        for pod in pods([document]):
            as_pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "one"},
                "spec": pod.spec,
            }
            found += [f"{pod.where}: {text}" for text in _found(_core(as_pod, version), as_pod)]
    return found


def _found(validator: Draft202012Validator, document: Document) -> list[str]:
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in validator.iter_errors(document)
    ]


@functools.cache
def _own(path: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(path.read_text()))


def _core(document: Document, version: str) -> Draft202012Validator:
    group, _, api = document["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (document["kind"].lower(), group.partition(".")[0], api)))
    return _kubernetes(name, version)


@functools.cache
def _kubernetes(name: str, version: str) -> Draft202012Validator:
    schema = json.loads(_folder(version).joinpath(f"{name}.json").read_text())
    return Draft202012Validator(schema, registry=_definitions(version))


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    read = json.loads(_folder(version).joinpath("_definitions.json").read_text())
    return Registry().with_resource(
        read.get("$id", "_definitions.json"), Resource.from_contents(read)
    )


def _folder(version: str) -> Any:
    packaged = resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")
    return packaged.joinpath(f"v{version}.0-local-strict")
