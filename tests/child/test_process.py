"""Child processes are asked, limited, killed with their descendants, and see nothing of ours."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusec.child.process import Child
from fusec.errors import ChildLost

MODULE = "tests.child.programs"
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def child(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    made = Child(MODULE, environment={"WITH": "this"}, memory=1 << 30)
    yield made
    made.close()


def _gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_values_come_back(child) -> None:
    value = {"a": [1, None, b"\0" * 300_000], "b": "text"}
    assert child.request(["echo", value], 20) == value
    assert child.request(["print", "noise"], 20) == "printed"


def test_values_come_back_to_a_parent_with_many_open_files(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        child = Child(MODULE, environment={})
        assert child.request(["echo", "beyond what select can wait for"], 20)
        child.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nothing_of_the_parent_is_in_its_environment(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("FUSEC_TOKEN", "secret")
    child = Child(MODULE, environment={"WITH": "this"})
    seen = child.request(["environment", None], 20)
    assert seen["WITH"] == "this"
    assert "secret" not in seen.values()
    assert seen["HOME"] == seen["TMPDIR"] == seen["cwd"] != os.environ.get("HOME")
    child.close()
    assert not Path(seen["HOME"]).exists()


def test_a_hang_is_ended_with_its_descendants(child) -> None:
    pid = child.request(["descendant", None], 20)
    assert Path(f"/proc/{pid}").exists()
    started = time.monotonic()
    with pytest.raises(ChildLost, match="did not answer in time"):
        child.request(["hang", None], 0.3)
    assert time.monotonic() - started < 5
    assert not child.usable
    assert _gone(pid)


def test_a_crash_tells_its_signal_and_what_was_written(child) -> None:
    with pytest.raises(ChildLost, match="SIGABRT") as caught:
        child.request(["abort", "last words"], 20)
    assert "last words" in caught.value.output
    with pytest.raises(ChildLost):
        child.request(["echo", 1], 20)


def test_an_interrupt_ends_it(child, monkeypatch) -> None:
    """Else the answer to what was interrupted would be taken for the next one."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.request(["echo", 1], 20)
    assert not child.usable


def test_memory_is_limited(child) -> None:
    with pytest.raises(ChildLost) as caught:
        child.request(["allocate", 2 << 30], 20)
    assert "MemoryError" in caught.value.output


def test_it_ends_with_its_parent() -> None:
    """Also in the middle of work: the parent is killed, so nobody is left to kill the child."""
    code = (
        "import os, threading, time\n"
        "from fusec.child.process import Child\n"
        f"child = Child({MODULE!r}, environment={{}})\n"
        "print(child.request(['pid', None], 20), flush=True)\n"
        "threading.Thread(target=lambda: child.request(['hang', None], 0.5), daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 15
    while not _gone(pid) and time.monotonic() < deadline:
        pass
    assert _gone(pid)


def test_a_program_that_does_not_start_is_told() -> None:
    with pytest.raises(ChildLost, match="ended with status 1") as caught:
        Child("fusec.no_such_program", environment={})
    assert "no_such_program" in caught.value.output
