"""Measures the servers: processor seconds a request, of real processes on loopback."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from bench.server import free_port, running
from cache.artifacts import publish
from cache.digest import digest
from cache.local import LocalStore
from cache.manifest import Manifest
from cache.protocol import MSGPACK, PATH_COMPILE, pack
from fusec.artifact.fingerprint import graph_fingerprint, toolchain
from fusec.options import Options, Target
from fusec.remote.protocol import SUBMIT_PATH, FarmJob, Join
from loadtest.costs.model import Requests
from loadtest.costs.processor import process_cpu_s

SMALL: Final = 40_000  # bytes of a graph
LARGE: Final = 4_000_000
BLOB: Final = 4_000_000
Ask = Callable[[], httpx.Response]


def measure(count: int, say: Callable[[str], None]) -> Requests:
    """Ask each server `count` times for each thing."""
    with (
        tempfile.TemporaryDirectory(prefix="fusec-costs-") as folder,
        contextlib.ExitStack() as life,
    ):
        key, blob = _fill(Path(folder))
        say("a gateway whose jobs never end, and the cache service before it")
        port = free_port()
        gateway = life.enter_context(
            running([sys.executable, "-m", "loadtest.costs.gateway_process", str(port)], port)
        )
        front = free_port()
        command = [sys.executable, "-m", "cache", "serve", "--port", str(front)]
        command += ["--store", f"file://{folder}", "--farm-url", f"http://127.0.0.1:{port}"]
        service = life.enter_context(running(command, front))
        http = life.enter_context(httpx.Client(timeout=60.0))
        straight, through = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{front}"
        small, large = _job(SMALL), _job(LARGE)
        submit = _cpu_s(gateway, lambda: _submit(http, straight, small), count)
        more = _cpu_s(gateway, lambda: _submit(http, straight, large), max(8, count // 20))
        poll = f"{PATH_COMPILE}/{small.fingerprint}?wait=0&after=0&waiter=w"
        join = f"{PATH_COMPILE}/{small.fingerprint}?wait=0"
        headers = {"content-type": MSGPACK}
        wish = pack(Join("w").to_wire())
        lookup = pack({"keys": [key]})
        return Requests(
            submit_s=submit,
            submit_mb_s=max(0.0, (more - submit) / ((LARGE - SMALL) / 1e6)),
            join_s=_cpu_s(
                gateway, lambda: http.post(straight + join, content=wish, headers=headers), count
            ),
            poll_s=_cpu_s(gateway, lambda: http.get(straight + poll), count),
            pass_on_s=_cpu_s(service, lambda: http.get(through + poll), count),
            lookup_s=_cpu_s(
                service,
                lambda: http.post(through + "/v1/entries/lookup", content=lookup, headers=headers),
                count,
            ),
            blob_mb_s=_cpu_s(
                service, lambda: http.get(through + f"/v1/blobs/{blob}"), max(8, count // 20)
            )
            / (BLOB / 1e6),
        )


def _job(size: int) -> FarmJob:
    """A submit of a graph of that size; the gateway never decodes it."""
    graph, target, options = os.urandom(size), Target("cuda", "sm_90"), Options()
    fingerprint = graph_fingerprint(graph, target, options, toolchain())
    return FarmJob(fingerprint.hex, fingerprint.entries, graph, target, options, "w")


def _submit(http: httpx.Client, url: str, job: FarmJob) -> httpx.Response:
    return http.post(url + SUBMIT_PATH, content=job.encode(), headers={"content-type": MSGPACK})


def _cpu_s(pid: int, ask: Ask, count: int) -> float:
    """Processor seconds of a server, a request."""
    for _ in range(4):
        ask().raise_for_status()
    before = process_cpu_s(pid)
    for _ in range(count):
        ask().raise_for_status()
    return (process_cpu_s(pid) - before) / count


def _fill(folder: Path) -> tuple[str, str]:
    """A store with an artifact and a large blob: their key and digest."""
    store = LocalStore(folder)
    key, data = f"graph/{1:064x}", os.urandom(BLOB)
    publish(store, key, Manifest.of("graph", {"b": b"x"}, os.urandom(800)), {"b": b"x"})
    store.put_blob(digest(data), data)
    return key, digest(data)
