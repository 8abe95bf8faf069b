"""`fusec keys` as a person types it."""

from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.signing import SigningKey, read_trusted
from fusec.cli.parser import run


def test_generate_makes_a_pair_and_overwrites_nothing(tmp_path, capsys):
    path = tmp_path / "farm.key"
    assert run(["keys", "generate", str(path), "--name", "prod"]) == 0
    key = SigningKey.read(path)
    assert read_trusted(tmp_path / "farm.key.pub") == (key.public,)
    out = capsys.readouterr().out
    assert key.public.signer in out
    assert run(["keys", "generate", str(path)]) == 1
    assert SigningKey.read(path) == key
    assert run(["keys", "show", str(tmp_path / "farm.key.pub")]) == 0
    assert f"{key.public.signer}  prod" in capsys.readouterr().out
    assert run(["keys", "show", str(path)]) == 1


def test_revoke_and_restore(tmp_path, capsys, monkeypatch):
    path = tmp_path / "farm.key"
    run(["keys", "generate", str(path)])
    signer = SigningKey.read(path).public.signer
    with serve_in_thread(ServiceConfig(port=0)) as service:
        monkeypatch.setenv("FUSEC_REMOTE", service.url)
        named = ["--signer", f"{path}.pub", "--compiler", "fusec-0.1.0"]
        assert run(["keys", "revoke", *named]) == 0
        capsys.readouterr()
        assert run(["keys", "revoked"]) == 0
        assert capsys.readouterr().out.split() == ["signer", signer, "compiler", "fusec-0.1.0"]
        assert run(["keys", "restore", "--signer", signer]) == 0
        assert capsys.readouterr().out.split() == ["compiler", "fusec-0.1.0"]
        assert run(["keys", "restore", "--compiler", "fusec-0.1.0"]) == 0
        assert "nothing" in capsys.readouterr().out
        assert run(["keys", "revoke"]) == 1
        assert run(["keys", "revoke", "--key", "nonsense"]) == 1


def test_revoke_wants_a_service(monkeypatch, capsys):
    monkeypatch.delenv("FUSEC_REMOTE", raising=False)
    assert run(["keys", "revoked"]) == 1
    assert "FUSEC_REMOTE" in capsys.readouterr().err
