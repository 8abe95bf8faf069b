"""What the pools of the contract suite run; Ray workers import it by its name."""

import os
import time

from farm.pool import Task, TaskFailed
from farm.retry import ErrorKind
from fusec.parts import Parts


def work(task: Task) -> Parts[bytes, bytes]:
    """`kind` says what to do with the payload."""
    if task.kind == "parts":
        for letter in task.payload:
            yield bytes([letter])
        return b"all"
    if task.kind == "parts until":
        yield b"first"
        _appears(task.payload.decode())
        yield b"last"
        return b"all"
    if task.kind == "parts fail":
        yield b"first"
        raise TaskFailed(ErrorKind.COMPILE_ERROR, "no more")
    if task.kind == "echo":
        return task.payload[::-1]
    if task.kind == "sleep":
        time.sleep(float(task.payload))
        return b"slept"
    if task.kind == "where":
        return f"{task.needs} {task.gpu}".encode()
    if task.kind == "until":
        _appears(task.payload.decode())
        return b"waited"
    if task.kind == "meet":
        mine, other = task.payload.decode().split("\n")
        with open(mine, "w"):
            pass
        return b"met" if _appears(other) else b"alone"
    if task.kind == "touch":
        with open(task.payload, "a") as file:
            file.write("x")
        return b""
    if task.kind == "node":
        return task.node.encode()
    if task.kind == "hold":
        path = task.payload.decode()
        with open(path + ".new", "w") as file:
            file.write(task.node)
        os.replace(path + ".new", path)
        return b"held" if _appears(path + ".end", 600.0) else b"forgotten"
    if task.kind == "fail":
        raise TaskFailed(ErrorKind.COMPILE_ERROR, "no " + task.payload.decode())
    if task.kind == "bug":
        raise KeyError("a bug")
    if task.kind == "hog":
        raise MemoryError
    assert task.kind == "die"
    os._exit(3)


def _appears(path: str, seconds: float = 60.0) -> bool:
    """Wait for a file, a minute or so long."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    return os.path.exists(path)
