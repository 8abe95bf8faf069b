"""Compare and swap of an object in S3.

An object is read with its ETag, compared, and written with `If-Match` (or `If-None-Match: *` where
none is expected), which the server decides atomically. Callers name what they expect by its
SHA-256: an ETag is a checksum of the content in some buckets and not in others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import ClientError

from cache.digest import digest
from cache.errors import NotReachable
from cache.s3_errors import ABSENT, RACED, TAKEN, error_code

ATTEMPTS: Final = 4


def swap_object(
    read: Callable[[], tuple[bytes, str] | None],
    write: Callable[..., Any],
    expected: str | None,
    data: bytes,
) -> bool:
    """Put `data` in the place of the bytes with the digest `expected`, or of none; see `SwapStore`.

    read: gives the object's bytes and ETag, None without one. write: puts `data` under the
    condition that it is called with. Raises NotReachable while others get in between every time.
    """
    for attempt in range(ATTEMPTS):
        # What is to be new is not there as a rule: no request to find that out.
        standing = None if expected is None and not attempt else read()
        if standing is not None and digest(standing[0]) != expected:
            return standing[0] == data
        if standing is None and expected is not None:
            return False
        try:
            if standing is None:
                write(data, IfNoneMatch="*")
            else:
                write(data, IfMatch=standing[1])
            return True
        except ClientError as error:
            # Somebody was first, or a try before this one was written and its answer lost.
            if error_code(error) not in TAKEN | RACED | ABSENT:
                raise
    raise NotReachable("the object changes all the time")
