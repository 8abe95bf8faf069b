"""Fingerprints: what changes them, what the difference is called, and what they refuse to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fusec.artifact import fingerprint as fp
from fusec.artifact.fingerprint import Fingerprint, diff, fingerprint, graph_fingerprint
from fusec.errors import WireError
from fusec.options import Options, Target

TARGET = Target("cpu", "x86-64-v3")


def base(
    graph: bytes = b"graph",
    target: Target = TARGET,
    options: Options | None = None,
    toolchain: str = "0" * 64,
) -> Fingerprint:
    return graph_fingerprint(graph, target, options or Options(), toolchain)


def test_the_key_is_stable() -> None:
    """A golden value: a change here cold-starts every fleet, so it must be meant."""
    assert base() == base()
    assert base().hex == ("9d54e632c7c1d3904a4b2c975ea641225119988f7c98014946b29619c39ea665")


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (base(graph=b"another"), "graph"),
        (base(target=Target("cpu", "x86-64-v4")), "target"),
        (base(target=Target("cuda", "sm_90", "H200")), "target"),
        (base(options=Options(strict_rounding=True)), "options"),
        (base(options=Options(mode="max-autotune")), "options"),
        (base(toolchain="1" * 64), "toolchain"),
    ],
)
def test_a_change_moves_the_key_and_has_a_name(other: Fingerprint, name: str) -> None:
    assert other.hex != base().hex
    assert diff(base(), other) == (name,)


def test_options_that_change_no_artifact_are_not_in_the_key() -> None:
    elsewhere = Options(
        remote="http://cache:1", cache_dir=Path("/elsewhere"), token="secret", policy="off"
    )
    assert base(options=elsewhere) == base()


def test_an_entry_that_only_one_side_has_differs() -> None:
    a, b = fingerprint({"x": 1, "y": 2}), fingerprint({"y": 2, "z": 3})
    assert diff(a, b) == ("x", "z")


def test_types_of_values_matter() -> None:
    kinds = [1, True, 1.0, "1", b"1", None, [1]]
    assert len({fingerprint({"x": k}).hex for k in kinds}) == len(kinds)


def test_keys_have_kinds() -> None:
    assert base().key("graph") == f"graph/{base().hex}"
    with pytest.raises(ValueError, match="no kind"):
        base().key("blob")


def test_wire_round_trip() -> None:
    assert Fingerprint.from_wire(base().to_wire()) == base()


HEX = "0" * 64


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        [["graph"]],
        [["graph", "xyz"]],
        [["graph", HEX[:-1] + "G"]],
        [["two words", HEX]],
        [["graph", HEX], ["graph", HEX]],
        [[f"e{i}", HEX] for i in range(65)],
        [[1, HEX]],
    ],
)
def test_malformed_wire_is_refused(data: object) -> None:
    with pytest.raises(WireError):
        Fingerprint.from_wire(data)


@dataclass(frozen=True)
class Kernel:
    digest: str


def test_kernel_keys() -> None:
    keys = {
        fp.kernel_key(Kernel("a"), TARGET),
        fp.kernel_key(Kernel("b"), TARGET),
        fp.kernel_key(Kernel("a"), replace(TARGET, isa="x86-64-v2")),
        fp.kernel_key(Kernel("a"), TARGET, "gcc 12"),
    }
    assert len(keys) == 4
    assert all(key.startswith("kernel/") for key in keys)


def tree(root: Path) -> Path:
    for name in (
        "lower/a.py",
        "ir/b.py",
        "pipeline.py",
        "remote/farm.py",
        "cli/main.py",
        "capture/front.py",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return root


def digest(package: Path, torch_release: str) -> str:
    return fp.sources_digest(package, fp.TOOLCHAIN_SOURCES, torch_release)


def test_the_toolchain_is_the_compiling_stages(tmp_path: Path) -> None:
    before = digest(tree(tmp_path), "2.13.0")
    assert digest(tmp_path, "2.13.0") == before
    (tmp_path / "remote/farm.py").write_text("# the client is changed\n")
    (tmp_path / "cli/main.py").write_text("# the command too\n")
    (tmp_path / "capture/front.py").write_text("# a graph speaks for itself\n")
    (tmp_path / "lower/__pycache__").mkdir()
    (tmp_path / "lower/__pycache__/a.pyc").write_bytes(b"\0")
    assert digest(tmp_path, "2.13.0") == before
    assert digest(tmp_path, "2.14.0") != before
    (tmp_path / "lower/a.py").write_text("# a lowering is changed\n")
    assert digest(tmp_path, "2.13.0") != before


def test_the_toolchain_does_not_depend_on_where_it_is(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert digest(one, "2.13.0") == digest(two, "2.13.0")


def test_the_toolchain_names_sources_that_exist() -> None:
    package = Path(fp.__file__).parents[1]
    missing = [
        name for name in fp.TOOLCHAIN_SOURCES + fp.CAPTURE_SOURCES if not (package / name).exists()
    ]
    assert not missing


def test_builds_of_one_release_are_one_toolchain() -> None:
    assert "+" not in fp.torch_version()
