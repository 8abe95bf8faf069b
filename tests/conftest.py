"""Fixtures for every test: golden files."""

import difflib
import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing; read the diff before a commit",
    )


class Golden:
    """Compares a text with `tests/golden/<name>`; call it with the name and the text."""

    def __init__(self, update: bool) -> None:
        self.update = update

    def __call__(self, name: str, text: str) -> None:
        """Fail with a diff when `text` is not what the file `name` holds.

        name: a relative path such as `lower/softmax.txt`.
        """
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name) or ".." in name:
            raise ValueError(f"not a golden file's name: {name!r}")
        path = GOLDEN / name
        if not text.endswith("\n"):
            text += "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(
                f"no golden file {path}: run with --update-golden and look at it", pytrace=False
            )
        expected = path.read_text()
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(True), text.splitlines(True), f"golden/{name}", "now"
            )
            pytest.fail("differs from its golden file:\n" + "".join(diff), pytrace=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a file under tests/golden; `--update-golden` writes it."""
    return Golden(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what stands in for a GPU is kept: built once for all tests and their processes."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base
