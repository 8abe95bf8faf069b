"""The order of waiting jobs: bounded, by priority, then first come first served.

Plain data without a clock or a thread, so that a simulation runs the very same code.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class QueueFull(Exception):
    """No room for another job; ``length`` wait already."""

    def __init__(self, length: int) -> None:
        super().__init__(f"{length} jobs wait already")
        self.length = length


class JobQueue:
    """Names of jobs (fingerprints) in the order they will run. A name is in it at most once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._order: list[tuple[int, int, str]] = []  # (-priority, ticket, name), sorted
        self._places: dict[str, tuple[int, int, str]] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def push(self, name: str, priority: int) -> bool:
        """Append a job; False if it waits already, then at the higher of both priorities.

        Raises QueueFull.
        """
        place = self._places.get(name)
        if place is not None:
            if priority > -place[0]:
                self.remove(name)
                self._insert((-priority, place[1], name))
            return False
        if len(self._order) >= self.limit:
            raise QueueFull(len(self._order))
        self._tickets += 1
        self._insert((-priority, self._tickets, name))
        return True

    def pop(self) -> str | None:
        """Take the next job out, None when none waits."""
        if not self._order:
            return None
        name = self._order.pop(0)[2]
        del self._places[name]
        return name

    def remove(self, name: str) -> bool:
        """Take a job out of turn; False if it does not wait."""
        place = self._places.pop(name, None)
        if place is None:
            return False
        del self._order[bisect_left(self._order, place)]
        return True

    def position(self, name: str) -> int:
        """How many jobs run before this one; 0 if it does not wait."""
        place = self._places.get(name)
        return 0 if place is None else bisect_left(self._order, place)

    def _insert(self, place: tuple[int, int, str]) -> None:
        insort(self._order, place)
        self._places[place[2]] = place
