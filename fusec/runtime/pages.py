"""Large pages for large tensors.

A fresh tensor of 64 MB costs 16,384 page faults before the first kernel has written it, often more
than the kernel itself. Where the system leaves the choice to the program (transparent huge pages
set to ``madvise``), asking for large pages makes that 32 faults.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

import torch

LARGE: Final = 4 << 20  # bytes; below it 2 MB pages would waste more than they save
_MADV_HUGEPAGE: Final = 14
_PAGE: Final = 4096

_libc: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def prefer_large_pages(tensor: torch.Tensor, size: int) -> None:
    """Advise the system about ``size`` bytes of a new tensor; it may decline."""
    if size < LARGE or _libc is None:
        return
    start = -(-tensor.data_ptr() // _PAGE) * _PAGE
    end = (tensor.data_ptr() + size) // _PAGE * _PAGE
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_HUGEPAGE)
