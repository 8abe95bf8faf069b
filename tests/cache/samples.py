"""Keys, blobs and manifests to test with."""

import random
import secrets

from cache.artifacts import publish
from cache.digest import digest
from cache.manifest import Manifest

BLOBS = {"program": b"a plan\n" * 300, "kernel/0": bytes(range(256)) * 40, "empty": b""}


def key(seed: int = 0, kind: str = "graph") -> str:
    return f"{kind}/{seed:064x}"


def fresh_name() -> str:
    return f"t-{secrets.token_hex(6)}"


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress."""
    return random.Random(seed).randbytes(size)


def manifest(blobs: dict[str, bytes] | None = None, meta: bytes = b"meta") -> Manifest:
    return Manifest.of("graph", BLOBS if blobs is None else blobs, meta)


def put(store, data: bytes) -> str:
    """Store a blob; its digest."""
    name = digest(data)
    store.put_blob(name, data)
    return name


def artifact(store, number: int, *shared: bytes, size: int = 1000) -> dict[str, bytes]:
    """Publish an artifact with a blob of its own and the shared ones."""
    blobs = {"own": noise(size, number)} | {f"s{i}": data for i, data in enumerate(shared)}
    publish(store, key(number), Manifest.of("graph", blobs), blobs)
    return blobs


def keys_of(store) -> set[str]:
    """The entries that a store lists."""
    return {item.name for item in store.list_entries()}
