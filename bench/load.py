"""Load on one server over keep-alive connections, and what its process costs meanwhile."""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_SAMPLES = 10
_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The server so far: seconds of load, requests answered, bytes of their bodies; bytes that its
    process has in memory now."""

    at_s: float
    requests: int
    served: int
    resident: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One case of one server. cpu_s: of the server's process. samples: over time, the last one at
    the end."""

    wall_s: float
    cpu_s: float
    samples: tuple[Sample, ...]

    @property
    def requests(self) -> int:
        return self.samples[-1].requests

    @property
    def growth(self) -> int:
        """Bytes of memory from the first sample to the last."""
        return self.samples[-1].resident - self.samples[0].resident

    @property
    def per_cpu_s(self) -> float:
        return self.requests / self.cpu_s if self.cpu_s else float("inf")


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of a server, in turn, and what reads an answer and gives its body's bytes."""

    requests: tuple[bytes, ...]
    reply: Callable[[socket.socket, bytearray], int]


def run(
    pid: int,
    port: int,
    case: Case,
    seconds: float,
    connections: int,
    seen: Callable[[Sample], None] = lambda _: None,
    rate: float = math.inf,
) -> Figure:
    """Ask for `seconds` over all connections at once; each has asked once before the time begins.

    `seen` is told each sample as it is taken: ten of them, or one a minute. `rate`: at most so many
    requests a second, of all connections together. Raises what the first connection to fail raised.
    """
    started = threading.Barrier(connections + 1)
    stop = threading.Event()
    counts, served = [0] * connections, [0] * connections
    faults: list[Exception] = []

    def work(me: int) -> None:
        buffer = bytearray(1 << 20)
        turn = me * len(case.requests) // connections
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(case.requests[turn % len(case.requests)])
                case.reply(connection, buffer)
                started.wait()
                due = time.perf_counter()
                while not stop.wait(max(0.0, due - time.perf_counter())):
                    due += connections / rate
                    turn += 1
                    connection.sendall(case.requests[turn % len(case.requests)])
                    served[me] += case.reply(connection, buffer)
                    counts[me] += 1
        except (OSError, ValueError) as error:
            faults.append(error)
            stop.set()
            started.abort()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(connections)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        started.wait()
    cpu, begun = cpu_s(pid), time.perf_counter()
    samples: list[Sample] = []
    count = max(_SAMPLES, math.ceil(seconds / _EVERY_S))
    for number in range(1, count + 1):
        if stop.wait(max(0.0, begun + seconds * number / count - time.perf_counter())):
            break
        at = time.perf_counter() - begun
        samples.append(Sample(at, sum(counts), sum(served), resident(pid)))
        seen(samples[-1])
    stop.set()
    cpu, wall = cpu_s(pid) - cpu, time.perf_counter() - begun
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return Figure(wall, cpu, tuple(samples))


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
