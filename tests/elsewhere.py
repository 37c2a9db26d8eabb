"""A device that is not there: tensors of the CPU that behave as if they lay on a GPU, and refuse to mix with others."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda", 0)
FACTS = {Tensor.device.__get__: DEVICE, Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}
HOST = (Tensor.numpy, Tensor.__array__)
TOGETHER = (torch.cat, torch.stack)  # take no number of the CPU either


class Mixed(Exception):
    """Tensors of two devices met, where torch has no way to compute with both."""


class Away(Tensor):
    """A tensor that stands for one of DEVICE."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return answer(func, args, kwargs or {})


class Elsewhere(TorchFunctionMode):
    """While it is entered, DEVICE can be asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return answer(func, args, kwargs or {})


def answer(func, args, kwargs):
    """What a call of torch comes to."""
    with torch._C.DisableTorchFunctionSubclass():
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        away = [isinstance(one, Away) for one in given]
        if func in FACTS and all(away):
            return FACTS[func]
        if func in HOST and any(away):
            raise TypeError("a tensor of another device cannot be read as an array; use .cpu()")
        if func is Tensor.pin_memory:
            return args[0]
        if func in (Tensor.cpu, Tensor.to, Tensor.cuda):
            return moved(func, args, kwargs)
        asked = kwargs.get("device")
        if asked is not None:
            kwargs = {**kwargs, "device": "cpu"}
        kwargs.pop("pin_memory", None)
        if func is not Tensor.copy_:
            check(func, args, given, away)
        there = torch.device(asked).type == "cuda" if asked is not None else any(away)
        return told(func(*args, **kwargs), given, there)


def moved(func, args, kwargs):
    """A tensor on the device that is asked for, in memory of its own if that is another."""
    x, *rest = args
    named = [*rest, *kwargs.values()]
    wanted = ["cpu"] if func is Tensor.cpu else [DEVICE] if func is Tensor.cuda else []
    for one in named:
        if isinstance(one, Tensor):
            wanted.append(DEVICE if isinstance(one, Away) else "cpu")
        elif isinstance(one, str | torch.device):
            wanted.append(one)
    there = torch.device(wanted[0]).type == "cuda" if wanted else isinstance(x, Away)
    kinds = [one.dtype if isinstance(one, Tensor) else one for one in named if isinstance(one, Tensor | torch.dtype)]
    same = there == isinstance(x, Away)
    found = x if not kinds or kinds[0] == x.dtype else x.to(kinds[0])
    if same:
        return found if found is x else told(found, [], there)
    return told(found.clone() if found is x else found, [], there)


def check(func, args, given, away):
    """Refuse what torch refuses: other tensors of the CPU than single numbers, and those as parts of a whole."""
    if all(away) or not any(away):
        return
    if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Away):
        given, away = given[:1], away[:1]  # places may be told by the CPU, and so may values, where places are none
        if len(args) > 2 and isinstance(args[2], Tensor) and any(isinstance(at, Tensor) for at in tree_leaves(args[1])):
            given, away = [*given, args[2]], [*away, isinstance(args[2], Away)]
    if func in TOGETHER or any(one.dim() for one, far in zip(given, away, strict=True) if not far):
        raise Mixed(f"{getattr(func, '__name__', func)} got tensors of both devices")


def told(found, given, there):
    """The results as tensors of the device; those that were given stay what they are."""
    if isinstance(found, Tensor):
        if any(found is one for one in given) or isinstance(found, Away) == there:
            return found
        return found.as_subclass(Away if there else Tensor)
    if isinstance(found, tuple | list):
        parts = [told(one, given, there) for one in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    if hasattr(found, "__next__"):
        return iter([told(one, given, there) for one in found])
    return found
