"""The farm as the client sees it: submit a graph, wait for it, take the interest back.

Waiting is bounded three ways: the time the user allows a graph (``wait_s``), the patience for a
full farm, and an allowance for outages which the whole process shares, so that a farm that comes
and goes cannot cost its pause again for every graph.
"""

from __future__ import annotations

import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from cache.errors import CacheError, NotReachable
from cache.protocol import PATH_COMPILE, Value
from fusec.errors import FarmFailed, RemoteError, WireError
from fusec.remote.jobs import FrontRecord
from fusec.remote.protocol import (
    DRAINING,
    FRONT_REFUSED,
    SUBMIT_PATH,
    FarmJob,
    JobState,
    JobStatus,
    Join,
    Refusal,
    front_to_wire,
)

POLL_S: Final = 5.0  # one long-poll; a farm that falls silent is noticed after this and the grace
GRACE_S: Final = 2.0
CALL_S: Final = 2.0
BUSY_S: Final = 30.0
UPLOAD_BYTES_PER_S: Final = 4 << 20
RESUBMITS: Final = 3


class Cause(StrEnum):
    """Why the farm did not help; each is warned of once a process."""

    UNREACHABLE = "unreachable"
    BUSY = "busy"
    REFUSED = "refused"
    FAILED = "failed"
    TOO_SLOW = "too-slow"
    BAD_REPLY = "bad-reply"


class FarmUnavailable(RemoteError):
    """The farm did not help; ``cause`` says in which way."""

    def __init__(self, message: str, cause: Cause, *, hint: str | None = None) -> None:
        super().__init__(message, where="compile farm", hint=hint)
        self.cause = cause


class Transport(Protocol):
    """The part of `cache.client.CacheClient` used here."""

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Value = None,
        params: Mapping[str, str | int | float] | None = None,
        timeout: float,
    ) -> tuple[int, Value]:
        """(status, decoded body); any status is returned. Raises CacheError without an answer."""
        ...


@dataclass(slots=True)
class Outage:
    """Seconds that waiting for a farm which went away may still cost this process."""

    left_s: float


