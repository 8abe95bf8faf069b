"""fusec: a fusing compiler for PyTorch and the farm that shares its kernels.

Importing this package is light: neither torch nor the compiler is loaded before it is used.
`torch.compile(model, backend="fusec")` needs no import at all (an entry point names the backend).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusec.api import backend
    from fusec.errors import FusecError
    from fusec.options import Options, Target

__version__ = "0.1.0"

__all__ = ["FusecError", "Options", "Target", "__version__", "backend"]

# Public name -> the module that defines it; loaded on first use.
_LAZY = {
    "FusecError": "fusec.errors",
    "Options": "fusec.options",
    "Target": "fusec.options",
    "backend": "fusec.api",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'fusec' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
