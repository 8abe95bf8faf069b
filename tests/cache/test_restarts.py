"""Replicas of the service are replaced without a failed request."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from cache.artifacts import lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.errors import CacheError
from cache.manifest import Manifest
from loadtest.balancer import balancer
from tests.cache.samples import key
from tests.cache.servers import free_port

ROOT = Path(__file__).parents[2]


@contextmanager
def replica(folder):
    """A service as a process of its own; gives the process and its port, once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "cache", "serve", "--port", str(port)]
    child = subprocess.Popen(
        [*command, "--store", f"file://{folder}"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child, port
    finally:
        child.kill()
        child.wait()


def test_a_rolling_restart_is_without_a_failed_request(tmp_path):
    stop, failed, done = threading.Event(), [], []

    def ask(url, number):
        with CacheClient(url, budget=DelayBudget(30.0)) as client:
            turn = 0
            while not stop.is_set():
                turn += 1
                blobs = {"b": b"%d" % turn}
                name = key(1000 * number + turn % 50)
                try:
                    publish(client, name, Manifest.of("graph", blobs), blobs)
                    assert lookup(client, name) is not None
                    done.append(name)
                except CacheError as error:
                    failed.append(error)

    with ExitStack() as stack:
        old, port = stack.enter_context(replica(tmp_path))
        front = stack.enter_context(balancer(port))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(stop.set)
        workers = [pool.submit(ask, front.url, number) for number in range(4)]
        for _ in range(2):
            before = len(done)
            new, port = stack.enter_context(replica(tmp_path))
            front.direct(port)
            old.send_signal(signal.SIGTERM)
            # Some servers end by the signal that they have handled.
            assert old.wait(60) in (0, -signal.SIGTERM)
            old = new
            deadline = time.monotonic() + 30
            while len(done) < before + 20:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        stop.set()
        for worker in workers:
            worker.result(30)
    assert failed == []
