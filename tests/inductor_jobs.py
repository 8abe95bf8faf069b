"""Jobs on stock Inductor that share its caches by a service, each a process with its own disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from cache.embedded import RunningService
from cache.signing import SigningKey

Counts = dict[str, dict[str, int]]
"""Of each of Inductor's remote caches, by its class: how often it was hit, missed, put."""

_ROOT: Final = Path(__file__).parents[1]
_PROGRAM: Final = """
import json, sys
import torch
from torch._inductor.remote_cache import cache_stats
import fusec.inductor

fusec.inductor.share()
device = sys.argv[1]


def norms(x):
    return ((x.sin() * 2 + x.cos()) / x.square().sum(-1, keepdim=True)).sum(-1)


x = torch.rand(256, 2048, device=device, requires_grad=True)
mode = None if device == "cpu" else "max-autotune-no-cudagraphs"
result = torch.compile(norms, mode=mode)(x)
result.sum().backward()
torch.testing.assert_close(result, norms(x))
found = {
    name: {"hit": each.hit, "miss": each.miss, "put": each.put}
    for name, each in cache_stats._stats.items()
}
print(json.dumps(found))
"""


def cold_and_warm(service: RunningService, folder: Path, device: str) -> tuple[Counts, Counts]:
    """The counts of a job that compiles and signs, and of the next one, which only reads."""
    SigningKey.generate().write(folder / "key")
    trusted = {"FUSEC_TRUSTED_KEYS": str(folder / "key.pub")}
    signs = {"FUSEC_INDUCTOR_KEY": str(folder / "key")}
    return (
        _job(service, folder / "cold", device, trusted | signs),
        _job(service, folder / "warm", device, trusted),
    )


def _job(service: RunningService, home: Path, device: str, settings: dict[str, str]) -> Counts:
    home.mkdir()
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("FUSEC_", "TORCHINDUCTOR_"))},
        "HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "FUSEC_REMOTE": service.url,
        "FUSEC_BUDGET_S": "30",
        **settings,
    }
    command = [sys.executable, "-c", _PROGRAM, device]
    done = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Counts = json.loads(done.stdout.splitlines()[-1])
    return found
