"""The wire: bounded msgpack, the limits, and the names of paths and headers.

Only nil, bool, int, float, str, bytes, lists and maps with string keys travel. Depth, the number of
containers and the size are bounded, so that what a peer sends cannot cost more than it should.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgpack

from cache.errors import ProtocolError, TooLarge

Value: TypeAlias = bool | int | float | str | bytes | list["Value"] | dict[str, "Value"] | None

MAX_BLOB = 256 << 20
"""Largest blob, in bytes before compression."""
MAX_MANIFEST = 4 << 20
"""Largest encoded manifest, in bytes."""
MAX_RECORD = 4 << 10
"""Largest record, in bytes."""
MAX_BATCH = 1024
"""Most keys or digests in one request."""
MAX_BATCH_BYTES = 64 << 20
"""Most bytes of blobs or manifests in one batch reply; the rest is absent and asked for again."""
MAX_FRAME = MAX_BLOB + (MAX_BLOB >> 7) + 1024
"""Largest compressed blob: zstd may grow incompressible bytes a little."""
MAX_REQUEST = 256 << 10
"""Largest body of a batch request (1024 keys take about 75 kB)."""
MAX_REPLY = MAX_BATCH_BYTES + (1 << 20)
"""Largest batch reply."""
MAX_SUBMIT = 64 << 20
"""Largest body that is passed on to the farm."""
MAX_DEPTH = 32
MAX_CONTAINERS = 1 << 18

NAMESPACE_HEADER = "x-fusec-namespace"
"""The namespace that a request is about; the default one without it."""
ROLE_HEADER = "x-fusec-role"
"""The caller's role, as the cache service tells it to the farm. Of a client it is not believed."""

CLAIM_HEADER = "x-fusec-claim"
"""The claim of a writer whose lease is to be checked before its entry is written."""
REDIRECT_HEADER = "x-fusec-redirect"
"""Set to 1 by a client that can fetch a blob from another address."""
PRESIGNED_SECONDS = 300
"""For how long such an address is good."""

MSGPACK = "application/msgpack"
OCTETS = "application/octet-stream"

PATH_ENTRIES = "/v1/entries"
PATH_LOOKUP = "/v1/entries/lookup"
PATH_BLOBS = "/v1/blobs"
PATH_BLOBS_HAS = "/v1/blobs/has"
PATH_BLOBS_GET = "/v1/blobs/get"
PATH_RECORDS = "/v1/records"
PATH_REVOKED = "/v1/revoked"
PATH_STATS = "/v1/stats"
PATH_COMPILE = "/v1/compile"
PATH_HEALTH = "/healthz"
PATH_READY = "/readyz"
PATH_METRICS = "/metrics"

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})


def pack(value: object) -> bytes:
    """Encode a value. Tuples become lists; maps keep their order.

    Raises ProtocolError for a type or an integer that does not travel, or for too deep a value.
    """
    _check_shape(value, MAX_DEPTH)
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (OverflowError, ValueError, UnicodeEncodeError) as error:
        raise ProtocolError(f"cannot encode: {error}") from error
    return packed


def pack_bytes_map(field: str, items: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """The parts of `pack({field: items})`: the values are among them as they are, not copied."""
    packer = msgpack.Packer(use_bin_type=True)
    parts = [packer.pack_map_header(1) + packer.pack(field) + packer.pack_map_header(len(items))]
    for name, value in items.items():
        parts += [packer.pack(name) + _bin_header(len(value)), value]
    return tuple(parts)


def unpack(
    data: bytes,
    *,
    max_bytes: int,
    max_depth: int = MAX_DEPTH,
    max_containers: int = MAX_CONTAINERS,
) -> Value:
    """Decode a value of at most `max_bytes` bytes, `max_depth` levels, `max_containers` containers.

    Raises TooLarge over the size, ProtocolError for everything else that is not exactly one value.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"{len(data)} bytes of msgpack, limit {max_bytes}")
    containers = 0

    def count() -> None:
        nonlocal containers
        containers += 1
        if containers > max_containers:
            raise ProtocolError(f"more than {max_containers} lists and maps in one value")

    def on_list(items: list[Value]) -> list[Value]:
        count()
        return items

    def on_map(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        count()
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ProtocolError("a map has the same key twice")
        return made

    try:
        value: Value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            list_hook=on_list,
            object_pairs_hook=on_map,
            ext_hook=_refuse_ext,
        )
    except ProtocolError:
        raise
    except (ValueError, RecursionError, TypeError, OverflowError, msgpack.UnpackException) as error:
        # msgpack reports truncated, trailing, too deep and malformed input by these types.
        raise ProtocolError(f"not msgpack: {type(error).__name__}: {error}"[:200]) from error
    _check_shape(value, max_depth)
    return value


def fields(
    value: Value, where: str, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Value]:
    """Return `value` as a map with exactly these fields; raise ProtocolError naming the odd one."""
    if not isinstance(value, dict):
        raise ProtocolError(f"{where}: expected a map, got {type(value).__name__}")
    for name in required:
        if name not in value:
            raise ProtocolError(f"{where}: field {name!r} is missing")
    for name in value:
        if name not in required and name not in optional:
            raise ProtocolError(f"{where}: unknown field {name[:80]!r}")
    return value


def strings(value: Value, where: str, *, limit: int = MAX_BATCH) -> list[str]:
    """Return `value` as a list of at most `limit` strings, else raise ProtocolError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProtocolError(f"{where}: expected a list of strings")
    if len(value) > limit:
        raise TooLarge(f"{where}: {len(value)} items, limit {limit}")
    return [str(item) for item in value]


def bytes_map(value: Value, where: str) -> dict[str, bytes]:
    """Return `value` as a map from strings to bytes, else raise ProtocolError."""
    if not isinstance(value, dict):
        raise ProtocolError(f"{where}: expected a map, got {type(value).__name__}")
    made: dict[str, bytes] = {}
    for name, item in value.items():
        if not isinstance(item, bytes):
            raise ProtocolError(f"{where}: {name[:80]!r} is not bytes")
        made[name] = item
    return made


def _bin_header(size: int) -> bytes:
    """What precedes so many bytes in msgpack."""
    for code, width in ((b"\xc4", 1), (b"\xc5", 2), (b"\xc6", 4)):
        if size < 1 << 8 * width:
            return code + size.to_bytes(width, "big")
    raise ProtocolError(f"{size} bytes do not travel in one piece")


def _refuse_ext(code: int, data: bytes) -> Value:
    raise ProtocolError(f"msgpack extension type {code} is not allowed")


def _check_shape(value: object, max_depth: int) -> None:
    # Level by level, not recursive: the depth is bounded before Python's stack is.
    level: list[object] = [value]
    depth = 0
    while level:
        depth += 1
        below: list[object] = []
        for item in level:
            kind = type(item)
            if kind in _SCALARS:
                continue
            if depth > max_depth:
                raise ProtocolError(f"nested deeper than {max_depth} levels")
            if isinstance(item, dict):
                for name in item:
                    if type(name) is not str:
                        raise ProtocolError(f"a map key is {type(name).__name__}, not a string")
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            else:
                raise ProtocolError(f"values of type {kind.__name__} do not travel")
        level = below
