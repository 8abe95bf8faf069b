"""Images without an engine to build them: the cache's Python, and containers' processes.

The cache image's Python is a clean environment on this machine. It has what the image's
requirements lead to, from the distributions that are installed here, and the wheel of the package;
torch and ray are not in it. No network is needed.
"""

import importlib.metadata as metadata
import re
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from packaging.requirements import Requirement

from tests.deploy.tools import ROOT

DOCKER = ROOT / "deploy" / "docker"
START_S = 120.0


def instructions(path: Path) -> list[tuple[str, str]]:
    """A Dockerfile's instructions in their order, with continued lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", path.read_text()))
    lines = (line.strip() for line in text.splitlines())
    return [(line.split()[0].upper(), line.partition(" ")[2].strip()) for line in lines if line]


def cache_environment(folder: Path) -> Path:
    """Make the environment; returns its `bin`."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    wanted = (DOCKER / "cache-requirements.txt").read_text().splitlines()
    for distribution in _closure([line for line in wanted if not line.startswith("#")]):
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    wheel = folder / "wheel"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheel)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = wheel.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    return folder / "bin"


@contextmanager
def started(
    command: list[str], environment: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A container's process with its variables alone."""
    process = subprocess.Popen(command, env=environment, cwd=folder)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def ready(process: subprocess.Popen[bytes], health: str) -> None:
    """Wait until the process answers well at `health`. Fails the test if it does not."""
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < deadline, f"no good answer from {health}"
        with suppress(httpx.HTTPError):
            if httpx.get(health, timeout=5).status_code == 200:
                return
        time.sleep(0.1)


def _closure(lines: list[str]) -> list[metadata.Distribution]:
    """The installed distributions that requirements lead to. Raises where one is not satisfied."""
    found: dict[str, metadata.Distribution] = {}
    asked: set[str] = set()
    left = [Requirement(line) for line in lines]
    while left:
        wanted = left.pop()
        if str(wanted) in asked:
            continue
        asked.add(str(wanted))
        distribution = metadata.distribution(wanted.name)
        assert wanted.specifier.contains(distribution.version, prereleases=True), str(wanted)
        found[wanted.name.lower()] = distribution
        for line in distribution.requires or ():
            needed = Requirement(line)
            extras = ("", *wanted.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                left.append(needed)
    return list(found.values())
