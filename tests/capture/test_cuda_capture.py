"""Graphs for a GPU, captured where there is none: one attention, one device, keys that are stable.

In processes of their own: what stands in for the GPU is for such processes alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fusec.capture import without_gpu
from fusec.errors import CaptureUnsupported

ROOT = Path(__file__).parents[2]
NAMES = ("attention", "dropout", "masked", "mish", "tied", "inference", "dynamic", "vocabulary")
AGAIN = ("dynamic", "masked", "dropout")

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
    # What `found` takes most of a minute over is made once.
    pytest.mark.xdist_group("cuda capture"),
]


def start(cache: Path, *names: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.capture.pretended", str(cache), *names],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-3000:]
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def found(shim: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """All models from one process, some from another of another hash seed and order."""
    first = start(shim, *NAMES, PYTHONHASHSEED="1")
    second = start(shim, *AGAIN, PYTHONHASHSEED="271828", LOCAL_RANK="3", RANK="3")
    return result(first), result(second)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_keys_do_not_depend_on_the_process(found: Any) -> None:
    first, second = found
    assert {name: first[name] for name in AGAIN} == {name: second[name] for name in AGAIN}
    keys = [json.dumps(first[name]["graphs"]) for name in NAMES]
    assert len(set(keys)) == len(keys)
    for name in NAMES:
        assert isinstance(first[name]["front"], list), first[name]["front"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_attention_is_one_operation_on_the_gpu(found: Any) -> None:
    first, _ = found
    for name in NAMES:
        assert first[name]["devices"] == ["cuda"], name
    expected = {
        "attention": {"attention_training": 1, "attention_backward": 1},
        "masked": {"attention_training": 1, "attention_backward": 1},
        "dropout": {"attention_dropout": 1, "attention_backward": 1},
        "dynamic": {"attention_dropout": 1, "attention_backward": 1},
        "inference": {"attention": 1},
    }
    for name, calls in expected.items():
        own = {k.split(".")[1]: n for k, n in first[name]["calls"].items() if "fusec" in k}
        assert own == calls, name
        assert not any("scaled_dot" in k or "bmm" in k for k in first[name]["calls"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_long_rows_cross_to_the_backward_pass_as_they_are(found: Any) -> None:
    """Logits of 1002 columns are computed in rows of 1008; nothing is copied out of them."""
    first, _ = found
    large = [shape for shape in first["vocabulary"]["shapes"] if "(8192, 100" in shape]
    assert len(large) == 1
    assert "shape=(8192, 1008)" in large[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_afterwards_there_is_no_gpu(found: Any) -> None:
    first, _ = found
    assert first["afterwards"] in ("RuntimeError", "AssertionError", "NotImplementedError")
    assert first["moved"]


def test_without_a_compiler_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(CaptureUnsupported, match="compiler"), without_gpu.pretended_gpu(tmp_path):
        pytest.fail("there is no compiler")
    (tmp_path / "cxx").write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    (tmp_path / "cxx").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    with (
        pytest.raises(CaptureUnsupported, match="no such header"),
        without_gpu.pretended_gpu(tmp_path),
    ):
        pytest.fail("nothing was compiled")
