"""Models of known layers computed for all clients at once, without the overhead of vmap.

The activations of K clients are kept as one batch of K * B samples, client after client, so that a layer that treats
samples one by one runs as it is. Linear layers are one batched product each and write the gradients of their weights
straight to where the caller wants them. Other known layers with weights go through vmap one by one.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import FunctionCtx
from torch.func import functional_call, vmap
from torch.nn import functional as F

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
WEIGHTED_LAYERS = (*CONVOLUTIONS, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.PReLU)
PLAIN_LAYERS = (
    *(nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
)
PLAIN_FUNCTIONS = (
    *(F.relu, F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, torch.relu, torch.tanh, torch.sigmoid),
    *(F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    *(operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul),
)
PLAIN_METHODS = ("relu", "tanh", "sigmoid", "contiguous")


@dataclass(frozen=True)
class Places:
    """Where keep * value + scale * gradient is to be written over the value, by parameter name, and what is done."""

    out: Mapping[str, Tensor] = field(default_factory=dict)
    keep: float = 1.0
    scale: float = 1.0
    done: set[str] = field(default_factory=set)

    def add(self, name: str, gradient: Tensor | None) -> None:
        """Do it for one parameter, or add a further gradient if it was done."""
        place = self.out[name]
        if self.keep != 1 and name not in self.done:
            place.mul_(self.keep)
        if gradient is not None:
            place.add_(gradient, alpha=self.scale)
        self.done.add(name)

    def add_product(self, name: str, left: Tensor, right: Tensor) -> None:
        """The same for the gradient left @ right of every client."""
        place = self.out[name]
        if place.device.type == "cpu" and torch.get_num_threads() > 1:
            # Several threads would share each client's small product and wait for each other after every one of them.
            self.add(name, torch.bmm(left, right))
        else:
            place.baddbmm_(left, right, beta=self.keep, alpha=self.scale)
            self.done.add(name)


@dataclass
class Pass:
    """One computation of a plan with stacked values by name."""

    module: nn.Module  # whose layers are called; values are swapped in and out of them, so every thread has its own
    clients: int
    values: Mapping[str, Tensor]
    places: Places  # apart from the features, which would tie the graph and this object into a knot never freed
    features: Tensor | None = None  # (K, B, ...) what the head saw


Step = Callable[[Pass, Sequence[object], Mapping[str, object]], object]
Plan = Callable[[Pass, Tensor], Tensor]  # inputs (K, B, ...) -> outputs (K, B, ...)


def plan(module: nn.Module, names: Iterable[str], head: str | None) -> Plan | None:
    """How to compute the module for all clients in its present mode; None where a part of it is not known.

    `names` are the parameters and buffers that a Pass will hold; the input of the layer `head` is kept as features.
    Tracing changes how all modules are called while it lasts: no other thread may compute meanwhile.
    """
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    try:
        graph = fx.Tracer().trace(module)
    except (fx.proxy.TraceError, TypeError, AttributeError, RuntimeError, ValueError):
        return None  # symbolic inputs do not suit every module; vmap says what is wrong if it cannot stack it either
    steps: list[tuple[fx.Node, Step]] = []
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    kinds: dict[fx.Node, str] = {}  # "batch": a tensor of all samples; "size": an integer for reshaping
    for node in graph.nodes:
        if node.op == "output":
            return _runner(steps, node.args[0]) if kinds.get(node.args[0]) == "batch" else None
        found = _layer(module, node, set(names), head, calls) if node.op == "call_module" else _function(node, kinds)
        if found is None:
            return None
        kinds[node], step = found
        steps.append((node, step))
    return None


def _runner(steps: Sequence[tuple[fx.Node, Step]], output: fx.Node) -> Plan:
    def run(now: Pass, x: Tensor) -> Tensor:
        values: dict[fx.Node, object] = {}
        for node, step in steps:
            args = (x.flatten(0, 1),) if node.op == "placeholder" else tuple(_filled(node.args, values))
            values[node] = step(now, args, node.kwargs)
        return _split(now, values[output])

    return run


def _filled(args: Iterable[object], values: Mapping[fx.Node, object]) -> Iterable[object]:
    for arg in args:
        if isinstance(arg, fx.Node):
            yield values[arg]
        else:
            yield tuple(_filled(arg, values)) if isinstance(arg, tuple | list) else arg


def _function(node: fx.Node, kinds: Mapping[fx.Node, str]) -> tuple[str, Step] | None:
    """The step of an input, a function or a method that treats samples one by one; None for all others."""
    target = node.target
    of = [kinds[source] for source in node.all_input_nodes]
    if node.op == "placeholder":
        return ("batch", lambda _, args, __: args[0]) if not kinds else None
    if node.op not in ("call_function", "call_method") or any(isinstance(v, fx.Node) for v in node.kwargs.values()):
        return None
    if target in PLAIN_FUNCTIONS or (node.op == "call_method" and target in PLAIN_METHODS):
        return ("batch", _call(node)) if set(of) == {"batch"} else None
    if target in (torch.flatten, "flatten"):
        starts = [*node.args[1:2], node.kwargs.get("start_dim")]
        return ("batch", _call(node)) if of == ["batch"] and 1 in starts else None
    if target in ("view", "reshape") and len(node.args) > 1:
        shape = node.args[1:] if not isinstance(node.args[1], tuple | list) else node.args[1]
        kept = shape[0] == -1 or (isinstance(shape[0], fx.Node) and kinds[shape[0]] == "size")
        return ("batch", _call(node)) if kept and of[0] == "batch" and "batch" not in of[1:] else None
    if target == "size" or (target is getattr and node.args[1] == "shape") or target is operator.getitem:
        return ("size", _call(node)) if target is not operator.getitem or of == ["size"] else None
    return None


def _call(node: fx.Node) -> Step:
    if callable(node.target):
        function: Callable[..., object] = node.target
        return lambda _, args, kwargs: function(*args, **kwargs)
    return lambda _, args, kwargs: getattr(args[0], str(node.target))(*args[1:], **kwargs)


def _layer(
    module: nn.Module, node: fx.Node, names: set[str], head: str | None, calls: Sequence[object]
) -> tuple[str, Step] | None:
    """The step of a known layer; None for others, and for weights that go by another name (tied ones)."""
    name = str(node.target)
    layer = module.get_submodule(name)
    own = [key for key, _ in (*layer.named_parameters(), *layer.named_buffers())]
    if len(node.args) != 1 or node.kwargs or not names.issuperset(f"{name}.{key}" for key in own):
        return None
    if type(layer) is nn.Linear:
        return "batch", _linear(name, name == head, calls.count(name) == 1)
    if type(layer) in PLAIN_LAYERS or (type(layer) is nn.Flatten and layer.start_dim == 1):
        return "batch", lambda now, args, _: now.module.get_submodule(name)(*args)
    if type(layer) in WEIGHTED_LAYERS:
        return "batch", _weighted(name, own)
    return None


def _weighted(name: str, own: Sequence[str]) -> Step:
    def step(now: Pass, args: Sequence[object], _: Mapping[str, object]) -> Tensor:
        layer = now.module.get_submodule(name)
        values = {key: now.values[f"{name}.{key}"] for key in own}
        result: Tensor = vmap(lambda own, x: functional_call(layer, own, (x,)))(values, _split(now, args[0]))
        return result.flatten(0, 1)

    return step


def _linear(name: str, is_head: bool, once: bool) -> Step:
    def step(now: Pass, args: Sequence[object], _: Mapping[str, object]) -> Tensor:
        x = _split(now, args[0])
        if is_head:
            now.features = x
        weight, bias = now.values[f"{name}.weight"], now.values.get(f"{name}.bias")
        places = now.places if once else Places()  # a layer's weight may be written over when it has done its work
        y: Tensor = _Linear.apply(x.flatten(1, -2), weight, bias, places, name)  # type: ignore[no-untyped-call]
        return y.reshape(-1, *x.shape[2:-1], y.shape[-1])

    return step


def _split(now: Pass, x: object) -> Tensor:
    """(K * B, ...) as (K, B, ...)."""
    assert isinstance(x, Tensor)
    return x.reshape(now.clients, -1, *x.shape[1:])


class _Context(FunctionCtx):
    """What the linear layer keeps for its gradient."""

    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]
    places: Places
    name: str


class _Linear(torch.autograd.Function):
    """x W^T + b for (K, B, in), (K, out, in), (K, out); gradients of W and b go to their places, if any."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor | None, places: Places, name: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.places, ctx.name = places, name
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: _Context, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        places, names = ctx.places, (f"{ctx.name}.weight", f"{ctx.name}.bias")
        to_x = torch.bmm(g, weight) if ctx.needs_input_grad[0] else None  # before the weight may be written over
        wanted = [
            needed and name not in places.out for needed, name in zip(ctx.needs_input_grad[1:3], names, strict=True)
        ]
        if names[0] in places.out:
            places.add_product(names[0], g.mT, x)
        if names[1] in places.out:
            places.add(names[1], g.sum(1))
        return to_x, torch.bmm(g.mT, x) if wanted[0] else None, g.sum(1) if wanted[1] else None, None, None
