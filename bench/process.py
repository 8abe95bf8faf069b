"""Fresh processes: each measurement that a cache or a neighbour could blur gets its own.

A child starts with an empty home and working folder and without any setting of fusec or Inductor
but those given. It prints its result as JSON on the last line of its standard output.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_OWN_PREFIXES = ("FUSEC_", "TORCHINDUCTOR_", "TORCH_COMPILE", "XDG_", "PYTHONHASHSEED", "OMP_")


class ChildFailedError(Exception):
    """A child ended with an error, or took too long; the text holds its last words."""


@dataclass(frozen=True)
class Child:
    """What a child left. result: its JSON; wall_s: from before its start until its end."""

    result: dict[str, Any]
    wall_s: float


def caches(folder: Path) -> dict[str, str]:
    """Variables that put every backend's cache into `folder`."""
    return {
        "FUSEC_CACHE_DIR": str(folder / "fusec"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The variables a child gets. home: its empty home; extra: on top of all."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_PREFIXES)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    offline = {"HF_HUB_OFFLINE": "1", "FUSEC_PROGRESS": "0"}
    return {**kept, "HOME": str(home), "PYTHONPATH": path, **offline, **extra}


def run(
    module: str,
    arguments: list[str],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
) -> Child:
    """Run `python -m module arguments` to its end, in the existing folder; gives its result.

    The child finds the moment of its start, seconds since the epoch, in BENCH_START.
    Raises ChildFailedError.
    """
    start = time.time()
    log = folder / "log"
    # A pipe that is open as long as we live, since `communicate` would close one of Popen's.
    ours, theirs = os.pipe()
    with log.open("w") as errors, os.fdopen(theirs, "wb"), os.fdopen(ours, "rb") as life:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment(folder, {**(env or {}), "BENCH_START": repr(start)}),
            stdin=life,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildFailedError(f"{module} took more than {timeout_s:.0f} s") from error
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wall = time.time() - start
    if process.returncode != 0:
        words = log.read_text()[-1500:].strip()
        raise ChildFailedError(f"{module} ended with {process.returncode}: {words}")
    return Child(json.loads(out.strip().splitlines()[-1]), wall)


def die_with_parent() -> None:
    """In a child: end when the parent is gone, however it went. Reads standard input to its end."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def since_start() -> float:
    """In a child: seconds since the parent started it, interpreter start included."""
    return time.time() - float(os.environ["BENCH_START"])
