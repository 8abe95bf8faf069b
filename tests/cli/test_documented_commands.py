"""Every command of ours that the docs show is one that its own parser takes."""

import argparse
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
START = re.compile(r"(?:\.ci/offline )?(fusec(?= )|python -m [\w.]+|make(?= ))")
INCOMPLETE = "(?:arguments are|--demo is) required|expected one argument|value: 'N'"
"""What a parser says of a command that a sentence leaves incomplete."""


def commands():
    """Each, with whether it stands there to be typed; in a sentence it may leave out arguments."""
    found = {}
    for page in PAGES:
        prose, shown = [], []
        for number, part in enumerate(page.read_text().replace("\\\n", " ").split("```")):
            (shown if number % 2 else prose).append(part)
        lines = [
            (" ".join(each.split()), False) for each in re.findall(r"`([^`]+)`", " ".join(prose))
        ]
        lines += [(each, True) for block in shown for each in block.splitlines()]
        for line, whole in lines:
            line = re.sub(r"^(?:[A-Z_]+=\S+ +)+", "", line.strip())
            if START.match(line):
                found[line] = found.get(line, False) or whole
    return sorted(found.items())


def test_there_are_many():
    assert sum(whole for _, whole in commands()) > 30


class _Parsed(Exception):
    """The arguments are well-formed: nothing is to be done with them."""


def parameters():
    """Those that load torch and the benchmarks are for the extended run."""
    for line, whole in commands():
        slow = re.match(r"python -m (?:bench|tests)\.", line)
        yield pytest.param(line, whole, marks=[pytest.mark.extended] if slow else [])


@pytest.mark.parametrize(("line", "whole"), list(parameters()))
def test_it_is_understood(line, whole, monkeypatch, capsys):
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self, *arguments, **named):
        parse(self, *arguments, **named)
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    first, *words = shlex.split(line.removeprefix(".ci/offline "), comments=True)
    if first == "make":
        targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
        assert [word for word in words if "=" not in word and word not in targets] == []
        return
    name = "fusec" if first == "fusec" else words[1]
    package = ROOT.joinpath(*name.split(".")).is_dir()
    module = importlib.import_module(f"{name}.__main__" if package else name)
    words = [word for word in words[0 if first == "fusec" else 2 :] if word != "…"]
    if "parse" not in inspect.getsource(module):
        assert words == []  # it would begin its work
        return
    monkeypatch.setattr("sys.argv", [name, *words])
    try:
        module.main(words) if inspect.signature(module.main).parameters else module.main()
    except _Parsed:
        return
    except SystemExit as error:
        told = capsys.readouterr().err
        if error.code == 0:  # --help and --version
            return
        assert not whole, told
        assert re.search(INCOMPLETE, told), told
    else:
        pytest.fail("it does not parse its arguments first")
