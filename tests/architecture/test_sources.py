"""What holds for every source file: no code from the wire, docstrings, size, names."""

import ast
import importlib

import pytest

from fusec.trace import COUNTERS, STAGES
from tests.architecture.sources import Source, parse, sources

# Modules that turn bytes into live objects or code.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
# Functions of other modules that unpickle, or may.
UNSAFE_ATTRIBUTES = {
    "torch.load", "torch.save", "torch.jit.load", "torch.package", "yaml.load", "yaml.unsafe_load",
    "builtins.eval", "builtins.exec", "builtins.compile",
}  # fmt: skip
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "shared", "stuff"}
MAX_LINES = 500


def unsafe_uses(source: Source) -> list[str]:
    """Places of a file that unpickle or run text as code."""
    found = []
    for node in ast.walk(source.tree):
        what = None
        if isinstance(node, ast.Import):
            what = next(
                (a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES), None
            )
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] in UNSAFE_MODULES:
                what = module
            else:
                what = next(
                    (a.name for a in node.names if f"{module}.{a.name}" in UNSAFE_ATTRIBUTES), None
                )
        elif isinstance(node, ast.Name) and node.id in UNSAFE_CALLS:
            what = node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in UNSAFE_ATTRIBUTES:
            what = ast.unparse(node)
        if what is not None:
            found.append(f"{source.name}:{getattr(node, 'lineno', 0)} {what}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle.cloudpickle",
        "x = eval('1')",
        "run = exec",
        "import torch\ntorch.load('x')",
        "from torch import load",
    ],
)
def test_unsafe_uses_are_found(text):
    assert unsafe_uses(parse("fusec.x", text))


def test_no_pickle_and_no_code_from_text():
    assert [use for source in sources() for use in unsafe_uses(source)] == []


def test_every_module_says_what_it_is_for():
    assert [s.name for s in sources() if not (ast.get_docstring(s.tree) or "").strip()] == []


def test_no_file_is_over_the_limit():
    long = {s.name: s.text.count("\n") for s in sources() if s.text.count("\n") > MAX_LINES}
    assert long == {}


def test_names_say_what_a_module_holds():
    vague = [s.name for s in sources() if VAGUE_NAMES & set(s.name.split("."))]
    managers = [
        f"{s.name}.{node.name}"
        for s in sources()
        for node in ast.walk(s.tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Manager", "Helper", "Util"))
    ]
    assert (vague, managers) == ([], [])


def test_no_broad_except():
    """Catching everything hides faults; `except BaseException: …; raise` cleans up and is fine."""
    broad = []
    for source in sources():
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type else "BaseException"
            names = set(caught.strip("()").replace(" ", "").split(","))
            reraises = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
            if names & {"Exception", "BaseException"} and not reraises:
                broad.append(f"{source.name}:{node.lineno}")
    assert broad == []


def test_the_environment_is_read_in_one_place():
    """FUSEC_* is read by fusec/options.py, by the servers' configs, and nowhere else."""
    allowed = {"fusec.options", "cache.config", "farm.config"}
    reads = [
        f"{source.name}:{node.lineno} {ast.unparse(node)}"
        for source in sources()
        if source.name not in allowed
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call | ast.Subscript)
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        and ast.unparse(node).startswith(("os.environ.get(", "os.environ[", "os.getenv("))
        and "FUSEC_" in ast.unparse(node)
    ]
    assert reads == []


def test_recorded_names_are_declared():
    """A misspelt stage or counter would be a number that nobody reads."""
    unknown = []
    for source in sources():
        for node in ast.walk(source.tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
            ):
                continue
            owner, first = ast.unparse(node.func.value), node.args[0]
            if not owner.endswith("recorder") or not isinstance(first, ast.Constant):
                continue
            table = {"span": STAGES, "count": COUNTERS}.get(node.func.attr)
            if table is not None and first.value not in table:
                unknown.append(f"{source.name}:{node.lineno} {first.value}")
    assert unknown == []


@pytest.mark.parametrize("package", ["fusec", "farm", "cache"])
def test_public_names_resolve(package):
    missing = []
    for source in sources():
        if source.package != package or not any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for node in source.tree.body
        ):
            continue
        module = importlib.import_module(source.name)
        missing += [f"{source.name}.{name}" for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
