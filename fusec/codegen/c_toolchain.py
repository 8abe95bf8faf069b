"""The C compiler: which one, with which flags, and how it is run.

The compiler runs as a child in its own process group, with a time and a memory limit, in a
temporary directory that never shows in its output: the same source gives the same bytes.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from fusec.errors import CompileError, CompilerLost, Loss

_MEMORY_BYTES: Final = 4 << 30
_OUTPUT_CHARACTERS: Final = 4000
_MAX_BINARY_BYTES: Final = 64 << 20

_COMMON: Final = (
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-fopenmp",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",
    "-s",
    "-Wall",
    "-Wno-psabi",
    "-Wno-unused",
    "-Werror=implicit-function-declaration",
    "-Wl,--build-id=none",
)
_MACHINE: Final[dict[str, tuple[str, ...]]] = {
    "x86-64-v2": ("-march=x86-64-v2", "-mtune=generic"),
    "x86-64-v3": ("-march=x86-64-v3", "-mtune=generic"),
    "x86-64-v4": ("-march=x86-64-v4", "-mtune=generic", "-mprefer-vector-width=512"),
    "aarch64": ("-march=armv8-a",),
}
# What /proc/cpuinfo lists for each level (lahf_lm, lzcnt under its name abm).
_V2: Final = frozenset(("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"))
_V3: Final = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True)
class CompilerId:
    """A compiler: its path and the first line of its version."""

    path: str
    version: str


def flags(isa: str) -> list[str]:
    """The compiler's flags for one ISA level. Raises CompileError for an unknown level."""
    try:
        machine = _MACHINE[isa]
    except KeyError:
        raise CompileError(
            f"no compiler flags for the ISA level {isa!r}", hint=f"one of {', '.join(_MACHINE)}"
        ) from None
    return [*_COMMON, *machine]


def detect_isa() -> str:
    """The highest ISA level this machine has all instructions of."""
    if os.uname().machine == "aarch64":
        return "aarch64"
    return level_of(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"))


def level_of(cpuinfo: str) -> str:
    """The ISA level that the text of /proc/cpuinfo describes; the lowest where it is silent."""
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    have = frozenset(match.group(1).split()) if match else frozenset()
    for level, wanted in (("x86-64-v4", _V4), ("x86-64-v3", _V3)):
        if wanted <= have:
            return level
    return "x86-64-v2"


def compiler() -> CompilerId:
    """The compiler named by $CC, else cc or gcc on PATH. Raises CompileError when there is none."""
    named = os.environ.get("CC")
    for name in (named,) if named else ("cc", "gcc"):
        path = shutil.which(name)
        if path is not None:
            return _identify(path)
    raise CompileError(
        f"no C compiler: {named or 'cc, gcc'} not found on PATH",
        hint="install gcc, or name a compiler in CC",
    )


@lru_cache(maxsize=8)
def _identify(path: str) -> CompilerId:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"the C compiler does not run: {error}", where=path) from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise CompileError(
            "the C compiler does not tell its version",
            where=path,
            output=done.stderr[:_OUTPUT_CHARACTERS],
        )
    return CompilerId(path, lines[0].strip())


def compile_shared(source: str, isa: str, timeout_s: float) -> bytes:
    """Compile C ``source`` to the bytes of a shared library for ``isa``.

    timeout_s: wall seconds after which the compiler and its children are killed.
    Raises CompileError with the compiler's message and the source line it points at.
    """
    found = compiler()
    with tempfile.TemporaryDirectory(prefix="fusec-cc-") as folder:
        command = [found.path, *flags(isa), "-x", "c", "-o", "kernel.so", "kernel.c"]
        Path(folder, "kernel.c").write_text(source, encoding="utf-8")
        code, output = _run(command, folder, timeout_s)
        binary = Path(folder, "kernel.so")
        if code != 0 or not binary.is_file():
            _check_lost(code, output, found.path)
            raise CompileError(
                f"the C compiler failed with status {code}",
                where=_where(source, output),
                hint="this is a fault of the code generator, not of the model",
                output=output[:_OUTPUT_CHARACTERS],
            )
        size = binary.stat().st_size
        if size > _MAX_BINARY_BYTES:
            raise CompileError(f"the compiled kernel has {size} bytes, more than allowed")
        return binary.read_bytes()


def _run(command: list[str], folder: str, timeout_s: float) -> tuple[int, str]:
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LC_ALL": "C",
        "TMPDIR": folder,
        "SOURCE_DATE_EPOCH": "0",
    }
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CompileError(f"the C compiler does not start: {error}", where=command[0]) from error
    _limit(child.pid)
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise CompilerLost(
            f"the C compiler ran longer than {timeout_s:g} s",
            Loss.TIME,
            where=command[0],
            hint="raise the time limit, or report the graph",
        ) from None
    except BaseException:  # an interrupt: leave no compiler behind
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    return child.returncode, output.decode("utf-8", errors="replace")


def _check_lost(code: int, output: str, path: str) -> None:
    """Raise CompilerLost where it is no verdict on the source: it, or a pass of it, was killed."""
    killed = code == -signal.SIGKILL or "Killed signal terminated" in output
    if killed or re.search(r"virtual memory exhausted|out of memory allocating", output):
        loss = Loss.MEMORY  # who kills a compiler is the kernel, most likely, to have its memory
    elif code < 0 or "signal terminated program" in output:
        loss = Loss.CRASH
    else:
        return
    raise CompilerLost(
        f"the C compiler was lost (status {code})",
        loss,
        where=path,
        output=output[:_OUTPUT_CHARACTERS],
    )


def _limit(pid: int) -> None:
    """Bound the child's memory; its own children inherit the bound."""
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except ProcessLookupError:
        return  # it is already done


def _where(source: str, output: str) -> str:
    """The first line of the source that the compiler complains about, with its text."""
    match = re.search(r"kernel\.c:(\d+)(?::\d+)?: (?:fatal )?error", output)
    if match is None:
        return "the generated C source"
    number = int(match.group(1))
    lines = source.splitlines()
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"line {number} of the generated C source: {text[:200]}"
