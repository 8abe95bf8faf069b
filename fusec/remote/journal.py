"""The keys that jobs on this machine asked for, so that a miss can be explained later.

    <local store>/keys.jsonl     a line a key and process: kind, entries, found or not, when, label

Kept short, for its owner alone, and never a reason to fail: what cannot be written is not noted.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusec.artifact.fingerprint import Fingerprint, diff
from fusec.errors import WireError

log = logging.getLogger("fusec.remote")

FILE: Final = "keys.jsonl"
MAX_BYTES: Final = 2 << 20
_MAX_LINE: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Asked:
    """A key that was asked for. at: seconds since 1970; process: its id; label: forward, front …"""

    kind: str
    fingerprint: Fingerprint
    hit: bool
    at: float
    process: int
    label: str

    @property
    def key(self) -> str:
        return self.fingerprint.key(self.kind)


@dataclass(frozen=True, slots=True)
class Explained:
    """A miss with the earlier key that is most like it. differs: names of entries, empty for none.

    nearest None: no key of its kind and label was asked for before.
    """

    missed: Asked
    nearest: Asked | None
    differs: tuple[str, ...]


class Journal:
    """Writes keys down, each once a process. Safe for threads and processes.

    folder: None writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._lock = threading.Lock()
        self._noted: set[str] = set()

    def note(self, kind: str, entries: Sequence[tuple[str, str]], label: str, *, hit: bool) -> None:
        """Write a key down. Never raises for a fault."""
        fingerprint = Fingerprint(tuple(entries))
        with self._lock:
            if self._path is None or fingerprint.hex in self._noted:
                return
            self._noted.add(fingerprint.hex)
            line = json.dumps(
                {
                    "kind": kind,
                    "entries": fingerprint.to_wire(),
                    "hit": hit,
                    "at": round(time.time(), 3),
                    "process": os.getpid(),
                    "label": label,
                }
            )
            try:
                _append(self._path, line.encode() + b"\n")
            except OSError as error:
                log.debug("a key is not noted: %s", error)


def read(folder: Path) -> list[Asked]:
    """What was noted, the oldest first; lines that make no sense are passed over."""
    try:
        text = (folder / FILE).read_bytes()[-2 * MAX_BYTES :]
    except OSError:
        return []
    found = (_asked(line) for line in text.splitlines() if len(line) < _MAX_LINE)
    return [asked for asked in found if asked is not None]


def explain(asked: Sequence[Asked], missed: Asked) -> Explained:
    """The key before it that differs in the fewest entries; the latest of several.

    A backward graph is compared with others of its sort: that it is no forward graph says nothing.
    """
    before = [
        other
        for other in asked[: asked.index(missed)]
        if (other.kind, other.label) == (missed.kind, missed.label)
        and other.fingerprint != missed.fingerprint
    ]
    nearest = min(before, key=lambda other: _distance(other, missed), default=None)
    if nearest is None:
        return Explained(missed, None, ())
    return Explained(missed, nearest, diff(nearest.fingerprint, missed.fingerprint))


def _distance(other: Asked, missed: Asked) -> tuple[int, float]:
    return len(diff(other.fingerprint, missed.fingerprint)), -other.at


def last_misses(asked: Iterable[Asked], count: int) -> list[Asked]:
    """The misses of the process that missed last, `count` at most."""
    misses = [each for each in asked if not each.hit]
    return [each for each in misses if each.process == misses[-1].process][-count:]


def _append(path: Path, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)  # one write: lines of several processes do not mix
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if size > MAX_BYTES:
        kept = path.read_bytes()[-MAX_BYTES // 2 :].partition(b"\n")[2]
        # Two who do it at once lose a few lines; nothing depends on them.
        shorter = path.with_name(f"{path.name}.{os.getpid()}")
        shorter.write_bytes(kept)
        shorter.chmod(0o600)
        os.replace(shorter, path)


def _asked(line: bytes) -> Asked | None:
    try:
        body = json.loads(line)
        return Asked(
            str(body["kind"]),
            Fingerprint.from_wire(body["entries"]),
            body["hit"] is True,
            float(body["at"]),
            int(body["process"]),
            str(body["label"]),
        )
    except (ValueError, KeyError, TypeError, WireError):
        return None
