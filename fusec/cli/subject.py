"""What a command works on: the function that a user names, and what it returns."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fusec.errors import OptionsError

if TYPE_CHECKING:
    from collections.abc import Callable


def imported(name: str) -> "Callable[[], object]":
    """The function that MODULE:FUNCTION names. Raises OptionsError where there is none."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionsError(f"{name!r} is not MODULE:FUNCTION", hint="mypackage.mymodule:example")
    if "" not in sys.path:  # as `python -m` does; the console script leaves the folder out
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise OptionsError(
            f"no module {error.name!r}", hint="run where it can be imported from"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise OptionsError(f"{module} has no function {attribute!r}")
    return found


def example(
    made: object, name: str
) -> "tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]":
    """What to call and with which arguments, from what the function `name` returned.

    Raises OptionsError for anything but a callable and its inputs: a tuple of arguments, a dict of
    keyword arguments, or one tensor.
    """
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
        raise OptionsError(
            f"{name}() returns {type(made).__name__}, not a callable and its inputs",
            hint="return (model, (x, y))",
        )
    function, inputs = made
    if isinstance(inputs, dict):
        return function, (), inputs
    return function, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}
