"""Blobs as zstd frames: how they lie on disk and in S3 and travel over the wire."""

from __future__ import annotations

import zstandard

from cache import digest as digests
from cache.errors import Corrupt, TooLarge
from cache.protocol import MAX_BLOB

LEVEL = 3


def compress(data: bytes) -> bytes:
    """One zstd frame of `data`, with its size in the header."""
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(data)


def decompress(frame: bytes, digest: str, *, max_bytes: int = MAX_BLOB) -> bytes:
    """The blob in a frame, verified against its digest.

    The size that the frame declares is checked before anything is allocated, and no more than that
    is ever produced. Raises TooLarge over `max_bytes`, Corrupt if the frame is not exactly one
    valid frame of the blob.
    """
    try:
        size = zstandard.frame_content_size(frame)
        if size < 0:
            raise Corrupt(f"blob {digest[:16]}…: the frame does not declare its size")
        if size > max_bytes:
            raise TooLarge(f"blob {digest[:16]}…: {size} bytes uncompressed, limit {max_bytes}")
        # A frame that declares 0 bytes is decoded with a buffer of 1: the library takes a limit of
        # 0 to mean none.
        data = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=max(size, 1), read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Corrupt(f"blob {digest[:16]}…: {error}") from error
    digests.check(data, digest)
    return data
