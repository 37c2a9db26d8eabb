"""Models of known layers computed and differentiated for all clients at once, without the overhead of vmap.

Activations are (K, B, ...); a layer that treats samples one by one runs as it is on all K * B of them. Linear layers
are one batched product each, and write what becomes of their weights straight to its place; they keep the samples as
the fastest axis, which suits products of small batches. Other known layers with weights go through vmap one by one.

On the CPU, all but linear layers, ReLU and changes of shape go client by client: torch computes the last few numbers of
a tensor by other code than the rest, and chooses the order of sums by all sizes, so that a client's bits would depend
on the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap

Convolving = Literal["stacked", "kernels", "fanned"]  # through vmap, in our kernels, by the library client by client


@dataclass(frozen=True)
class Places:
    """Where keep * value + scale * gradient is to be written over the value, by parameter name, and what is done.

    With keep = 0 the value before does not count, not even if it is NaN.
    """

    out: Mapping[str, Tensor]
    keep: float = 1.0
    scale: float = 1.0
    done: set[str] = field(default_factory=set)

    def add(self, name: str, gradient: Tensor | None) -> None:
        """Do it for one parameter, or add a further gradient if it was done."""
        place = self.out[name]
        if self.keep != 1 and name not in self.done:
            place.mul_(self.keep) if self.keep else place.zero_()
        if gradient is not None:
            place.add_(gradient, alpha=self.scale)
        self.done.add(name)

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """The same for the gradient left @ right of every client."""
        self.out[name].baddbmm_(left, right, beta=self.keep, alpha=self.scale)
        self.done.add(name)


@dataclass
class Pass:
    """One computation of all clients with stacked values by name."""

    module: nn.Module  # whose layers are called; values are swapped in and out of them, so every thread has its own
    clients: int
    values: Mapping[str, Tensor]
    places: Places | None  # None: no gradient will be asked for
    features: Tensor | None = None  # (K, B, ...) what the head saw
    to_features: Tensor | None = None  # the gradient with respect to them of another loss
    late: list[tuple[str, Tensor]] = field(default_factory=list)  # gradients of weights that may still be needed
    way: Convolving = "stacked"  # where it can be gone; normalisations are ours in the other two


Key = TypeVar("Key")
Nodes = Sequence[fx.Node]
Pull = Callable[[Pass, Tensor], Sequence[Tensor]]  # gradient of a value -> gradients of its live sources
Step = Callable[[Pass, Mapping[fx.Node, object]], tuple[object, Pull | None]]
Backward = Callable[[Tensor], None]  # gradient of the outputs (K, B, ...) -> every parameter's in its place


@dataclass(frozen=True)
class Program:
    """The steps of a module, each with its node and its live sources: those that depend on weights."""

    input: fx.Node
    steps: Sequence[tuple[fx.Node, Step, Nodes]]
    output: fx.Node

    def __call__(self, now: Pass, x: Tensor) -> tuple[Tensor, Backward]:
        """Outputs for inputs (K, B, ...), and the way back."""
        values: dict[fx.Node, object] = {self.input: x}
        pulls: list[tuple[fx.Node, Pull, Nodes]] = []
        for node, step, sources in self.steps:
            values[node], pull = step(now, values)
            if pull is not None:
                pulls.append((node, pull, sources))
        return tensor(values[self.output]), lambda error: self._back(now, pulls, error)

    def _back(self, now: Pass, pulls: Sequence[tuple[fx.Node, Pull, Nodes]], error: Tensor) -> None:
        gradients: dict[fx.Node, Tensor] = {self.output: error}
        for node, pull, sources in reversed(pulls):
            if node in gradients:
                for source, part in zip(sources, pull(now, gradients.pop(node)), strict=True):
                    gradients[source] = gradients[source] + part if source in gradients else part
        for name, gradient in now.late:
            placed(now).add(name, gradient)


INPUT = ""  # its key among the values of a layer


def linear(node: fx.Node, sources: Nodes, is_head: bool, once: bool) -> Step:
    """Inputs times W^T plus b; called once, a layer may write over its weight when it has passed the gradient on."""
    weight_name, bias_name, [source] = f"{node.target}.weight", f"{node.target}.bias", node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        x, weight, bias = tensor(values[source]), now.values[weight_name], now.values.get(bias_name)
        rows = x.flatten(1, -2)  # (K, B, in)
        columns = rows.mT
        y = torch.bmm(weight, columns) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, columns)
        if is_head:
            now.features = x

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            g = g.flatten(1, -2).mT  # (K, out, B)
            back = [torch.bmm(weight.mT, g).mT.reshape(x.shape)] if sources else []
            if back and now.features is x and now.to_features is not None:
                back = [back[0] + now.to_features]
            places = placed(now)
            if weight_name in places.out and once:
                places.add_product(weight_name, g, rows)
            elif weight_name in places.out:
                now.late.append((weight_name, torch.bmm(g, rows)))
            if bias_name in places.out:
                places.add(bias_name, g.sum(2))
            return back

        return y.mT.reshape(*x.shape[:-1], y.shape[1]), pull

    return step


def weighted(node: fx.Node, sources: Nodes, own: Sequence[str]) -> Step:
    """A layer with the weights and buffers `own`, through vmap."""
    [source] = node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull | None]:
        layer, x = now.module.get_submodule(str(node.target)), tensor(values[source])
        stacks = {key: now.values[f"{node.target}.{key}"].data for key in own}  # others may change while it waits

        def call(own: dict[str, Tensor]) -> Tensor:
            x = own.pop(INPUT)
            if len(x) > 1:
                return tensor(vmap(lambda own, x: functional_call(layer, own, (x,)))(own, x))
            return tensor(functional_call(layer, {key: value[0] for key, value in own.items()}, (x[0],))).unsqueeze(0)

        moving = now.places.out if now.places is not None else {}
        leaves = {key: leaf(stacks[key]) for key in own if f"{node.target}.{key}" in moving}
        if now.places is None or not (leaves or sources):
            return apart(call, {**stacks, INPUT: x}), None
        inputs = leaf(x) if sources else x
        with torch.enable_grad():
            y = apart(call, {**stacks, **leaves, INPUT: inputs})

        def pull(now: Pass, g: Tensor) -> Sequence[Tensor]:
            to = torch.autograd.grad(y, [*leaves.values(), *([inputs] if sources else [])], g)
            now.late.extend((f"{node.target}.{key}", part) for key, part in zip(leaves, to, strict=False))
            return to[len(leaves) :]

        return y.detach(), pull

    return step


def relu(node: fx.Node, in_place: bool) -> Step:
    """max(x, 0), over x itself if nobody else needs it."""
    [source] = node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        x = tensor(values[source])
        y = x.relu_() if in_place else x.relu()
        return y, lambda _, g: [torch.ops.aten.threshold_backward(g, y, 0)]

    return step


def reshaped(node: fx.Node) -> Step:
    """The same numbers in another shape."""

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        shape = tensor(values[node.all_input_nodes[0]]).shape
        return tensor(called(now, node, values)), lambda _, g: [g.reshape(shape)]

    return step


def plain(node: fx.Node, sources: Nodes) -> Step:
    """A layer, function or method without weights; autograd knows its derivative."""

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[object, Pull | None]:
        inputs = {source: tensor(values[source]) for source in node.all_input_nodes}
        leaves = {source: leaf(inputs[source]) for source in sources} if now.places is not None else {}
        with torch.set_grad_enabled(bool(leaves)):
            y = apart(lambda own: tensor(called(now, node, own)), {**inputs, **leaves})
        return y.detach(), (lambda _, g: torch.autograd.grad(y, list(leaves.values()), g)) if leaves else None

    return step


def measured(node: fx.Node) -> Step:
    """A size, or one of several."""
    return lambda now, values: (called(now, node, values), None)


def apart(call: Callable[[dict[Key, Tensor]], Tensor], stacks: Mapping[Key, Tensor]) -> Tensor:
    """A function of stacked values; on the CPU one client after the other."""
    if any(value.device.type != "cpu" for value in stacks.values()):
        return call(dict(stacks))
    rows = zip(*(torch.split(value, 1) for value in stacks.values()), strict=True)
    return torch.cat([call(dict(zip(stacks, row, strict=True))) for row in rows])


def called(now: Pass, node: fx.Node, values: Mapping[fx.Node, object]) -> object:
    """The value of a node that treats samples one by one, for all clients or some of them."""
    args, first = list(_filled(node.args, values)), values[node.all_input_nodes[0]]
    if node.op == "call_module":
        value: object = now.module.get_submodule(str(node.target))(*args)
    elif node.op == "call_method":
        value = getattr(args[0], str(node.target))(*args[1:], **node.kwargs)
    else:
        assert callable(node.target)
        value = node.target(*args, **node.kwargs)
    return value.reshape(len(tensor(first)), -1, *value.shape[1:]) if isinstance(value, Tensor) else value


def _filled(args: Iterable[object], values: Mapping[fx.Node, object]) -> Iterable[object]:
    for arg in args:
        if isinstance(arg, fx.Node):
            value = values[arg]
            yield value.flatten(0, 1) if isinstance(value, Tensor) else value
        else:
            yield tuple(_filled(arg, values)) if isinstance(arg, tuple | list) else arg


def leaf(x: Tensor) -> Tensor:
    """A variable with the value of x; .data, so that x may be written over after the last use of the variable."""
    return x.data.requires_grad_()


def tensor(x: object) -> Tensor:
    """It is one."""
    assert isinstance(x, Tensor)
    return x


def placed(now: Pass) -> Places:
    """The places of a pass that goes back."""
    assert now.places is not None
    return now.places
