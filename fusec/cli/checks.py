"""The single checks of `fusec doctor`: each looks at one thing and says what to do about it."""

import ctypes
import importlib.metadata
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache.errors import CacheError
from fusec.errors import CompileError, FusecError
from fusec.options import Options, unknown_variables

# Versions that the tests run on; one more is accepted on trust.
PYTHON = ((3, 11), (3, 14))
TORCH = ((2, 11), (2, 15))
TRITON = ((3, 6), (3, 10))
SPACE_BYTES = 1 << 30
PROBE_S = 3.0
COMPILE_S = 60.0
_KERNEL = "def probe(p0):\n    tl.store(p0, 41 + 1)\n"
_PROBE = "int probe(int x) { return x + 1; }\n"


class Level(StrEnum):
    """How a check went; FAIL alone makes `fusec doctor` exit with 1."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the doctor. found: what is there; advice: what to do, empty when all is well."""

    name: str
    level: Level
    found: str
    advice: str = ""


def _release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13)."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def python(options: Options) -> Check:
    """The interpreter's version."""
    found = platform.python_version()
    if PYTHON[0] <= sys.version_info[:2] < PYTHON[1]:
        return Check("python", Level.OK, found)
    return Check("python", Level.WARN, found, "tested on 3.11 to 3.13: use one of them")


def torch(options: Options) -> Check:
    """torch's version, from its metadata: importing it takes seconds."""
    found = _installed("torch")
    if found is None:
        return Check("torch", Level.FAIL, "not installed", "pip install 'torch>=2.11,<2.15'")
    if TORCH[0] <= _release(found) < TORCH[1]:
        return Check("torch", Level.OK, found)
    return Check("torch", Level.WARN, found, "tested on 2.11 to 2.14: install one of them")


def triton(options: Options) -> Check:
    """Triton, tried for real on a GPU's kernel; only compiling for GPUs needs it."""
    from fusec.codegen.gpu_source import GpuSource, Variant
    from fusec.codegen.triton_toolchain import compile_variant, compiler_version
    from fusec.ir.expr import ONE

    try:
        found = compiler_version().split()[-1]
    except CompileError:
        return Check("triton", Level.OK, "not installed (CPU targets only)")
    advice = "kernels for GPUs are made with 3.6 to 3.9: pip install 'fusec[gpu]'"
    if not TRITON[0] <= _release(found) < TRITON[1]:
        return Check("triton", Level.WARN, found, advice)
    kernel = GpuSource("probe", "sm_80", ("*i32",), (Variant(_KERNEL, (), 1, (ONE,)),))
    try:
        compile_variant(kernel, 0, COMPILE_S)
    except CompileError as error:
        return Check("triton", Level.WARN, f"{found}: {error.message}", advice)
    return Check("triton", Level.OK, f"{found}; makes kernels for GPUs")


def extras(options: Options) -> Check:
    """Which parts beside the client are installed."""
    parts = {"farm": ("ray", "uvicorn"), "cache": ("uvicorn", "boto3")}
    have = [extra for extra, needs in parts.items() if all(map(_installed, needs))]
    found = "client" + "".join(f", {extra}" for extra in have)
    return Check("parts", Level.OK, found)


def entry_point(options: Options) -> Check:
    """Whether torch.compile knows the backend by name."""
    found = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "fusec" in found.names:
        return Check("backend", Level.OK, 'torch.compile(…, backend="fusec") is registered')
    advice = "install the package (pip install fusec), or pass backend=fusec.backend"
    return Check("backend", Level.FAIL, "not registered with torch", advice)


def compiler(options: Options) -> Check:
    """A C compiler, tried for real; without one, what the cache lacks runs eager."""
    from fusec.codegen import c_toolchain

    advice = "install gcc (or name one in CC), or set FUSEC_REMOTE to a farm that compiles for you"
    isa = c_toolchain.detect_isa()
    try:
        found = c_toolchain.compiler()
        binary = c_toolchain.compile_shared(_PROBE, isa, COMPILE_S)
    except CompileError as error:
        return Check("compiler", Level.WARN, error.message, advice)
    with tempfile.NamedTemporaryFile(prefix="fusec-doctor-", suffix=".so") as file:
        file.write(binary)
        file.flush()
        if ctypes.CDLL(file.name).probe(41) != 42:
            return Check("compiler", Level.FAIL, f"{found.path} makes wrong code", advice)
    return Check("compiler", Level.OK, f"{found.version}; code for {isa}")


