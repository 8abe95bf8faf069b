"""Requests a CPU-second of the cache service, beside Redis GET in the same run."""

import argparse
import contextlib
import math
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench import display, load, machine, server
from bench.load import Case, Figure, Sample
from cache.artifacts import publish
from cache.digest import digest
from cache.local import LocalStore
from cache.manifest import Manifest

_HELP = """\
Starts the service as a process of its own over a store on disk, and Redis beside it, and asks both
over keep-alive connections on loopback: an entry of 1 KB, blobs of 64 KB and 4 MB of noise. Counted
is the CPU time of the server's process, so that the client and the rest of the machine do not
matter. `memory` are hits that the service keeps in memory; `disk` are those of a service that keeps
nothing, each read from its store, checked and compressed. `churn` is for the memory alone:
thousands of entries and blobs, more than the service may keep, and as many that are not there.

A line says how a case went as soon as it has ended. `--memory` prints the server's memory over
time as well, so that a run that is interrupted still has said what it saw; `growth` is from the
first tenth of a case (its first minute, in long runs) to its end.
"""
_EXAMPLES = """\
examples:
  python -m bench.service                     about a minute
  python -m bench.service --seconds 3600 --sides churn --memory --rate 250
                                              is its memory flat over an hour of load?
  python -m bench.service --quick --json out.json
"""
SIZES = {"entry 1 KB": 1 << 10, "blob 64 KB": 64 << 10, "blob 4 MB": 4 << 20}
CHURN = "churn"
SIDES = ("memory", "disk", "redis", CHURN)
_DISTINCT = 16  # things asked for in turn
# What each service keeps in memory, in bytes, and for how long it believes an entry. But for churn
# it is for ever or not at all, so that each side stays what it is.
_KEEPS = {"memory": (512 << 20, 1e6), "disk": (0, 0.0), CHURN: (32 << 20, 5.0)}
_CHURN_SIZE = 16 << 10

Figures = dict[str, dict[str, Figure]]
"""By case, then by side."""


