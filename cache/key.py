"""Entry keys and names of records: `<kind>/<64 hex>`, and namespaces.

The one place that knows their form.
"""

from __future__ import annotations

import re

from cache.errors import ProtocolError

KINDS = frozenset({"front", "graph", "inductor", "kernel", "tuning"})
REVOKED = "revoked"
"""The kind of the one entry that holds a store's revocations; no manifest stands under it."""
DOOMED = "doomed"
"""The kind of the one entry in which a collector announces what it will remove."""
LEASE = "lease"
"""The kind of the records that say who works on what (`cache.lease`). No entry is of this kind."""
INDEX = "index"
"""The kind of the records that list what is still to be done, which nothing else of a store can be
asked for. They stay, however long nobody changes them."""
DRAIN = "drain"
"""The kind of the one record that says whether the farm begins anything (`farm.drain`)."""
RECORDS = (LEASE, INDEX, DRAIN)
_RECORD = re.compile(f"({'|'.join(RECORDS)})/([0-9a-f]{{64}})")
_KEY = re.compile(f"({'|'.join([*sorted(KINDS), REVOKED, DOOMED])})/([0-9a-f]{{64}})")
_NAMESPACE = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,38})?")


def parse(key: str) -> tuple[str, str]:
    """Split a key into (kind, hex). Raises ProtocolError if it is not one."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ProtocolError(
            f"not an entry key: {key[:90]!r}",
            hint=f"a key is <kind>/<64 hex characters> with kind one of {', '.join(sorted(KINDS))}",
        )
    return match.group(1), match.group(2)


def parse_record(name: str) -> tuple[str, str]:
    """Split a record's name into (kind, hex). Raises ProtocolError if it is not one."""
    match = _RECORD.fullmatch(name)
    if match is None:
        kinds = " or ".join(RECORDS)
        raise ProtocolError(
            f"not a record: {name[:90]!r}", hint=f"a record is {kinds} and /<64 hex characters>"
        )
    return match.group(1), match.group(2)


def is_internal(key: str) -> bool:
    """Whether an entry is the cache's own and not a manifest. Raises ProtocolError."""
    return kind_of(key) not in KINDS


def kind_of(key: str) -> str:
    """The kind of a key. Raises ProtocolError if it is not a key."""
    return parse(key)[0]


def make(kind: str, hex_digest: str) -> str:
    """The key of a kind and a hex digest. Raises ProtocolError if it would not be valid."""
    key = f"{kind}/{hex_digest}"
    parse(key)
    return key


def is_namespace(name: str) -> bool:
    """Whether `name` may name a namespace ("" is the default one)."""
    return _NAMESPACE.fullmatch(name) is not None


def require_namespace(name: str) -> str:
    """Return `name` if it may name a namespace ("" is the default one), else raise ProtocolError.

    Up to 39 lower-case letters, digits and dashes: it becomes a folder and part of an S3 name.
    """
    if not is_namespace(name):
        raise ProtocolError(
            f"not a namespace: {name[:60]!r}",
            hint="a namespace is up to 39 lower-case letters, digits and dashes",
        )
    return name
