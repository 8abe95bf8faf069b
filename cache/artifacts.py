"""Whole artifacts over any store: publish blobs and then their entry; look an entry up with blobs.

A reader never sees half an artifact: an entry whose manifest does not verify or whose blobs are not
all there is a miss, and the next `publish` under its key heals it.

A key never changes its bytes silently. `replace` does it in the open: for a better tier, by compare
and swap with the entry that the writer has seen.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cache import key as keys
from cache.digest import digest
from cache.errors import (
    BadSignature,
    CacheError,
    Corrupt,
    MissingBlobs,
    NewerVersion,
    NotBetter,
    ProtocolError,
    Revoked,
    TooLarge,
    UnknownSigner,
    Unsigned,
    Untrusted,
)
from cache.manifest import Manifest
from cache.seal import Seal
from cache.store import Blobs, Store, SwapStore, get_blobs
from cache.trust import OWN_STORE, Trust


class Miss(enum.Enum):
    """Why a lookup found nothing to use."""

    ABSENT = "absent"
    BLOB_MISSING = "blob_missing"
    CORRUPT = "corrupt"
    NEWER_VERSION = "newer_version"
    UNSIGNED = "unsigned"
    UNKNOWN_SIGNER = "unknown_signer"
    BAD_SIGNATURE = "bad_signature"
    REVOKED = "revoked"


OnMiss = Callable[[str, Miss], None]
"""Called with the key and the reason."""


@dataclass(frozen=True)
class Found:
    """An artifact: its manifest, the bytes of each blob by name, all verified, and its seal."""

    manifest: Manifest
    blobs: dict[str, bytes]
    seal: Seal | None = None

    @property
    def version(self) -> str:
        """The digest of its entry's bytes, by which `replace` knows it."""
        return digest(self.entry())

    def entry(self) -> bytes:
        """The bytes of its entry."""
        data = self.manifest.encode()
        return data if self.seal is None else self.seal.wrap(data)


def publish(
    store: Store,
    key: str,
    manifest: Manifest,
    blobs: Mapping[str, bytes],
    *,
    seal: Seal | None = None,
    trust: Trust = OWN_STORE,
) -> Manifest:
    """Write an artifact, blobs first. Returns the manifest that stands under the key afterwards.

    That is another writer's if one was there first and is whole: one decision a key. A standing
    entry that is damaged, lacks a blob or is not to be trusted is replaced. One of a newer version
    is left alone, and `manifest` is returned though it does not stand.

    seal: of this manifest under this key; the entry is unsigned without.
    Raises ProtocolError if `blobs` are not what `manifest` names, or what the store raises.
    """
    data = _encode(key, manifest, blobs, seal)
    if _write(store, manifest, blobs, lambda: store.put_entry(key, data)):
        return manifest
    return _replace_unless_good(store, key, data, trust) or manifest


def replace(
    store: SwapStore,
    key: str,
    manifest: Manifest,
    blobs: Mapping[str, bytes],
    expected: str,
    *,
    seal: Seal | None = None,
    trust: Trust = OWN_STORE,
    claimed: bool = False,
) -> bool:
    """Put a better artifact in the place of the one of that version (`Found.version`).

    claimed: see `check_better`. False when another version stands by now, or none: somebody else
    was faster, or the entry was removed. Raises NotBetter for a tier that is not above that of what
    stands, ProtocolError if `blobs` are not what `manifest` names, or what the store raises.
    """
    data = _encode(key, manifest, blobs, seal)
    standing = store.get_entry(key)
    if standing is not None and digest(standing) == expected:
        check_better(key, manifest, good_manifest(key, standing, trust), claimed=claimed)
    return _write(store, manifest, blobs, lambda: store.swap_entry(key, expected, data))


def check_better(
    key: str, manifest: Manifest, standing: Manifest | None, *, claimed: bool = False
) -> None:
    """Raise NotBetter unless a manifest may take the place of one that is good.

    claimed: the writer holds the lease of the work, and may do it again as well as before.
    """
    if standing is not None and manifest.tier < standing.tier + (0 if claimed else 1):
        text = f"tier {manifest.tier} does not replace tier {standing.tier} under {key[:24]}…"
        raise NotBetter(text)


def good_manifest(key: str, data: bytes, trust: Trust) -> Manifest | None:
    """The manifest of an entry's bytes, or None where anything may take its place: it is damaged
    or not to be trusted. Raises NewerVersion: what this side cannot judge stays."""
    try:
        return open_entry(key, data, trust)[0]
    except NewerVersion:
        raise
    except (Corrupt, ProtocolError, TooLarge, Untrusted):
        return None


def put_entry_over(store: Store, key: str, data: bytes, trust: Trust) -> None:
    """Write an entry, blobs being there; one that stands and is whole and trusted is kept."""
    if not store.put_entry(key, data):
        _replace_unless_good(store, key, data, trust)


def lookup(
    store: Store, key: str, *, on_miss: OnMiss | None = None, trust: Trust = OWN_STORE
) -> Found | None:
    """The artifact under a key, or None. Raises what the store raises (NotReachable, Refused)."""
    return lookup_many(store, [key], on_miss=on_miss, trust=trust).get(key)


def lookup_many(
    store: Store,
    wanted: Sequence[str],
    *,
    on_miss: OnMiss | None = None,
    trust: Trust = OWN_STORE,
) -> dict[str, Found]:
    """The artifacts under those of the keys that have one. Blobs are read in one batch."""
    return collect(
        {key: store.get_entry(key) for key in wanted},
        lambda digests: get_blobs(store, digests),
        on_miss=on_miss,
        trust=trust,
    )


