"""torch's enumerations and the short names that graphs use for them, both ways."""

from __future__ import annotations

from typing import Final

import torch

from fusec.errors import CaptureUnsupported
from fusec.ir.graph import Attr

DTYPE_OF: Final[dict[str, torch.dtype]] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_DTYPE_NAME: Final = {dtype: name for name, dtype in DTYPE_OF.items()}
_LAYOUTS: Final[dict[str, torch.layout]] = {"strided": torch.strided}
_FORMATS: Final[dict[str, torch.memory_format]] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "preserve": torch.preserve_format,
}
_FORMAT_NAME: Final = {value: name for name, value in _FORMATS.items()}
_DEVICES: Final = ("cpu", "cuda", "meta")


def dtype_name(dtype: torch.dtype) -> str:
    """The short name. Raises CaptureUnsupported for a dtype that graphs do not know."""
    name = _DTYPE_NAME.get(dtype)
    if name is None:
        raise CaptureUnsupported(f"{dtype} is not an element type that graphs know")
    return name


def device_name(device: torch.device) -> str:
    """The kind of device, without its ordinal. Raises CaptureUnsupported for an unknown kind."""
    if device.type not in _DEVICES:
        raise CaptureUnsupported(f"graphs know no device {device.type!r}")
    return device.type


def format_name(memory_format: torch.memory_format) -> str:
    return _FORMAT_NAME[memory_format]


def format_of(name: str) -> torch.memory_format:
    """Raises KeyError for an unknown name."""
    return _FORMATS[name]


def to_attr(value: object) -> Attr | None:
    """An enumeration argument as an Attr; None when `value` is no enumeration."""
    if isinstance(value, torch.dtype):
        return Attr("dtype", dtype_name(value))
    if isinstance(value, torch.device):
        return Attr("device", device_name(value))
    if isinstance(value, torch.layout):
        if value is not torch.strided:
            raise CaptureUnsupported(f"graphs know no layout {value}")
        return Attr("layout", "strided")
    if isinstance(value, torch.memory_format):
        return Attr("memory_format", format_name(value))
    return None


def from_attr(attr: Attr) -> torch.dtype | torch.device | torch.layout | torch.memory_format:
    """Raises KeyError for a name that `to_attr` does not make."""
    if attr.kind == "dtype":
        return DTYPE_OF[attr.name]
    if attr.kind == "device":
        if attr.name not in _DEVICES:
            raise KeyError(attr.name)
        return torch.device(attr.name)
    if attr.kind == "layout":
        return _LAYOUTS[attr.name]
    return _FORMATS[attr.name]
