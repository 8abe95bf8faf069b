"""Signatures: keys and their files, seals, and what a reader that trusts some keys takes."""

import os
import random
import stat
from dataclasses import replace

import pytest

from cache.artifacts import Miss, lookup, publish
from cache.errors import (
    BadSignature,
    CacheError,
    ConfigError,
    NewerVersion,
    ProtocolError,
    Revoked,
    TooLarge,
    UnknownSigner,
    Unsigned,
    Untrusted,
)
from cache.manifest import Manifest
from cache.memory import MemoryStore
from cache.protocol import pack
from cache.revocation import KEY, MAX_NAMES, Revocations, change, read
from cache.seal import Signer, split
from cache.signing import (
    PublicKey,
    SigningKey,
    is_private,
    parse_trusted,
    public_path,
    read_trusted,
    write_trusted,
)
from cache.trust import NOBODY, OWN_STORE, Trust, signed_by
from tests.cache.samples import BLOBS, key, manifest

COMPILER = "fusec-0.1.0/torch-2.13.0/toolchain-0123456789abcdef"
FARM = SigningKey.generate("farm")
OTHER = SigningKey.generate("other")
TRUST = signed_by([FARM.public])


def sealed(key_=FARM, name=None, made=None, namespace="", compiler=COMPILER):
    """An entry's bytes, signed."""
    data = (made or manifest()).encode()
    return Signer(key_, compiler, namespace).seal(name or key(), data).wrap(data)


def store_with(entry):
    store = MemoryStore()
    publish(store, key(9), manifest(), BLOBS)  # the blobs are there
    store.put_entry(key(), entry)
    return store


def miss(store, trust=TRUST):
    reasons = []
    assert lookup(store, key(), on_miss=lambda _, why: reasons.append(why), trust=trust) is None
    (only,) = reasons
    return only


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_survives_its_file(tmp_path):
    path = tmp_path / "farm.key"
    FARM.write(path)
    assert SigningKey.read(path) == FARM
    assert read_trusted(public_path(path)) == (FARM.public,)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError):
        OTHER.write(path)
    assert SigningKey.read(path) == FARM


def test_a_key_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "farm.key"
    FARM.write(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read"):
        SigningKey.read(path)


@pytest.mark.parametrize(
    ("owner", "mode", "user", "private"),
    [
        (1000, 0o600, 1000, True),
        (1000, 0o440, 1000, False),
        (0, 0o440, 65532, True),  # a Secret's file, as Kubernetes mounts it
        (0, 0o460, 65532, False),
        (0, 0o444, 65532, False),
        (0, 0o440, 0, False),
    ],
)
def test_whose_a_key_file_must_be(owner, mode, user, private):
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, 65532, 10, 0, 0, 0))
    assert is_private(status, user) is private


def test_a_key_is_made_once(tmp_path):
    path = tmp_path / "keys" / "farm.key"
    first = SigningKey.read_or_generate(path, "mine")
    assert SigningKey.read_or_generate(path) == first


def test_secrets_are_not_shown():
    assert FARM.secret.hex() not in repr(FARM)
    assert repr(FARM.secret) not in repr(FARM)


def test_a_file_of_keys(tmp_path):
    path = tmp_path / "trusted"
    write_trusted(path, [FARM.public, OTHER.public])
    path.write_text("# ours\n\n" + path.read_text() + "  # the end\n")
    assert read_trusted(path) == (FARM.public, OTHER.public)


@pytest.mark.parametrize(
    "text",
    ["ssh-ed25519 AAAA x", "fusec-ed25519", "fusec-ed25519 !!", "fusec-ed25519 AAAA", "\x00"],
)
def test_lines_that_are_no_keys_are_refused(text, tmp_path):
    with pytest.raises(ConfigError):
        parse_trusted(text)
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        SigningKey.read(path)


def test_a_signing_key_among_the_trusted_ones_is_named_as_such(tmp_path):
    FARM.write(tmp_path / "farm.key")
    with pytest.raises(ConfigError, match="only its owner"):
        read_trusted(tmp_path / "farm.key")
    for empty in ("", "# nothing\n"):
        (tmp_path / "empty").write_text(empty)
        with pytest.raises(ConfigError, match="no public key"):
            read_trusted(tmp_path / "empty")


# -- what is taken ---------------------------------------------------------------------------------


def test_what_a_trusted_key_has_signed_is_a_hit():
    found = lookup(store_with(sealed()), key(), trust=TRUST)
    assert found is not None
    assert found.blobs == BLOBS
    assert found.seal is not None
    assert (found.seal.signer, found.seal.compiler) == (FARM.public.signer, COMPILER)