def collect(
    entries: Mapping[str, bytes | None],
    read: Callable[[Sequence[str]], Blobs],
    *,
    on_miss: OnMiss | None = None,
    trust: Trust,
) -> dict[str, Found]:
    """Turn entries' bytes by key into artifacts, reading all their blobs with one call of `read`.

    What cannot be used, or is not to be trusted, is left out and reported to `on_miss`; no blob of
    it is read.
    """

    def missed(key: str, reason: Miss) -> None:
        if on_miss is not None:
            on_miss(key, reason)

    manifests: dict[str, Manifest] = {}
    seals: dict[str, Seal | None] = {}
    for key, data in entries.items():
        if data is None:
            missed(key, Miss.ABSENT)
            continue
        try:
            manifests[key], seals[key] = open_entry(key, data, trust)
        except (Corrupt, ProtocolError, TooLarge, Untrusted) as error:
            missed(key, _reason(error))
    wanted = dict.fromkeys(digest for made in manifests.values() for digest in made.digests())
    blobs = read(list(wanted)) if wanted else Blobs({}, frozenset())
    found: dict[str, Found] = {}
    for key, manifest in manifests.items():
        named = {name: blobs.found.get(digest) for name, digest, _ in manifest.blobs}
        whole = {name: data for name, data in named.items() if data is not None}
        if len(whole) < len(named):
            bad = not blobs.corrupt.isdisjoint(manifest.digests())
            missed(key, Miss.CORRUPT if bad else Miss.BLOB_MISSING)
        elif any(len(whole[name]) != size for name, _, size in manifest.blobs):
            missed(key, Miss.CORRUPT)
        else:
            found[key] = Found(manifest, whole, seals[key])
    return found


def open_entry(key: str, data: bytes, trust: Trust) -> tuple[Manifest, Seal | None]:
    """An entry's manifest, which must be of the key's kind, and its seal.

    Raises like `Trust.open`, then like `Manifest.decode`.
    """
    seal, body = trust.open(key, data)
    manifest = Manifest.decode(body)
    if manifest.kind != keys.kind_of(key):
        raise ProtocolError(f"entry {key[:24]}… holds a manifest of kind {manifest.kind!r}")
    trust.check(key, manifest)
    return manifest, seal


_REASONS: tuple[tuple[type[CacheError], Miss], ...] = (
    (NewerVersion, Miss.NEWER_VERSION),
    (Unsigned, Miss.UNSIGNED),
    (UnknownSigner, Miss.UNKNOWN_SIGNER),
    (BadSignature, Miss.BAD_SIGNATURE),
    (Revoked, Miss.REVOKED),
)


def _reason(error: CacheError) -> Miss:
    return next((miss for kind, miss in _REASONS if isinstance(error, kind)), Miss.CORRUPT)


def _replace_unless_good(store: Store, key: str, data: bytes, trust: Trust) -> Manifest | None:
    """The manifest that stands and is good, or None when `data` has taken its place.

    None as well for one of a newer version, which is left alone.
    """
    standing_bytes = store.get_entry(key)
    if standing_bytes is not None:
        try:
            standing = good_manifest(key, standing_bytes, trust)
        except NewerVersion:
            return None
        if standing is not None and not _absent(store, standing):
            return standing
    store.replace_entry(key, data)
    return None


def _encode(key: str, manifest: Manifest, blobs: Mapping[str, bytes], seal: Seal | None) -> bytes:
    """The entry of an artifact whose blobs are what its manifest names."""
    _check_match(key, manifest, blobs)
    data = manifest.encode()
    return data if seal is None else seal.wrap(data)


def _write(
    store: Store, manifest: Manifest, blobs: Mapping[str, bytes], entry: Callable[[], bool]
) -> bool:
    """Blobs, then the entry."""
    _put_blobs(store, manifest, blobs)
    try:
        return entry()
    except MissingBlobs:
        # A collector took a blob between the question and the entry: all of them once more.
        _put_blobs(store, manifest, blobs, assume_absent=True)
        return entry()


def _check_match(key: str, manifest: Manifest, blobs: Mapping[str, bytes]) -> None:
    if manifest.kind != keys.kind_of(key):
        raise ProtocolError(f"a manifest of kind {manifest.kind!r} cannot stand under {key[:24]}…")
    named = {name: (expected, size) for name, expected, size in manifest.blobs}
    if named.keys() != blobs.keys():
        odd = sorted(named.keys() ^ blobs.keys())
        raise ProtocolError(f"manifest and blobs do not name the same: {', '.join(odd)[:200]}")
    for name, data in blobs.items():
        if named[name] != (digest(data), len(data)):
            raise ProtocolError(f"blob {name!r} is not the one that the manifest names")


def _put_blobs(
    store: Store,
    manifest: Manifest,
    blobs: Mapping[str, bytes],
    *,
    assume_absent: bool = False,
) -> None:
    by_digest = {expected: blobs[name] for name, expected, _ in manifest.blobs}
    present = set() if assume_absent else store.has_blobs(by_digest)
    for expected, data in by_digest.items():
        if expected not in present:
            store.put_blob(expected, data)


def _absent(store: Store, manifest: Manifest) -> set[str]:
    return set(manifest.digests()) - store.has_blobs(manifest.digests())
