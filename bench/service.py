"""Requests a CPU-second of the cache service, beside Redis GET in the same run."""

import argparse
import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import display, machine, server
from cache.artifacts import publish
from cache.digest import digest
from cache.local import LocalStore
from cache.manifest import Manifest

_HELP = """\
Starts the service as a process of its own over a store on disk, and Redis beside it, and asks both
over keep-alive connections on loopback: an entry of 1 KB, blobs of 64 KB and 4 MB of noise. Counted
is the CPU time of the server's process, so that the client and the rest of the machine do not
matter. `memory` are hits that the service keeps in memory; `disk` are those of a service that keeps
nothing, each read from its store, checked and compressed. `growth` is what the service's memory
grew by from the first tenth of a case to its end.
"""
_EXAMPLES = """\
examples:
  python -m bench.service                     about a minute
  python -m bench.service --seconds 3600      is its memory flat over an hour of load?
  python -m bench.service --quick --json out.json
"""
SIZES = {"entry 1 KB": 1 << 10, "blob 64 KB": 64 << 10, "blob 4 MB": 4 << 20}
_DISTINCT = 16  # things asked for in turn
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """One case of one server. cpu_s: of the server's process; growth: bytes of its memory."""

    requests: int
    wall_s: float
    cpu_s: float
    growth: int

    @property
    def per_cpu_s(self) -> float:
        return self.requests / self.cpu_s if self.cpu_s else float("inf")


@dataclass(frozen=True)
class Case:
    """What is asked of a server: the bytes of each request, and the bytes of each answer."""

    requests: tuple[bytes, ...]
    reply: Callable[[socket.socket, bytearray], None]


