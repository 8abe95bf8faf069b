"""No import cycles, and the arrows between the packages: farm -> fusec -> cache."""

import json
import resource
import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT, cycles, imports, module_graph, parse, sources

# Package -> the packages of the project that it may import.
ARROWS = {"farm": {"farm", "fusec", "cache"}, "fusec": {"fusec", "cache"}, "cache": {"cache"}}
# What only the extras `cache` and `farm` bring.
EXTRAS = {"ray", "boto3", "botocore", "starlette", "uvicorn", "prometheus_client"}


def test_no_import_cycles():
    assert cycles(module_graph(sources())) == []


def test_a_cycle_through_a_function_is_found():
    files = [
        parse("fusec.a", "def f():\n    from fusec import b\n"),
        parse("fusec.b", "from fusec.c import x\n"),
        parse("fusec.c", "from . import a\n"),
        parse("fusec.d", "if TYPE_CHECKING:\n    import fusec.e\n"),
        parse("fusec.e", "import fusec.d\n"),
    ]
    assert cycles(module_graph(files)) == [["fusec.a", "fusec.b", "fusec.c"]]


def test_arrows_between_packages():
    names = {source.name for source in sources()}
    wrong = [
        f"{source.name}:{line} imports {module}"
        for source in sources()
        for module, line in imports(source, names)
        if module.split(".")[0] in ARROWS and module.split(".")[0] not in ARROWS[source.package]
    ]
    assert wrong == []


def test_cache_imports_neither_torch_nor_ray():
    wrong = [
        f"{source.name}:{line} imports {module}"
        for source in sources()
        if source.package == "cache"
        for module, line in imports(source, ())
        if module.split(".")[0] in {"torch", "ray", "triton"}
    ]
    assert wrong == []


def test_the_client_needs_no_extra():
    """Whatever `fusec` loads at import, through any module of ours, comes without extras."""
    by_name = {source.name: source for source in sources()}
    todo = [name for name in by_name if name.split(".")[0] == "fusec"]
    seen: set[str] = set()
    wrong = []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for module, line in imports(by_name[name], by_name, at_import=True):
            if module in by_name:
                todo.append(module)
            elif module.split(".")[0] in EXTRAS:
                wrong.append(f"{name}:{line} imports {module}")
    assert wrong == []


def _loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_import_fusec_loads_nothing_heavy():
    loaded = _loaded_by("import fusec")
    assert not loaded & {"torch", "numpy", "ray", "httpx", "rich", "msgpack", "boto3", "sympy"}


def test_importing_all_of_cache_loads_no_torch():
    names = [s.name for s in sources() if s.package == "cache" and "__main__" not in s.name]
    if not names:
        pytest.fail("the package `cache` has no module")
    assert not _loaded_by("import " + ", ".join(names)) & {"torch", "ray", "fusec", "farm"}


def test_import_fusec_takes_under_50_ms():
    """Of the processor, against a bare interpreter: a busy machine must not fail it."""

    def seconds(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(seconds("pass") for _ in range(5))
    fusec = min(seconds("import fusec") for _ in range(5))
    assert fusec - bare < 0.05
