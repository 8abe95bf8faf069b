"""What tuning found, kept in the artifact store by kernel and device: a second run times nothing.

A record holds the winner's binary too, so that it compiles nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgpack

from cache.artifacts import lookup, publish
from cache.errors import CacheError
from cache.manifest import Manifest
from cache.store import Store
from fusec.artifact.fingerprint import fingerprint
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import MAX_VARIANTS, GpuSource
from fusec.errors import WireError
from fusec.runtime.format import KERNEL_BLOB, RECORD_BLOB

_KIND: Final = "tuning"
_VERSION: Final = 2
_MAX_RECORD: Final = 1 << 20


@dataclass(frozen=True)
class Record:
    """variant: the winner in its last race; warps, constants: its own; samples: milliseconds of a
    launch, by variant that was timed; margin: by what part of the winner's time the next one is
    slower; left_out: why others were not timed."""

    variant: int
    warps: int
    constants: tuple[tuple[str, int], ...]
    samples: Mapping[int, Sequence[float]]
    margin: float
    left_out: Mapping[int, str]

    @property
    def ms(self) -> float:
        """Milliseconds of a launch of the winner."""
        return median(self.samples[self.variant])

    def to_bytes(self) -> bytes:
        body = {
            "v": _VERSION,
            "variant": self.variant,
            "warps": self.warps,
            "constants": [list(pair) for pair in self.constants],
            "samples": sorted((n, list(times)) for n, times in self.samples.items()),
            "margin": self.margin,
            "left_out": sorted(self.left_out.items()),
        }
        return bytes(msgpack.packb(body, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """Raises WireError for anything that `to_bytes` does not write."""
        if len(data) > _MAX_RECORD:
            raise WireError(f"a record of {len(data)} bytes is over {_MAX_RECORD}")
        try:
            body = msgpack.unpackb(data, raw=False)
            if body["v"] != _VERSION or set(body) != set(_FIELDS):
                raise WireError("a record of another version of fusec")
            samples = {int(n): tuple(float(t) for t in times) for n, times in body["samples"]}
            left_out = {int(n): str(text) for n, text in body["left_out"]}
            made = cls(
                variant=int(body["variant"]),
                warps=int(body["warps"]),
                constants=tuple((str(name), int(n)) for name, n in body["constants"]),
                samples=samples,
                margin=float(body["margin"]),
                left_out=left_out,
            )
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            raise WireError(f"a record does not decode: {error}") from error
        if not 0 <= made.variant < MAX_VARIANTS or not samples.get(made.variant):
            raise WireError("a record names a variant that cannot be, or was not timed")
        return made


_FIELDS: Final = ("v", "variant", "warps", "constants", "samples", "margin", "left_out")


def record_key(source: GpuSource, device: str, compiler: str, descended: bool) -> str:
    """The store's key of a kernel's record. device: its class; compiler: as in kernel keys;
    descended: whether the winners' neighbours were tried too."""
    entries = {
        "kernel": source.digest,
        "device": device,
        "compiler": compiler,
        "descended": descended,
    }
    return fingerprint(entries).key(_KIND)


def find(store: Store, key: str) -> tuple[Record, GpuBinary] | None:
    """The record under a key and the winner's binary; None where there is none that is of use."""
    try:
        found = lookup(store, key)
        if found is None:
            return None
        record = Record.from_bytes(found.blobs[RECORD_BLOB])
        return record, GpuBinary.from_bytes(found.blobs[KERNEL_BLOB])
    except (CacheError, WireError, KeyError):
        return None


def keep(
    store: Store, key: str, record: Record, binary: GpuBinary
) -> tuple[Record, GpuBinary] | None:
    """Store a record with the winner's binary and return what stands under the key from then on:
    another process may have been first, and all are to use the same variant. None where the store
    has no room."""
    blobs = {RECORD_BLOB: record.to_bytes(), KERNEL_BLOB: binary.to_bytes()}
    manifest = Manifest.of(_KIND, blobs)
    try:
        standing = publish(store, key, manifest, blobs)
    except CacheError:
        return None
    return (record, binary) if standing == manifest else find(store, key)
