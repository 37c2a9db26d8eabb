"""Personalised federated learning with one-bit random sketches, byte-exact."""

from importlib import import_module
from typing import TYPE_CHECKING

from pfed1bs.core.reproducible import enable

if TYPE_CHECKING:
    from pfed1bs.algorithms import make
    from pfed1bs.algorithms.base.by_hand import OneBitCode, decode_step, encode_step, encode_update
    from pfed1bs.core.rng import stream
    from pfed1bs.core.sketch import Sketch, gaussian, srht
    from pfed1bs.core.transform import hadamard
    from pfed1bs.core.votes import pack, sign, unpack, vote
    from pfed1bs.data.dealing import federate
    from pfed1bs.data.sources import load
    from pfed1bs.engine.contract import Algorithm, Batches, Cohort, State
    from pfed1bs.engine.rest import resting
    from pfed1bs.engine.rounds import Schedule, simulate
    from pfed1bs.engine.scores import evaluate
    from pfed1bs.engine.trust import Trust
    from pfed1bs.nn.models import build
    from pfed1bs.nn.task import Task
    from pfed1bs.runs.trained import personal_model
    from pfed1bs.wire.codecs import Floats, Signs
    from pfed1bs.wire.messages import Codec, Layout, Message, Refused, decode, encode

__all__ = [
    "Algorithm",
    "Batches",
    "Codec",
    "Cohort",
    "Floats",
    "Layout",
    "Message",
    "OneBitCode",
    "Refused",
    "Schedule",
    "Signs",
    "Sketch",
    "State",
    "Task",
    "Trust",
    "build",
    "decode",
    "decode_step",
    "encode",
    "encode_step",
    "encode_update",
    "evaluate",
    "federate",
    "gaussian",
    "hadamard",
    "load",
    "make",
    "pack",
    "personal_model",
    "resting",
    "sign",
    "simulate",
    "srht",
    "stream",
    "unpack",
    "vote",
]
HOMES = {  # where each public name lives; loaded at first use, so that `pfed1bs --help` does not wait for torch
    "algorithms": ("make",),
    "algorithms.base.by_hand": ("OneBitCode", "decode_step", "encode_step", "encode_update"),
    "core.rng": ("stream",),
    "core.sketch": ("Sketch", "gaussian", "srht"),
    "core.transform": ("hadamard",),
    "core.votes": ("pack", "sign", "unpack", "vote"),
    "data": ("federate", "load"),
    "engine.contract": ("Algorithm", "Batches", "Cohort", "State"),
    "engine.rest": ("resting",),
    "engine.rounds": ("Schedule", "simulate"),
    "engine.scores": ("evaluate",),
    "engine.trust": ("Trust",),
    "nn.models": ("build",),
    "nn.task": ("Task",),
    "runs.trained": ("personal_model",),
    "wire.codecs": ("Floats", "Signs"),
    "wire.messages": ("Codec", "Layout", "Message", "Refused", "decode", "encode"),
}


def __getattr__(name: str) -> object:
    for module, names in HOMES.items():
        if name in names:
            globals()[name] = value = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


enable()
