"""The version of what an artifact holds; part of the toolchain's digest."""

from typing import Final

ARTIFACT_FORMAT: Final = 1
PROGRAM_BLOB: Final = "program"
RUNNER_BLOB: Final = "runner"
