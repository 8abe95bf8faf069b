"""What a conditional write asks for: that nothing stands, or something of which it has a digest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cache.asgi import Request
from cache.errors import ProtocolError

_TAG: Final = re.compile(r'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Condition:
    """``create``: nothing may stand. ``expected``: the digest of what must stand."""

    create: bool
    expected: str | None

    @property
    def conditional(self) -> bool:
        return self.create or self.expected is not None

    @classmethod
    def of(cls, request: Request) -> Condition:
        """`If-None-Match: *` or `If-Match: "<SHA-256>"`, or neither. Raises ProtocolError."""
        absent, match = request.headers.get("if-none-match"), request.headers.get("if-match")
        if absent not in (None, "*"):
            raise ProtocolError("If-None-Match can only be *")
        if match is None:
            return cls(absent is not None, None)
        tag = _TAG.fullmatch(match)
        if absent is not None or tag is None:
            raise ProtocolError("If-Match is the SHA-256 of one value in quotes, and stands alone")
        return cls(False, tag.group(1))
