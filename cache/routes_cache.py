"""Entries and blobs: the routes that clients and farm workers use all day."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cache import digest as digests
from cache import frames
from cache import key as keys
from cache import protocol as wire
from cache.artifacts import check_better, good_manifest, open_entry
from cache.asgi import Request, Response, packed
from cache.conditions import Condition
from cache.errors import CacheError, Fenced, MissingBlobs, ProtocolError
from cache.lease import Claim, check_claim
from cache.revocation import KEY as REVOCATIONS_KEY
from cache.revocation import Revocations
from cache.service_state import Caller, ServiceState
from cache.store import SignsUrls
from cache.tiered import TieredStore

log = logging.getLogger("fusec.cache")

AT_ONCE: Final = 16
"""Things of one batch that are read at the same time."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def entry_get(state: ServiceState, caller: Caller, request: Request, key: str) -> Response:
    """One entry: 200 with the manifest's bytes, or 404."""
    data = await caller.space.entry(key)
    return Response(404) if data is None else Response(200, data)


async def entry_lookup(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Many entries: those that are there and fit the reply together. `fresh` passes memory by."""
    body = await request.value(wire.MAX_REQUEST)
    asked = wire.fields(body, request.path, ("keys",), ("fresh",))
    fresh = asked.get("fresh", False)
    if not isinstance(fresh, bool):
        raise ProtocolError("fresh is neither true nor false")
    wanted = list(dict.fromkeys(wire.strings(asked["keys"], f"{request.path}: keys")))
    for key in wanted:
        keys.parse(key)
    return await _batch("found", wanted, lambda key: caller.space.entry(key, fresh=fresh))


async def entry_put(state: ServiceState, caller: Caller, request: Request, key: str) -> Response:
    """Create an entry (If-None-Match: *), swap it for one that stands (If-Match: "SHA-256 of that
    one's bytes") or replace what stands: 201, 200, 412, or 409 when a blob is absent.

    The manifest must verify, be of the key's kind and of a version that this service knows; where
    the service has trusted keys, one of them must have signed it. What is good is swapped for a
    better tier only, or an equal one by the holder of its lease. Who shows a claim must hold the
    lease (423).
    """
    condition = Condition.of(request)
    shown = request.headers.get(wire.CLAIM_HEADER)
    claim = None if shown is None else Claim.parse(shown)
    data = await request.body(wire.MAX_MANIFEST)
    state.metrics.bytes.labels("in").inc(len(data))
    trust = await caller.space.writers_trust()
    manifest, _ = open_entry(key, data, trust)
    wanted = manifest.digests()
    absent = set(wanted) - await caller.space.fence.present(wanted)
    if absent:
        sample = ", ".join(f"{digest[:16]}…" for digest in sorted(absent)[:3])
        raise MissingBlobs(f"{len(absent)} blobs of {key[:24]}… are absent: {sample}")
    reader, store = caller.space.reader, caller.space.store

    def write() -> tuple[bytes | None, bool]:
        standing = store.get_entry(key) if condition.conditional else data
        if standing is not None and digests.digest(standing) == condition.expected:
            good = good_manifest(key, standing, trust)
            check_better(key, manifest, good, claimed=claim is not None)
        if claim is not None:
            check_claim(store, key, claim)  # last, so that no time passes before the write
        if condition.create:
            return standing, store.put_entry(key, data)
        if condition.expected is not None:
            return standing, store.swap_entry(key, condition.expected, data)
        store.replace_entry(key, data)
        return standing, True

    try:
        standing, written = await reader.call(write)
    except Fenced:
        state.metrics.fenced.inc()
        raise
    except CacheError:
        reader.forget(key)
        raise
    if written:
        reader.remember_entry(key, data)
        return packed(201 if standing is None else 200, {})
    reader.forget(key)
    log.warning("another value stands under %s", key, extra={"action": "conflict"})
    state.metrics.conflicts.labels(manifest.kind).inc()
    message = "another value stands under this key"
    return packed(412, {"error": {"kind": "Conflict", "message": message}})


async def entry_delete(state: ServiceState, caller: Caller, request: Request, key: str) -> Response:
    """Remove an entry: 204, also if there was none."""
    await caller.space.reader.call(caller.space.store.delete_entry, key)
    caller.space.reader.forget(key)
    return Response(204)


async def revoked_get(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """What is revoked in the namespace; an empty list where nothing is."""
    return Response(200, (await caller.space.revoked()).encode())


async def revoked_put(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Replace the list. In force here at once, and in other replicas within seconds."""
    data = await request.body(wire.MAX_MANIFEST)
    made = Revocations.decode(data)
    space = caller.space
    await space.reader.call(space.store.replace_entry, REVOCATIONS_KEY, data)
    space.set_revoked(made)
    log.warning("the revocations were changed", extra={"action": "revoke"})
    return packed(200, {})


async def blobs_has(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Which blobs are there. The store is asked, not memory: writers rely on the answer."""
    asked = await _asked_digests(request)
    present = await caller.space.fence.present(asked)
    return packed(200, {"present": sorted(present)})


async def blobs_get(state: ServiceState, caller: Caller, request: Request, _: str) -> Response:
    """Many blobs as zstd frames: those that are there and fit the reply together."""
    return await _batch("blobs", await _asked_digests(request), caller.space.reader.frame)


async def _batch(
    field: str, names: Sequence[str], read: Callable[[str], Awaitable[bytes | None]]
) -> Response:
    """Those of many things that are there and fit the reply together; read AT_ONCE at a time."""
    found: dict[str, bytes] = {}
    room = wire.MAX_BATCH_BYTES
    full = False
    for at in range(0, len(names), AT_ONCE):
        group = names[at : at + AT_ONCE]
        for name, data in zip(group, await asyncio.gather(*map(read, group)), strict=True):
            if data is None:
                continue
            if len(data) > room:
                full = True
                continue
            room -= len(data)
            found[name] = data
        if full:
            break  # the rest is asked for again: it is not read for nothing
    return Response(200, parts=wire.pack_bytes_map(field, found))


async def blob_get(state: ServiceState, caller: Caller, request: Request, digest: str) -> Response:
    """One blob as a zstd frame, whole or a range of the frame; or, for a client that can follow,
    the address in S3 where a large one lies (307)."""
    url = await _elsewhere(state, caller, request, digest)
    if url is not None:
        return Response(307, headers=(("location", url),))
    frame = await caller.space.reader.frame(digest)
    if frame is None:
        return Response(404)
    headers = (
        ("content-encoding", "zstd"),
        ("accept-ranges", "bytes"),
        ("cache-control", "public, max-age=31536000, immutable"),
    )
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or not (match[1] or match[2]):
        return Response(200, frame, wire.OCTETS, headers)
    size = len(frame)
    if match[1]:
        first = int(match[1])
        last = min(int(match[2]) if match[2] else size - 1, size - 1)
    else:
        first, last = max(size - int(match[2]), 0), size - 1
    if first > last:
        return Response(416, headers=(("content-range", f"bytes */{size}"),))
    ranged = (*headers, ("content-range", f"bytes {first}-{last}/{size}"))
    return Response(206, frame[first : last + 1], wire.OCTETS, ranged)


async def _elsewhere(
    state: ServiceState, caller: Caller, request: Request, digest: str
) -> str | None:
    """The address of a blob that the client is to fetch by itself; None to serve it from here."""
    least, store = state.config.redirect_bytes, caller.space.store
    part = store.far if isinstance(store, TieredStore) else store
    if not least or request.headers.get(wire.REDIRECT_HEADER) != "1":
        return None
    if caller.space.reader.holds(digest) or not isinstance(part, SignsUrls):
        return None
    return await caller.space.reader.call(part.presigned, digest, least, wire.PRESIGNED_SECONDS)


async def blob_put(state: ServiceState, caller: Caller, request: Request, digest: str) -> Response:
    """Write a blob that comes as a zstd frame: 201, or 200 if it was there. 422 if it is not it."""
    if request.headers.get("content-encoding", "").strip().lower() != "zstd":
        raise ProtocolError("a blob is sent with Content-Encoding: zstd")
    frame = await request.body(wire.MAX_FRAME)
    state.metrics.bytes.labels("in").inc(len(frame))

    store = caller.space.store
    forced = await caller.space.fence.must_write(digest)

    def write() -> bool:
        if not forced and store.has_blobs([digest]):
            frames.decompress(frame, digest)  # what is kept in memory is this one
            return False
        frames.put_frame(store, digest, frame)
        return True

    written = await caller.space.reader.call(write)
    caller.space.reader.remember_frame(digest, frame)
    return packed(201 if written else 200, {})


async def _asked(request: Request, field: str) -> list[str]:
    value = wire.fields(await request.value(wire.MAX_REQUEST), request.path, (field,))
    return wire.strings(value[field], f"{request.path}: {field}")


async def _asked_digests(request: Request) -> list[str]:
    asked = await _asked(request, "digests")
    return list(dict.fromkeys(digests.require(digest) for digest in asked))
