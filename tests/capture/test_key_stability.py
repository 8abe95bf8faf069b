"""One model, one key: in fresh processes with other hash seeds, folders, names, ranks, orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PLAIN = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden) * 0.5


def make():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(8) for _ in range(3)))
"""
RENAMED = "\n" * 40 + (
    PLAIN.replace("Block", "Zebra")
    .replace(".norm", ".alpha")
    .replace(".up", ".zz")
    .replace(".down", ".aa")
    .replace("hidden", "q")
    .replace("self, x)", "self, value)")
    .replace("x)))", "value)))")
    .replace("x +", "value +")
)


def start(module: str, names: str, cwd: Path, path: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/capture/key_process.py"), module, *names.split()],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]),
            "OMP_NUM_THREADS": "1",
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keys_do_not_depend_on_the_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two/deeper"
    for folder in (one, two):
        folder.mkdir(parents=True)
    (one / "models.py").write_text(PLAIN)
    (two / "zoo.py").write_text(RENAMED)
    first = start("models", "block dynamic llama convnet", one, one, PYTHONHASHSEED="1")
    second = start(
        "zoo",
        "convnet llama dynamic block",
        two,
        two,
        PYTHONHASHSEED="271828",
        RANK="3",
        LOCAL_RANK="3",
        WORLD_SIZE="8",
        HOME=str(two),
        USER="somebody",
    )
    expected = result(first)
    third = start("models", "dynamic block", ROOT, one, PYTHONHASHSEED="random", RANK="7")
    assert result(second) == expected
    assert result(third) == {name: expected[name] for name in ("block", "dynamic")}
    assert len({json.dumps(entry) for entry in expected.values()}) == len(expected)
