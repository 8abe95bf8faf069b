"""A Ray cluster of several simulated nodes on this machine, and what can be killed in it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from farm.ray_settings import HEAD_SETTINGS

# What the children of a worker run: everything below the fork that compiles.
_CHILD_PROGRAM: Final = b"farm.isolated_worker"


LOCAL: Final[Mapping[str, object]] = {
    "include_dashboard": False,
    "node_ip_address": "127.0.0.1",  # else it asks a public name server which one this machine has
}


@contextmanager
def simulated_cluster(**head: object) -> Iterator[Any]:
    """Ray's `Cluster` with a head that does no work; ``head`` are further settings of it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # its token would be in the home folder
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            **LOCAL,
            **head,
            "_system_config": dict(HEAD_SETTINGS),
        },
    )
    try:
        yield cluster
    finally:
        import ray

        ray.shutdown()  # a head that this process is connected to is not removed
        cluster.shutdown()


@dataclass(slots=True)
class Nodes:
    """The worker nodes of a cluster that may be lost, each with ``cpus`` processors."""

    cluster: Any
    cpus: int
    draw: random.Random
    alive: list[Any] = field(default_factory=list)

    def add(self) -> None:
        """One more node."""
        self.alive.append(self.cluster.add_node(num_cpus=self.cpus, **LOCAL))

    def kill(self) -> None:
        """SIGKILL to every process of a node: its machine is gone."""
        node = self.alive.pop(self.draw.randrange(len(self.alive)))
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Take the nodes away again, in peace."""
        while self.alive:
            self.cluster.remove_node(self.alive.pop())

    def kill_worker(self) -> bool:
        """SIGKILL to a worker process in the middle of a task; False if none has one."""
        return _kill(self.draw, [pid for pid in self._workers() if _busy(pid)])

    def kill_compiler(self) -> bool:
        """SIGKILL to what compiles below a worker; False if nothing does."""
        compilers = [
            below
            for pid in self._workers()
            for guard in _children(pid)
            for worker in _children(guard)
            for below in _children(worker) or [worker]
        ]
        return _kill(self.draw, compilers)

    def _workers(self) -> list[int]:
        nodes = [self.cluster.head_node, *self.cluster.worker_nodes]
        raylets = [
            item.process.pid for node in nodes for item in node.all_processes.get("raylet", ())
        ]
        return [pid for raylet in raylets for pid in _children(raylet)]


def orphans() -> list[int]:
    """Processes of compilers whose worker is gone: there must be none for long."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if _CHILD_PROGRAM in words:
                parent = int(words[words.index(_CHILD_PROGRAM) + 1])
                if not Path(f"/proc/{parent}").exists():
                    found.append(int(folder.name))
    return found


def _kill(draw: random.Random, pids: list[int]) -> bool:
    if not pids:
        return False
    with suppress(ProcessLookupError):
        os.kill(draw.choice(pids), signal.SIGKILL)
        return True
    return False


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _busy(pid: int) -> bool:
    """Ray's workers say in their title what they do; its agents, whose end takes the node along,
    have one too."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        idle = title.startswith(b"ray::IDLE") or b"Agent" in title
        return title.startswith(b"ray::") and not idle
    return False
