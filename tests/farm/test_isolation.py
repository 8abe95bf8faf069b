"""Whatever a task does, it costs one attempt: not its worker, and nothing is left of it."""

from __future__ import annotations

import ast
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache.digest import digest
from farm.isolation import Isolated, _children
from farm.pool import Task, TaskFailed
from farm.retry import ErrorKind
from farm.workers import PlannedKernel, build_task, built
from fusec.options import Target
from fusec.parts import finish

PROGRAM = "tests.farm.isolated_tasks"
ROOT = str(Path(__file__).parents[2])
ISOLATED = Isolated(2 << 30, wall_s=60.0, cpu_s=60.0, program=PROGRAM)


@pytest.fixture(autouse=True, scope="module")
def _children_end() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield
    for runner in (ISOLATED, replace(ISOLATED, wall_s=0.5), replace(ISOLATED, cpu_s=1.0)):
        _children(os.getpid(), runner, ()).close()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def _do(task: Task, runner: Isolated = ISOLATED) -> bytes:
    return finish(runner(task))


def _failure(kind: str, runner: Isolated = ISOLATED) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        _do(Task(kind, b"", f"the {kind}"), runner)
    return caught.value


def _pid() -> bytes:
    return _do(Task("pid", b""))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + 30
    while any(map(_alive, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if _alive(pid)]
        time.sleep(0.02)


def test_a_child_is_kept_for_the_next_task() -> None:
    assert _do(Task("echo", b"abc")) == b"cba"
    first = _pid()
    assert _pid() == first
    assert int(first) != os.getpid()


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("segfault", ErrorKind.CRASHED, "SIGSEGV"),
        ("exit", ErrorKind.CRASHED, "status 3"),
        ("killed", ErrorKind.OUT_OF_MEMORY, "SIGKILL"),
        ("hog", ErrorKind.OUT_OF_MEMORY, "out of memory"),
        ("bug", ErrorKind.INTERNAL, "KeyError: 'a bug'"),
    ],
)
def test_a_fault_costs_the_child_and_nothing_else(
    kind: str, expected: ErrorKind, message: str
) -> None:
    before = _pid()
    failure = _failure(kind)
    assert failure.kind is expected
    assert message in failure.message
    assert _pid() != before
    _wait_gone(int(before))


def test_an_expected_failure_keeps_the_child() -> None:
    before = _pid()
    assert _failure("fail").kind is ErrorKind.COMPILE_ERROR
    assert _pid() == before


def test_a_hang_is_a_timeout() -> None:
    failure = _failure("hang", replace(ISOLATED, wall_s=0.5))
    assert (failure.kind, "the hang" in failure.message) == (ErrorKind.TIMEOUT, True)


def test_seconds_of_a_processor_are_limited() -> None:
    failure = _failure("spin", replace(ISOLATED, cpu_s=1.0))
    assert failure.kind is ErrorKind.TIMEOUT
    assert "processor" in failure.message


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            assert _do(Task("connect", str(port).encode())) != b"connected"


def test_a_filter_where_there_are_no_namespaces() -> None:
    """What a container without rights falls back to: sockets are refused, files are not."""
    code = (
        "import socket, sys\n"
        "from fusec.child.offline import refuse_sockets\n"
        "assert refuse_sockets()\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):\n"
        "    try:\n"
        "        socket.socket(family, socket.SOCK_DGRAM)\n"
        "    except PermissionError:\n"
        "        continue\n"
        "    sys.exit(f'{family} was opened')\n"
        "socket.socket(socket.AF_UNIX).close()\n"
        "import subprocess\n"
        "inner = 'import socket; socket.socket(socket.AF_INET)'\n"
        "done = subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True)\n"
        "assert 'PermissionError' in done.stderr, done\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_no_credentials_and_no_files_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FUSEC_FARM_CACHE_TOKEN", "FUSEC_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    _failure("exit")  # the next child starts with all that around it
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        seen = _do(Task("environment", b"")).decode()
        files = _do(Task("files", b"")).split()
    assert "secret" not in seen
    assert "fusec-child-" in seen
    # The two pipes, the three standard ones, and the listing itself.
    assert len(files) <= 6, files


def test_its_folder_goes_with_it() -> None:
    environment = _do(Task("environment", b"")).decode()
    folder = dict(ast.literal_eval(environment))["TMPDIR"]
    assert Path(folder).exists()
    _failure("segfault")
    assert not Path(folder).exists()


def test_descendants_end_with_it() -> None:
    left = int(_do(Task("leave behind", b"")))
    below = _descendants(left)
    assert _alive(left)
    _failure("exit")
    _wait_gone(left, *below)


def test_nothing_is_left_when_the_worker_is_killed() -> None:
    """SIGKILL: the worker can clean up nothing, and somebody forked from it holds its pipes."""
    code = (
        "import os, sys, time\n"
        "from farm.isolation import Isolated\n"
        "from farm.pool import Task\n"
        "from fusec.parts import finish\n"
        f"run = Isolated(2 << 30, wall_s=60.0, cpu_s=60.0, program={PROGRAM!r})\n"
        "pids = [finish(run(Task(kind, b''))) for kind in ('pid', 'leave behind')]\n"
        "print(*[int(pid) for pid in pids], flush=True)\n"
        "if os.fork() == 0:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "finish(run(Task('hang', b'')))\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ROOT}, text=True,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert worker.stdout is not None
    pids = [int(pid) for pid in worker.stdout.readline().split()]
    assert all(map(_alive, pids))
    pids += _descendants(pids[1])
    worker.kill()
    worker.wait()
    _wait_gone(*pids)
    worker.stdout.close()
    os.killpg(worker.pid, 9)  # the fork


def _descendants(pid: int) -> list[int]:
    """The sleeper that the one left behind has started."""
    deadline = time.monotonic() + 30
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(child) for child in found]


def test_one_bad_kernel_of_a_batch_costs_itself() -> None:
    names = ("t.a", "t.die", "t.bad", "t.hog", "t.b")
    kernels = [PlannedKernel(digest(n.encode()), f"kernel/{n}", n.encode()) for n in names]
    task = build_task(kernels, Target("cpu", "x86-64-v3"), "five kernels")
    outcomes = built(_do(task))
    found = {}
    for name, kernel in zip(names, kernels, strict=True):
        outcome = outcomes[kernel.digest]
        found[name] = outcome.kind if isinstance(outcome, TaskFailed) else "built"
    assert found == {
        "t.a": "built",
        "t.die": ErrorKind.CRASHED,
        "t.bad": ErrorKind.COMPILE_ERROR,
        "t.hog": ErrorKind.OUT_OF_MEMORY,
        "t.b": "built",
    }


def test_threads_have_a_child_each() -> None:
    pids: set[bytes] = set()
    together = threading.Barrier(3)

    def ask() -> None:
        together.wait(60)
        with _children(os.getpid(), ISOLATED, ()).lend() as child:
            pids.add(child.request(["pid", b"", 0], 60)["result"])
            together.wait(60)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 3


def test_it_is_said_how_compilers_are_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    from farm.isolation import _say_network
    from fusec.child.offline import Network

    _say_network.cache_clear()
    with caplog.at_level(logging.INFO, "fusec.farm"):
        _say_network(Network.SHARED)
        _say_network(Network.SHARED)
        _say_network(Network.FILTER)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "NOT cut off" in caplog.text
