"""The program of the children in test_isolation: tasks that go wrong in every way there is."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

from farm.isolated_worker import answer
from farm.pool import Task, TaskFailed
from farm.retry import ErrorKind
from farm.workers import BUILD, run
from fusec.child.program import serve
from fusec.parts import Parts
from tests.farm.tiny_stages import TinyStages


def work(task: Task) -> Parts[bytes, bytes]:
    """`kind` says what to do with the payload."""
    match task.kind:
        case "parts":
            for letter in task.payload:
                yield bytes([letter])
            return b"all"
        case "parts exit":
            yield b"first"
            os._exit(3)
        case "echo":
            return task.payload[::-1]
        case "pid":
            return str(os.getpid()).encode()
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "hang":
            while True:
                time.sleep(1)
        case "hang told":
            with open(task.payload, "w") as file:
                file.write(str(os.getpid()))
            while True:
                time.sleep(1)
        case "spin":
            while True:
                pass
        case "hog":
            return bytes(bytearray(16 << 30))[:1]
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "bug":
            raise KeyError("a bug")
        case "fail":
            raise TaskFailed(ErrorKind.COMPILE_ERROR, "no")
        case "environment":
            return repr(sorted({**os.environ, "cwd": os.getcwd()}.items())).encode()
        case "files":
            return " ".join(sorted(os.listdir("/proc/self/fd"), key=int)).encode()
        case "connect":
            try:
                with socket.create_connection(("127.0.0.1", int(task.payload)), timeout=5):
                    return b"connected"
            except OSError as error:
                return type(error).__name__.encode()
        case "leave behind":
            # In a session of its own, as compilers run, and with a child of its own.
            code = "import subprocess; subprocess.run(['sleep', '600'])"
            child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            return str(child.pid).encode()
        case _ if task.kind == BUILD:
            return (yield from run(task, TinyStages(os.environ["TMPDIR"])))
    raise AssertionError(task.kind)


if __name__ == "__main__":
    serve(lambda request: answer(request, work))
