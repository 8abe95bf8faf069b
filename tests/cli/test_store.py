"""`fusec cache` and `fusec gc` as a person types them."""

from cache.artifacts import lookup, publish
from cache.local import LocalStore
from cache.seal import Signer
from cache.signing import SigningKey
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
