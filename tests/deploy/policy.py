"""The rules that every pod of ours keeps, whatever the values: a list of what breaks them."""

from tests.deploy.manifests import Document, Pod, pods


def broken(documents: list[Document]) -> list[str]:
    """Every rule that a pod of the documents breaks, with where."""
    found = []
    for pod in pods(documents):
        found += [f"{pod.where}: {text}" for text in _pod(pod, documents)]
        for item in pod.containers():
            where = f"{pod.where}/{item['name']}"
            found += [f"{where}: {text}" for text in _container(item)]
    return found


def _pod(pod: Pod, documents: list[Document]) -> list[str]:
    found = []
    security = pod.spec.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        found.append("may run as root")
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("has no seccomp profile")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(name):
            found.append(f"sets {name}")
    if pod.spec.get("automountServiceAccountToken") is not False and not _autoscales(
        pod, documents
    ):
        found.append("mounts a token of the API server")
    if pod.spec.get("enableServiceLinks") is not False:
        # FUSEC_CACHE_PORT=tcp://… of a Service called fusec-cache would be taken for a setting.
        found.append("gets the variables of Services")
    sources = {next(key for key in volume if key != "name") for volume in pod.spec["volumes"]}
    unknown = sources - {"emptyDir", "secret", "configMap", "persistentVolumeClaim", "ephemeral"}
    if unknown - {"hostPath"} or ("hostPath" in unknown and "cache" not in pod.where):
        found.append(f"has volumes of {', '.join(sorted(unknown))}")
    for volume in pod.spec["volumes"]:
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            found.append(f"the volume {volume['name']} may fill the node")
    return found


def _autoscales(pod: Pod, documents: list[Document]) -> bool:
    """Ray's autoscaler, in the head, asks the API server for workers."""
    return any(
        pod.where == f"RayCluster/{item['metadata']['name']}/head"
        and item["spec"].get("enableInTreeAutoscaling")
        for item in documents
        if item["kind"] == "RayCluster"
    )


def _container(item: Document) -> list[str]:
    found = []
    security = item.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        found.append("may gain privileges")
    if not security.get("readOnlyRootFilesystem"):
        found.append("may write to its image")
    if security.get("capabilities") != {"drop": ["ALL"]}:
        found.append("keeps capabilities")
    if security.get("privileged"):
        found.append("is privileged")
    for part in ("requests", "limits"):
        held = item.get("resources", {}).get(part, {})
        found += [f"has no {part} of {name}" for name in ("cpu", "memory") if name not in held]
    name, _, version = item["image"].rpartition("/")[2].partition(":")
    if "@sha256:" not in item["image"] and version in ("", "latest"):
        found.append(f"its image {name} has no fixed version")
    if any(
        "key" in variable["name"].lower() and "value" in variable and len(variable["value"]) > 90
        for variable in item.get("env", [])
    ):
        found.append("holds what looks like a key in its text")
    return found
