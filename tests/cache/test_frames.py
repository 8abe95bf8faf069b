"""zstd frames: capped before allocation, verified after."""

import tracemalloc

import pytest
import zstandard

from cache.digest import digest
from cache.errors import CacheError, Corrupt, TooLarge
from cache.frames import compress, decompress
from cache.protocol import MAX_BLOB
from tests.cache.samples import noise


@pytest.mark.parametrize("data", [b"", b"a", b"\x00" * 1_000_000, noise(100_000)])
def test_round_trip(data):
    assert decompress(compress(data), digest(data)) == data


def test_every_flipped_byte_and_every_truncation_is_noticed_or_harmless():
    data = b"a kernel, " * 30 + noise(60)
    frame = compress(data)
    for at in range(len(frame)):
        for bit in range(8):
            flipped = bytearray(frame)
            flipped[at] ^= 1 << bit
            try:
                # A few bits of a frame mean nothing; then the data must be right.
                assert decompress(bytes(flipped), digest(data)) == data
            except CacheError:
                continue
        with pytest.raises(CacheError):
            decompress(frame[:at], digest(data))


def test_bomb_is_refused_before_it_is_unpacked():
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_BLOB + 1))
    assert len(bomb) < 50_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(bomb, digest(b""))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_smaller_cap_holds():
    frame = compress(bytes(1001))
    with pytest.raises(TooLarge):
        decompress(frame, digest(bytes(1001)), max_bytes=1000)


def test_frame_without_a_size_is_refused():
    data = bytes(10_000)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    with pytest.raises(Corrupt, match="declare"):
        decompress(frame, digest(data))


def test_frame_that_declares_too_little_is_refused():
    data = bytes(200)
    frame = bytearray(compress(data))
    # A single-segment frame of fewer than 256 bytes has its size in the sixth byte.
    assert frame[5] == 200
    for lie in (0, 1, 199, 201, 255):
        frame[5] = lie
        with pytest.raises(CacheError):
            decompress(bytes(frame), digest(data))


def test_bytes_after_the_frame_are_refused():
    data = b"data"
    for tail in (b"\x00", compress(b""), compress(bytes(1000))):
        with pytest.raises(Corrupt):
            decompress(compress(data) + tail, digest(data))


def test_other_blob_is_refused():
    with pytest.raises(Corrupt):
        decompress(compress(b"a"), digest(b"b"))
