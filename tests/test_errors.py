"""The error tree: texts, and the way through a process border."""

import copy

import pytest

from fusec import errors
from fusec.errors import CompileError, FarmFailed, FusecError, LoweringError

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FusecError)
]


def test_text_names_what_where_and_what_to_do():
    error = LoweringError("no rule for aten.sinc", where="%12", hint="it runs as an ATen call")
    assert str(error) == "no rule for aten.sinc (at %12)\n  hint: it runs as an ATen call"


def test_compiler_output_is_shown():
    assert str(CompileError("gcc failed", output="x.c:1: error")).endswith("\nx.c:1: error")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_copies_keep_everything(kind):
    error = kind("message", where="here", hint="do that")
    again = copy.copy(error)
    assert type(again) is kind
    assert str(again) == str(error)


def test_own_fields_survive_a_copy():
    assert copy.copy(FarmFailed("no", kind="poison")).kind == "poison"
    assert copy.copy(CompileError("no", output="text")).output == "text"


def test_docstring_draws_the_whole_tree():
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in ALL if kind.__name__ not in errors.__doc__] == []
