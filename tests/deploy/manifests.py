"""What helm and kubectl render, as values: documents, pods, containers and their environment."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]


class _Strict(yaml.CSafeLoader):
    """Refuses a mapping that says the same thing twice, which YAML's readers let pass."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text: str) -> list[Document]:
    """The documents of a rendered text; empty ones are left out."""
    return [item for item in yaml.load_all(text, Loader=_Strict) if item is not None]


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    """The documents of a kind, by name."""
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


@dataclass(frozen=True)
class Pod:
    """A pod's template. where: kind, name and part of what makes it."""

    where: str
    spec: Document

    def containers(self) -> Iterator[Document]:
        yield from self.spec.get("initContainers", [])
        yield from self.spec["containers"]


def pods(documents: list[Document]) -> list[Pod]:
    """The templates of all pods that the documents lead to, RayClusters' too."""
    found = []
    for item in documents:
        kind, spec = item["kind"], item.get("spec", {})
        where = f"{kind}/{item['metadata']['name']}"
        if kind == "Pod":
            found.append(Pod(where, spec))
        elif kind in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            found.append(Pod(where, spec["template"]["spec"]))
        elif kind == "CronJob":
            found.append(Pod(where, spec["jobTemplate"]["spec"]["template"]["spec"]))
        elif kind == "RayCluster":
            found.append(Pod(f"{where}/head", spec["headGroupSpec"]["template"]["spec"]))
            found += [
                Pod(f"{where}/{group['groupName']}", group["template"]["spec"])
                for group in spec.get("workerGroupSpecs", [])
            ]
    return found


@dataclass(frozen=True)
class Program:
    """A container and the pod that it is in."""

    pod: Pod
    container: Document


def program(documents: list[Document], where: str, name: str) -> Program:
    """The container `name` of the pod `where`."""
    (pod,) = (pod for pod in pods(documents) if pod.where == where)
    (found,) = (item for item in pod.containers() if item["name"] == name)
    return Program(pod, found)


def environment(
    found: Program, documents: list[Document], given: Mapping[str, str], root: Path
) -> dict[str, str]:
    """A container's variables with the values that a kubelet would put in.

    given: what stands for `secret/key` where no Secret of the documents holds it. root: a folder;
    files in it stand for those that are mounted, and paths to them lead there.
    Raises KeyError for a reference that leads nowhere.
    """
    secrets = of_kind(documents, "Secret")
    mounted = _mount(found, documents, root)
    values: dict[str, str] = {}
    for variable in found.container.get("env", []):
        name, source = variable["name"], variable.get("valueFrom", {})
        if reference := source.get("secretKeyRef"):
            held = secrets.get(reference["name"], {}).get("stringData", {})
            key = reference["key"]
            values[name] = held[key] if key in held else given[f"{reference['name']}/{key}"]
        elif source:
            values[name] = {"status.podIP": "10.0.0.9"}[source["fieldRef"]["fieldPath"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], variable["value"])
            values[name] = str(mounted.get(value, value))
    return values


def _mount(found: Program, documents: list[Document], root: Path) -> dict[str, Path]:
    """What is mounted as files, by the path that the container sees, as files under `root`.

    They hold what the documents say, and nothing where none of them does.
    """
    secrets, maps = of_kind(documents, "Secret"), of_kind(documents, "ConfigMap")
    sources = {}
    for volume in found.pod.spec["volumes"]:
        if secret := volume.get("secret"):
            held = secrets.get(secret["secretName"], {}).get("stringData", {})
            sources[volume["name"]] = (secret["items"], held)
        elif config := volume.get("configMap"):
            held = maps.get(config["name"], {}).get("data", {})
            sources[volume["name"]] = (config["items"], held)
    made = {}
    for mount in found.container["volumeMounts"]:
        items, held = sources.get(mount["name"], ((), {}))
        for item in items:
            path = f"{mount['mountPath']}/{item['path']}"
            made[path] = root / path.lstrip("/")
            made[path].parent.mkdir(parents=True, exist_ok=True)
            made[path].write_text(held.get(item["key"], ""))
            made[path].chmod(0o600)
    return made
