"""A store as a tar file: what goes in comes out, and nothing else gets in."""

import io
import tarfile
from contextlib import suppress

import pytest

from cache import archive
from cache.artifacts import lookup, publish
from cache.digest import digest
from cache.errors import CacheError, TooLarge
from cache.frames import compress
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.revocation import KEY, Revocations
from cache.seal import Signer
from cache.signing import SigningKey
from cache.trust import OWN_STORE, signed_by
from tests.cache.samples import BLOBS, key, manifest

FARM, OTHER = SigningKey.generate(), SigningKey.generate()


@pytest.fixture
def store(tmp_path):
    made = LocalStore(tmp_path / "store")
    for number, signer in ((0, FARM), (1, OTHER), (2, None)):
        data = manifest().encode()
        seal = None if signer is None else Signer(signer, "c").seal(key(number), data)
        publish(made, key(number), manifest(), BLOBS, seal=seal)
    return made


def exported(store):
    out = io.BytesIO()
    moved = archive.write(store, out)
    return moved, io.BytesIO(out.getvalue())


def test_a_store_survives_its_tar_file(store):
    moved, file = exported(store)
    assert (moved.entries, moved.blobs, moved.left_out) == (3, 3, ())
    other = MemoryStore()
    assert archive.read(other, file, OWN_STORE).entries == 3
    for number in range(3):
        assert other.get_entry(key(number)) == store.get_entry(key(number)), "with its seal"
        assert lookup(other, key(number)).blobs == BLOBS


def test_an_export_is_deterministic(store):
    assert exported(store)[1].getvalue() == exported(store)[1].getvalue()


def test_an_import_takes_what_is_trusted(store):
    other = MemoryStore()
    moved = archive.read(other, exported(store)[1], signed_by([FARM.public]))
    assert moved.entries == 1
    assert len(moved.left_out) == 2
    assert other.get_entry(key(0)) is not None
    assert other.get_entry(key(1)) is other.get_entry(key(2)) is None


def test_an_untrusted_entry_that_stands_makes_room_and_a_trusted_one_stays(store):
    trust = signed_by([FARM.public])
    data = manifest(meta=b"mine").encode()
    for standing, replaced in (
        (data, True),
        (Signer(FARM, "c").seal(key(0), data).wrap(data), False),
    ):
        other = MemoryStore()
        for blob in BLOBS.values():
            other.put_blob(digest(blob), blob)
        other.put_entry(key(0), standing)
        archive.read(other, exported(store)[1], trust)
        assert (other.get_entry(key(0)) != standing) == replaced


def test_damaged_artifacts_are_left_out_of_an_export(store):
    store.replace_entry(key(2), b"garbage")
    publish(store, key(3), manifest({"x": b"x"}), {"x": b"x"})
    store._blob_path(digest(b"x")).unlink()
    moved, file = exported(store)
    assert moved.entries == 2
    assert len(moved.left_out) == 2
    assert archive.read(MemoryStore(), file, OWN_STORE).entries == 2


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data, more in members:
            item = tarfile.TarInfo(name)
            item.size = len(data)
            for field, value in more.items():
                setattr(item, field, value)
            made.addfile(item, io.BytesIO(data))
    return io.BytesIO(out.getvalue())


BLOB = f"blobs/{digest(b'x')}.zst"


@pytest.mark.parametrize(
    "member",
    [
        ("../../etc/passwd", b"x", {}),
        ("/etc/passwd", b"x", {}),
        (f"../{BLOB}", compress(b"x"), {}),
        (f"/{BLOB}", compress(b"x"), {}),
        (f"./{BLOB}", compress(b"x"), {}),
        (f"entries/graph/../../{'a' * 64}", b"x", {}),
        (f"entries/graph/{'a' * 64}\n", b"x", {}),
        (BLOB, b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        (BLOB, b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        (BLOB, b"", {"type": tarfile.FIFOTYPE}),
        ("blobs", b"", {"type": tarfile.DIRTYPE}),
        (BLOB, b"not a frame", {}),
        (BLOB, compress(b"another blob"), {}),
    ],
)
def test_members_that_we_would_not_write_are_refused_and_nothing_is_written(member, tmp_path):
    store = LocalStore(tmp_path / "store")
    with pytest.raises(CacheError):
        archive.read(store, tar(member), OWN_STORE)
    assert list(store.list_blobs()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_sizes_and_counts_are_bounded(monkeypatch):
    monkeypatch.setattr(archive, "MAX_FRAME", 10)
    with pytest.raises(TooLarge):
        archive.read(MemoryStore(), tar((BLOB, bytes(11), {})), OWN_STORE)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    monkeypatch.setattr(archive, "MAX_FRAME", 100)
    with pytest.raises(TooLarge):
        archive.read(MemoryStore(), tar(*[(BLOB, compress(b"x"), {})] * 2), OWN_STORE)


def test_a_bomb_is_refused():
    frame = compress(bytes(300 << 20))
    with pytest.raises(TooLarge):
        archive.read(MemoryStore(), tar((BLOB, frame, {})), OWN_STORE)


def test_an_entry_without_its_blobs_and_one_of_the_caches_own_are_left_out():
    moved = archive.read(
        MemoryStore(),
        tar(
            (f"entries/{key()}", manifest().encode(), {}),
            (f"entries/{KEY}", Revocations().encode(), {}),
            ("entries/other/" + "a" * 64, b"", {}),
        ),
        OWN_STORE,
    )
    assert (moved.entries, len(moved.left_out)) == (0, 3)


def test_no_truncation_and_no_flipped_byte_gives_wrong_bytes(store):
    content = exported(store)[1].getvalue()
    for at in range(0, len(content), 97):
        for bad in (content[:at], content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]):
            other = MemoryStore()
            with suppress(CacheError):
                archive.read(other, io.BytesIO(bad), OWN_STORE)
            for number in range(3):
                found = lookup(other, key(number))
                assert found is None or found.blobs == BLOBS


def test_an_audit_names_what_is_damaged(store):
    assert archive.audit(store).damaged == ()
    store._blob_path(digest(BLOBS["program"])).write_bytes(b"x")
    store.replace_entry(key(2), b"garbage")
    found = archive.audit(store)
    assert (found.entries, found.blobs) == (3, 3)
    assert len(found.damaged) == 4
    publish(store, key(0), manifest(), BLOBS)
    publish(store, key(2), manifest(), BLOBS)
    assert archive.audit(store).damaged == ()
