"""Tables for a terminal, plain lines elsewhere, and the JSON file."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    """Standard output: colours and lines in a terminal, wide and plain in a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def result(value: object) -> None:
    """In a child: hand the result to the parent, as the last line of standard output."""
    sys.stdout.write("\n" + json.dumps(value) + "\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """One line on standard error about what runs now."""
    Console(stderr=True, highlight=False).print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def table(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> None:
    """Print a table, the first column to the left and the others to the right."""
    if not out.is_terminal:
        _plain(out, title, columns, rows, note)
        return
    made = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        made.add_row(*row)
    out.print(made)


def _plain(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str
) -> None:
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    out.print(title, soft_wrap=True, markup=False)
    for row in (columns, *rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
        out.print("  ".join(cells).rstrip(), soft_wrap=True, markup=False)
    if note:
        out.print(note, soft_wrap=True, markup=False)


def write_json(path: Path | None, result: object) -> None:
    """Write a result; nothing for None."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def seconds(value: float) -> str:
    """Three digits with the unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def mebibytes(value: float) -> str:
    """Bytes as MiB."""
    return f"{value / (1 << 20):.0f} MiB"