class FarmClient:
    """Submits jobs through the cache service; safe to share between threads.

    outage_s: total seconds that this process waits for a farm that went away in mid-job.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        outage_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.waiter = secrets.token_hex(8)
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._outage = Outage(outage_s)
        self._lock = threading.Lock()

    def submit(self, job: FarmJob, wait_s: float = math.inf) -> JobStatus:
        """Have a graph compiled; repeating it changes nothing.

        The farm is asked for it by its fingerprint. It wants the graph itself only where it has it
        from nobody: of thousands of ranks one sends it, while the others wait, for POLL_S or
        `wait_s` seconds at most. Raises FarmUnavailable, WireError.
        """
        status = self._join(job, min(POLL_S, wait_s))
        return self._send(job) if status is None else status

    def wait(
        self,
        job: FarmJob,
        *,
        timeout_s: float,
        on_progress: Callable[[JobStatus], None] | None = None,
        first: JobStatus | None = None,
    ) -> JobStatus:
        """Wait until the job is done; a farm that has forgotten the job gets it again.

        first: the status that `submit` gave, None when the job is not submitted yet.
        Raises FarmUnavailable (BUSY, UNREACHABLE, TOO_SLOW, …) and FarmFailed (the farm compiled
        and reports an error).
        """
        deadline = self._clock() + timeout_s
        busy_until = self._clock() + min(BUSY_S, timeout_s)
        status, resubmits = first, 0
        while True:
            if status is not None:
                if on_progress is not None:
                    on_progress(status)
                if status.state.final:
                    return _outcome(status)
            left = deadline - self._clock()
            if left <= 0.0:
                raise FarmUnavailable(
                    f"the farm was not done within {timeout_s:g} s",
                    Cause.TOO_SLOW,
                    hint="FUSEC_WAIT_S sets how long a graph may wait",
                )
            try:
                status = self.submit(job, left) if status is None else self._poll(status, left)
            except _Forgotten:
                resubmits += 1
                if resubmits > RESUBMITS:
                    raise FarmUnavailable(
                        "the farm keeps forgetting the job", Cause.UNREACHABLE
                    ) from None
                status = None
            except _Busy as error:
                pause = error.retry_after_s * random.uniform(0.75, 1.25)
                if self._clock() + pause >= busy_until:
                    raise
                self._sleep(pause)
            except FarmUnavailable as error:
                if error.cause is not Cause.UNREACHABLE or status is None:
                    raise
                self._sit_out(error)

    def cancel(self, fingerprint: str) -> None:
        """This process waits no more; the job goes on while another waits. Never raises."""
        try:
            self._transport.request(
                "DELETE",
                f"{PATH_COMPILE}/{fingerprint}",
                params={"waiter": self.waiter},
                timeout=CALL_S,
            )
        except CacheError:
            return  # the farm drops jobs that nobody polls; nothing is lost by silence

    def publish_front(self, record: FrontRecord) -> bool:
        """Ask the farm to sign and publish a front record; True when it stands.

        False where a part was compiled elsewhere, and where the farm does not take our word: it
        cannot check a recipe, so it signs those of callers that it is told to trust.
        Raises FarmUnavailable.
        """
        status, value = self._request("POST", SUBMIT_PATH, CALL_S, body=front_to_wire(record))
        if status == 409 or (status == 403 and Refusal.from_wire(value).kind == FRONT_REFUSED):
            return False
        _raise_for(status, value)
        return True

    def _join(self, job: FarmJob, wait_s: float) -> JobStatus | None:
        """How the graph's job stands; None where the graph is to be sent."""
        status, value = self._request(
            "POST",
            f"{PATH_COMPILE}/{job.fingerprint}",
            wait_s + GRACE_S,
            body=Join(job.waiter, job.priority).to_wire(),
            params={"wait": round(wait_s, 3)},
        )
        # 405 is a service of a release that knows no joining.
        return None if status in (404, 405) else _job_status(status, value, job.fingerprint)

    def _send(self, job: FarmJob) -> JobStatus:
        upload_s = CALL_S + len(job.graph) / UPLOAD_BYTES_PER_S
        # For the service, which sends all that is about one graph to the same gateway.
        params = {"fingerprint": job.fingerprint}
        status, value = self._request(
            "POST", SUBMIT_PATH, upload_s, body=job.to_wire(), params=params
        )
        return _job_status(status, value, job.fingerprint)

    def _poll(self, known: JobStatus, left_s: float) -> JobStatus:
        wait_s = min(POLL_S, left_s)
        status, value = self._request(
            "GET",
            f"{PATH_COMPILE}/{known.fingerprint}",
            wait_s + GRACE_S,
            params={"wait": round(wait_s, 3), "after": known.seq, "waiter": self.waiter},
        )
        if status == 404:
            raise _Forgotten
        return _job_status(status, value, known.fingerprint)

    def _request(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        body: Value = None,
        params: Mapping[str, str | int | float] | None = None,
    ) -> tuple[int, Value]:
        try:
            return self._transport.request(
                method, path, body=body, params=params, timeout=timeout_s
            )
        except NotReachable as error:
            raise FarmUnavailable(error.message, Cause.UNREACHABLE, hint=error.hint) from error
        except CacheError as error:
            raise FarmUnavailable(error.message, Cause.BAD_REPLY, hint=error.hint) from error

    def _sit_out(self, error: FarmUnavailable) -> None:
        """Pause before the next try, out of the process's allowance; re-raise when it is spent."""
        with self._lock:
            pause = min(random.uniform(0.1, 0.4), self._outage.left_s)
            self._outage.left_s -= pause
        if pause <= 0.0:
            raise error
        self._sleep(pause)


class _Forgotten(Exception):
    """The farm does not know the job: it was restarted, or the job is long over."""


class _Busy(FarmUnavailable):
    """The farm takes nothing on now: a limit is met (status 429), or it is drained."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(
            f"the farm takes no more now: {why}" if why else "the farm's queue is full",
            Cause.BUSY,
            hint="`fusec farm status` shows what it does",
        )
        self.retry_after_s = retry_after_s


def _job_status(status: int, value: Value, fingerprint: str) -> JobStatus:
    _raise_for(status, value)
    try:
        job = JobStatus.from_wire(value)
    except WireError as error:
        raise FarmUnavailable(
            f"the farm's answer makes no sense: {error.message}", Cause.BAD_REPLY, hint=error.hint
        ) from error
    if job.fingerprint != fingerprint:
        raise FarmUnavailable("the farm answered for another graph", Cause.BAD_REPLY)
    return job


def _raise_for(status: int, value: Value) -> None:
    """Nothing for success, else the error that the status and its body stand for."""
    if status in (200, 201, 202):
        return
    refusal = Refusal.from_wire(value)
    if status == 429 or refusal.kind == DRAINING:
        pause = min(max(refusal.retry_after_s or 1.0, 0.1), BUSY_S)
        raise _Busy(refusal.message, pause)
    text = f"status {status} {refusal.message}".rstrip()
    if status >= 500:
        raise FarmUnavailable(
            f"the farm cannot be reached: {text}",
            Cause.UNREACHABLE,
            hint="is a farm configured at the cache service, and is it running?",
        )
    raise FarmUnavailable(
        f"the farm refused the request: {text}",
        Cause.REFUSED,
        hint=refusal.hint or "a token with the role submit is needed",
    )


def _outcome(status: JobStatus) -> JobStatus:
    if status.state is JobState.DONE:
        return status
    kind = status.error.kind if status.error else "unknown"
    message = status.error.message if status.error else "no reason was given"
    raise FarmFailed(f"the farm could not compile the graph: {message}", kind=kind)
