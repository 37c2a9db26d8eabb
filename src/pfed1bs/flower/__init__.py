"""Real federations: the methods of this package on Flower, and one-bit news in an app that somebody has already."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfed1bs.flower.dropin_client import OneBit
    from pfed1bs.flower.dropin_server import OneBitFedAvg

__all__ = ["OneBit", "OneBitFedAvg"]
HOMES = {"OneBit": "dropin_client", "OneBitFedAvg": "dropin_server"}  # loaded at first use: they need Flower and torch


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
