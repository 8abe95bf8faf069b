"""The store as the farm's event loop uses it: calls in threads, tried again while that helps.

This is where artifacts are signed, and where the farm checks what it finds: a kernel that somebody
planted must not end up in an artifact that bears our signature.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cache import artifacts, revocation
from cache.artifacts import Found
from cache.client import CacheClient
from cache.errors import CacheError, NotReachable
from cache.lease import Claim, check_claim
from cache.manifest import Manifest
from cache.seal import Seal, Signer
from cache.store import SwapStore
from cache.trust import OWN_STORE, Trust
from farm.attempts import Attempts
from farm.pool import TaskFailed
from farm.store_calls import StoreCalls
from fusec.remote.jobs import FrontRecord
from fusec.runtime.format import KERNEL_BLOB

THREADS: Final = 16
REVOKED_S: Final = 10.0


class Shelf:
    """Artifacts of graphs, kernels and front keys in one store. Raises TaskFailed.

    signer: signs what is published; None publishes unsigned artifacts. trust: what is used of what
    stands there.
    """

    def __init__(
        self,
        store: SwapStore,
        attempts: Attempts,
        *,
        signer: Signer | None = None,
        trust: Trust = OWN_STORE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._calls = StoreCalls(attempts, THREADS, "farm-store")
        # A model's kernels are published while others wait for look-ups and for their artifacts,
        # which must not stand in line behind hundreds of writes that nobody waits for.
        self._behind = StoreCalls(attempts, THREADS, "farm-kernels")
        self._signer = signer
        self._trust = trust
        self._revoked_at = float("-inf")

    async def has(self, key: str) -> bool:
        """Whether a whole artifact stands under a key: its entry and all its blobs."""
        return await self._calls.call(lambda: self._whole(key))

    async def kernels(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The binaries that exist, by key."""
        found = await self.found(keys)
        return {
            key: item.blobs[KERNEL_BLOB] for key, item in found.items() if KERNEL_BLOB in item.blobs
        }

    async def keep_kernel(self, key: str, binary: bytes) -> None:
        """Publish a binary by itself. A fault costs a later build, not this job."""
        manifest = Manifest.of("kernel", {KERNEL_BLOB: binary})
        try:
            blobs = {KERNEL_BLOB: binary}
            await self._behind.call(lambda: self._publish(key, manifest, blobs, None))
        except TaskFailed:
            return  # counted already

    async def publish(
        self,
        key: str,
        manifest: Manifest,
        blobs: Mapping[str, bytes],
        claim: Claim | None = None,
    ) -> None:
        """Blobs, then the entry, signed; an artifact that stands there and is trusted is kept.

        claim: that of the lease under which it was made, if any. Raises Fenced when that is over.
        """
        await self._calls.call(lambda: self._publish(key, manifest, blobs, claim))

    async def standing(self, key: str) -> Found | None:
        """The whole and trusted artifact that stands under a key."""
        return (await self._calls.call(lambda: self._lookup([key], fresh=True))).get(key)

    async def replace(
        self,
        key: str,
        manifest: Manifest,
        blobs: Mapping[str, bytes],
        expected: str,
        claim: Claim | None = None,
    ) -> bool:
        """Put a better artifact (`Manifest.tier`), signed, in the place of the one of that version
        (`Found.version`). False when another version stands by now.

        claim: as of `publish`; with it, one as good may be replaced too.
        """
        return await self._calls.call(lambda: self._replace(key, manifest, blobs, expected, claim))

    async def record(self, name: str) -> bytes | None:
        """A record's bytes as they are now."""
        return await self._calls.call(lambda: self._store.get_record(name))

    async def swap_record(self, name: str, expected: str | None, data: bytes) -> bool:
        """Write a record in the place of the one of that digest, of none for None. False where
        another stands."""
        return await self._calls.call(lambda: self._store.swap_record(name, expected, data))

    async def found(self, keys: Sequence[str]) -> dict[str, Found]:
        """The artifacts that exist, by key. A store that does not answer has none."""
        try:
            return await self._calls.call(lambda: self._lookup(keys))
        except TaskFailed:
            return {}  # counted already; doing it again costs less than failing the job

    async def publish_front(self, record: FrontRecord) -> bool:
        """Publish a front record, False when an artifact that it leads to is missing."""
        for key in dict.fromkeys(record.part_keys().values()):
            if not await self.has(key):
                return False
        await self.publish(record.key, Manifest(kind="front", blobs=(), meta=record.encode()), {})
        return True

    async def ready(self) -> bool:
        """Whether the store answers."""
        try:
            await self._calls.once(lambda: self._store.has_blobs(["0" * 64]))
        except CacheError:
            return False
        return True

    def close(self) -> None:
        self._calls.close()
        self._behind.close()

    def _publish(
        self, key: str, manifest: Manifest, blobs: Mapping[str, bytes], claim: Claim | None
    ) -> None:
        seal, trust = self._seal(key, manifest), self._current_trust()
        store = self._claiming(key, claim)
        artifacts.publish(store, key, manifest, blobs, seal=seal, trust=trust)

    def _replace(
        self,
        key: str,
        manifest: Manifest,
        blobs: Mapping[str, bytes],
        expected: str,
        claim: Claim | None,
    ) -> bool:
        seal, trust = self._seal(key, manifest), self._current_trust()
        return artifacts.replace(
            self._claiming(key, claim),
            key,
            manifest,
            blobs,
            expected,
            seal=seal,
            trust=trust,
            claimed=claim is not None,
        )

    def _claiming(self, key: str, claim: Claim | None) -> SwapStore:
        """The store for a writer with a claim; raises Fenced if it is over already."""
        if claim is None:
            return self._store
        if isinstance(self._store, CacheClient):
            return self._store.claiming(claim)  # the service looks at the moment of the write
        check_claim(self._store, key, claim)
        return self._store

    def _seal(self, key: str, manifest: Manifest) -> Seal | None:
        return None if self._signer is None else self._signer.seal(key, manifest.encode())

    def _whole(self, key: str) -> bool:
        data = self._store.get_entry(key)
        if data is None:
            return False
        try:
            digests = artifacts.open_entry(key, data, self._current_trust())[0].digests()
        except NotReachable:
            raise
        except CacheError:
            return False  # damaged or not to be trusted: publishing anew heals it
        return self._store.has_blobs(digests) >= set(digests)

    def _lookup(self, keys: Sequence[str], *, fresh: bool = False) -> dict[str, Found]:
        trust = self._current_trust()
        if isinstance(self._store, CacheClient):
            return self._store.lookup_many(keys, trust=trust, fresh=fresh)
        return artifacts.lookup_many(self._store, keys, trust=trust)

    def _current_trust(self) -> Trust:
        """The trust with the store's revocations, REVOKED_S old at most. In a thread."""
        if self._clock() - self._revoked_at > REVOKED_S:
            self._trust = replace(self._trust, revoked=revocation.read(self._store))
            self._revoked_at = self._clock()
        return self._trust
