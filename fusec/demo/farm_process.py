"""The embedded farm as a child process: what `fusec serve` and the demo stand on.

A process of its own, since `fusec` never imports `farm`: it also keeps Ray's threads and log lines
away from the terminal. The child ends when its standard input does, so it cannot outlive us.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fusec.errors import RemoteError

# Ray takes 10 to 20 s to start; a busy machine several times that.
START_S = 180.0
STOP_S = 30.0


@dataclass(frozen=True)
class FarmProcess:
    """A running embedded farm. url: what FUSEC_REMOTE is set to; gateway_url: its gateway's own
    address, for its metrics; public_key: a line of the file that FUSEC_TRUSTED_KEYS names; log: its
    standard error."""

    url: str
    gateway_url: str
    public_key: str
    log: Path
    process: subprocess.Popen[str]

    def wait(self) -> int:
        """Block until the farm ends by itself; gives its exit code."""
        return self.process.wait()


def importable(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with this checkout first on the child's path, wherever the child is started."""
    root = str(Path(__file__).resolve().parents[2])
    rest = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": f"{root}{os.pathsep}{rest}" if rest else root}


@contextlib.contextmanager
def farm_process(
    *,
    pool: str,
    store: str,
    log: Path,
    s3_endpoint: str | None = None,
    port: int = 0,
    signing_key: Path | None = None,
    tracing: str = "",
    env: Mapping[str, str] | None = None,
) -> Iterator[FarmProcess]:
    """Start an embedded farm on loopback; stop it at the end of the block.

    pool: ray or memory. store: memory:, file:///dir or s3://bucket/prefix. port: 0 takes a free
    one. signing_key: file of the key that signs, made if it is absent; None is a key of this run.
    tracing: how it exports spans. env: added to this process's environment (S3 credentials).
    Raises RemoteError with the end of its log when it does not come up.
    """
    command = [sys.executable, "-m", "farm", "embedded", "--pool", pool, "--store", store]
    command += ["--port", str(port)]
    if signing_key is not None:
        command += ["--signing-key", str(signing_key)]
    if tracing:
        command += ["--tracing", tracing]
    if s3_endpoint is not None:
        command += ["--s3-endpoint", s3_endpoint]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=importable({**os.environ, **(env or {})}),
            # Ctrl-C is for us: we close the farm in order.
            start_new_session=True,
        )
    try:
        yield FarmProcess(*_ready(process, log), log, process)
    finally:
        _stop(process)


def _ready(process: subprocess.Popen[str], log: Path) -> tuple[str, str, str]:
    """The addresses and the public key in the one line that the farm prints when it serves."""
    assert process.stdout is not None
    line = _first_line(process.stdout, START_S)
    try:
        ready = json.loads(line)
        url, gateway_url = str(ready["url"]), str(ready["gateway_url"])
        public_key = str(ready["public_key"])
    except (ValueError, KeyError, TypeError) as error:
        tail = log.read_text()[-2000:].strip()
        raise RemoteError(
            f"the embedded farm did not start within {START_S:.0f} s",
            where=str(log),
            hint="pip install 'fusec[farm]' if ray or uvicorn is missing; its last words were:\n"
            + (tail or "(nothing)"),
        ) from error
    return url, gateway_url, public_key


def _first_line(stream: IO[str], seconds: float) -> str:
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return lines[0] if lines else ""


def _stop(process: subprocess.Popen[str]) -> None:
    """End of input asks it to stop; then SIGTERM, then SIGKILL."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    for signal_next in (process.terminate, process.kill):
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            signal_next()
        else:
            return
    process.wait()