def test_signing_is_deterministic():
    assert sealed() == sealed()


def test_planted_unsigned_entry_is_a_miss():
    assert miss(store_with(manifest().encode())) is Miss.UNSIGNED


def test_entry_of_a_foreign_signer_is_a_miss():
    assert miss(store_with(sealed(OTHER))) is Miss.UNKNOWN_SIGNER


def test_entry_that_claims_another_signer_is_a_miss():
    seal, body = split(sealed(OTHER))
    forged = replace(seal, signer=FARM.public.signer).wrap(body)
    assert miss(store_with(forged)) is Miss.BAD_SIGNATURE


def test_seal_on_another_manifest_is_a_miss():
    seal, _ = split(sealed())
    assert miss(store_with(seal.wrap(manifest(meta=b"evil").encode()))) is Miss.BAD_SIGNATURE


def test_entry_moved_to_another_key_is_a_miss():
    assert miss(store_with(sealed(name=key(1)))) is Miss.BAD_SIGNATURE


def test_entry_moved_to_another_namespace_is_a_miss():
    assert miss(store_with(sealed(namespace="team-b"))) is Miss.BAD_SIGNATURE
    mine = signed_by([FARM.public], "team-b")
    assert lookup(store_with(sealed(namespace="team-b")), key(), trust=mine) is not None


def test_entry_with_another_compilers_name_is_a_miss():
    seal, body = split(sealed())
    entry = replace(seal, compiler="fusec-9.9.9").wrap(body)
    assert miss(store_with(entry)) is Miss.BAD_SIGNATURE


def test_nobody_is_trusted_by_default():
    assert miss(store_with(sealed()), NOBODY) is Miss.UNKNOWN_SIGNER
    assert miss(store_with(manifest().encode()), NOBODY) is Miss.UNSIGNED


def test_ones_own_store_needs_no_key():
    for entry in (manifest().encode(), sealed(OTHER)):
        assert lookup(store_with(entry), key(), trust=OWN_STORE) is not None


def test_nothing_is_decoded_before_the_signature_is_checked(monkeypatch):
    """A manifest that would crash its decoder is not looked at."""
    monkeypatch.setattr(Manifest, "decode", lambda data: pytest.fail("decoded"))
    for entry in (sealed(OTHER), manifest().encode(), sealed(name=key(1))):
        miss(store_with(entry))


def test_no_blob_of_an_untrusted_entry_is_read():
    class Watched(MemoryStore):
        def get_blobs(self, digests):
            pytest.fail("read")

    store = Watched()
    store.put_entry(key(), sealed(OTHER))
    assert miss(store) is Miss.UNKNOWN_SIGNER


def test_every_flipped_bit_and_every_truncation_of_a_signed_entry_is_a_miss():
    entry = sealed()
    for at in range(len(entry)):
        changed = bytearray(entry)
        changed[at] ^= 1 << (at % 8)
        for bad in (bytes(changed), entry[:at]):
            with pytest.raises(CacheError):
                TRUST.open(key(), bad)


def test_random_bytes_behind_the_magic_never_do_worse_than_our_error():
    rng = random.Random(7)
    for _ in range(2000):
        data = b"FSEAL" + bytes([rng.randrange(3)]) + rng.randbytes(rng.randrange(200))
        with pytest.raises((Untrusted, ProtocolError)):
            TRUST.open(key(), data)


def test_newer_seal_is_named_as_such():
    entry = bytearray(sealed())
    entry[5] = 9
    with pytest.raises(NewerVersion):
        TRUST.open(key(), bytes(entry))
    assert miss(store_with(bytes(entry))) is Miss.NEWER_VERSION


@pytest.mark.parametrize("compiler", ["a b", "a\0b", "é", "x" * 256])
def test_odd_names_of_compilers_are_refused(compiler):
    with pytest.raises(ProtocolError):
        Signer(FARM, compiler)


def test_key_rotation_with_overlap_is_without_a_miss():
    old, new = FARM, OTHER
    store = MemoryStore()
    data = manifest().encode()
    publish(store, key(0), manifest(), BLOBS, seal=Signer(old, COMPILER).seal(key(0), data))
    both = signed_by([old.public, new.public])
    publish(store, key(1), manifest(), BLOBS, seal=Signer(new, COMPILER).seal(key(1), data))
    assert all(lookup(store, key(i), trust=both) for i in (0, 1))
    # Only once clients have dropped the old key do its artifacts go, and they heal.
    after = signed_by([new.public])
    assert lookup(store, key(0), trust=after) is None
    seal = Signer(new, COMPILER).seal(key(0), data)
    publish(store, key(0), manifest(), BLOBS, seal=seal, trust=after)
    assert lookup(store, key(0), trust=after) is not None


