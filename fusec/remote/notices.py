"""Telling the user about a fault of the remote: a counter every time, a warning once a cause."""

from __future__ import annotations

import logging
import threading
from typing import Final

from fusec.errors import FusecError
from fusec.trace import Recorder

UNREACHABLE: Final = "unreachable"
"""The cause of every fault that a dead cache service leads to."""

LOG = logging.getLogger("fusec.remote")


class Notices:
    """Counts every fault and warns of each cause once in the life of this object.

    The logging module is used rather than `warnings`: under ``-W error`` a warning would end the
    training job that the remote must never end.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def fault(
        self,
        counter: str,
        cause: str,
        error: Exception | str,
        consequence: str,
        *,
        covered_by: str | None = None,
    ) -> None:
        """Count under `counter`; at the first fault of this cause also warn, with what follows.

        covered_by: a cause that explains this one too; no warning when it was told already.
        """
        self._recorder.count(counter)
        with self._lock:
            if cause in self._told or covered_by in self._told:
                return
            self._told.add(cause)
        LOG.warning(
            "fusec: %s; %s. (Further faults of this kind are counted, not told.)",
            _short(_text(error)),
            consequence,
        )


def _text(error: Exception | str) -> str:
    """An error on one line, with what to do about it."""
    if isinstance(error, FusecError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return str(error)


def _short(text: str) -> str:
    """The first lines: a compiler can say a lot, and the farm's log has all of it."""
    lines = text.strip().splitlines()
    kept = "\n".join(lines[:3])[:500].rstrip(".")
    return kept + " …" if len(lines) > 3 or len(kept) >= 500 else kept
