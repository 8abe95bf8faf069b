"""The version of what an artifact holds, and the names of blobs; part of the toolchain's digest."""

from typing import Final

ARTIFACT_FORMAT: Final = 1
PROGRAM_BLOB: Final = "program"
RUNNER_BLOB: Final = "runner"
KERNEL_BLOB: Final = "binary"  # of a kernel that is kept by itself
RECORD_BLOB: Final = "record"  # of a tuning record, beside the binary of the winner
