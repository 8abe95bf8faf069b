"""The sides of a comparison: eager, Inductor and fusec. Only `bench` ever loads Inductor."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

BACKENDS = ("eager", "inductor", "fusec")
# Backend -> the module that its first compile would import.
_MODULES: Mapping[str, str] = {"inductor": "torch._inductor.compile_fx", "fusec": "fusec.api"}


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The function as that side runs it; compiled sides at their defaults, sizes static.

    Raises ValueError for a name that is not in BACKENDS.
    """
    if backend not in BACKENDS:
        raise ValueError(f"no backend {backend!r}: {', '.join(BACKENDS)}")
    if backend == "eager":
        return function
    result: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=False)
    return result


def load(backend: str) -> None:
    """Import Dynamo and the backend, so that what is timed next is work and not imports."""
    if backend == "eager":
        return
    importlib.import_module("torch._dynamo")
    importlib.import_module(_MODULES[backend])


def prime(backend: str) -> None:
    """Compile something trivial: what a process or a machine does once is done after it.

    Inductor compiles a header and probes the CPU, fusec compiles its runner; both trace once, with
    gradients and without, and Dynamo loads what it loads at the first of torch's functions.
    """
    if backend == "eager":
        return
    x = torch.ones(7, requires_grad=True)
    function = compiled(lambda x: torch.sin(x * 2), backend)
    function(x).sum().backward()
    with torch.no_grad():
        function(x)


def eager_runs(backend: str) -> int:
    """Graphs that the side gave up on and ran eager: a figure of such a case means nothing."""
    if backend == "fusec" and "fusec.api" in sys.modules:
        from fusec.api import snapshot

        return snapshot().counters.get("fallbacks_to_eager", 0)
    return 0
