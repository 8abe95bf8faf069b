"""Settings that are one frozen value: its fields are environment variables and flags.

A field's metadata says the rest: ``help``, for people; ``secret``, which is no flag, since every
user of the machine sees a command line; ``parse``, from text to the value where the type of the
default does not say how.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cache.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_SWITCH: Final = {"1": True, "true": True, "0": False, "false": False, "": False}


def load(
    kind: type[T],
    prefix: str,
    environ: Mapping[str, str],
    flags: Mapping[str, str] | None = None,
    *,
    others: frozenset[str] = frozenset(),
) -> T:
    """A `kind` of the variables of `environ` that begin with `prefix`, then of `flags` (field name
    to text), which win.

    others: variables with that prefix that belong to somebody else. Raises ConfigError for an
    unknown name and for a value that does not parse, and what `kind` raises.
    """
    texts: dict[str, tuple[str, str]] = {}
    for name, text in environ.items():
        if name.startswith(prefix) and name not in others:
            texts[name.removeprefix(prefix).lower()] = (name, text)
    for name, text in (flags or {}).items():
        texts[name] = (_flag(name), text)
    known = {item.name: item for item in fields(kind)}
    values: dict[str, Any] = {}
    for name, (shown, text) in texts.items():
        if name not in known:
            raise ConfigError(f"unknown setting {shown}; known are {', '.join(sorted(known))}")
        values[name] = _parse(shown, known[name], text)
    return kind(**values)


def add_flags(parser: argparse.ArgumentParser, kind: type[DataclassInstance], prefix: str) -> None:
    """A flag for each field of a `kind`, ``--no-…`` for what is on by default; of secrets the
    description says how they are given."""
    for item in fields(kind):
        text = str(item.metadata["help"])
        if item.metadata.get("secret"):
            note = f"{item.name}: {text}; environment {prefix}{item.name.upper()} only\n"
            parser.description = f"{parser.description or ''}{note}"
        elif item.default is True:
            flag, text = _flag(f"no_{item.name}"), f"do not {text}"
            parser.add_argument(flag, dest=item.name, action="store_const", const="0", help=text)
        elif item.default is False:
            parser.add_argument(_flag(item.name), action="store_const", const="1", help=text)
        else:
            shown = f" (default {item.default})" if item.default != "" else ""
            parser.add_argument(_flag(item.name), metavar="X", help=text + shown)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parse(shown: str, item: Field[Any], text: str) -> object:
    kind = type(item.default)
    parse: Callable[[str], object] = item.metadata.get("parse") or _BY_TYPE[kind]
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{shown}: {text!r:.60} is not a {kind.__name__}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


_BY_TYPE: Final[Mapping[type, Callable[[str], object]]] = {
    bool: lambda text: _SWITCH[text.lower()],
    int: int,
    float: _finite,
    str: str,
}
