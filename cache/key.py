"""Entry keys: `<kind>/<64 hex>`. The one place that knows their form."""

from __future__ import annotations

import re

from cache.errors import ProtocolError

KINDS = frozenset({"front", "graph", "kernel", "tuning"})
_KEY = re.compile(r"(front|graph|kernel|tuning)/([0-9a-f]{64})")


def parse(key: str) -> tuple[str, str]:
    """Split a key into (kind, hex). Raises ProtocolError if it is not one."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ProtocolError(
            f"not an entry key: {key[:90]!r}",
            hint=f"a key is <kind>/<64 hex characters> with kind one of {', '.join(sorted(KINDS))}",
        )
    return match.group(1), match.group(2)


def kind_of(key: str) -> str:
    """The kind of a key. Raises ProtocolError if it is not a key."""
    return parse(key)[0]


def make(kind: str, hex_digest: str) -> str:
    """The key of a kind and a hex digest. Raises ProtocolError if it would not be valid."""
    key = f"{kind}/{hex_digest}"
    parse(key)
    return key
