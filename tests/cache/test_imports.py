"""The package is light: what a training job imports of it loads no server, no S3, no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "boto3", "botocore", "uvicorn", "starlette", "prometheus_client", "numpy")


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("cache", (*HEAVY, "httpx", "msgpack", "zstandard")),
        ("cache.artifacts, cache.local, cache.memory, cache.tiered", (*HEAVY, "httpx")),
        ("cache.client", HEAVY),
        ("cache.service, cache.embedded, cache.testing", ("torch", "ray", "boto3", "numpy")),
    ],
)
def test_imports_stay_light(modules, forbidden):
    code = f"import {modules}, sys; print(*sorted(set(sys.modules) & set({forbidden!r})))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
