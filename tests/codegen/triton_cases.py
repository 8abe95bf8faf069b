"""Starts Triton's interpreter on graphs: it needs a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A graph, the values of its sizes, and the numbers of the variants to try; block: rows are
    walked in blocks of this size (0: as the variants say)."""

    name: str
    text: str
    picks: tuple[int, ...] = (0,)
    block: int = 0
    sizes: dict[str, int] = field(default_factory=dict)


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, list[str]]:
    """What is wrong with the kernels of each case, by its name."""
    lines = [json.dumps(asdict(case)) for case in cases]
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
