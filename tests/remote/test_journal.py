"""Why a key was not found: the nearest earlier one and the entry that differs."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fusec.artifact.fingerprint import fingerprint
from fusec.cli.parser import run
from fusec.options import Options
from fusec.remote import journal
from fusec.remote.journal import Journal, explain, last_misses, read
from fusec.remote.resolve import Resolver
from fusec.trace import Recorder
from tests.farm.tiny_stages import TinyStages, graph_job


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    return TinyStages(str(tmp_path))


def entries(**values: object) -> tuple[tuple[str, str], ...]:
    base = {"graph": 1, "target": 1, "options": 1, "toolchain": 1}
    return fingerprint({**base, **values}).entries


def test_the_nearest_earlier_key_and_what_differs(tmp_path: Path) -> None:
    notes = Journal(tmp_path)
    notes.note("graph", entries(), "forward", hit=False)
    notes.note("graph", entries(graph=2, toolchain=2), "forward", hit=True)
    notes.note("front", entries(options=7), "front", hit=False)
    notes.note("graph", entries(toolchain=3), "forward", hit=False)
    asked = read(tmp_path)
    assert [each.hit for each in asked] == [False, True, False, False]
    found = explain(asked, asked[-1])
    assert found.nearest == asked[0]
    assert found.differs == ("toolchain",)
    assert explain(asked, asked[0]).nearest is None
    assert explain(asked, asked[2]).nearest is None, "another kind is not compared"
    notes.note("graph", entries(graph=4), "backward", hit=False)
    asked = read(tmp_path)
    assert explain(asked, asked[-1]).nearest is None, "nor forward with backward"
    assert last_misses(asked, 2) == [asked[3], asked[4]]
    assert last_misses([], 2) == []


def test_a_key_is_noted_once_a_process_and_for_its_owner_alone(tmp_path: Path) -> None:
    notes = Journal(tmp_path)
    for _ in range(3):
        notes.note("graph", entries(), "forward", hit=False)
    assert len(read(tmp_path)) == 1
    assert stat.S_IMODE((tmp_path / journal.FILE).stat().st_mode) == 0o600


def test_the_file_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 20_000)
    notes = Journal(tmp_path)
    for number in range(200):
        notes.note("graph", entries(graph=number), "forward", hit=False)
    assert (tmp_path / journal.FILE).stat().st_size <= 20_000
    assert read(tmp_path)[-1].fingerprint.entries == entries(graph=199)
    assert os.listdir(tmp_path) == [journal.FILE]


@pytest.mark.parametrize("junk", [b"\xff\n", b"{}\n", b"[1]\n", b'{"kind": 1}\n', b"null\n"])
def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path, junk: bytes) -> None:
    Journal(tmp_path).note("graph", entries(), "forward", hit=True)
    with (tmp_path / journal.FILE).open("ab") as file:
        file.write(junk)
    assert len(read(tmp_path)) == 1


def test_what_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    Journal(tmp_path / "absent").note("graph", entries(), "forward", hit=True)
    Journal(None).note("graph", entries(), "forward", hit=True)
    assert read(tmp_path / "absent") == []


def test_the_command_names_the_option_that_changed(
    tmp_path: Path,
    stages: TinyStages,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "store"))
    assert run(["why-miss"]) == 0
    assert "no miss" in capsys.readouterr().out
    base = Options(cache_dir=tmp_path / "store")
    for options in (base, replace(base, strict_rounding=True)):
        resolver = Resolver.open(options, Recorder(), compile_local=stages.compile_local)
        resolver.submit(graph_job("t.a", options=options)).result()
        resolver.close()
    assert run(["why-miss", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["nearest"] is None
    assert (second["nearest"], second["differs"]) == (first["key"], ["options"])
    assert run(["why-miss", second["key"][:20]]) == 0
    assert "differs: options  an option" in capsys.readouterr().out
    assert run(["why-miss", "graph/zz"]) == 1
