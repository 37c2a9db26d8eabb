"""The registry: one file and one line per method."""

import difflib
from dataclasses import fields
from importlib import import_module

from pfed1bs.algorithm import Algorithm
from pfed1bs.task import Task

REGISTRY = {  # name on the command line: module and class
    "pfed1bs": "pfed1bs:PFed1BS",
    "pfed1bs-delta": "pfed1bs_delta:PFed1BSDelta",
    "local": "local:Local",
    "fedavg": "fedavg:FedAvg",
    "fedavg-ft": "fedavg:FedAvgFT",
    "obda": "obda:OBDA",
    "obcsaa": "obcsaa:OBCSAA",
    "zsign": "zsign:ZSignFedAvg",
    "eden": "eden:EDEN",
    "fedbat": "fedbat:FedBAT",
    "signsgd": "signsgd:SignSGD",
    "ef-sign": "ef_sign:EFSign",
    "stc": "stc:STC",
    "fedpaq": "fedpaq:FedPAQ",
    "ditto": "ditto:Ditto",
    "pfedme": "pfedme:PFedMe",
    "fedprox": "fedprox:FedProx",
    "fedper": "fedper:FedPer",
    "fedrep": "fedrep:FedRep",
    "perfedavg": "perfedavg:PerFedAvg",
    "apfl": "apfl:APFL",
    "fedproto": "fedproto:FedProto",
    "dispfl": "dispfl:DisPFL",
}
SHARED = ("task", "seed")  # fields that the run provides, not the user's [algorithm] table


def algorithm_class(name: str) -> type[Algorithm]:
    """The dataclass of a method by its name on the command line."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown algorithm {name!r}; did you mean {near!r}? There are {', '.join(REGISTRY)}")
    module, _, attribute = REGISTRY[name].partition(":")
    found: type[Algorithm] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def make(name: str, task: Task, seed: int = 0, **options: object) -> Algorithm:
    """The method `name` with its defaults, except for the options given."""
    found = algorithm_class(name)
    known = [field.name for field in fields(found) if field.name not in SHARED]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise ValueError(f"{name} has no option {key!r}; did you mean {near[0] if near else 'none'!r}?")
    return found(task=task, seed=seed, **options)  # type: ignore[call-arg]
