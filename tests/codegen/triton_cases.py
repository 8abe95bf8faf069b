"""Starts Triton's interpreter on graphs: it needs a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def run_cases(
    cases: Iterable[tuple[str, str, dict[str, int], list[int]]], folder: Path
) -> dict[str, list[str]]:
    """What is wrong with each case's kernels, by name: name, graph, sizes, variants to try."""
    lines = [
        json.dumps({"name": name, "text": text, "sizes": sizes, "picks": picks})
        for name, text, sizes, picks in cases
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton_interpreter", str(folder)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), done.stderr[-4000:]
    found: dict[str, list[str]] = {}
    for answer in answers:
        found.setdefault(answer["name"], []).extend(answer["wrong"])
    return found
