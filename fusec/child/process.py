"""The parent's side of a child process that may be lost: by a crash, a hang or a limit.

A child is a module of ours run as a program, which calls `fusec.child.program.serve`. Parent and
child exchange plain values over pipes: nothing that either sends becomes code. The child has a
session and a folder of its own (its home, its temporary files, its working directory), no network,
and a small environment in which there is nothing of the parent's, credentials least of all. When it
is killed, its descendants are too; when its parent is, it ends with all of them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from fusec.child.messages import LENGTH_BYTES, MAX_MESSAGE, READ_BYTES, packed
from fusec.child.offline import Network
from fusec.child.program import GRACE_S, arguments
from fusec.errors import ChildLost, Loss
from fusec.parts import Parts, finish

START_S: Final = 120.0
IDLE_S: Final = 60.0
_OUTPUT_BYTES: Final = 4000
# Of a wait: an interrupt that comes without a signal, and that it is to stop, are seen between two.
_SLICE_S: Final = 0.2


class Child:
    """A running child. Not for several threads at once.

    module: the program. environment: what it sees beside PATH and the like. memory: bytes of
    private memory that it and each of its descendants may have; None: no limit. cpu_s: seconds of
    a processor that a request may take; None: as many as all processors have in its time. idle_s:
    rest after which it ends by itself. Raises ChildLost when it does not start.

    ``network`` says how it is cut off; ``requests`` counts what it has answered.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str],
        memory: int | None = None,
        cpu_s: float | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="fusec-child-")
        # Held open: the folder may be gone, with the child, before it is read.
        self._log = os.open(Path(self._folder, "log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments(idle_s)],
                cwd=self._folder,
                env={**_environment(self._folder), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._log)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ChildLost(
                f"a child process does not start: {error}", where=module, loss=Loss.START
            ) from error
        self._module = module
        self._closed = False
        self._cpu_s = cpu_s
        self._idle_s = idle_s
        self.requests = 0
        self._limit(memory)
        try:
            hello = self._receive(time.monotonic() + START_S, Loss.START)
        except BaseException:
            self.close()
            raise
        self.network = Network(hello["network"])

    @property
    def usable(self) -> bool:
        """False once it ended, or may end because it was idle."""
        rested = time.monotonic() - self._answered
        return not self._closed and self._process.poll() is None and rested < self._idle_s - GRACE_S

    def request(self, body: object, timeout_s: float, stop: threading.Event | None = None) -> Any:
        """Send a plain value, wait for the answer.

        stop: set, by another thread, when nobody wants the answer any more. Raises ChildLost when
        that is so, when there is no answer within ``timeout_s`` or the child ended; it is closed.
        """
        return finish(self.exchange(body, timeout_s, stop))

    def exchange(
        self, body: object, timeout_s: float, stop: threading.Event | None = None
    ) -> Parts[bytes, Any]:
        """As `request`, with the parts that the child sends before its answer. One who does not
        wait for that, and closes the generator, closes the child."""
        if self._closed:
            raise ChildLost("a child process is asked after it was closed", where=self._module)
        deadline = time.monotonic() + timeout_s
        cpu_s = timeout_s * (os.cpu_count() or 1) if self._cpu_s is None else self._cpu_s
        message = packed([timeout_s, cpu_s, body])
        try:
            self._send(message, deadline, stop)
            more, answer = self._receive(deadline, stop=stop)
            while more:
                if not isinstance(answer, bytes):
                    raise self._lost("sent a part that is no bytes", Loss.CRASH)
                yield answer
                more, answer = self._receive(deadline, stop=stop)
        except OSError as error:
            raise self._lost(f"ended before it was asked ({error})", Loss.CRASH) from error
        except BaseException:  # an interrupt: its answer must not be taken for a later one's
            self.close()
            raise
        self.requests += 1
        return answer

    def close(self) -> None:
        """Kill it and its descendants and remove its folder."""
        if self._closed:
            return
        self._closed = True
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # at which its guard kills it, and what it has started
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:  # it is not that far yet, or a driver holds on to it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        os.close(self._log)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _limit(self, memory: int | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is already done
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
            if memory is not None:
                # Not the address space: libraries reserve many times of what they use.
                _, most = resource.prlimit(self._process.pid, resource.RLIMIT_DATA)
                allowed = memory if most == resource.RLIM_INFINITY else min(memory, most)
                resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (allowed, allowed))

    def _send(self, message: bytes, deadline: float, stop: threading.Event | None) -> None:
        assert self._process.stdin is not None
        rest, pipe = memoryview(message), self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        while rest:
            if not self._ready(pipe, select.POLLOUT, deadline, stop):
                raise self._lost("did not take its work in time", Loss.TIME)
            rest = rest[os.write(pipe, rest) :]

    def _receive(
        self, deadline: float, late: Loss = Loss.TIME, stop: threading.Event | None = None
    ) -> Any:
        data = bytearray()
        wanted = LENGTH_BYTES
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while len(data) < wanted:
            if not self._ready(pipe, select.POLLIN, deadline, stop):
                raise self._lost("did not answer in time", late)
            part = os.read(pipe, min(READ_BYTES, wanted - len(data)))
            if not part:
                raise self._lost(*self._ending())
            data += part
            if len(data) == wanted == LENGTH_BYTES:
                wanted += int.from_bytes(data, "little")
                if wanted > MAX_MESSAGE:
                    raise self._lost("answered with more than is allowed", Loss.CRASH)
        self._answered = time.monotonic()
        try:
            return msgpack.unpackb(memoryview(data)[LENGTH_BYTES:], raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            what = f"answered with what does not decode: {error}"
            raise self._lost(what, Loss.CRASH) from error

    def _ready(self, pipe: int, event: int, deadline: float, stop: threading.Event | None) -> bool:
        """Whether the pipe is ready before the deadline. Raises ChildLost when it is to stop."""
        watched = select.poll()  # `select` takes no descriptor above 1023
        watched.register(pipe, event)
        while True:
            left = deadline - time.monotonic()
            if watched.poll(1e3 * max(0.0, min(left, _SLICE_S))):
                return True
            if stop is not None and stop.is_set():
                raise self._lost("is not needed any more", Loss.STOPPED)
            if left <= 0.0:
                return False

    def _ending(self) -> tuple[str, Loss]:
        """What has ended it, for people and for the program."""
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its output", Loss.CRASH
        if code >= 0:
            return f"ended with status {code}", Loss.CRASH
        number = signal.Signals(-code)
        if number is signal.SIGXCPU:
            return "used more of the processor than it may", Loss.TIME
        if number is signal.SIGALRM:
            return "did not end in time", Loss.TIME
        if number is signal.SIGKILL:
            return "was killed (SIGKILL): out of memory, most likely", Loss.MEMORY
        return f"ended with {number.name}", Loss.CRASH

    def _lost(self, what: str, loss: Loss) -> ChildLost:
        output = ""
        if not self._closed:
            size = os.fstat(self._log).st_size
            tail = os.pread(self._log, _OUTPUT_BYTES, max(0, size - _OUTPUT_BYTES))
            output = tail.decode("utf-8", errors="replace")
        self.close()
        return ChildLost(f"a child process {what}", where=self._module, output=output, loss=loss)


def _environment(folder: str) -> dict[str, str]:
    paths = [os.path.abspath(p) for p in sys.path if p]
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        **{n: os.environ[n] for n in ("LD_LIBRARY_PATH",) if n in os.environ},
        "HOME": folder,
        "TMPDIR": folder,
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
    }
