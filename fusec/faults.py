"""Faults of our own, kept from ending a training job: turned into one of our errors, told, counted.

A bug in a lowering or a full disk shows up as any of Python's errors. At the few borders where our
code runs inside somebody's job they become a `CompilerError`, which ends in an eager run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fusec.errors import CompilerError, FusecError

FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def contained(where: str) -> Iterator[None]:
    """Raise CompilerError for a fault inside the block; our own errors pass.

    where: what was being worked on. Not for blocks in which torch's own exceptions mean something.
    """
    try:
        yield
    except FusecError:
        raise
    except FAULTS as error:
        raise CompilerError(
            f"a fault in fusec itself: {type(error).__name__}: {error}",
            where=where,
            hint="please report it; the graph runs eager meanwhile",
        ) from error
