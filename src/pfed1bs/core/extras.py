"""What is imported at use: optional dependencies, and what users name."""

from importlib import import_module
from types import ModuleType

from pfed1bs.core.errors import Told, UserError


class Missing(Told, ImportError):
    """An optional package that is needed now."""


def need(module: str, extra: str) -> ModuleType:
    """The module, or an error that says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise Missing(f"this needs {name}, which is not installed", f"pip install 'pfed1bs[{extra}]'") from error


def parts(name: str) -> tuple[str, str]:
    """Module and attribute of "package.module:attribute"."""
    module, _, attribute = name.partition(":")
    if not all((*module.split("."), attribute)):
        raise UserError(f"{name} names nothing that can be imported", "write package.module:name")
    return module, attribute
