"""The real helm and kubectl, which `make venv` puts beside Python (.ci/install_helm.py)."""

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "fusec"


def found(name: str) -> str:
    """The path of a tool. Fails the test where there is none."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        command = f"{sys.executable} .ci/install_helm.py {path.parent}"
        pytest.fail(f"no {path}: run `make venv`, or `{command}`", pytrace=False)
    return str(path)


def run(tool: str, *arguments: str | Path) -> str:
    """What a tool prints. Fails the test where the tool does."""
    text, error = attempt(tool, *arguments)
    assert not error, error
    return text


@functools.cache
def attempt(tool: str, *arguments: str | Path) -> tuple[str, str]:
    """What a tool prints, and what it says where it fails; one of them is empty.

    Each command is run once: many tests look at the same rendered chart.
    """
    done = subprocess.run(
        [found(tool), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
    )
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr or done.stdout)


def template(*values: Path, sets: Sequence[str] = ()) -> str:
    """The chart rendered as the release `fusec` in the namespace `fusec`, over values files."""
    text, error = try_template(*values, sets=sets)
    assert not error, error
    return text


def try_template(*values: Path, sets: Sequence[str] = ()) -> tuple[str, str]:
    """As `template`, or why it does not render."""
    files = [part for file in values for part in ("--values", file)]
    given = [part for text in sets for part in ("--set", text)]
    return attempt("helm", "template", "fusec", CHART, "-n", "fusec", *files, *given)