def main(argv: list[str] | None = None) -> int:
    """0 when it ran."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(1)
    _say(out, machine.line(about))
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        for side in arguments.sides:
            with _server(side, Path(folder), arguments.quick) as started:
                if started is None:
                    _say(out, "redis-server is not installed: no figures for it")
                    continue
                pid, port, cases = started
                for name, case in cases.items():
                    told = _teller(out, name, side) if arguments.memory else lambda _: None
                    figure = load.run(
                        pid,
                        port,
                        case,
                        arguments.seconds,
                        arguments.connections,
                        told,
                        arguments.rate,
                    )
                    found.setdefault(name, {})[side] = figure
                    _say(out, _line(name, side, figure))
    cases = {
        name: {
            side: {**asdict(each), "requests": each.requests, "per_cpu_s": each.per_cpu_s}
            for side, each in row.items()
        }
        for name, row in found.items()
    }
    display.write_json(arguments.json, {"machine": about, "cases": cases})
    return 0


def _say(out: Console, text: str) -> None:
    out.print(text, soft_wrap=True, markup=False)


def _line(name: str, side: str, figure: Figure) -> str:
    return (
        f"{name:11} {side:7} {figure.per_cpu_s:9.0f} a CPU-second, "
        f"{figure.requests / figure.wall_s:8.0f} a second, growth {figure.growth / 1e6:6.1f} MB"
    )


def _teller(out: Console, name: str, side: str) -> Callable[[Sample], None]:
    def tell(sample: Sample) -> None:
        _say(
            out,
            f"  {name:11} {side:7} after {sample.at_s:6.1f} s: {sample.resident / 1e6:7.1f} MB in "
            f"memory; {sample.requests} requests, {sample.served / 1e9:.2f} GB served",
        )

    return tell


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.service",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="a case and side; default 5")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=SIDES,
        default=SIDES[:3],
        help=f"what to measure; default {' '.join(SIDES[:3])}",
    )
    parser.add_argument("--memory", action="store_true", help="print the memory over time as well")
    parser.add_argument("--connections", type=int, default=16, help="default: 16")
    parser.add_argument(
        "--rate",
        type=float,
        default=math.inf,
        help="at most so many requests a second; default as many as there can be",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a third of a second each: a smoke test"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.seconds = 0.3
    return arguments


@contextlib.contextmanager
def _server(
    side: str, folder: Path, quick: bool
) -> Iterator[tuple[int, int, dict[str, Case]] | None]:
    """The server of a side: its process id, its port, its cases; None without a Redis."""
    if side == "redis":
        program = shutil.which("redis-server")
        if program is None:
            yield None
            return
        with _redis(program, folder) as (pid, port):
            yield pid, port, {name: _redis_case(port, size) for name, size in SIZES.items()}
        return
    store = folder / side
    if side == CHURN:
        cases = {"mixed": _churn_case(store, 100 if quick else 5000)}
    else:
        keys, blobs = _fill(store)
        cases = {name: _http_case(name, keys, blobs) for name in SIZES}
    memory, entry_ttl_s = _KEEPS[side]
    with _service(store, memory, entry_ttl_s) as (pid, port):
        yield pid, port, cases


def _fill(folder: Path) -> tuple[list[str], dict[int, list[str]]]:
    """A store with entries of about 1 KB, and blobs of the other sizes; their names."""
    store = LocalStore(folder)
    keys = [_entry(store, number) for number in range(_DISTINCT)]
    blobs = {
        size: [_blob(store, size) for _ in range(_DISTINCT)]
        for size in (SIZES["blob 64 KB"], SIZES["blob 4 MB"])
    }
    return keys, blobs


def _entry(store: LocalStore, number: int) -> str:
    key = f"graph/{number:064x}"
    publish(store, key, Manifest.of("graph", {"b": b"x"}, secrets.token_bytes(800)), {"b": b"x"})
    return key


def _blob(store: LocalStore, size: int) -> str:
    data = secrets.token_bytes(size)
    store.put_blob(digest(data), data)
    return digest(data)


def _http_case(name: str, keys: list[str], blobs: dict[int, list[str]]) -> Case:
    paths = [f"/v1/blobs/{each}" for each in blobs.get(SIZES[name], ())] or [
        f"/v1/entries/{key}" for key in keys
    ]
    return Case(tuple(map(_get, paths)), _read_http)


def _churn_case(folder: Path, count: int) -> Case:
    """`count` entries, as many blobs, and eight times as many names of nothing, mixed."""
    store = LocalStore(folder)
    paths = [f"/v1/entries/{_entry(store, number)}" for number in range(count)]
    paths += [f"/v1/blobs/{_blob(store, _CHURN_SIZE)}" for _ in range(count)]
    for _ in range(4 * count):
        absent = secrets.token_hex(32)
        paths += [f"/v1/entries/kernel/{absent}", f"/v1/blobs/{absent}"]
    secrets.SystemRandom().shuffle(paths)
    return Case(tuple(map(_get, paths)), _read_any)


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


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


def _read_http(connection: socket.socket, buffer: bytearray) -> int:
    status, size = _answer(connection, buffer)
    if status != b"200":
        raise ValueError(f"status {status.decode()}")
    return size


def _read_any(connection: socket.socket, buffer: bytearray) -> int:
    status, size = _answer(connection, buffer)
    if status not in (b"200", b"404"):
        raise ValueError(f"status {status.decode()}")
    return size


def _answer(connection: socket.socket, buffer: bytearray) -> tuple[bytes, int]:
    """An answer's status and its body's bytes, which are read and thrown away."""
    view, got = memoryview(buffer), 0
    while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
        got += _some(connection, view[got:])
    head = bytes(view[:end]).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    _drain(connection, view, length - (got - end - 4))
    return head.split(b" ", 2)[1], length


def _read_redis(connection: socket.socket, buffer: bytearray) -> int:
    view, got = memoryview(buffer), 0
    while (end := buffer.find(b"\r\n", 0, got)) < 0:
        got += _some(connection, view[got:])
    if buffer[0:1] != b"$":
        raise ValueError(bytes(view[:end]))
    length = int(bytes(view[1:end]))
    _drain(connection, view, length + 2 - (got - end - 2))
    return length


def _drain(connection: socket.socket, view: memoryview, left: int) -> None:
    while left > 0:
        left -= _some(connection, view[: min(left, len(view))])


def _some(connection: socket.socket, view: memoryview) -> int:
    count = connection.recv_into(view)
    if not count:
        raise OSError("the server hung up")
    return count


@contextlib.contextmanager
def _service(folder: Path, memory: int, entry_ttl_s: float) -> Iterator[tuple[int, int]]:
    port = server.free_port()
    command = [sys.executable, "-m", "cache", "serve", "--port", str(port)]
    command += ["--store", f"file://{folder}", "--memory-bytes", str(memory)]
    command += ["--entry-ttl-s", str(entry_ttl_s)]
    with server.running(command, port) as pid:
        yield pid, port


@contextlib.contextmanager
def _redis(program: str, folder: Path) -> Iterator[tuple[int, int]]:
    port = server.free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
    with server.running([*command, str(folder)], port) as pid:
        yield pid, port


if __name__ == "__main__":
    raise SystemExit(main())
