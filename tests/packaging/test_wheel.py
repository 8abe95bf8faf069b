"""The wheel: every source file is in it, nothing else, and it works outside the checkout."""

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fusec import __version__

ROOT = Path(__file__).parents[2]
PACKAGES = ("fusec", "farm", "cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "content")
    return folder / "content"


def _files(root):
    return {
        str(path.relative_to(root))
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_holds_exactly_the_packages(wheel):
    assert _files(wheel) == _files(ROOT)
    top = {path.name for path in wheel.iterdir()}
    assert top == {*PACKAGES, f"fusec-{__version__}.dist-info"}


def test_licence_and_entry_points(wheel):
    info = wheel / f"fusec-{__version__}.dist-info"
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    points = configparser.ConfigParser()
    points.read_string((info / "entry_points.txt").read_text())
    assert points["torch_dynamo_backends"]["fusec"] == "fusec.api:backend"
    assert points["console_scripts"]["fusec"] == "fusec.__main__:main"


def test_it_runs_outside_the_checkout(wheel, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(wheel), "HOME": str(tmp_path)}
    code = "import fusec, cache, farm; print(fusec.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(wheel))
    command = [sys.executable, "-m", "fusec", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert "fusec demo" in done.stdout
