"""Batch normalisation and the ReLU and pooling that follow it, as one step."""

from collections.abc import Mapping, Sequence

from torch import Tensor, fx, nn

from pfed1bs.nn import cuda_normalisations
from pfed1bs.nn.cuda_normalisations import VALUES, Layer
from pfed1bs.nn.stacked import Nodes, Pass, Pull, Step, placed, tensor

Parts = Sequence[tuple[fx.Node, Step]]  # each the only reader of the one before


def normalisation(parts: Parts, sources: Nodes, after: Sequence[str]) -> Step:
    """A normalisation and what comes `after` it in our own kernels where a pass asks for them, otherwise in turn."""
    [source], name, other = parts[0][0].all_input_nodes, str(parts[0][0].target), in_turn(parts)

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[object, Pull | None]:
        if now.way == "stacked":
            return other(now, values)
        x, layer = tensor(values[source]).contiguous(), found(now, name, after)
        if not cuda_normalisations.usable(x, layer):
            return other(now, values)
        y, kept = cuda_normalisations.normalised(x, layer)

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            back, *own = cuda_normalisations.differentiated(x, g.contiguous(), layer, kept)
            names = (f"{name}.weight", f"{name}.bias")
            now.late.extend((key, part) for key, part in zip(names, own, strict=True) if key in placed(now).out)
            return [back] if sources else []

        return y, pull

    return step


def found(now: Pass, name: str, after: Sequence[str]) -> Layer:
    """The layer of this name with every client's values."""
    module = now.module.get_submodule(name)
    assert isinstance(module, nn.BatchNorm2d) and module.momentum is not None
    weight, bias, mean, var, batches = (now.values[f"{name}.{key}"] for key in VALUES)
    pool, relu = 2 if "pool" in after else 1, "relu" in after
    return Layer(weight, bias, mean, var, batches, module.eps, module.momentum, module.training, pool, relu)


def in_turn(parts: Parts) -> Step:
    """Steps one after the other as one."""

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[object, Pull | None]:
        own, pulls = dict(values), []
        for node, part in parts:
            own[node], pull = part(now, own)
            pulls.append(pull)

        def back(now: Pass, g: Tensor) -> Sequence[Tensor]:
            gradients: Sequence[Tensor] = [g]
            for pull in reversed(pulls):
                gradients = pull(now, *gradients) if pull is not None else []
            return gradients

        return own[parts[-1][0]], back

    return step
