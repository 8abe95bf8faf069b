"""Writes k8s/base and k8s/components/monitoring from the Helm chart: `make k8s`.

So both ways to install are one.
The base has the cache service and the farm as k8s/base/values.yaml sets them; the component is what
the Prometheus operator and Grafana read. Secrets are left out: they are made before
(docs/kubernetes.md).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

K8S: Final = Path(__file__).parent
CHART: Final = K8S.parent / "deploy" / "helm" / "fusec"
VALUES: Final = K8S / "base" / "values.yaml"
BASE: Final = "base"
MONITORING: Final = "components/monitoring"
_HEAD: Final = "# Made by `make k8s` from the Helm chart; do not edit.\n"
_LEFT_OUT: Final = frozenset({"Secret", "Pod"})
_MONITORING: Final = frozenset({"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"})
_LABELS: Final = frozenset({"helm.sh/chart", "app.kubernetes.io/managed-by"})


def files(helm: str) -> dict[str, str]:
    """The manifests, by their paths in k8s/."""
    found: dict[str, dict[str, str]] = {BASE: {}, MONITORING: {}}
    for item in _rendered(helm):
        _strip(item)
        del item["metadata"]["namespace"]  # the overlays say it
        folder = MONITORING if item["kind"] in _MONITORING else BASE
        name = f"{item['kind'].lower()}-{item['metadata']['name']}.yaml"
        found[folder][name] = yaml.safe_dump(item, sort_keys=False, width=100)
    for folder, version, kind in (
        (BASE, "v1beta1", "Kustomization"),
        (MONITORING, "v1alpha1", "Component"),
    ):
        listed = {
            "apiVersion": f"kustomize.config.k8s.io/{version}",
            "kind": kind,
            "resources": sorted(found[folder]),
        }
        found[folder]["kustomization.yaml"] = yaml.safe_dump(listed, sort_keys=False)
    return {
        f"{folder}/{name}": _HEAD + text
        for folder, made in found.items()
        for name, text in made.items()
    }


def written() -> dict[str, str]:
    """What is there of these files now."""
    paths = (path for folder in (BASE, MONITORING) for path in (K8S / folder).glob("*.yaml"))
    return {str(path.relative_to(K8S)): path.read_text() for path in paths if path != VALUES}


def _rendered(helm: str) -> Iterator[Any]:
    command = [helm, "template", "fusec", str(CHART), "--namespace", "fusec"]
    command += ["--values", str(VALUES)]
    for part in ("serviceMonitor", "rules", "dashboards"):
        command += ["--set", f"metrics.{part}.enabled=true"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for item in yaml.safe_load_all(done.stdout):
        if item is not None and item["kind"] not in _LEFT_OUT:
            yield item


def _strip(node: Any) -> None:
    """Take out what only Helm has a use for."""
    if isinstance(node, dict):
        for part in ("labels", "annotations"):
            for name in list(node.get(part) or ()):
                if name in _LABELS or name.startswith("checksum/"):
                    del node[part][name]
            if part in node and not node[part]:
                del node[part]
        for item in node.values():
            _strip(item)
    elif isinstance(node, list):
        for item in node:
            _strip(item)


if __name__ == "__main__":
    for old in written():
        (K8S / old).unlink()
    for path, text in files(str(Path(sys.executable).parent / "helm")).items():
        (K8S / path).parent.mkdir(parents=True, exist_ok=True)
        (K8S / path).write_text(text)
