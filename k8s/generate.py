"""Writes k8s/base from the Helm chart, so that both ways to install are one: `make k8s`.

The base has the cache service and the farm as k8s/base/values.yaml sets them. Secrets are left out:
they are made before (docs/kubernetes.md).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "fusec"
BASE: Final = Path(__file__).parent / "base"
_HEAD: Final = "# Made by `make k8s` from the Helm chart; do not edit.\n"
_LEFT_OUT: Final = frozenset({"Secret", "Pod"})
_LABELS: Final = frozenset({"helm.sh/chart", "app.kubernetes.io/managed-by"})


def files(helm: str) -> dict[str, str]:
    """The base's manifests, by file name."""
    command = [helm, "template", "fusec", str(CHART), "--namespace", "fusec"]
    values = ["--values", str(BASE / "values.yaml")]
    done = subprocess.run([*command, *values], check=True, capture_output=True, text=True)
    made: dict[str, str] = {}
    for item in yaml.safe_load_all(done.stdout):
        if item is None or item["kind"] in _LEFT_OUT:
            continue
        _strip(item)
        del item["metadata"]["namespace"]  # the overlays say it
        name = f"{item['kind'].lower()}-{item['metadata']['name']}.yaml"
        made[name] = _HEAD + yaml.safe_dump(item, sort_keys=False, width=100)
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(made),
    }
    made["kustomization.yaml"] = _HEAD + yaml.safe_dump(listed, sort_keys=False)
    return made


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
    for old in BASE.glob("*.yaml"):
        if old.name != "values.yaml":
            old.unlink()
    for name, text in files(str(Path(sys.executable).parent / "helm")).items():
        (BASE / name).write_text(text)
