"""The program of a child process that compiles Triton kernels for `triton_toolchain`."""

from __future__ import annotations

from typing import Any

from triton.errors import TritonError

from fusec.child.program import serve
from fusec.codegen.triton_compile import BadText, compile_text

_MESSAGE_CHARACTERS = 4000


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """``request``: the arguments of `compile_text`. A kernel's fault is an answer, ``error``."""
    try:
        made = compile_text(**request)
    except (
        ArithmeticError, AssertionError, AttributeError, BadText, LookupError,
        NotImplementedError, OSError, RuntimeError, SyntaxError, TritonError, TypeError, ValueError,
    ) as error:  # fmt: skip
        return {"error": f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]}
    return {"image": made.image, "name": made.name, "warps": made.warps, "shared": made.shared}


if __name__ == "__main__":
    serve(answer)
