"""The child's side: a program that answers requests, and a guard that leaves nothing of it behind.

`serve` makes two processes of one. The *worker* answers; the *guard*, which runs nothing but a few
lines of this file, waits for the end of the worker or of the parent and then kills whatever the
worker has started. So not even a parent that is killed leaves a compiler behind.

A worker ends by itself when it was idle for long, when a piece of work takes much longer than it
was given (an alarm that no library can hold off), and when it has used its seconds of a processor.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import msgpack

from fusec.child.messages import LENGTH_BYTES, packed, read, write
from fusec.child.offline import go_offline, prctl
from fusec.parts import finish

GRACE_S: Final = 5
_LOOK_MS: Final = 200
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def arguments(idle_s: float) -> list[str]:
    """What `serve` is told on the program's command line."""
    return [str(os.getpid()), str(idle_s)]


def serve(handle: Callable[[Any], object]) -> None:
    """Answer requests with ``handle``, one after the other, until it is to end. What a generator
    yields is sent at once, as parts, before what it returns.

    To be called when everything is loaded: it tells the parent that work may begin, and how much of
    the network is left.
    """
    parent, idle_s = int(sys.argv[1]), float(sys.argv[2])
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # what libraries print must not end up in an answer
    network = go_offline()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # the collector would touch, and so copy, every page that the two share
    guard = os.getpid()
    worker = os.fork()
    if worker:
        os.close(outgoing)
        _guard(worker, incoming, parent)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    _work(handle, incoming, outgoing, idle_s, {"network": network.value})


def _work(
    handle: Callable[[Any], object], incoming: int, outgoing: int, idle_s: float, hello: object
) -> None:
    write(outgoing, packed(hello))
    while select.select([incoming], [], [], idle_s if math.isfinite(idle_s) else None)[0]:
        head = read(incoming, LENGTH_BYTES)
        if head is None:
            break
        body = read(incoming, int.from_bytes(head, "little"))
        if body is None:
            break
        timeout_s, cpu_s, request = msgpack.unpackb(body, raw=False)
        _limit_cpu(cpu_s)
        signal.alarm(int(timeout_s) + GRACE_S)
        answer = handle(request)
        if isinstance(answer, Generator):
            answer = finish(answer, lambda part: write(outgoing, packed([True, part])))
        last = packed([False, answer])
        signal.alarm(0)
        write(outgoing, last)


def _limit_cpu(seconds: float) -> None:
    """Seconds of a processor that this process may use from now on; what it starts may too."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = math.ceil(time.process_time() + seconds)
    resource.setrlimit(
        resource.RLIMIT_CPU, (wanted if most < 0 else min(wanted, most), most)
    )  # SIGXCPU ends it


def _guard(worker: int, incoming: int, parent: int) -> None:
    """Wait, clean up, and end as the worker did."""
    _await_end(worker, incoming, parent)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    _kill_descendants()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no other handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _await_end(worker: int, incoming: int, parent: int) -> None:
    """Return when the worker or the parent has ended, or the parent has closed its pipe."""
    watched = select.poll()
    watched.register(incoming, 0)  # nothing but the hang-up
    looks_ms = None
    try:
        watched.register(os.pidfd_open(worker), select.POLLIN)
        # What the parent has forked may hold its end of the pipe open.
        watched.register(os.pidfd_open(parent), select.POLLIN)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3
        looks_ms = _LOOK_MS
    while not watched.poll(looks_ms):
        if os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        if os.getppid() != parent:
            return


def _kill_descendants() -> None:
    """What a killed process leaves behind becomes the guard's own child: repeat until none is."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        try:
            for pid in listing.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        except OSError:  # a kernel without that list: its group, the guard itself included
            shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
            os.killpg(0, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
