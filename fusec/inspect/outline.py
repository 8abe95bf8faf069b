"""Explanations for a person: trees in a terminal, indented lines elsewhere; data for a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from cache.quantities import size
from fusec.inspect.explain import Call, Explanation, Kernel, Operation

_REASONS: Final = {
    "library": "done better by the library",
    "fallback": "no rule in the compiler",
    "random": "draws the numbers that eager draws",
    "check": "refuses what eager refuses",
}


@dataclass
class Outline:
    """A line and what belongs under it. ``style``: how a terminal shows it."""

    text: str
    style: str = ""
    children: list[Outline] = field(default_factory=list)

    def add(self, text: str, style: str = "") -> Outline:
        made = Outline(text, style)
        self.children.append(made)
        return made


def outline(explanation: Explanation) -> Outline:
    """The whole explanation as a tree of lines."""
    top = Outline(_headline(explanation), "bold")
    for entry in explanation.entries:
        if isinstance(entry, Kernel):
            _kernel(top, entry)
        else:
            _call(top, entry)
    return top


def show(explanations: Sequence[Explanation], console: Console) -> None:
    """Print explanations: totals and a tree a graph in a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        console.file.write(text(explanations))
        return
    console.print(_totals(explanations))
    for explanation in explanations:
        console.print(_tree(outline(explanation)), highlight=False)


def text(explanations: Iterable[Explanation]) -> str:
    """The same as plain text, two spaces a level."""
    return "\n".join("".join(_lines(outline(e), 0)) for e in explanations)


def as_json(explanation: Explanation) -> dict[str, object]:
    """All of it as plain values."""
    entries = []
    for entry in explanation.entries:
        values = dataclasses.asdict(entry)
        kind = "kernel" if isinstance(entry, Kernel) else "call"
        saved = {"saved": entry.saved} if isinstance(entry, Kernel) else {}
        entries.append({"kind": kind, **values, **saved})
    return {
        "title": explanation.title,
        "operations": explanation.operations,
        "launches": explanation.launches,
        "distinct_kernels": explanation.distinct,
        "library_calls": explanation.calls("library"),
        "fallback_calls": explanation.calls("fallback"),
        "bytes_moved": explanation.moved,
        "bytes_alone": explanation.alone,
        "memory": dataclasses.asdict(explanation.peak),
        "sizes": dict(explanation.sizes),
        "entries": entries,
    }


def _headline(e: Explanation) -> str:
    library, fallbacks = e.calls("library"), e.calls("fallback")
    calls = f"{_many(library, 'library call')}, {_many(fallbacks, 'fallback')}"
    kernels = f"{_many(e.launches, 'launch', 'launches')} of {_many(e.distinct, 'kernel')}"
    where = "".join(f", {name}={value}" for name, value in e.sizes.items())
    first = f"{e.title}: {e.operations} operations in {kernels}, {calls}{where}"
    second = (
        f"kernels move {size(e.moved)} ({size(e.alone)} one operation at a time); "
        f"peak memory {size(e.peak.peak)}, {size(e.peak.arena)} of it scratch, "
        f"{size(e.peak.returned)} returned"
    )
    return f"{first}\n{second}"


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _times(count: int) -> str:
    return f" x{count}" if count > 1 else ""


def _kernel(top: Outline, k: Kernel) -> None:
    loops = f"({', '.join(k.space)})"
    batch = f", {k.together} a launch," if k.together > 1 else ""
    under = top.add(f"{k.label} {k.name}{_times(k.count)}{batch} over {loops}", "cyan")
    saved = f"saves {size(k.saved)}" if k.saved >= 0 else f"costs {size(-k.saved)} more"
    under.add(
        f"reads {size(k.read)}, writes {size(k.written)}; {saved} against {size(k.alone)} alone"
    )
    for line, operations in _by_line(k.operations):
        names = " ".join(_name(o) for o in operations)
        under.add(f"{names}{line}")
    for refusal in k.refusals:
        under.add(f"not with {refusal.other}, which {refusal.relation}: {refusal.reason}", "dim")


def _call(top: Outline, c: Call) -> None:
    style = "yellow" if c.reason == "fallback" else "green"
    why = _REASONS.get(c.reason, c.reason)
    under = top.add(
        f"{c.label} {_short(c.operation.name)}{_times(c.count)} {c.reason} call: {why}", style
    )
    line = _line(c.operation).removeprefix("  ")
    moves = f"reads {size(c.read)}, writes {size(c.written)}"
    under.add(f"{moves}  {line}" if line else moves)


def _by_line(operations: Sequence[Operation]) -> list[tuple[str, list[Operation]]]:
    """Operations in order, neighbours of one line of code together."""
    found: list[tuple[str, list[Operation]]] = []
    for operation in operations:
        line = _line(operation)
        if found and found[-1][0] == line:
            found[-1][1].append(operation)
        else:
            found.append((line, [operation]))
    return found


def _name(operation: Operation) -> str:
    where = f" (counted in {operation.counted})" if operation.counted else ""
    return f"{_short(operation.name)}{where}"


def _short(name: str) -> str:
    """`add.Tensor` for `aten.add.Tensor`, `mm` for `aten.mm.default`."""
    return name.removeprefix("aten.").removesuffix(".default")


def _line(operation: Operation) -> str:
    source = operation.source
    return "" if source is None else f"  {source.short}  {source.code}".rstrip()


def _lines(node: Outline, depth: int) -> Iterable[str]:
    indent = "  " * depth
    for line in node.text.split("\n"):
        yield f"{indent}{line}\n"
    for child in node.children:
        yield from _lines(child, depth + 1)


def _tree(node: Outline, parent: Tree | None = None) -> Tree:
    label = f"[{node.style}]{escape(node.text)}[/]" if node.style else escape(node.text)
    made = Tree(label) if parent is None else parent.add(label)
    for child in node.children:
        _tree(child, made)
    return made


def _totals(explanations: Sequence[Explanation]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("graph", no_wrap=True)
    columns = ("ops", "runs", "kernels", "calls", "fallback", "moved", "alone", "peak")
    for column in columns:  # narrow enough for 80 columns
        table.add_column(column, justify="right", no_wrap=True)
    for e in explanations:
        counts = (e.operations, e.launches, e.distinct, e.calls("library"), e.calls("fallback"))
        sizes = (size(e.moved), size(e.alone), size(e.peak.peak))
        table.add_row(e.title, *map(str, counts), *sizes)
    return table