def main(argv: list[str] | None = None) -> int:
    """0 when it ran."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(1)
    out.print(machine.line(about), soft_wrap=True)
    seconds = 0.3 if arguments.quick else arguments.seconds
    found: dict[str, dict[str, Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        root = Path(folder)
        keys, blobs = _fill(root / "store")
        for side, memory in (("memory", 512 << 20), ("disk", 0)):
            with _service(root / "store", memory) as (pid, port):
                for name in SIZES:
                    case = _http_case(name, keys, blobs)
                    found.setdefault(name, {})[side] = _load(
                        pid, port, case, seconds, arguments.connections
                    )
        redis = shutil.which("redis-server")
        if redis is None:
            out.print("redis-server is not installed: no column for it")
        else:
            with _redis(redis, root) as (pid, port):
                for name, size in SIZES.items():
                    case = _redis_case(port, size)
                    found[name]["redis"] = _load(pid, port, case, seconds, arguments.connections)
    result = {
        "machine": about,
        "cases": {
            name: {
                side: {**asdict(each), "per_cpu_s": each.per_cpu_s} for side, each in row.items()
            }
            for name, row in found.items()
        },
    }
    display.write_json(arguments.json, result)
    for name, row in found.items():
        for side, figure in row.items():
            out.print(
                f"{name:11} {side:7} {figure.per_cpu_s:9.0f} a CPU-second, "
                f"{figure.requests / figure.wall_s:8.0f} a second, "
                f"growth {figure.growth / 1e6:6.1f} MB",
                highlight=False,
            )
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.service",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="a case and side; default 5")
    parser.add_argument("--connections", type=int, default=16, help="default: 16")
    parser.add_argument(
        "--quick", action="store_true", help="a third of a second each: a smoke test"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser.parse_args(argv)


def _fill(folder: Path) -> tuple[list[str], dict[int, list[str]]]:
    """A store with entries of about 1 KB, and blobs of the other sizes; their names."""
    store = LocalStore(folder)
    keys: list[str] = []
    for number in range(_DISTINCT):
        keys.append(f"graph/{number:064x}")
        made = Manifest.of("graph", {"b": b"x"}, secrets.token_bytes(800))
        publish(store, keys[-1], made, {"b": b"x"})
    blobs: dict[int, list[str]] = {}
    for size in (SIZES["blob 64 KB"], SIZES["blob 4 MB"]):
        for _ in range(_DISTINCT):
            data = secrets.token_bytes(size)
            store.put_blob(digest(data), data)
            blobs.setdefault(size, []).append(digest(data))
    return keys, blobs


def _http_case(name: str, keys: list[str], blobs: dict[int, list[str]]) -> Case:
    size = SIZES[name]
    paths = [f"/v1/blobs/{each}" for each in blobs.get(size, ())] or [
        f"/v1/entries/{key}" for key in keys
    ]
    return Case(
        tuple(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() for path in paths),
        _read_http,
    )


def _redis_case(port: int, size: int) -> Case:
    names = [f"{size}-{number}".encode() for number in range(_DISTINCT)]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for name in names:
            data = secrets.token_bytes(size)
            connection.sendall(_command(b"SET", name, data))
            assert connection.recv(64) == b"+OK\r\n"
    return Case(tuple(_command(b"GET", name) for name in names), _read_redis)


def _command(*parts: bytes) -> bytes:
    made = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), made)


def _load(pid: int, port: int, case: Case, seconds: float, connections: int) -> Figure:
    """Ask for `seconds` over all connections at once; figures without the first round."""
    started = threading.Barrier(connections + 1)
    stop = threading.Event()
    counts = [0] * connections
    faults: list[Exception] = []

    def work(me: int) -> None:
        buffer = bytearray(1 << 20)
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                for request in case.requests:
                    connection.sendall(request)
                    case.reply(connection, buffer)
                started.wait()
                turn = me
                while not stop.is_set():
                    connection.sendall(case.requests[turn % len(case.requests)])
                    case.reply(connection, buffer)
                    counts[me] += 1
                    turn += 1
        except (OSError, ValueError) as error:
            faults.append(error)
            started.abort()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(connections)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        started.wait()
    cpu, wall = _cpu_s(pid), time.perf_counter()
    time.sleep(seconds / 10)
    memory = _memory(pid)
    time.sleep(seconds * 0.9)
    stop.set()
    cpu, wall, done = _cpu_s(pid) - cpu, time.perf_counter() - wall, sum(counts)
    growth = _memory(pid) - memory
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return Figure(done, wall, cpu, growth)


def _read_http(connection: socket.socket, buffer: bytearray) -> None:
    view, got = memoryview(buffer), 0
    while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
        got += _some(connection, view[got:])
    head = bytes(view[:end]).lower()
    if not head.startswith(b"http/1.1 200"):
        raise ValueError(head[:80])
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    _drain(connection, view, length - (got - end - 4))


def _read_redis(connection: socket.socket, buffer: bytearray) -> None:
    view, got = memoryview(buffer), 0
    while (end := buffer.find(b"\r\n", 0, got)) < 0:
        got += _some(connection, view[got:])
    if buffer[0:1] != b"$":
        raise ValueError(bytes(view[:end]))
    _drain(connection, view, int(bytes(view[1:end])) + 2 - (got - end - 2))


def _drain(connection: socket.socket, view: memoryview, left: int) -> None:
    while left > 0:
        left -= _some(connection, view[: min(left, len(view))])


def _some(connection: socket.socket, view: memoryview) -> int:
    count = connection.recv_into(view)
    if not count:
        raise OSError("the server hung up")
    return count


@contextlib.contextmanager
def _service(folder: Path, memory: int) -> Iterator[tuple[int, int]]:
    port = server.free_port()
    command = [sys.executable, "-m", "cache", "serve", "--port", str(port)]
    command += ["--store", f"file://{folder}", "--memory-bytes", str(memory)]
    # Entries are read again after this time; here each side is to stay what it is.
    command += ["--entry-ttl-s", "1000000" if memory else "0"]
    with server.running(command, port) as pid:
        yield pid, port


@contextlib.contextmanager
def _redis(program: str, folder: Path) -> Iterator[tuple[int, int]]:
    port = server.free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
    with server.running([*command, str(folder)], port) as pid:
        yield pid, port


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    raise SystemExit(main())