def openmp(options: Options) -> Check:
    """The OpenMP runtime that torch brings; kernels must share its threads."""
    try:
        files = importlib.metadata.files("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("openmp", Level.FAIL, "torch is not installed", "pip install torch")
    named = [f for f in files if f.name.startswith(("libgomp", "libiomp5", "libomp"))]
    for file in named:
        path = Path(str(file.locate()))
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            advice = "reinstall torch"
            return Check("openmp", Level.FAIL, f"{path.name} does not load: {error}", advice)
        return Check("openmp", Level.OK, f"{path.name} of torch")
    advice = "kernels use the system's runtime: install libgomp1 if they fail to load"
    return Check("openmp", Level.WARN, "torch brings none", advice)


def cache_dir(options: Options) -> Check:
    """The local store: writable, and nobody else's to write, since its content is executed."""
    path = options.cache_dir
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Check("cache", Level.FAIL, f"{existing} is a file", "set FUSEC_CACHE_DIR elsewhere")
    if path.exists():
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0):
            advice = "compiled code is loaded from there: set FUSEC_CACHE_DIR to a folder of yours"
            return Check("cache", Level.FAIL, f"{path} belongs to uid {status.st_uid}", advice)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            advice = f"compiled code is loaded from there: chmod 700 {path}"
            return Check("cache", Level.FAIL, f"others may write to {path}", advice)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        advice = "set FUSEC_CACHE_DIR to a folder you may write"
        return Check("cache", Level.FAIL, f"cannot write in {existing}: {error.strerror}", advice)
    text = f"{path}, yours alone" if path.exists() else f"{path} (made on first use)"
    return Check("cache", Level.OK, text)


def disk_space(options: Options) -> Check:
    """Room for artifacts; a full disk costs speed, never a job."""
    path = options.cache_dir
    while not path.exists() and path != path.parent:
        path = path.parent
    free = shutil.disk_usage(path).free
    found = f"{free / 2**30:.1f} GiB free for the cache"
    if free < SPACE_BYTES:
        return Check("disk", Level.WARN, found, "free some space or move FUSEC_CACHE_DIR")
    return Check("disk", Level.OK, found)


def remote(options: Options) -> Check:
    """The cache service: alive, its store reachable, our token good."""
    if not options.remote:
        advice = "export FUSEC_REMOTE=http://… to share compiles (fusec serve starts one here)"
        return Check("remote", Level.WARN, "FUSEC_REMOTE is not set", advice)
    import httpx

    from fusec.cli.service import Service

    url = options.remote
    try:
        with Service(options, PROBE_S) as service:
            alive, ready, allowed = service.alive(), service.ready(), service.lookup_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found = f"{url} does not answer: {type(error).__name__}"
        return Check("remote", Level.FAIL, found, "check the address and that the service runs")
    if not alive:
        advice = "check that the address is a fusec cache service's"
        return Check("remote", Level.FAIL, f"{url} is no healthy service", advice)
    if allowed in (401, 403):
        advice = "set FUSEC_TOKEN_FILE to a file that holds a token with the role read or more"
        return Check("remote", Level.FAIL, f"{url} refuses our token ({allowed})", advice)
    if allowed != 200:
        advice = "look at the service's log; its version may be another"
        return Check("remote", Level.FAIL, f"{url} answers a lookup with {allowed}", advice)
    if not ready:
        advice = "the service cannot reach its store: look at its log"
        return Check("remote", Level.FAIL, f"{url} is alive but not ready", advice)
    return Check("remote", Level.OK, f"{url} is ready and accepts us")


def trust(options: Options) -> Check:
    """Keys to verify what comes from the service; without any, the service is not used."""
    from fusec.remote.resolve import trust_of

    trusted = trust_of(options)
    if trusted.keys:
        count = len(trusted.keys)
        found = f"{count} key{'s' * (count != 1)} in {options.trusted_keys}"
        return Check("trust", Level.OK, found)
    advice = "set FUSEC_TRUSTED_KEYS to the file of the farm's public keys (docs/trust.md)"
    if trusted.unsigned:
        found = "FUSEC_UNSIGNED: whoever writes to the service may run code here"
        return Check("trust", Level.WARN, found, advice)
    if options.remote:
        found = "no keys to verify artifacts with: the service is not used"
        return Check("trust", Level.FAIL, found, advice)
    return Check("trust", Level.OK, "no keys; nothing comes from elsewhere")


def variables(options: Options) -> Check:
    """Misspelt variables, which change nothing."""
    strange = unknown_variables()
    if not strange:
        return Check("variables", Level.OK, "all FUSEC_* are known")
    meant = ", ".join(dict.fromkeys(name for name in strange.values() if name))
    advice = f"did you mean {meant}?" if meant else "README.md lists those that there are"
    return Check("variables", Level.WARN, f"nobody reads {', '.join(strange)}", advice)


CHECKS: tuple[Callable[[Options], Check], ...] = (
    python,
    torch,
    triton,
    extras,
    entry_point,
    compiler,
    openmp,
    cache_dir,
    disk_space,
    variables,
    trust,
    remote,
)


def run_checks(options: Options) -> list[Check]:
    """Every check in order; an error of ours inside one becomes its FAIL."""
    found = []
    for check in CHECKS:
        try:
            found.append(check(options))
        except (CacheError, FusecError) as error:
            name = check.__name__.replace("_", " ")
            found.append(Check(name, Level.FAIL, error.message, error.hint or ""))
    return found
