"""`fusec cache` and `fusec gc` as a person types them."""

from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.seal import Signer
from cache.signing import SigningKey
from cache.trust import signed_by
from fusec.cli.parser import run
from tests.cache.samples import BLOBS, key, manifest


def test_the_commands(tmp_path, capsys, monkeypatch):
    farm, store = SigningKey.generate(), LocalStore(tmp_path / "store")
    data = manifest().encode()
    for number, seal in ((0, Signer(farm, "c").seal(key(0), data)), (1, None), (2, None)):
        publish(store, key(number), manifest(), BLOBS, seal=seal)
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "store"))
    farm.write(tmp_path / "farm.key")
    file = str(tmp_path / "artifacts.tar")
    assert run(["cache", "verify"]) == 0
    assert "3 entries and 3 blobs, 0 damaged" in capsys.readouterr().out
    assert run(["cache", "export", file]) == 0
    into = ["--store", f"file://{tmp_path / 'other'}"]
    assert run(["cache", "import", file, *into]) == 1
    assert "FUSEC_TRUSTED_KEYS" in capsys.readouterr().err
    monkeypatch.setenv("FUSEC_TRUSTED_KEYS", str(tmp_path / "farm.key.pub"))
    assert run(["cache", "import", file, *into]) == 1, "two were left out"
    other = LocalStore(tmp_path / "other")
    assert lookup(other, key(0)).blobs == BLOBS
    assert other.get_entry(key(1)) is None
    monkeypatch.delenv("FUSEC_TRUSTED_KEYS")
    monkeypatch.setenv("FUSEC_UNSIGNED", "1")
    assert run(["cache", "import", file, *into]) == 0
    assert run(["cache", "import", str(tmp_path / "absent"), *into]) == 1
    assert run(["gc", "--max-bytes", "1", "--dry-run"]) == 0
    assert "3 entries and 0 blobs go" in capsys.readouterr().out
    assert run(["gc", "--max-bytes", "1"]) == 0
    assert list(store.list_entries()) == []
    assert run(["cache", "verify", "--store", "memory:"]) == 1


def test_a_store_is_signed_anew_and_the_old_key_retired(tmp_path, capsys, monkeypatch):
    old, new, store = SigningKey.generate(), SigningKey.generate(), LocalStore(tmp_path / "store")
    data = manifest().encode()
    for number, seal in ((0, Signer(old, "c").seal(key(0), data)), (1, None)):
        publish(store, key(number), manifest(), BLOBS, seal=seal)
    old.write(tmp_path / "old.key")
    new.write(tmp_path / "new.key")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "store"))
    again = ["cache", "resign", "--key", str(tmp_path / "new.key")]
    assert run(again) == 1
    assert "FUSEC_TRUSTED_KEYS" in capsys.readouterr().err
    monkeypatch.setenv("FUSEC_TRUSTED_KEYS", str(tmp_path / "old.key.pub"))
    assert run(again) == 1, "one is not signed at all"
    assert "1 entries signed, 0 were" in capsys.readouterr().err
    assert lookup(store, key(0), trust=signed_by([new.public])).blobs == BLOBS
    assert lookup(store, key(0), trust=signed_by([old.public])) is None
    assert lookup(store, key(1), trust=signed_by([new.public, old.public])) is None
    assert run(again) == 1
    assert "0 entries signed, 1 were" in capsys.readouterr().err
