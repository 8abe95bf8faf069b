"""Names in programs → torch operators, dtypes and arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from fusec.attention import operators as attention
from fusec.errors import LoadError
from fusec.ir.graph import Attr

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8,
    "bool": torch.bool, "c32": torch.complex32, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
_FORMATS: Final[Mapping[str, torch.memory_format]] = {
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


def operator(target: str) -> Callable[..., Any]:
    """``aten.add.Tensor`` → the operator overload; one of ours → what computes it. Raises LoadError
    where this torch lacks it."""
    direct = attention.DIRECT.get(target)
    if direct is not None:
        return direct  # type: ignore[no-any-return]
    parts = target.split(".")
    try:
        if len(parts) != 3:
            raise AttributeError(target)
        found = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except AttributeError as error:
        raise LoadError(
            f"this torch has no operator {target}",
            hint="the artifact was made with another version of torch or other extensions",
        ) from error
    assert callable(found)
    return found  # type: ignore[no-any-return]


def entry(target: str) -> Callable[..., Any]:
    """What `operator` gives, as it is called fastest: by torch's own functions in C where they name
    the same operator, which take arguments in half the time. Raises LoadError."""
    return _ENTRIES.get(target) or operator(target)


_ENTRIES: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.mm.out": torch.mm,
    "aten.bmm.out": torch.bmm,
    "aten.addmm.out": torch.addmm,
    "aten.baddbmm.out": torch.baddbmm,
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten.convolution.default": torch.convolution,
}


def returns_view(op: Callable[..., Any]) -> bool:
    """Whether an operator's result may share memory with an argument."""
    schema = getattr(op, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def attribute(attr: Attr) -> object:
    """The torch object that an enumeration argument names. Raises LoadError for an unknown one."""
    if attr.kind == "dtype" and attr.name in TORCH_DTYPES:
        return TORCH_DTYPES[attr.name]
    if attr.kind == "device" and attr.name in ("cpu", "cuda", "meta"):
        return torch.device(attr.name)
    if attr.kind == "layout" and attr.name == "strided":
        return torch.strided
    if attr.kind == "memory_format" and attr.name in _FORMATS:
        return _FORMATS[attr.name]
    raise LoadError(f"this torch has no {attr.kind} {attr.name!r}")
