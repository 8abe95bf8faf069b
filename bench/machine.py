"""What a result has to say about where it was taken: the kind of machine, never its name."""

import os
import platform
import subprocess
from pathlib import Path

_LEVELS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON"))


def vector_level() -> str:
    """The widest vectors that the CPU offers, in words."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "unknown vectors"
    return next((name for flag, name in _LEVELS if flag in flags), "no wide vectors")


def compiler_version() -> str:
    """The first line of `gcc --version`."""
    try:
        done = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no gcc"
    return done.stdout.splitlines()[0]


def describe(threads: int) -> dict[str, object]:
    """For the JSON and the head of a table."""
    import torch

    return {
        "cores": len(os.sched_getaffinity(0)),
        "vectors": vector_level(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": compiler_version(),
    }


def line(about: dict[str, object]) -> str:
    """The same in one line."""
    return (
        f"{about['cores']} cores, {about['vectors']}, {about['threads']} threads, load "
        f"{about['load']}; torch {about['torch']}, python {about['python']}, {about['compiler']}"
    )
