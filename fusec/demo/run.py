"""The demo from beginning to end: servers, processes, judgement, table.

Each process starts with its own empty home, cache folder and working folder, so that nothing but
the service can carry work from one to the next.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cache.testing import seaweedfs_server
from fusec.demo.check import errors, violations
from fusec.demo.farm_process import FarmProcess, farm_process, importable
from fusec.demo.results import Result, read
from fusec.demo.table import Report
from fusec.errors import FusecError

# Shows what is going on: a phase, and what it is doing now.
Progress = Callable[[str, str], None]
# What one process may take; a hang must not look like a slow compile for ever.
PROCESS_S = 900


@dataclass(frozen=True)
class DemoConfig:
    """What to run. store: disk, memory or s3; inductor: time the same model there too."""

    model: str = "llama"
    store: Literal["disk", "memory", "s3"] = "disk"
    pool: Literal["ray", "memory"] = "ray"
    dtype: Literal["float32", "bfloat16"] = "float32"
    layers: int | None = None
    inductor: bool = False
    keep: Path | None = None


class DemoFailed(FusecError):
    """A process of the demo ended with an error; the hint holds its last words."""


def run_demo(config: DemoConfig, progress: Progress) -> Report:
    """Run everything; the report says whether the promises held.

    Raises DemoFailed or RemoteError when a process or a server does not run at all.
    """
    with _folder(config.keep) as folder:
        progress("eager", "timing eager, and a float64 reference")
        eager = _process(config, folder, "eager", "eager", {}, progress)
        reference = _process(config, folder, "float64", "float64", {}, progress)
        with _farm(config, folder, progress) as farm:
            keys = folder / "trusted.keys"
            keys.write_text(farm.public_key + "\n")
            remote = {"FUSEC_REMOTE": farm.url, "FUSEC_TRUSTED_KEYS": str(keys)}
            cold = _process(config, folder, "cold", "fusec", remote, progress)
            warm = _process(config, folder, "warm", "fusec", remote, progress)
        inductor: dict[str, Result] = {}
        if config.inductor:
            shared = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor-cache")}
            for phase in ("inductor cold", "inductor warm"):
                inductor[phase] = _process(config, folder, phase, "inductor", shared, progress)
        return Report(
            title=f"{config.model}, {config.dtype}, {config.pool} pool, {config.store} store",
            eager=eager,
            cold=cold,
            warm=warm,
            inductor=inductor,
            errors=errors(cold, eager, reference),
            violations=violations(cold, warm, eager, reference),
        )


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="fusec-demo-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _farm(config: DemoConfig, folder: Path, progress: Progress) -> Iterator[FarmProcess]:
    """The farm over the chosen store."""
    with contextlib.ExitStack() as stack:
        store, endpoint, env = "memory:", None, {}
        if config.store == "disk":
            store = f"file://{folder / 'store'}"
        elif config.store == "s3":
            progress("store", "starting an S3 server")
            server = stack.enter_context(seaweedfs_server(folder / "s3"))
            store, endpoint, env = f"s3://{server.bucket}/demo", server.endpoint, server.env
        progress("farm", f"starting the farm ({config.pool} pool)")
        yield stack.enter_context(
            farm_process(
                pool=config.pool,
                store=store,
                s3_endpoint=endpoint,
                log=folder / "farm.log",
                env=env,
            )
        )


def _environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without what could carry a cache or a setting along."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FUSEC_", "TORCHINDUCTOR_", "XDG_", "PYTHONHASHSEED"))
    }
    return importable(
        {
            **kept,
            "HOME": str(home),
            "FUSEC_CACHE_DIR": str(home / "fusec-cache"),
            "FUSEC_PROGRESS": "0",
            # A farm that shares two busy cores with its client is slow, not dead.
            "FUSEC_BUDGET_S": "60",
            "HF_HUB_OFFLINE": "1",
            **extra,
        }
    )


def _process(
    config: DemoConfig,
    folder: Path,
    phase: str,
    run: str,
    extra: Mapping[str, str],
    progress: Progress,
) -> Result:
    """One worker process from an empty home; its result."""
    home = folder / phase.replace(" ", "-")
    for part in (home, home / "cwd", home / "out"):
        part.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fusec.demo.worker", "--model", config.model]
    command += ["--run", run, "--out", str(home / "out"), "--dtype", config.dtype]
    if config.layers is not None:
        command += ["--layers", str(config.layers)]
    log = home / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            cwd=home / "cwd",
            env=_environment(home, extra),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                progress(phase, line.strip())
            code = process.wait(PROCESS_S)
        finally:
            # Nothing to do where the process has ended; Ctrl-C and time-outs end it here.
            process.kill()
    if code != 0:
        raise DemoFailed(
            f"the process '{phase}' ended with {code}", where=str(log), hint=_tail(log)
        )
    return read(home / "out")


def _tail(log: Path, characters: int = 3000) -> str:
    return "its last words were:\n" + log.read_text()[-characters:].strip()
