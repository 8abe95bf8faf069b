"""Text → tokens with their places, and the reader that parsers walk along them with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fusec.errors import ParseError

MAX_NESTING: Final = 64
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
      | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
      | (?P<sign>==|!=|<=|//|[-+*%<>()\[\]{},:=@])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: string, number, name, sign or end. ``line`` and ``column`` count from 1."""

    kind: str
    text: str
    line: int
    column: int


def tokens(text: str) -> list[Token]:
    """All tokens, the last of kind ``end``. Raises ParseError at a stray character."""
    found: list[Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(
                f"unexpected character {text[position]!r}", line=line, column=position - start + 1
            )
        kind = match.lastgroup or ""
        if kind == "newline":
            line, start = line + 1, match.end()
        elif kind != "space":
            found.append(Token(kind, match.group(), line, position - start + 1))
        position = match.end()
    found.append(Token("end", "", line, position - start + 1))
    return found


class Reader:
    """The next token, and the errors that name its place."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._position = 0
        self._nesting = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    def peek(self, ahead: int = 1) -> Token:
        """The token after the next; the end where there is none."""
        return self._tokens[min(self._position + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.next
        if token.kind != "end":
            self._position += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these names or signs."""
        return self.next.kind in ("name", "sign") and self.next.text in texts

    def skip(self, text: str) -> bool:
        """Take the next token if it is that name or sign."""
        if self.at(text):
            self._position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.error(f"expected {text!r}")
        return self.take()

    def expect_kind(self, kind: str) -> Token:
        if self.next.kind != kind:
            raise self.error(f"expected a {kind}")
        return self.take()

    def integer(self) -> int:
        """A whole number, perhaps negative."""
        negative = self.skip("-")
        token = self.expect_kind("number")
        if not token.text.isdecimal() or len(token.text) > 64:
            raise self.error("expected a whole number", token)
        return -int(token.text) if negative else int(token.text)

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.error("expected the end")

    def enter(self) -> None:
        """One level of nesting deeper; `leave` goes back."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self.error(f"nested deeper than {MAX_NESTING} levels")

    def leave(self) -> None:
        self._nesting -= 1

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """The error at a token, the next one unless another is given."""
        at = token or self.next
        found = "the end of the text" if at.kind == "end" else at.text[:40]
        return ParseError(f"{message}, found {found!r}", line=at.line, column=at.column)
