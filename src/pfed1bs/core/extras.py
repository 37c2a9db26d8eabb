"""Optional dependencies, imported at use."""

from importlib import import_module
from types import ModuleType

from pfed1bs.core.errors import Told


class Missing(Told, ImportError):
    """An optional package that is needed now."""


def need(module: str, extra: str) -> ModuleType:
    """The module, or an error that says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise Missing(f"this needs {name}, which is not installed", f"pip install 'pfed1bs[{extra}]'") from error
