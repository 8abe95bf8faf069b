"""Options from variables and from `torch.compile(options=…)`: what makes no sense is refused."""

from dataclasses import fields
from pathlib import Path

import pytest

from cache.config import CLIENTS
from fusec.errors import OptionsError
from fusec.options import Options


def test_variables_then_options_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    env = {"FUSEC_POLICY": "off", "FUSEC_WAIT_S": "1.5", "FUSEC_TOKEN_FILE": "~/token"}
    made = Options.from_env(env, {"policy": "require", "tune_s": 3, "tls_ca": Path("~/ca.pem")})
    assert (made.policy, made.wait_s, made.tune_s) == ("require", 1.5, 3)
    assert made.token_file == Path("/home/somebody/token")
    assert made.tls_ca == Path("/home/somebody/ca.pem")
    assert made.cache_dir == Path("/home/somebody/.cache/fusec")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", "sometimes"),
        ("mode", "fast"),
        ("fusion", "maybe"),
        ("fusion", 1),  # it would be another key than True
        ("job", "a name with spaces"),
        ("wait_s", "soon"),
        ("wait_s", "nan"),
        ("wait_s", True),
        ("budget_s", -1.0),
        ("tune_s", float("inf")),
        ("cache_bytes", "1e9"),
        ("cache_bytes", 1.5),
        ("cache_dir", None),
        ("remote", 8765),
        ("remote", "cache:8765"),
        ("frobnicate", "1"),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: object) -> None:
    with pytest.raises(OptionsError, match=name):
        Options.from_env({}, {name: value})


def test_the_service_passes_over_the_clients_variables() -> None:
    ours = {f"FUSEC_{field.name.upper()}" for field in fields(Options)}
    assert {name for name in ours if name.startswith("FUSEC_CACHE_")} == CLIENTS
