"""Personalised federated learning with one-bit random sketches, byte-exact."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from pfed1bs.reproducible import enable

if TYPE_CHECKING:
    from pfed1bs.algorithm import Algorithm, Batches, Cohort, State
    from pfed1bs.algorithms import make
    from pfed1bs.codecs import Floats, Signs
    from pfed1bs.data.federation import federate
    from pfed1bs.data.load import load
    from pfed1bs.evaluate import evaluate
    from pfed1bs.hadamard import hadamard
    from pfed1bs.models import build
    from pfed1bs.rng import stream
    from pfed1bs.simulate import Schedule, simulate
    from pfed1bs.sketch import Sketch, gaussian, srht
    from pfed1bs.task import Task
    from pfed1bs.trust import Trust
    from pfed1bs.votes import pack, sign, unpack, vote
    from pfed1bs.wire import Codec, Layout, Message, Refused, decode, encode

__all__ = [
    "Algorithm",
    "Batches",
    "Codec",
    "Cohort",
    "Floats",
    "Layout",
    "Message",
    "Refused",
    "Schedule",
    "Signs",
    "Sketch",
    "State",
    "Task",
    "Trust",
    "build",
    "decode",
    "encode",
    "evaluate",
    "federate",
    "gaussian",
    "hadamard",
    "load",
    "make",
    "pack",
    "sign",
    "simulate",
    "srht",
    "stream",
    "unpack",
    "vote",
]
HOMES = {  # where each public name lives; loaded at first use, so that `pfed1bs --help` does not wait for torch
    "algorithm": ("Algorithm", "Batches", "Cohort", "State"),
    "algorithms": ("make",),
    "codecs": ("Floats", "Signs"),
    "data": ("federate", "load"),
    "evaluate": ("evaluate",),
    "hadamard": ("hadamard",),
    "models": ("build",),
    "rng": ("stream",),
    "simulate": ("Schedule", "simulate"),
    "sketch": ("Sketch", "gaussian", "srht"),
    "task": ("Task",),
    "trust": ("Trust",),
    "votes": ("pack", "sign", "unpack", "vote"),
    "wire": ("Codec", "Layout", "Message", "Refused", "decode", "encode"),
}


class _Package(ModuleType):
    """Keeps a public function in front of the submodule of the same name (hadamard, simulate, evaluate)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        for module, names in HOMES.items():
            if name in names:
                value = getattr(import_module(f"{__name__}.{module}"), name)
                setattr(self, name, value)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
enable()
