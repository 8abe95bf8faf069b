"""Bodies of the compile routes and their replies: versioned, bounded, unknown fields refused.

    POST   /v1/compile/{fingerprint}?wait=S          a Join -> JobStatus; 404: submit the graph
    POST   /v1/compile/submit?fingerprint=HEX        a FarmJob or a FrontRecord -> JobStatus
    GET    /v1/compile/{fingerprint}?wait=S&after=N&waiter=ID
                                                     -> JobStatus, as soon as its seq is above N
    DELETE /v1/compile/{fingerprint}?waiter=ID       one waiter goes; the last one cancels the job

Client and farm both use this module, so that the two sides cannot drift apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from cache.digest import is_digest
from cache.errors import CacheError
from cache.protocol import MAX_SUBMIT, Value, pack, unpack
from fusec.artifact.fingerprint import Fingerprint
from fusec.errors import FusecError, WireError
from fusec.options import JOB_NAME, Options, Target
from fusec.remote.jobs import MAX_RECORD, FrontRecord

COMPILE_VERSION: Final = 2
SUBMIT_PATH: Final = "/v1/compile/submit"
MAX_GRAPH: Final = 60 << 20
MAX_STATUS: Final = 64 << 10
MAX_JOIN: Final = 1 << 10
MAX_MESSAGE: Final = 4096
MAX_WAIT_S: Final = 60.0
FRONT_REFUSED: Final = "FrontNotTrusted"  # the kind of the refusal of a front record by role
DRAINING: Final = "Draining"  # the kind of the refusal of a farm that takes no work now
_WAITER: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_COUNT: Final = range(1 << 31)
_SUBMIT: Final = frozenset({"v", "kind", "body"})
_GRAPH: Final = frozenset(
    {
        "fingerprint",
        "fingerprint_entries",
        "graph",
        "target",
        "options",
        "priority",
        "training_job",
        "waiter",
    }
)
_JOIN: Final = frozenset({"v", "waiter", "priority"})
_STATUS: Final = frozenset(
    {
        "v",
        "fingerprint",
        "state",
        "kernels_done",
        "kernels_total",
        "position",
        "left_s",
        "seq",
        "error",
    }
)
_MOST_LEFT_S: Final = 1e6


class Priority(IntEnum):
    """How urgent a job is; the higher goes first."""

    BACKGROUND = 0  # nobody asked for it: the farm makes something better
    PREWARM = 1  # wanted later
    WAITING = 2  # a client waits

    @property
    def label(self) -> str:
        """Its name for people and metrics."""
        return self.name.lower()


class JobState(StrEnum):
    """Where a job stands on the farm."""

    QUEUED = "queued"
    LOWERING = "lowering"
    COMPILING = "compiling"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class FarmJob:
    """A graph as the farm receives it.

    ``fingerprint`` and ``entries`` are the client's claim; the farm computes both again. Only the
    options that enter the key are sent. ``waiter`` is a random name of the client process, so that
    a submit may be repeated and a cancel takes back only its own interest. ``training_job`` names
    what the client belongs to: all ranks of one training job have one share of the farm.
    """

    fingerprint: str
    entries: tuple[tuple[str, str], ...]
    graph: bytes
    target: Target
    options: Options
    waiter: str
    priority: Priority = Priority.WAITING
    training_job: str = ""

    def encode(self) -> bytes:
        """The bytes of a submit. Raises WireError for a graph over MAX_GRAPH."""
        return pack(self.to_wire())

    def to_wire(self) -> dict[str, Value]:
        """The body of a submit, before msgpack. Raises WireError for a graph over MAX_GRAPH."""
        if len(self.graph) > MAX_GRAPH:
            raise WireError(
                f"a graph of {len(self.graph)} bytes is too large for the farm",
                hint=f"the limit is {MAX_GRAPH} bytes; it is compiled here",
            )
        body: dict[str, Value] = {
            "fingerprint": self.fingerprint,
            "fingerprint_entries": [list(entry) for entry in self.entries],
            "graph": self.graph,
            "target": {**self.target.to_wire()},
            "options": options_to_wire(self.options),
            "priority": int(self.priority),
            "training_job": self.training_job,
            "waiter": self.waiter,
        }
        return {"v": COMPILE_VERSION, "kind": "graph", "body": body}


@dataclass(frozen=True, slots=True)
class Join:
    """The wish to wait for a graph that somebody else may have sent; fields as of `FarmJob`. It is
    asked for by its fingerprint: what is under that the farm has computed from the graph."""

    waiter: str
    priority: Priority = Priority.WAITING

    def to_wire(self) -> dict[str, Value]:
        return {"v": COMPILE_VERSION, "waiter": self.waiter, "priority": int(self.priority)}

    @classmethod
    def from_wire(cls, body: object) -> Join:
        """Raises WireError for anything that `to_wire` does not write."""
        fields = _fields(body, _JOIN, "a join")
        _version(fields["v"])
        return cls(_waiter(fields["waiter"]), _priority(fields["priority"]))


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed: the kind for programs, the message for people."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment. ``seq`` grows with every change; ``position`` counts jobs before it;
    ``left_s`` is an estimate of the seconds until it is done, None when there is no telling."""

    fingerprint: str
    state: JobState
    seq: int = 0
    kernels_done: int = 0
    kernels_total: int = 0
    position: int = 0
    error: JobError | None = None
    left_s: float | None = None

    def to_wire(self) -> dict[str, Value]:
        error: dict[str, Value] | None = None
        if self.error is not None:
            error = {"kind": self.error.kind[:64], "message": self.error.message[:MAX_MESSAGE]}
        return {
            "v": COMPILE_VERSION,
            "fingerprint": self.fingerprint,
            "state": self.state.value,
            "kernels_done": self.kernels_done,
            "kernels_total": self.kernels_total,
            "position": self.position,
            "left_s": None if self.left_s is None else min(self.left_s, _MOST_LEFT_S),
            "seq": self.seq,
            "error": error,
        }

    @classmethod
    def from_wire(cls, body: object) -> JobStatus:
        """Raises WireError for anything that `to_wire` does not write."""
        fields = _fields(body, _STATUS, "a job's status")
        _version(fields["v"])
        counts = {}
        for name in ("seq", "kernels_done", "kernels_total", "position"):
            counts[name] = _count(fields[name], name)
        try:
            state = JobState(str(fields["state"]))
        except ValueError as error:
            raise WireError(f"unknown job state {fields['state']!r:.40}") from error
        left_s = fields["left_s"]
        if left_s is not None and not (isinstance(left_s, float) and 0 <= left_s <= _MOST_LEFT_S):
            raise WireError(f"left_s is no number of seconds: {left_s!r:.40}")
        raw = fields["error"]
        failure = None
        if raw is not None:
            text = _fields(raw, frozenset({"kind", "message"}), "a job's error")
            failure = JobError(str(text["kind"])[:64], str(text["message"])[:MAX_MESSAGE])
        return cls(
            _fingerprint(fields["fingerprint"]), state, error=failure, left_s=left_s, **counts
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """The body of an answer that is no success: what was wrong, what to do, when to ask again."""

    kind: str
    message: str
    hint: str = ""
    retry_after_s: float | None = None

    def to_wire(self) -> dict[str, Value]:
        error: dict[str, Value] = {
            "kind": self.kind[:64],
            "message": self.message[:MAX_MESSAGE],
            "hint": self.hint[:MAX_MESSAGE],
        }
        if self.retry_after_s is not None:
            error["retry_after_s"] = self.retry_after_s
        return {"error": error}

    @classmethod
    def from_wire(cls, body: Value) -> Refusal:
        """Reads what it can: a proxy on the way may have answered, in its own words."""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return cls("unknown", str(error or "")[:MAX_MESSAGE])
        seconds = error.get("retry_after_s")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:  # or a NaN
            seconds = None
        return cls(
            str(error.get("kind", "unknown"))[:64],
            str(error.get("message", ""))[:MAX_MESSAGE],
            str(error.get("hint", ""))[:MAX_MESSAGE],
            seconds,
        )


def front_to_wire(record: FrontRecord) -> dict[str, Value]:
    """The submit that asks the farm to publish a front record. Raises WireError when too large."""
    return {"v": COMPILE_VERSION, "kind": "front", "body": {"record": record.encode()}}


def decode_submit(data: bytes) -> FarmJob | FrontRecord:
    """The body of a submit. Raises WireError; nothing over MAX_SUBMIT is looked at."""
    try:
        value = unpack(data, max_bytes=MAX_SUBMIT)
    except CacheError as error:
        raise WireError(f"a submit does not decode: {error}") from error
    fields = _fields(value, _SUBMIT, "a submit")
    _version(fields["v"])
    if fields["kind"] == "front":
        record = _fields(fields["body"], frozenset({"record"}), "a front submit")["record"]
        if not isinstance(record, bytes) or len(record) > MAX_RECORD:
            raise WireError("a front record is no bytes or too long")
        return FrontRecord.decode(record)
    if fields["kind"] == "graph":
        return _farm_job(_fields(fields["body"], _GRAPH, "a graph submit"))
    raise WireError(f"unknown kind of submit {fields['kind']!r:.40}")


def _farm_job(body: Mapping[str, object]) -> FarmJob:
    graph = body["graph"]
    if not isinstance(graph, bytes) or len(graph) > MAX_GRAPH:
        raise WireError(f"the graph is no bytes or over {MAX_GRAPH} bytes")
    training_job = body["training_job"]
    if not isinstance(training_job, str) or not JOB_NAME.fullmatch(training_job):
        raise WireError("the training job's name is not up to 64 letters, digits, - _ . : or /")
    if not isinstance(body["target"], dict) or not isinstance(body["options"], dict):
        raise WireError("target and options must be maps")
    try:
        target = Target.from_wire(body["target"])
        options = options_from_wire(body["options"])
    except WireError:
        raise
    except FusecError as error:
        raise WireError(f"a submit's target or options make no sense: {error.message}") from error
    entries = Fingerprint.from_wire(body["fingerprint_entries"]).entries
    return FarmJob(
        _fingerprint(body["fingerprint"]),
        entries,
        graph,
        target,
        options,
        _waiter(body["waiter"]),
        _priority(body["priority"]),
        training_job,
    )


def options_to_wire(options: Options) -> dict[str, Value]:
    """The options that enter the key, by name; each is a truth value or a text."""
    return {
        name: value if isinstance(value, bool) else str(value)
        for name, value in options.key_entries().items()
    }


def options_from_wire(body: Mapping[str, object]) -> Options:
    """Options of which only the key's fields are set. Raises WireError, OptionsError."""
    expected = Options.from_env({}).key_entries()
    if set(body) != set(expected):
        raise WireError(
            f"the options are {sorted(body)!r:.200}, not {sorted(expected)}",
            hint="client and farm run different releases of fusec: upgrade the older",
        )
    for name, value in body.items():
        if type(value) is not type(expected[name]):
            raise WireError(f"option {name} has the wrong type: {value!r:.60}")
    return Options.from_env({}, body)


def is_waiter(value: object) -> bool:
    return isinstance(value, str) and _WAITER.fullmatch(value) is not None


def _fields(value: object, names: frozenset[str], what: str) -> dict[str, object]:
    if not isinstance(value, dict) or set(value) != names:
        raise WireError(f"{what} must have exactly the fields {sorted(names)}")
    return value


def _version(value: object) -> None:
    if value != COMPILE_VERSION:
        raise WireError(
            f"compile protocol version {value!r:.20} is not {COMPILE_VERSION}",
            hint="client and farm run different releases of fusec: upgrade the older",
        )


def _fingerprint(value: object) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise WireError(f"{value!r:.80} is no fingerprint of 64 hex characters")
    return value


def _waiter(value: object) -> str:
    if not isinstance(value, str) or not is_waiter(value):
        raise WireError("the waiter's name is not 1 to 64 letters, digits, - or _")
    return value


def _priority(value: object) -> Priority:
    try:
        return Priority(_count(value, "priority"))
    except ValueError as error:
        raise WireError(f"priority {value!r:.40} is not within 0 and 2") from error


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in _COUNT:
        raise WireError(f"{name} is no count: {value!r:.40}")
    return value
