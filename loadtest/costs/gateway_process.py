"""A gateway on loopback whose jobs never end, for as long as it is left: what its requests cost."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future

from cache.embedded import serve_app_in_thread
from cache.memory import MemoryStore
from farm.config import FarmConfig
from farm.open_farm import open_app
from farm.pool import Heard, Pool, Task
from fusec.remote.protocol import Priority


class NeverPool:
    """A pool of one worker that is never through; see `Pool`."""

    kind = "never"
    workers = 1

    def workers_of(self, needs: str) -> int:
        """See `Pool`."""
        return 1

    def gpu_classes(self) -> tuple[str, ...]:
        """See `Pool`."""
        return ()

    def want(self, needs: str, tasks: int) -> None:
        """See `Pool`."""

    def submit(self, task: Task, heard: Heard | None = None) -> Future[bytes]:
        """See `Pool`."""
        return Future()

    def hurry(self, future: Future[bytes], priority: Priority) -> None:
        """See `Pool`."""

    def cancel(self, future: Future[bytes]) -> None:
        """See `Pool`."""
        future.cancel()

    def close(self) -> None:
        """See `Pool`."""


_CONTRACT: type[Pool] = NeverPool

if __name__ == "__main__":
    with serve_app_in_thread(
        open_app(FarmConfig(), NeverPool(), MemoryStore()), port=int(sys.argv[1])
    ):
        threading.Event().wait()
