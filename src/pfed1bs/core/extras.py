"""What is imported at use: optional dependencies, and what users name."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from pfed1bs.core.errors import Told, UserError

PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "tomli_w": "tomli-w"}  # where a module has another name


class Missing(Told, ImportError):
    """Optional packages that are needed now."""


def need(module: str, extra: str) -> ModuleType:
    """The module, or an error that says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing([module], extra) from error


def need_all(modules: Sequence[str], extra: str, also: Sequence[str] = ()) -> None:
    """Name all modules that are missing, before anything is done, and with them those that may be needed `also`."""
    if any(find_spec(module) is None for module in modules):
        raise _missing([module for module in (*modules, *also) if find_spec(module) is None], extra)


def _missing(modules: Sequence[str], extra: str) -> Missing:
    names = [module.partition(".")[0] for module in modules]
    install = f"pip install {' '.join(PACKAGES.get(name, name) for name in names)}"
    message = f"this needs {', '.join(names)}, which {'is' if len(names) == 1 else 'are'} not installed"
    return Missing(message, f"{install} (the whole extra, in a checkout: pip install -e '.[{extra}]')")


def imported(name: str, what: str, arguments: str) -> Callable[..., Any]:
    """The function "package.module:function" of a user, a model or another thing that takes these arguments."""
    module, function = parts(name)
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{what} {name!r} cannot be imported ({error})",
            f'write "package.module:function", where function takes {arguments}, and the package is installed, '
            "in this folder or on PYTHONPATH",
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
