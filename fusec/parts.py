"""Work that hands on what it has before it is through: a generator of parts that returns a result.

It is done in the caller's own thread, step by step, so that it passes through pipes, pools and
streams of a cluster alike, and ends with its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")

Parts: TypeAlias = Generator[P, None, R]
"""Yields the parts, in order, and returns the result."""


def unheard(part: object) -> None:
    """For those who want the result alone."""


def finish(work: Parts[P, R], heard: Callable[[P], object] = unheard) -> R:
    """Do all of it, telling each part as it comes. Raises what the work does."""
    while True:
        try:
            part = next(work)
        except StopIteration as end:
            result: R = end.value
            return result
        heard(part)


def each(work: Parts[P, R], change: Callable[[P], Q]) -> Parts[Q, R]:
    """The same work with every part changed."""
    while True:
        try:
            part = next(work)
        except StopIteration as end:
            result: R = end.value
            return result
        yield change(part)


def gathered(work: Parts[P, R], most: int) -> Parts[list[P], R]:
    """The same work with up to `most` parts in one, where each that is handed on has a price."""
    together: list[P] = []
    while True:
        try:
            part = next(work)
        except StopIteration as end:
            if together:
                yield together
            result: R = end.value
            return result
        together.append(part)
        if len(together) >= most:
            yield together
            together = []
