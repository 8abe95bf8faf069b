"""What a store knows of graphs that are still to be tuned: which ones, and what to begin with.

A store cannot be asked for the entries of a kind. So what a gateway publishes untuned is written
down in records of its own: a few of them, each changed by compare and swap, read when a gateway
begins and seldom after that. Beside each such graph its submit is kept, from which it is planned
anew where its plan is in nobody's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cache import key as keys
from cache.digest import digest, is_digest
from cache.errors import CacheError
from cache.manifest import Manifest
from cache.protocol import MAX_RECORD, Value, fields, pack, unpack
from farm.pool import TaskFailed
from farm.retry import ErrorKind
from farm.shelf import Shelf
from fusec.artifact.fingerprint import fingerprint
from fusec.errors import FusecError, WireError
from fusec.options import Target
from fusec.remote.protocol import FarmJob, decode_submit

log = logging.getLogger("fusec.farm")

RECORDS: Final = 64
"""Each has room for some eighty graphs."""
SWAPS: Final = 8
_VERSION: Final = 1
_JOB_BLOB: Final = "job"


@dataclass(frozen=True, slots=True)
class Untuned:
    """A published graph whose kernels are to be timed. binaries: of its kernels, by digest."""

    request: FarmJob
    plan: bytes
    binaries: Mapping[str, bytes]
    shelf: Shelf
    tenant: str

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self.request.graph) + len(self.plan) + sum(map(len, self.binaries.values()))


class UntunedIndex:
    """The graphs of one store that wait to be tuned, by fingerprint, with their targets."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = asyncio.Lock()  # one change of ours at a time

    async def read(self) -> dict[str, Target]:
        """All of them: RECORDS small reads. Raises TaskFailed."""
        read = await asyncio.gather(*(self._shelf.record(_name(n)) for n in range(RECORDS)))
        return {graph: target for data in read for graph, target in _rows(data).items()}

    async def add(self, graph: str, target: Target) -> bool:
        """Write a graph down. False where its record is full. Raises TaskFailed."""
        return await self._change(graph, target)

    async def remove(self, graph: str) -> None:
        """A graph is tuned, or never will be. Raises TaskFailed."""
        await self._change(graph, None)

    async def _change(self, graph: str, target: Target | None) -> bool:
        name = _name(int(graph[:2], 16) % RECORDS)
        async with self._lock:
            for _ in range(SWAPS):
                standing = await self._shelf.record(name)
                before = _rows(standing)
                after = {known: its for known, its in before.items() if known != graph}
                if target is not None:
                    after[graph] = target
                if after == before:
                    return True
                data = _record(after)
                if len(data) > MAX_RECORD:
                    return False
                expected = None if standing is None else digest(standing)
                if await self._shelf.swap_record(name, expected, data):
                    return True
        text = "the index of untuned graphs changes all the time"
        raise TaskFailed(ErrorKind.STORE_UNREACHABLE, text)


async def keep_job(shelf: Shelf, request: FarmJob) -> None:
    """Keep the submit of a graph, which goes once it is answered. Raises TaskFailed."""
    blobs = {_JOB_BLOB: pack(request.to_wire())}
    await shelf.publish(_job_key(request.fingerprint), Manifest.of("tuning", blobs), blobs)


async def kept_job(shelf: Shelf, graph: str) -> FarmJob | None:
    """The submit of a graph that was published untuned. Raises TaskFailed, WireError."""
    kept = await shelf.standing(_job_key(graph))
    if kept is None or _JOB_BLOB not in kept.blobs:
        return None
    job = decode_submit(kept.blobs[_JOB_BLOB])
    return job if isinstance(job, FarmJob) else None


def _job_key(graph: str) -> str:
    return fingerprint({"untuned": graph}).key("tuning")


def _name(number: int) -> str:
    return f"{keys.INDEX}/{fingerprint({'untuned index': number}).hex}"


def _record(rows: Mapping[str, Target]) -> bytes:
    body: list[Value] = [
        [bytes.fromhex(graph), its.device, its.isa, its.device_class] for graph, its in rows.items()
    ]
    return pack({"version": _VERSION, "graphs": body})


def _rows(data: bytes | None) -> dict[str, Target]:
    """A record's graphs; none where it is malformed or another release's: it is written anew."""
    if data is None:
        return {}
    try:
        body = fields(unpack(data, max_bytes=MAX_RECORD), "an index", ("version", "graphs"))
        graphs = body["graphs"]
        if body["version"] != _VERSION or not isinstance(graphs, list):
            raise WireError("an index of untuned graphs is malformed")
        return dict(_row(item) for item in graphs)
    except (CacheError, FusecError) as error:
        log.warning("passed over: %s", error, extra={"action": "tune"})
        return {}


def _row(item: Value) -> tuple[str, Target]:
    if isinstance(item, list) and len(item) == 4 and isinstance(item[0], bytes):
        graph, (device, isa, model) = item[0].hex(), item[1:]
        if is_digest(graph) and isinstance(device, str) and isinstance(isa, str):
            return graph, Target(device, isa, str(model))
    raise WireError("not an untuned graph")