def test_a_trusted_entry_stands_against_another_writer_and_an_untrusted_one_does_not():
    mine = manifest(meta=b"mine")
    seal = Signer(FARM, COMPILER).seal(key(), mine.encode())
    for standing, wins in ((sealed(), False), (sealed(OTHER), True), (manifest().encode(), True)):
        store = store_with(standing)
        made = publish(store, key(), mine, BLOBS, seal=seal, trust=TRUST)
        assert (made == mine) == wins
        assert lookup(store, key(), trust=TRUST).manifest == made


# -- revocation ------------------------------------------------------------------------------------

KERNEL = "ab" * 32


@pytest.mark.parametrize(
    "revoked",
    [
        Revocations(keys=frozenset({key()})),
        Revocations(signers=frozenset({FARM.public.signer})),
        Revocations(digests=frozenset({KERNEL})),
        Revocations(digests=frozenset({manifest().digests()[0]})),
        Revocations(compilers=frozenset({"fusec-0.1.0"})),
        Revocations(compilers=frozenset({COMPILER})),
    ],
)
def test_what_is_revoked_is_a_miss_by_whatever_name(revoked):
    blobs = {**BLOBS, f"kernel/{KERNEL}": b"binary"}
    made = Manifest.of("graph", blobs)
    store = MemoryStore()
    seal = Signer(FARM, COMPILER).seal(key(), made.encode())
    publish(store, key(), made, blobs, seal=seal)
    assert lookup(store, key(), trust=TRUST) is not None
    assert miss(store, replace(TRUST, revoked=revoked)) is Miss.REVOKED
    assert miss(store, replace(OWN_STORE, revoked=revoked)) is Miss.REVOKED


def test_what_is_not_revoked_stays_a_hit():
    revoked = Revocations(
        frozenset({key(5)}), frozenset({OTHER.public.signer}), frozenset({KERNEL}),
        frozenset({"fusec-0.1", "torch-2.13"}),
    )  # fmt: skip
    assert lookup(store_with(sealed()), key(), trust=replace(TRUST, revoked=revoked)) is not None


def test_a_list_of_revocations_survives_the_store_and_is_changed():
    store = MemoryStore()
    assert read(store) == Revocations()
    one = Revocations(keys=frozenset({key()}), compilers=frozenset({"fusec-0.1.0"}))
    two = Revocations(signers=frozenset({FARM.public.signer}))
    change(store, add=[one])
    assert change(store, add=[two]) == one.with_added(two) == read(store)
    assert change(store, remove=[one]) == two == read(store)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pack([]),
        pack({"version": 1}),
        pack({"version": 0, "keys": [], "signers": [], "digests": [], "compilers": []}),
        pack({"version": 1, "keys": ["x"], "signers": [], "digests": [], "compilers": []}),
        pack({"version": 1, "keys": [], "signers": ["x"], "digests": [], "compilers": []}),
        pack({"version": 1, "keys": [], "signers": [], "digests": [7], "compilers": []}),
        pack({"version": 1, "keys": [], "signers": [], "digests": [], "compilers": [""]}),
    ],
)
def test_lists_that_make_no_sense_are_refused(data):
    with pytest.raises(ProtocolError):
        Revocations.decode(data)


def test_a_list_is_bounded():
    with pytest.raises(TooLarge):
        Revocations(digests=frozenset(f"{i:064x}" for i in range(MAX_NAMES + 1)))


def test_no_manifest_stands_under_the_lists_key():
    store = MemoryStore()
    with pytest.raises(ProtocolError):
        publish(store, KEY, Manifest("revoked", (), b""), {})
    store.put_entry(KEY, manifest({}).encode())
    assert lookup(store, KEY) is None


def test_errors_name_the_reason():
    cases = {
        Unsigned: manifest().encode(),
        UnknownSigner: sealed(OTHER),
        BadSignature: sealed(name=key(1)),
    }
    for error, entry in cases.items():
        with pytest.raises(error):
            TRUST.open(key(), entry)
    with pytest.raises(Revoked, match="signer"):
        Trust(revoked=Revocations(signers=frozenset({FARM.public.signer}))).open(key(), sealed())


def test_public_keys_have_plain_names():
    with pytest.raises(ConfigError):
        PublicKey(os.urandom(32), "a b")
