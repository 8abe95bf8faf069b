"""Debian's programs that the tests need. One that is missing is a failure, not a skip."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "chromium": "chromium",
}


def program(name: str) -> str:
    """The path of a program; the test fails where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(
            f"{name} is missing: apt-get install {PACKAGES[name]} (.ci/run does it as root)"
        )
    return found


def check(*command: object, cwd: Path = ROOT) -> str:
    """Run a program of the table; gives what it printed, and fails the test if it fails."""
    name, *arguments = map(str, command)
    done = subprocess.run(
        [program(name), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
