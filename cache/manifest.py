"""Manifests: what an entry holds. A small list of blobs by digest, and opaque metadata.

Encoded, a manifest is an envelope {version, sha256, body}: a reader checks the version, then the
checksum, and only then decodes the body. The encoding is deterministic and the only one accepted.

A manifest's tier says how good its artifact is. Below FINAL_TIER a better one may take its place
(`artifacts.replace`), so readers that keep a copy ask again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cache import digest as digests
from cache.errors import Corrupt, NewerVersion, ProtocolError, TooLarge
from cache.key import KINDS
from cache.protocol import MAX_BLOB, MAX_MANIFEST, Value, fields, pack, unpack

VERSION = 1
MAX_BLOBS = 16_384
MAX_ARTIFACT = 1 << 30
"""Most bytes that the blobs of one manifest may have together."""
FINAL_TIER = 9
"""The tier of what nothing better will follow; the lowest is 0."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+=-]*(/[A-Za-z0-9_][A-Za-z0-9_.:+=-]*)*")


@dataclass(frozen=True)
class Manifest:
    """What an entry names.

    `kind` is the kind of key it may stand under. `blobs` is (name, digest, size in bytes before
    compression), kept sorted by name; names are relative paths of plain characters. `meta` belongs
    to the writer; the cache does not look into it. `tier` is 0 to FINAL_TIER. Raises ProtocolError
    or TooLarge on values that could not be encoded.
    """

    kind: str
    blobs: tuple[tuple[str, str, int], ...]
    meta: bytes
    version: int = VERSION
    tier: int = FINAL_TIER

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "blobs", tuple(sorted(self.blobs)))

    @classmethod
    def of(
        cls, kind: str, blobs: Mapping[str, bytes], meta: bytes = b"", *, tier: int = FINAL_TIER
    ) -> Manifest:
        """The manifest of these blobs."""
        named = ((name, digests.digest(data), len(data)) for name, data in blobs.items())
        return cls(kind, tuple(sorted(named)), meta, tier=tier)

    @property
    def is_final(self) -> bool:
        """Whether nothing better will take its place."""
        return self.tier == FINAL_TIER

    def digests(self) -> list[str]:
        """The distinct digests it names, in the order of the names."""
        return list(dict.fromkeys(digest for _, digest, _ in self.blobs))

    def size(self) -> int:
        """Bytes of all its blobs before compression."""
        return sum(size for _, _, size in self.blobs)

    def encode(self) -> bytes:
        """The one encoding of this manifest. Raises TooLarge over MAX_MANIFEST."""
        inner: dict[str, Value] = {
            "kind": self.kind,
            "blobs": [[name, digest, size] for name, digest, size in self.blobs],
            "meta": self.meta,
        }
        if not self.is_final:
            inner["tier"] = self.tier
        body = pack(inner)
        data = pack(
            {"version": self.version, "sha256": hashlib.sha256(body).digest(), "body": body}
        )
        if len(data) > MAX_MANIFEST:
            raise TooLarge(f"a manifest of {len(data)} bytes, limit {MAX_MANIFEST}")
        return data

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Decode and verify. The version is looked at first, so that a newer one is named as such.

        Raises NewerVersion, Corrupt (checksum), TooLarge, or ProtocolError (anything else).
        """
        envelope = unpack(data, max_bytes=MAX_MANIFEST, max_depth=4)
        version = envelope.get("version") if isinstance(envelope, dict) else None
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ProtocolError("manifest: no version")
        if version > VERSION:
            raise NewerVersion(f"manifest of version {version}; this side reads {VERSION}")
        outer = fields(envelope, "manifest", ("version", "sha256", "body"))
        body = outer["body"]
        if not isinstance(body, bytes) or not isinstance(outer["sha256"], bytes):
            raise ProtocolError("manifest: sha256 and body must be bytes")
        if hashlib.sha256(body).digest() != outer["sha256"]:
            raise Corrupt("manifest: its checksum does not match its body")
        value = unpack(body, max_bytes=MAX_MANIFEST, max_depth=4)
        inner = fields(value, "manifest", ("kind", "blobs", "meta"), ("tier",))
        kind, blobs, meta = inner["kind"], inner["blobs"], inner["meta"]
        tier = inner.get("tier", FINAL_TIER)
        if not isinstance(kind, str) or not isinstance(blobs, list) or not isinstance(meta, bytes):
            raise ProtocolError("manifest: kind, blobs or meta has the wrong type")
        if not isinstance(tier, int):
            raise ProtocolError("manifest: tier is no number")
        made = Manifest(kind, tuple(_blob(item) for item in blobs), meta, version, tier)
        if made.encode() != data:
            raise ProtocolError("manifest: not in its canonical encoding")
        return made


def _blob(item: Value) -> tuple[str, str, int]:
    if isinstance(item, list) and len(item) == 3:
        name, digest, size = item
        if isinstance(name, str) and isinstance(digest, str) and isinstance(size, int):
            return name, digest, size
    raise ProtocolError("manifest: a blob is not [name, digest, size]")


def _check(manifest: Manifest) -> None:
    if manifest.kind not in KINDS:
        raise ProtocolError(f"manifest: kind {manifest.kind[:40]!r} is not one of {sorted(KINDS)}")
    if manifest.version != VERSION:
        raise ProtocolError(f"manifest: this side writes version {VERSION} only")
    if isinstance(manifest.tier, bool) or not 0 <= manifest.tier <= FINAL_TIER:
        raise ProtocolError(f"manifest: tier {manifest.tier!r} is not within 0 and {FINAL_TIER}")
    if len(manifest.blobs) > MAX_BLOBS:
        raise TooLarge(f"manifest: {len(manifest.blobs)} blobs, limit {MAX_BLOBS}")
    seen: set[str] = set()
    for name, digest, size in manifest.blobs:
        if len(name) > 200 or _NAME.fullmatch(name) is None:
            raise ProtocolError(f"manifest: {name[:80]!r} is not a plain relative name")
        if name in seen:
            raise ProtocolError(f"manifest: the name {name!r} stands twice")
        seen.add(name)
        digests.require(digest)
        if isinstance(size, bool) or not 0 <= size <= MAX_BLOB:
            raise TooLarge(f"manifest: blob {name!r} has {size} bytes, limit {MAX_BLOB}")
    if manifest.size() > MAX_ARTIFACT:
        raise TooLarge(f"manifest: blobs of {manifest.size()} bytes, limit {MAX_ARTIFACT}")
