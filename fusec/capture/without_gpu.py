"""Capturing for a GPU on a machine that has none: what `fusec prewarm` runs a model in.

Inside `pretended_gpu` models are built and traced with fake tensors on a CUDA device: shapes and
dtypes without memory. Nothing is computed, so nothing needs a GPU. A few lines of C++
(`without_gpu.cpp`) stand in for the device; they are built with the system's C++ compiler against
torch's own headers and kept in the cache directory, one library a torch release.

For such a process alone: it must do nothing with a real GPU. All of it is undone at the end, but
for kernels of a CPU build of torch that are registered as not there.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from fusec.errors import CaptureUnsupported

BUILD_TIMEOUT_S: Final = 300.0
_SOURCE: Final = Path(__file__).with_suffix(".cpp")
# Operators that torch breaks down where a device has no kernel of theirs, and keeps otherwise.
# A CPU build has none for CUDA: unless they are there, other graphs come out.
_KERNELS: Final = ("silu_backward", "mish_backward", "_fused_rms_norm")


@contextmanager
def pretended_gpu(cache_dir: Path) -> Iterator[None]:
    """Inside, tensors can be made on `cuda` and are fake; torch takes CUDA for built in.

    cache_dir: where the small library is kept. Raises CaptureUnsupported where there is a GPU, or
    no C++ compiler that builds against torch's headers.
    """
    if torch.cuda.is_available():
        raise CaptureUnsupported("there is a GPU here", hint="capture on it: nothing is pretended")
    library = _library(cache_dir)
    _register_kernels()
    if not library.fusec_pretend_gpu():
        library.fusec_stop_pretending()
        raise CaptureUnsupported("this release of torch does not take a pretended GPU for one")
    try:
        # Autocast is off without a word where torch finds no GPU.
        cuda: Any = torch.cuda
        with (
            _answers(cuda.amp.common, "amp_definitely_not_available", False),
            _answers(cuda, "is_bf16_supported", True),
        ):
            yield
    finally:
        library.fusec_stop_pretending()


@contextmanager
def _answers(owner: Any, name: str, answer: bool) -> Iterator[None]:
    """With a function of a module that always gives this answer."""
    before = getattr(owner, name)
    setattr(owner, name, lambda *_, **__: answer)
    try:
        yield
    finally:
        setattr(owner, name, before)


@functools.cache
def _register_kernels() -> torch.library.Library | None:
    """Tell a CPU build that CUDA has kernels which a CUDA build has. They are never run."""
    if torch.version.cuda or torch.version.hip:
        return None
    made = torch.library.Library("aten", "IMPL")
    for name in _KERNELS:
        if hasattr(torch.ops.aten, name):
            made.impl(name, _not_here, "CUDA")
    return made


def _not_here(*_: Any, **__: Any) -> Any:
    raise CaptureUnsupported("a kernel of a GPU is run where only graphs are captured")


@functools.cache
def _library(cache_dir: Path) -> ctypes.CDLL:
    source = _SOURCE.read_bytes()
    build = f"{torch.version.git_version} {torch.version.cuda} {torch.version.hip}"
    name = hashlib.sha256(source + build.encode()).hexdigest()[:32]
    path = cache_dir / "without-gpu" / f"{name}.so"
    if not path.exists():
        _build(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CaptureUnsupported(f"the stand-in for a GPU does not load: {error}") from error


def _build(path: Path) -> None:
    """Compile the library to a temporary file beside its place, then move it there."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CaptureUnsupported(
            "there is no C++ compiler", hint="capturing for a GPU without one needs g++ once"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "made.so"
        command = [
            *(compiler, "-O0", "-shared", "-fPIC", "-std=c++20"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{folder}" for folder in include_paths()),
            *(f"-L{folder}" for folder in library_paths()),
            *(str(_SOURCE), "-o", str(made), "-ltorch_cpu", "-lc10"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CaptureUnsupported(f"the C++ compiler did not run: {error}") from error
        if done.returncode:
            raise CaptureUnsupported(
                f"the stand-in for a GPU does not compile: {done.stderr.strip()[-500:]}"
            )
        os.replace(made, path)
