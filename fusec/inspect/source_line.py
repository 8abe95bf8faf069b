"""Where in the user's code an operation comes from, from the stack trace that torch keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

_FRAME: Final = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)')
_OF_TORCH: Final = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code. ``file`` is its path as Python knows it, ``code`` the text of the line."""

    file: str
    line: int
    function: str
    code: str

    @property
    def short(self) -> str:
        """The last two parts of the path, and the line: for a person."""
        return f"{PurePath(*PurePath(self.file).parts[-2:])}:{self.line}"


def source_line(trace: str | None) -> SourceLine | None:
    """The innermost frame of a stack trace that is not torch's own, or else the innermost.

    None where there is no frame at all.
    """
    if trace is None:
        return None
    lines = trace.splitlines()
    found: SourceLine | None = None
    for number, text in enumerate(lines):
        frame = _FRAME.search(text)
        if frame is None:
            continue
        own = _OF_TORCH.search(frame["file"]) is None
        if own or found is None or _OF_TORCH.search(found.file):
            following = lines[number + 1].strip() if number + 1 < len(lines) else ""
            code = "" if _FRAME.search(following) else following
            found = SourceLine(frame["file"], int(frame["line"]), frame["function"], code)
    return found
