"""What a compiled GPU kernel needs of the device, read from its image.

A cubin is an ELF file whose ``.nv.info`` sections list attributes: a format byte, an attribute byte
and either two bytes of value or, for format 4, two bytes of length and that many bytes of value.
The attributes' numbers are those that ``cuobjdump -elf`` names ``EIATTR_REGCOUNT`` and so on. An
hsaco is an ELF file with a note of msgpack (the code object metadata of AMDGPU, version 3 and
later).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgpack

from fusec.errors import CompileError

_FRAME_SIZE: Final = 0x11
_KERNEL_PARAMETER: Final = 0x17
_REGISTER_COUNT: Final = 0x2F
_SIZED: Final = 4
_AMDGPU_METADATA: Final = 32


@dataclass(frozen=True, slots=True)
class Usage:
    """registers a thread; local: bytes of memory of its own a thread uses, which is where spilled
    registers go; parameters: how many the kernel takes, Triton's own included."""

    registers: int
    local: int
    parameters: int


def read_usage(image: bytes) -> Usage:
    """Read a cubin or hsaco that holds one kernel. Raises CompileError for anything else."""
    try:
        sections = list(_sections(image))
        notes = [data for name, data in sections if name == ".note"]
        if any(name == ".nv.info" for name, _ in sections):
            return _nvidia([data for name, data in sections if name.startswith(".nv.info")])
        return _amd(next(_notes(notes[0])))
    except (struct.error, ValueError, LookupError, TypeError, StopIteration) as error:
        raise CompileError(f"a GPU kernel's image is malformed: {error!r}") from error


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each section of a 64-bit little-endian ELF file."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    text = rows[names][4]
    for name, kind, _, _, offset, length in rows:
        start = text + name
        label = image[start : image.index(b"\0", start)].decode("ascii")
        yield label, b"" if kind == 8 else image[offset : offset + length]  # 8: has no bytes


def _nvidia(sections: list[bytes]) -> Usage:
    registers, local, parameters = 0, 0, 0
    for attribute, value in (pair for data in sections for pair in _attributes(data)):
        if attribute == _REGISTER_COUNT:
            registers = max(registers, struct.unpack("<II", value)[1])
        elif attribute == _FRAME_SIZE:
            local = max(local, struct.unpack("<II", value)[1])
        elif attribute == _KERNEL_PARAMETER:
            parameters += 1
    if not registers:
        raise ValueError("no count of registers")
    return Usage(registers, local, parameters)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place < len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == _SIZED:
            yield attribute, data[place : place + length]
            place += length


def _notes(data: bytes) -> Iterator[bytes]:
    """The metadata notes of AMDGPU in a note section."""
    place = 0
    while place < len(data):
        name, length, kind = struct.unpack_from("<III", data, place)
        place += 12 + -(-name // 4) * 4
        if kind == _AMDGPU_METADATA:
            yield data[place : place + length]
        place += -(-length // 4) * 4


def _amd(metadata: bytes) -> Usage:
    (kernel,) = msgpack.unpackb(metadata, raw=False)["amdhsa.kernels"]
    return Usage(
        # A unified file of registers: those for accumulators count (the total is in vgpr_count).
        int(kernel[".vgpr_count"]),
        int(kernel[".private_segment_fixed_size"]),
        len(kernel[".args"]),
    )
