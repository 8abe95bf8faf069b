"""Work that hands on what it has before it is through: a generator of parts that returns a result.

It is done in the caller's own thread, step by step, so that it passes through pipes, pools and
streams of a cluster alike, and ends with its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")

Parts: TypeAlias = Generator[P, None, R]
"""Yields the parts, in order, and returns the result."""


def unheard(part: object) -> None:
    """For those who want the result alone."""


def finish(work: Parts[P, R], heard: Callable[[P], object] = unheard) -> R:
    """Do all of it, telling each part as it comes. Raises what the work does."""
    parts = _Parts(work)
    for part in parts:
        heard(part)
    return parts.result


def each(work: Parts[P, R], change: Callable[[P], Q]) -> Parts[Q, R]:
    """The same work with every part changed."""
    parts = _Parts(work)
    for part in parts:
        yield change(part)
    return parts.result


def spread(work: Parts[P, R], into: Callable[[P], Iterable[Q]]) -> Parts[Q, R]:
    """The same work with every part made several."""
    parts = _Parts(work)
    for part in parts:
        yield from into(part)
    return parts.result


def distinct(work: Parts[P, R], key: Callable[[P], Hashable]) -> Parts[P, R]:
    """The same work with parts of one key handed on once."""
    parts = _Parts(work)
    known: set[Hashable] = set()
    for part in parts:
        if (name := key(part)) not in known:
            known.add(name)
            yield part
    return parts.result


def gathered(work: Parts[P, R], most: int) -> Parts[list[P], R]:
    """The same work with up to `most` parts in one, where each that is handed on has a price."""
    parts = _Parts(work)
    together: list[P] = []
    for part in parts:
        together.append(part)
        if len(together) >= most:
            yield together
            together = []
    if together:
        yield together
    return parts.result


class _Parts(Generic[P, R]):
    """The parts of some work to iterate over once; ``result`` is there afterwards."""

    result: R

    def __init__(self, work: Parts[P, R]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[P]:
        self.result = yield from self._work
