"""What is imported at use: optional dependencies, and what users name."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from pfed1bs.core.errors import Told, UserError


class Missing(Told, ImportError):
    """An optional package that is needed now."""


def need(module: str, extra: str) -> ModuleType:
    """The module, or an error that says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise Missing(
            f"this needs {name}, which is not installed", f"pip install 'pfed1bs[{extra}]', in a clone '.[{extra}]'"
        ) from error


def imported(name: str, what: str, arguments: str) -> Callable[..., Any]:
    """The function "package.module:function" of a user, a model or another thing that takes these arguments."""
    module, function = parts(name)
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{what} {name!r} cannot be imported ({error})",
            f'write "package.module:function", where function takes {arguments}, and the package is installed or on '
            "PYTHONPATH",
        ) from error
    if not callable(found):
        raise UserError(f"{what} {name!r} must name a function of {arguments}, got {type(found).__name__}")
    return cast(Callable[..., Any], found)


def parts(name: str) -> tuple[str, str]:
    """Module and attribute of "package.module:attribute"."""
    module, _, attribute = name.partition(":")
    if not all((*module.split("."), attribute)):
        raise UserError(f"{name} names nothing that can be imported", "write package.module:name")
    return module, attribute
