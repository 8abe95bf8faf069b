"""Child processes that work for this one and may be lost: by a crash, a hang or a limit.

A child is a module of ours run as a program. Parent and child exchange plain values over pipes,
each a message of msgpack behind its length: nothing that either sends becomes code. The child has
a session and a folder of its own (its home, its temporary files, its working directory) and a small
environment in which there is nothing of the parent's, credentials least of all. When it is killed,
its descendants are too.

A child ends by itself when its parent is gone, when it was idle for long, or when a piece of work
takes much longer than it was given: an alarm that no library can hold off.
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
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from fusec.errors import ChildLost

START_S: Final = 120.0
IDLE_S: Final = 60.0
MAX_MESSAGE: Final = 256 << 20
_GRACE_S: Final = 5
_OUTPUT_BYTES: Final = 4000
_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 1 << 20


class Child:
    """A running child. Not for several threads at once.

    module: the program, which calls `serve`. environment: what it sees beside PATH and the like.
    memory: bytes of private memory that it and each of its descendants may have; None: no limit.
    Raises ChildLost when it does not start.
    """

    def __init__(
        self, module: str, *, environment: Mapping[str, str], memory: int | None = None
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="fusec-child-")
        self._log = Path(self._folder, "log")
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],
                    cwd=self._folder,
                    env={**_environment(self._folder), **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ChildLost(f"a child process does not start: {error}", where=module) from error
        self._module = module
        self._closed = False
        self._limit(memory)
        self._receive(time.monotonic() + START_S)

    @property
    def usable(self) -> bool:
        """False once it ended, or may end because it was idle."""
        rested = time.monotonic() - self._answered
        return self._process.poll() is None and rested < IDLE_S - _GRACE_S

    def request(self, body: object, timeout_s: float) -> Any:
        """Send a plain value, wait for the answer.

        Raises ChildLost when there is none within ``timeout_s`` or the child ended; it is closed.
        """
        if self._closed:
            raise ChildLost("a child process is asked after it was closed", where=self._module)
        deadline = time.monotonic() + timeout_s
        message = _packed([timeout_s, body])
        try:
            self._send(message, deadline)
            return self._receive(deadline)
        except OSError as error:
            raise self._lost(f"ended before it was asked ({error})") from error
        except BaseException:  # an interrupt: its answer must not be taken for a later one's
            self.close()
            raise

    def close(self) -> None:
        """Kill it and its descendants and remove its folder."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold on to it for long
            self._process.wait(_GRACE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _limit(self, memory: int | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is already done
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
            if memory is not None:
                # Not the address space: libraries reserve many times of what they use.
                _, most = resource.prlimit(self._process.pid, resource.RLIMIT_DATA)
                allowed = memory if most == resource.RLIM_INFINITY else min(memory, most)
                resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (allowed, allowed))

    def _send(self, message: bytes, deadline: float) -> None:
        assert self._process.stdin is not None
        rest, pipe = memoryview(message), self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        while rest:
            _, ready, _ = select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._lost("did not take its work in time")
            rest = rest[os.write(pipe, rest) :]

    def _receive(self, deadline: float) -> Any:
        data = bytearray()
        wanted = _LENGTH_BYTES
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while len(data) < wanted:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._lost("did not answer in time")
            part = os.read(pipe, min(_READ_BYTES, wanted - len(data)))
            if not part:
                raise self._lost(self._ending())
            data += part
            if len(data) == wanted == _LENGTH_BYTES:
                wanted += int.from_bytes(data, "little")
                if wanted > MAX_MESSAGE:
                    raise self._lost("answered with more than is allowed")
        self._answered = time.monotonic()
        try:
            return msgpack.unpackb(memoryview(data)[_LENGTH_BYTES:], raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise self._lost(f"answered with what does not decode: {error}") from error

    def _ending(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its output"
        return f"ended with {signal.Signals(-code).name if code < 0 else f'status {code}'}"

    def _lost(self, what: str) -> ChildLost:
        output = ""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _OUTPUT_BYTES))
            output = log.read().decode("utf-8", errors="replace")
        self.close()
        return ChildLost(f"a child process {what}", where=self._module, output=output)


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


def serve(handle: Callable[[Any], object]) -> None:
    """The child's side: answer requests with ``handle``, one after the other, until it is to end.

    To be called when everything is loaded: it tells the parent that work may begin.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what libraries print must not end up in an answer
    _write(outgoing, _packed(None))
    while select.select([incoming], [], [], IDLE_S)[0]:
        head = _read(incoming, _LENGTH_BYTES)
        if head is None:
            break
        body = _read(incoming, int.from_bytes(head, "little"))
        if body is None:
            break
        timeout_s, request = msgpack.unpackb(body, raw=False)
        signal.alarm(int(timeout_s) + _GRACE_S)
        answer = _packed(handle(request))
        signal.alarm(0)
        _write(outgoing, answer)
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def _packed(value: object) -> bytes:
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def _read(pipe: int, count: int) -> bytes | None:
    """Exactly ``count`` bytes; None at the end of the input."""
    data = bytearray()
    while len(data) < count:
        part = os.read(pipe, min(_READ_BYTES, count - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)


def _write(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
