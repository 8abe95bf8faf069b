"""Triton text to a device image: the one module that touches Triton's internals.

It works with Triton 3.6 to 3.9 and needs no GPU. The text is never run: Triton parses it and reads
its syntax tree. `triton.JITFunction` wants a Python function all the same, so it is given an empty
one of this file that bears the kernel's name, parameters and globals, and then the kernel's text.

To be imported in a child process alone (`triton_worker`).
"""

from __future__ import annotations

import ast
import inspect
import shutil
import types
from dataclasses import dataclass
from typing import Any, Final

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice

from fusec.codegen import triton_library

# What a kernel's text may name beside its own variables: the language, the mathematics of the
# target's vendor (Triton maps the module to the target), and our library of device functions.
GLOBALS: Final[dict[str, Any]] = {
    "tl": tl,
    "libdevice": libdevice,
    **{
        name: value
        for name, value in vars(triton_library).items()
        if isinstance(value, triton.JITFunction) and not name.startswith("_")
    },
}
_POINTER_ALIGNMENT: Final = 16


@dataclass(frozen=True, slots=True)
class Image:
    """What Triton made: the device's image, the warps and the bytes of shared memory of a program,
    the function's name in it."""

    image: bytes
    name: str
    warps: int
    shared: int


class BadText(Exception):
    """The text is not one plain function of the parameters that its signature says."""


def compile_text(
    text: str,
    isa: str,
    signature: list[str],
    constants: dict[str, int],
    *,
    warps: int,
    cooperative: bool,
) -> Image:
    """Compile one kernel. signature: as in `GpuSource`; the rest: as in `Variant`.

    Raises BadText, and whatever Triton raises for text that it cannot compile.
    """
    name, parameters = _parameters(text)
    arguments = parameters[: len(signature)]
    if parameters[len(signature) :] != list(constants):
        raise BadText(f"the parameters {parameters} are not {len(signature)} and {[*constants]}")
    source = ASTSource(
        _function(text, name, parameters, set(constants)),
        {
            **{p: kind.partition(":")[0] for p, kind in zip(arguments, signature, strict=True)},
            **dict.fromkeys(constants, "constexpr"),
        },
        constexprs=dict(constants),
        attrs={
            (place,): [["tt.divisibility", divisor]]
            for place, kind in enumerate(signature)
            if (divisor := _divisor(kind)) > 1
        },
    )
    # Products and sums may be one rounding, as in the device code of eager.
    options = {
        "num_warps": warps,
        "num_stages": 1,  # the text says it of each loop
        "enable_fp_fusion": True,
        "launch_cooperative_grid": cooperative,
        # Assertions are in the binary where the text has any, those that it spells out alone.
        "debug": "tl.device_assert(" in text,
        "sanitize_overflow": False,
    }
    made = triton.compile(source, target=_target(isa), options=options)
    shutil.rmtree(triton.knobs.cache.dir, ignore_errors=True)  # it is of no use to anybody
    image = made.asm["hsaco" if isa.startswith("gfx") else "cubin"]
    return Image(image, made.metadata.name, made.metadata.num_warps, made.metadata.shared)


def _target(isa: str) -> GPUTarget:
    if isa.startswith("gfx"):
        return GPUTarget("hip", isa, 64)
    return GPUTarget("cuda", int(isa.removeprefix("sm_")), 32)


def _divisor(kind: str) -> int:
    if kind.startswith("*"):
        return _POINTER_ALIGNMENT
    return int(kind.partition(":")[2] or 1)


def _parameters(text: str) -> tuple[str, list[str]]:
    """The name and the parameters of the function that the text consists of."""
    body = ast.parse(text).body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].decorator_list:
        raise BadText("the text is not one function without decorators")
    for node in ast.walk(body[0]):
        name = getattr(node, "id", "") or getattr(node, "attr", "")
        if isinstance(node, (ast.Import, ast.ImportFrom)) or name.startswith("_"):
            raise BadText(f"line {getattr(node, 'lineno', 0)}: an import or a private name")
    return body[0].name, [argument.arg for argument in body[0].args.args]


def _empty() -> None: ...


def _function(
    text: str, name: str, parameters: list[str], constants: set[str]
) -> triton.JITFunction:
    function = types.FunctionType(_empty.__code__, dict(GLOBALS), name)
    function.__module__ = function.__qualname__ = name
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                p,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=tl.constexpr if p in constants else inspect.Parameter.empty,
            )
            for p in parameters
        ]
    )
    made = triton.JITFunction(function)
    made._unsafe_update_src(text)
    return made
