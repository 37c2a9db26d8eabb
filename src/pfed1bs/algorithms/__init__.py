"""The registry: one file and one line per method."""

from dataclasses import fields, is_dataclass
from importlib import import_module

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import parts
from pfed1bs.core.options import PROVIDED, check, keys
from pfed1bs.engine.contract import CONTRACT, Algorithm
from pfed1bs.nn.task import Task

REGISTRY = {  # name on the command line: module and class
    "pfed1bs": "pfed1bs:PFed1BS",
    "pfed1bs-delta": "pfed1bs_delta:PFed1BSDelta",
    "delta-float32": "delta_float32:DeltaFloat32",
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
    "decomfl": "decomfl:DeComFL",
    "ferret": "ferret:Ferret",
    "powersgd": "powersgd:PowerSGD",
    "eden-two": "eden_two:EdenTwo",
    "ditto": "ditto:Ditto",
    "pfedme": "pfedme:PFedMe",
    "fedprox": "fedprox:FedProx",
    "fedper": "fedper:FedPer",
    "fedrep": "fedrep:FedRep",
    "perfedavg": "perfedavg:PerFedAvg",
    "apfl": "apfl:APFL",
    "fedproto": "fedproto:FedProto",
    "dispfl": "dispfl:DisPFL",
    "fedbn": "fedbn:FedBN",
    "knnper": "knnper:KNNPer",
    "scaffold": "scaffold:Scaffold",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The dataclass of a method by its name on the command line, or your own by "package.module:Class"."""
    if ":" in name:
        return _own(name)
    if name not in REGISTRY:
        raise UserError(f"unknown algorithm {name}", f'{nearest(name, REGISTRY)} Your own: "package.module:Class"')
    module, _, attribute = REGISTRY[name].partition(":")
    found: type[Algorithm] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def make(name: str, task: Task, seed: int = 0, **options: object) -> Algorithm:
    """The method `name` with its defaults, except for the options given; they are as strict as on the command line."""
    found = algorithm_class(name)
    known = keys(found)
    for key in options:
        if key not in known:
            raise UserError(f"{name} has no option {key}", nearest(key, known))
    check(found, options, "algorithm.")
    return found(task=task, seed=seed, **options)  # type: ignore[call-arg]


def _own(name: str) -> type[Algorithm]:
    """Somebody's class, if it says all that a method has to say."""
    module, attribute = parts(name)
    try:
        found: type[Algorithm] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        hint = "write package.module:Class; the package is installed, in this folder or on PYTHONPATH"
        raise UserError(f"algorithm {name} cannot be imported ({error})", hint) from error
    if not isinstance(found, type) or not is_dataclass(found):
        raise UserError(f"algorithm {name} must be a dataclass", "put @dataclass(frozen=True) before the class")
    given = {item.name for item in fields(found)}
    lacking = getattr(found, "__abstractmethods__", frozenset())  # of a class that inherits from Algorithm
    missing = [part for part in PROVIDED if part not in given]
    said = [part for part in CONTRACT if part not in (*given, *PROVIDED)]
    missing += [part for part in said if part in lacking or not hasattr(found, part)]
    if missing:
        raise UserError(
            f"algorithm {name} lacks {', '.join(missing)}",
            "pfed1bs.Algorithm says what each of them is, and pfed1bs.extend.Method has most of them to inherit",
        )
    return found
