"""Who reaches whom under rendered NetworkPolicies: what a network plugin would let through."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.deploy.manifests import Document, of_kind

HERE = "fusec"


@dataclass(frozen=True)
class Party:
    """A pod by its labels and namespace, or an address outside of the cluster (no labels)."""

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = HERE
    address: str = ""


def pod_of(documents: list[Document], name: str) -> Party:
    """A pod of a Deployment or a CronJob."""
    if name in (deployments := of_kind(documents, "Deployment")):
        template = deployments[name]["spec"]["template"]
    else:
        template = of_kind(documents, "CronJob")[name]["spec"]["jobTemplate"]["spec"]["template"]
    return Party(template["metadata"]["labels"])


def ray_pod(kind: str) -> Party:
    """One of Ray's pods, by the labels that KubeRay gives it."""
    return Party({"ray.io/cluster": "fusec-ray", "ray.io/node-type": kind})


def reaches(
    documents: list[Document], source: Party, target: Party, port: int, protocol: str = "TCP"
) -> bool:
    """Whether a connection is let out of its source and into its target."""
    policies = [item["spec"] for item in of_kind(documents, "NetworkPolicy").values()]
    out = _let(policies, "Egress", "to", source, target, port, protocol)
    return out and _let(policies, "Ingress", "from", target, source, port, protocol)


def _let(
    policies: list[Document],
    way: str,
    peers: str,
    one: Party,
    other: Party,
    port: int,
    protocol: str,
) -> bool:
    """Whether the policies that choose `one` let it and `other` talk."""
    if not one.labels or one.namespace != HERE:
        return True  # not ours to say
    chosen = [
        spec
        for spec in policies
        if way in spec["policyTypes"] and _matches(spec["podSelector"], one.labels)
    ]
    rules = [rule for spec in chosen for rule in spec.get(way.lower(), ())]
    return not chosen or any(
        _has_port(rule, port, protocol) and _has_peer(rule.get(peers), other) for rule in rules
    )


def _has_port(rule: Document, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return ports is None or {"port": port, "protocol": protocol} in ports


def _has_peer(peers: list[Document] | None, other: Party) -> bool:
    if not peers:
        return True
    return any(_is(peer, other) for peer in peers)


def _is(peer: Document, other: Party) -> bool:
    if block := peer.get("ipBlock"):
        network = ipaddress.ip_network(block["cidr"])
        return bool(other.address) and ipaddress.ip_address(other.address) in network
    if not other.labels:
        return False
    if namespaces := peer.get("namespaceSelector"):
        # The only label that every namespace has.
        if not _matches(namespaces, {"kubernetes.io/metadata.name": other.namespace}):
            return False
    elif "namespaceSelector" not in peer and other.namespace != HERE:
        return False
    return _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: Document, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        {"In": labels.get(each["key"]) in each.get("values", ())}[each["operator"]]
        for each in selector.get("matchExpressions", ())
    )
