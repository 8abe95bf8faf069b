"""Cuts this process, and all that it starts from now on, off from the network, for good.

First choice is a network namespace of its own, in which there is nothing: as the superuser, or in a
user namespace where the kernel lets everybody have one. Containers often forbid both. Then a system
call filter (seccomp, which needs no rights) refuses sockets other than those of this machine's
files. Where even that is not possible the caller is told.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import StrEnum
from pathlib import Path
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_AF_UNIX: Final = 1

# Machine -> its number as the kernel's audit knows it, and its calls socket and io_uring_setup.
_CALLS: Final[dict[str, tuple[int, int, int]]] = {
    "x86_64": (0xC000003E, 41, 425),
    "aarch64": (0xC00000B7, 198, 425),
}
# Instructions of the classic packet filter, and what a filter may answer.
_LOAD: Final = 0x20  # a word of struct seccomp_data
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | 13  # EACCES
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data
_OTHER_ABI: Final = 0x40000000  # numbers from here are x32's


class Network(StrEnum):
    """How much of the network a process has."""

    NAMESPACE = "namespace"  # none: a namespace of its own
    FILTER = "filter"  # none: sockets are refused
    SHARED = "shared"  # this machine's: neither could be had


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def go_offline() -> Network:
    """Do it, in the best way that the kernel allows; which it was. Call it while the process has
    one thread: user namespaces need that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return Network.NAMESPACE
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        _keep_identity(user, group)
        return Network.NAMESPACE
    return Network.FILTER if refuse_sockets() else Network.SHARED


def refuse_sockets() -> bool:
    """Have the kernel refuse new sockets, but for those that are files; False if it will not."""
    known = _CALLS.get(os.uname().machine)
    if known is None:
        return False
    machine, socket, io_uring = known
    instructions = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _MACHINE),
            (_EQUAL, 0, 7, machine),  # a call of another machine's kind: refuse
            (_LOAD, 0, 0, _NUMBER),
            (_AT_LEAST, 5, 0, _OTHER_ABI),
            (_EQUAL, 4, 0, io_uring),  # it would open sockets unseen
            (_EQUAL, 0, 2, socket),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_EQUAL, 0, 1, _AF_UNIX),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        )
    )
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = _Program(len(instructions) // 8, ctypes.addressof(buffer))
    return prctl(_PR_SET_NO_NEW_PRIVS, 1) and prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program)
    )


def prctl(option: int, first: int, second: int = 0) -> bool:
    """One of the kernel's settings of this process; False if it will not."""
    call = ctypes.CDLL(None).prctl
    call.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return bool(call(option, first, second, 0, 0) == 0)


def _keep_identity(user: int, group: int) -> None:
    """Be who one was, in the new user namespace too."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
