"""Which steps a module consists of, found by tracing it."""

import operator
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from pfed1bs.nn import cuda_normalisations
from pfed1bs.nn.convolved import Conv, convolution
from pfed1bs.nn.dropout import Dropout
from pfed1bs.nn.normalised import normalisation
from pfed1bs.nn.sequences import embedding, recurrent
from pfed1bs.nn.sequences import known as known_sequence
from pfed1bs.nn.stacked import Nodes, Program, Step, linear, measured, plain, relu, reshaped, weighted

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
WEIGHTED_LAYERS = (*CONVOLUTIONS, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.PReLU)
PLAIN_LAYERS = (
    *(nn.Identity, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
)
PLAIN_FUNCTIONS = (
    *(F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, torch.tanh, torch.sigmoid, "tanh", "sigmoid"),
    *(F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    *(operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul),
)
RELUS = (nn.ReLU, F.relu, torch.relu, "relu")
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, F.max_pool1d, F.max_pool2d)


class _Tracer(fx.Tracer):
    """Takes layers that draw from a client's key as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Dropout) or super().is_leaf_module(m, module_qualified_name)


def program(module: nn.Module, names: Iterable[str], head: str | None) -> Program | str:
    """How to compute the module for all clients in its present mode, or what part of it is not known.

    `names` are the parameters and buffers that a Pass will hold; the input of the layer `head` is kept as features.
    Tracing changes how all modules are called while it lasts: no other thread may compute meanwhile.
    """
    graph = _traced(module)
    return graph if isinstance(graph, str) else _Compiler(module, set(names), head, graph).program()


def pool_first(module: nn.Module) -> nn.Module:
    """A module that has every ReLU after the max-pooling that follows it; the same one where there is no such pair.

    The numbers are the same, gradients too: the largest of some values is below 0 if they all are, and passes nothing
    on. There are fewer of them.
    """
    graph, changed = _traced(module), False
    for pool in [] if isinstance(graph, str) else list(graph.nodes):
        relu = pool.args[0] if pool.args and _kind(module, pool) in MAX_POOLS else None
        if isinstance(relu, fx.Node) and _kind(module, relu) in RELUS and len(relu.users) == 1:
            [source] = relu.all_input_nodes
            pool.replace_all_uses_with(relu)
            pool.replace_input_with(relu, source)
            relu.replace_input_with(source, pool)
            pool.append(relu)
            changed = True
    found = fx.GraphModule(module, graph).train(module.training) if changed and not isinstance(graph, str) else module
    return found if len(found.state_dict()) == len(module.state_dict()) else module  # unused layers would get lost


def _traced(module: nn.Module) -> fx.Graph | str:
    """The module's graph, or why it has none."""
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return "it has hooks"
    try:
        return _Tracer().trace(module)
    except (fx.proxy.TraceError, TypeError, AttributeError, RuntimeError, ValueError):
        return "its forward needs more than symbolic inputs"  # vmap says what is wrong if it cannot stack it either


def _kind(module: nn.Module, node: fx.Node) -> object:
    """The class of a layer, a function, or the name of a method."""
    return type(module.get_submodule(str(node.target))) if node.op == "call_module" else node.target


class _Compiler:
    """Finds the step of every node, or that it is not known to treat samples one by one."""

    def __init__(self, module: nn.Module, names: set[str], head: str | None, graph: fx.Graph) -> None:
        self.module, self.names, self.head, self.graph = module, names, head, graph
        self.calls = [node.target for node in graph.nodes if node.op == "call_module"]
        self.sizes: set[fx.Node] = set()  # integers for reshaping
        self.live: set[fx.Node] = set()  # what depends on weights

    def program(self) -> Program | str:
        """All steps, or the first that is not known."""
        first, *nodes, last = self.graph.nodes
        steps: list[tuple[fx.Node, Step, Nodes]] = []
        for node in nodes:
            if node.target is operator.getitem and not node.users:
                continue  # the last state of a recurrent layer, unpacked and left alone
            sources = [source for source in node.all_input_nodes if source in self.live]
            step = self.layer(node, sources) if node.op == "call_module" else self.function(node, sources)
            if step is None:
                kind = _kind(self.module, node)
                what = f"{node.name} ({kind.__name__})" if isinstance(kind, type) else node.name
                return f"its part {what} is not known to treat samples one by one"
            if sources and node not in self.sizes:
                self.live.add(node)
            steps.append((node, step, sources))
        whole = isinstance(last.args[0], fx.Node) and last.args[0] in self.live
        return Program(first, self.joined(steps), last.args[0]) if whole else "its outputs do not depend on its weights"

    def joined(self, steps: Sequence[tuple[fx.Node, Step, Nodes]]) -> list[tuple[fx.Node, Step, Nodes]]:
        """The steps, those of a normalisation and of the pooling and ReLU that follow it as one."""
        found, taken = [], set[fx.Node]()
        known = {node: step for node, step, _ in steps}
        for node, step, sources in steps:
            if node.op == "call_module" and cuda_normalisations.known(self.module.get_submodule(str(node.target))):
                after = self.after(node)
                taken.update(after.values())
                parts = [(part, known[part]) for part in (node, *after.values())]
                found.append((parts[-1][0], normalisation(parts, sources, [*after]), sources))
            elif node not in taken:
                found.append((node, step, sources))
        return found

    def after(self, node: fx.Node) -> dict[str, fx.Node]:
        """The ReLU and the pooling that alone use a node or each other, by name and in their order."""
        found: dict[str, fx.Node] = {}
        while len(node.users) == 1:
            [node] = node.users
            pools = node.op == "call_module" and cuda_normalisations.halves(self.module.get_submodule(str(node.target)))
            name = "pool" if pools else "relu" if _kind(self.module, node) in RELUS else ""
            if not name or name in found:
                break
            found[name] = node
        return found

    def layer(self, node: fx.Node, sources: Nodes) -> Step | None:
        """The step of a known layer; None for others, and for weights that go by another name (tied ones)."""
        layer, kind = self.module.get_submodule(str(node.target)), _kind(self.module, node)
        own = [key for key, _ in (*layer.named_parameters(), *layer.named_buffers())]
        known = self.names.issuperset(f"{node.target}.{key}" for key in own)
        if not known or len(node.args) != 1 or node.kwargs or self.overwrites(node, layer):
            return None
        if kind in (nn.Linear, *WEIGHTED_LAYERS) or known_sequence(layer):
            self.live.add(node)
        once = self.calls.count(node.target) == 1
        if kind is nn.Linear:
            return linear(node, sources, node.target == self.head, once)
        if known_sequence(layer):
            return embedding(node) if kind is nn.Embedding else recurrent(node, sources, cast(nn.RNNBase, layer))
        if kind in CONVOLUTIONS:
            return convolution(node, sources, cast(Conv, layer), once)
        if kind in (*WEIGHTED_LAYERS, Dropout):
            return weighted(node, sources, own)
        if kind is nn.ReLU:
            return relu(node, self.spare(node))
        if kind is nn.Flatten and layer.start_dim == 1:
            return reshaped(node)
        return plain(node, sources) if kind in PLAIN_LAYERS else None

    def function(self, node: fx.Node, sources: Nodes) -> Step | None:
        """The step of a known function or method."""
        target, args = node.target, node.args
        sized = [source in self.sizes for source in node.all_input_nodes]
        if node.op not in ("call_function", "call_method") or self.overwrites(node, None):
            return None
        if target in RELUS:
            return relu(node, self.spare(node))
        if target in PLAIN_FUNCTIONS:
            return None if any(sized) else plain(node, sources)
        if target in (torch.flatten, "flatten"):
            return reshaped(node) if 1 in (*args[1:2], node.kwargs.get("start_dim")) else None
        if target in ("view", "reshape") and len(args) > 1 and not sized[0]:
            lead = args[1][0] if isinstance(args[1], tuple | list) else args[1]
            return reshaped(node) if lead == -1 or lead in self.sizes else None
        if target is operator.getitem and args[1] == 0 and self.states(node):
            return lambda now, values: (values[node.all_input_nodes[0]], lambda _, g: [g])  # its outputs are its value
        if target == "size" or (target is getattr and args[1] == "shape") or (target is operator.getitem and sized[0]):
            self.sizes.add(node)
            return measured(node)
        return None

    def spare(self, node: fx.Node) -> bool:
        """Whether the input of a step is memory of a linear layer that no other step sees."""
        [source] = node.all_input_nodes
        return _kind(self.module, source) is nn.Linear and len(source.users) == 1

    def states(self, node: fx.Node) -> bool:
        """Whether the source of a node is a recurrent layer."""
        [source] = node.all_input_nodes
        return _kind(self.module, source) in (nn.GRU, nn.LSTM)

    def overwrites(self, node: fx.Node, layer: nn.Module | None) -> bool:
        """Whether a step changes its input while others use it, or takes values in a way that steps do not."""
        inplace = node.kwargs.get("inplace", getattr(layer, "inplace", False))
        shared = any(len(source.users) > 1 for source in node.all_input_nodes)
        return bool(inplace and shared) or any(isinstance(value, fx.Node) for value in node.kwargs.values())
