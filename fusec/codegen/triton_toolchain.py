"""Triton kernels to device images, with no GPU, in child processes that are kept for the next.

Triton takes seconds to load and its libraries may crash or hang on a kernel: each compile runs in
one of a few children (`triton_worker`), which are used again, limited in time and memory, and
replaced when lost. A lost child costs the kernel that it worked on, nothing else.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Final

from fusec.child.pool import Children
from fusec.codegen.gpu_binary import GpuBinary
from fusec.codegen.gpu_source import GpuSource
from fusec.codegen.gpu_usage import read_usage
from fusec.errors import ChildLost, CompileError, CompilerLost

ISAS: Final = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942")
_MEMORY_BYTES: Final = 6 << 30
_MOST_CHILDREN: Final = 32  # each takes a few hundred megabytes
_DISTRIBUTIONS: Final = ("triton", "pytorch-triton", "pytorch-triton-rocm")
# Set for every version, so that none of them decides: no paths in the image, nothing from a cache,
# products and sums fused, the compilers that Triton brings.
_ENVIRONMENT: Final = {
    "TRITON_DISABLE_LINE_INFO": "1",
    "TRITON_ALWAYS_COMPILE": "1",
    "TRITON_STORE_BINARY_ONLY": "1",
    "TRITON_DEFAULT_FP_FUSION": "1",
}


def compiler_version() -> str:
    """Name and version of the compiler, as it enters the keys of kernels. Raises CompileError."""
    if importlib.util.find_spec("triton") is not None:
        for name in _DISTRIBUTIONS:
            try:
                return f"triton {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                continue
    raise CompileError(
        "Triton is not installed: no kernels for GPUs are made here",
        hint="pip install 'fusec[gpu]', or let a farm compile",
    )


def compile_variant(source: GpuSource, variant: int, timeout_s: float) -> GpuBinary:
    """Compile one variant of a kernel. From several threads, several are compiled at once.

    timeout_s: wall seconds that the compile itself may take. Raises CompileError.
    """
    if source.isa not in ISAS:
        raise CompileError(f"no GPU target {source.isa!r}", hint=f"one of {', '.join(ISAS)}")
    chosen = source.variants[variant]
    answer = _compilers(os.getpid()).request(
        {
            "text": chosen.source,
            "isa": source.isa,
            "signature": list(source.signature),
            "constants": dict(chosen.constants),
            "warps": chosen.warps,
            "cooperative": chosen.cooperative,
        },
        timeout_s,
        source.name,
    )
    if "error" in answer:
        raise CompileError(
            "Triton cannot compile a kernel",
            where=f"variant {variant} of {source.name} for {source.isa}",
            hint="this is a fault of the code generator, not of the model",
            output=answer["error"],
        )
    image = answer["image"]
    usage = read_usage(image)
    return GpuBinary(
        name=answer["name"],
        image=image,
        grid=chosen.programs,
        threads=answer["warps"] * (64 if source.isa.startswith("gfx") else 32),
        shared=answer["shared"],
        scratch=usage.parameters - len(source.signature),
        sizes=tuple(k.partition(":")[0] for k in source.signature if not k.startswith("*")),
        registers=usage.registers,
        spills=usage.local,
        cooperative=chosen.cooperative,
    )


def warm() -> None:
    """Have a child ready for the first kernel. Raises CompilerLost, ChildLost, CompileError."""
    compiler_version()  # tells what is missing
    with _compilers(os.getpid()).children.lend():
        pass


def compile_variants(
    jobs: Sequence[tuple[GpuSource, int]], timeout_s: float
) -> Iterator[tuple[int, GpuBinary | CompileError]]:
    """Compile many variants on all processors; yields places in ``jobs`` as they are done.

    A caller that stops early leaves the rest uncompiled.
    """
    pool = ThreadPoolExecutor(_processors(), thread_name_prefix="fusec-triton")
    try:
        futures = {
            pool.submit(compile_variant, source, variant, timeout_s): place
            for place, (source, variant) in enumerate(jobs)
        }
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            elif isinstance(error, CompileError):
                yield futures[future], error
            else:
                raise error
    finally:
        pool.shutdown(cancel_futures=True)


class Compilers:
    """Children that compile, at most ``limit`` at once; those without work wait for the next."""

    def __init__(self, limit: int) -> None:
        self.children = Children(
            "fusec.codegen.triton_worker", limit, environment=_ENVIRONMENT, memory=_MEMORY_BYTES
        )

    def request(self, body: dict[str, object], timeout_s: float, where: str) -> dict[str, Any]:
        """One compile in a child. Raises CompilerLost when the child was lost over it."""
        compiler_version()  # tells what is missing
        try:
            with self.children.lend() as child:
                answer: dict[str, Any] = child.request(body, timeout_s)
        except ChildLost as error:
            raise CompilerLost(
                f"Triton's compiler was lost: {error.message}",
                error.loss,
                where=where,
                hint="raise the time limit, or report the kernel",
                output=error.output,
            ) from error
        return answer


@functools.cache
def _compilers(process: int) -> Compilers:
    """The children of this process: those of the process that it was forked from are not its."""
    made = Compilers(_processors())
    atexit.register(made.children.close)
    return made


def _processors() -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_CHILDREN)
