"""A client process of the farm, as far as tests need one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.memory import MemoryStore
from cache.store import Store
from cache.trust import OWN_STORE, Trust
from fusec.options import Options
from fusec.remote.resolve import Resolver
from fusec.remote.ticket import CompileLocal
from fusec.trace import Recorder


@dataclass(frozen=True)
class Client:
    """A resolver with its recorder and local store."""

    resolver: Resolver
    recorder: Recorder
    local: Store
    remote: CacheClient | None

    def counters(self) -> dict[str, int]:
        return {name: count for name, count in self.recorder.counters.items() if count}


class NewClient:
    """Makes client processes; `close` ends their connections."""

    def __init__(self) -> None:
        self._made: list[Client] = []

    def __call__(
        self,
        url: str | None,
        compile_local: CompileLocal,
        *,
        local: Store | None = None,
        policy: str = "wait",
        wait_s: float = 30.0,
        budget_s: float = 2.0,
        probe_s: tuple[float, float] = (0.1, 0.2),
        trust: Trust = OWN_STORE,
        token: str | None = None,
    ) -> Client:
        """A fresh client with an empty local store, or with `local`. It believes the remote, unless
        `trust` says whom to believe."""
        options = replace(
            Options(cache_dir=Path("unused")), policy=policy, wait_s=wait_s, budget_s=budget_s
        )
        remote = None
        if url is not None:
            remote = CacheClient(url, token=token, budget=DelayBudget(budget_s, probe_s=probe_s))
        recorder = Recorder()
        store = local if local is not None else MemoryStore()
        resolver = Resolver(
            store, remote, options, recorder, trust=trust, compile_local=compile_local
        )
        made = Client(resolver, recorder, store, remote)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.resolver.close()


@pytest.fixture
def client() -> Iterator[NewClient]:
    """Makes clients that are closed after the test."""
    maker = NewClient()
    yield maker
    maker.close()
