"""Compare and swap of an object in S3.

An object is read with its ETag, compared, and written with `If-Match` (or `If-None-Match: *` where
none is expected), which the server decides atomically. Callers name what they expect by its
SHA-256: an ETag is a checksum of the content in some buckets and not in others.

Not every server that speaks S3 decides `If-Match` rightly, and one that does not tells nobody: two
gateways would hold one lease. So the first swap is preceded by a look at what the server does.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from cache.digest import digest
from cache.errors import CacheError, NoSwap, NotReachable
from cache.protocol import MSGPACK
from cache.s3_bucket import Bucket

ATTEMPTS: Final = 4
_OTHER_TAG: Final = f'"{digest(b"another value")[:32]}"'


class Swaps:
    """Conditional writes in one bucket. Safe for threads."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._fault: str | None = None  # what is wrong; "" is nothing, None is not known yet

    def swap(self, name: str, expected: str | None, data: bytes, limit: int, action: str) -> bool:
        """Put `data` in the place of the bytes with the digest `expected`, or of none; see
        `SwapStore`. limit: most bytes of what may stand.

        Raises NotReachable while others get in between every time, NoSwap.
        """
        self.require(action)
        for attempt in range(ATTEMPTS):
            # What is to be new is not there as a rule: no request to find that out.
            unseen = expected is None and not attempt
            standing = None if unseen else self._bucket.get(name, limit, action)
            if standing is not None and digest(standing[0]) != expected:
                return standing[0] == data
            if standing is None and expected is not None:
                return False
            tag = None if standing is None else standing[1]
            # If not: somebody was first, or a try before was written and its answer lost.
            if self._bucket.put_if(name, data, MSGPACK, tag, action):
                return True
        raise NotReachable(f"cannot {action}: the object changes all the time")

    def touch(self, name: str, limit: int, action: str) -> None:
        """Put an object again, unless it changes at that moment; nothing happens without it.

        Raises NoSwap.
        """
        self.require(action)
        standing = self._bucket.get(name, limit, action)
        if standing is not None:
            self._bucket.put_if(name, standing[0], MSGPACK, standing[1], action)

    def require(self, action: str) -> None:
        """Raise NoSwap unless the server decides conditions as S3 does, which it is asked once."""
        if self._fault is None:
            # Callers that come at once each ask for themselves: none waits for another's timeout.
            self._fault = self._look()
        if self._fault:
            raise NoSwap(f"cannot {action}: {self._bucket.where} {self._fault}")

    def _look(self) -> str:
        """What the server does wrong with an object that nobody else knows; "" if nothing.

        By what stands afterwards: an answer may be that to a second try of what was done.
        """
        name, action = f"probe/{secrets.token_hex(16)}", "see how conditions are decided"

        def put_if(data: bytes, tag: str | None) -> bool:
            return self._bucket.put_if(name, data, MSGPACK, tag, action)

        try:
            put_if(b"1", None)
            standing = self._bucket.get(name, 1, action)
            if standing is None or standing[0] != b"1":
                return "does not create under If-None-Match: *"
            if put_if(b"2", None):
                return "overwrites in spite of If-None-Match: *"
            if put_if(b"3", _OTHER_TAG):
                return "overwrites in spite of an If-Match that does not hold"
            put_if(b"4", standing[1])
            standing = self._bucket.get(name, 1, action)
            if standing is None or standing[0] != b"4":
                return "refuses an If-Match that holds"
            return ""
        finally:
            with suppress(CacheError):
                self._bucket.delete(name, action)
