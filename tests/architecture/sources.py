"""The project's source files, parsed once, and the imports between its modules."""

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("fusec", "farm", "cache")


@dataclass(frozen=True)
class Source:
    """One source file. name: its dotted module name; tree: its syntax tree."""

    path: Path
    name: str
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


def parse(name: str, text: str, *, is_package: bool = False, path: Path = Path()) -> Source:
    """A Source from its text."""
    return Source(path, name, is_package, text, ast.parse(text, str(path)))


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the three packages, in order of path."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found.append(parse(name, path.read_text(), is_package=is_package, path=path))
    return tuple(found)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below `node`: bodies of functions too, bodies of `if TYPE_CHECKING:` not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from _runtime_nodes(other)
        else:
            yield child
            yield from _runtime_nodes(child)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    """The module that a `from … import` names, with its leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = source.name.split(".")
    keep = len(parts) - node.level + (1 if source.is_package else 0)
    return ".".join(parts[:keep] + ([node.module] if node.module else []))


def _import_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the file is imported: no body of a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            continue
        yield child
        yield from _import_time_nodes(child)


def imports(
    source: Source, modules: Iterable[str], *, at_import: bool = False
) -> Iterator[tuple[str, int]]:
    """(module, line) of what a file imports when it runs; `at_import`: leave functions out.

    modules: the project's own; `from a import b` means module `a.b` where that is one, else `a`.
    A package passed through on the way to a submodule is not counted: it is loaded first and
    needs nothing back. `importlib.import_module("…")` of a literal counts.
    """
    known = set(modules)
    for node in (_import_time_nodes if at_import else _runtime_nodes)(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source, node)
            for alias in node.names:
                longer = f"{base}.{alias.name}"
                yield (longer if longer in known else base), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, node.lineno


def module_graph(files: Iterable[Source]) -> dict[str, set[str]]:
    """Module -> the project's modules that it imports."""
    files = tuple(files)
    names = {source.name for source in files}
    return {
        source.name: {m for m, _ in imports(source, names) if m in names and m != source.name}
        for source in files
    }


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle (strongly connected, two or more)."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(graph[module])
        reach[start] = seen
    found: list[list[str]] = []
    done: set[str] = set()
    for module in sorted(graph):
        if module in done or module not in reach[module]:
            continue
        group = sorted(m for m in reach[module] if module in reach[m])
        done.update(group)
        found.append(group)
    return found
