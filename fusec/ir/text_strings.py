"""Strings inside the text form of graphs: quoted, with backslash escapes, always one line."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_BY_CHARACTER: Final = {value: f"\\{key}" for key, value in _ESCAPES.items()}
_ESCAPED: Final = re.compile(r"\\(u\{[0-9a-f]{1,6}\}|.)", re.DOTALL)


def quote(text: str) -> str:
    """A quoted literal that `unquote` reads back."""
    return '"' + "".join(_character(c) for c in text) + '"'


def _character(c: str) -> str:
    if c in _BY_CHARACTER:
        return _BY_CHARACTER[c]
    return c if c.isprintable() else f"\\u{{{ord(c):x}}}"


def unquote(literal: str) -> str:
    """The text of a quoted literal. Raises ValueError for an unknown escape."""

    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code.startswith("u{"):
            return chr(int(code[2:-1], 16))
        if code not in _ESCAPES:
            raise ValueError(f"unknown escape \\{code}")
        return _ESCAPES[code]

    return _ESCAPED.sub(replace, literal[1:-1])
