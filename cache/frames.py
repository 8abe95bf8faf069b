"""Blobs as zstd frames: how they lie on disk and in S3 and travel over the wire."""

from __future__ import annotations

import zstandard

from cache import digest as digests
from cache.errors import Corrupt, TooLarge
from cache.protocol import MAX_BLOB
from cache.store import FrameStore, Store

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


def get_frame(store: Store, digest: str) -> bytes | None:
    """A blob of any store as a frame, as it lies there where the store keeps frames."""
    if isinstance(store, FrameStore):
        return store.get_frame(digest)
    data = store.get_blob(digest)
    return None if data is None else compress(data)


def put_frame(store: Store, digest: str, frame: bytes) -> None:
    """Write a blob that comes as a frame. Raises Corrupt, TooLarge and what the store raises."""
    if isinstance(store, FrameStore):
        store.put_frame(digest, frame)
    else:
        store.put_blob(digest, decompress(frame, digest))
