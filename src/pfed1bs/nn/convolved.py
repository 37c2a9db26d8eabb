"""Convolutions of all clients: through vmap, in our own kernels, or by the library, each client's on a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from pfed1bs.nn import cuda_convolutions, lanes
from pfed1bs.nn.stacked import Nodes, Pass, Places, Pull, Step, placed, tensor, weighted

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def convolution(node: fx.Node, sources: Nodes, layer: Conv, once: bool) -> Step:
    """A convolution in the way of a pass, where it can go it, otherwise through vmap; `once`: no other call of it."""
    other = weighted(node, sources, [key for key, _ in layer.named_parameters()])
    ways = {"stacked": other}
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        fan = Fan(layer.stride, layer.padding, layer.dilation, layer.groups)
        ways["fanned"] = on_streams(node, sources, fan, once)
    if cuda_convolutions.known(layer):
        ways["kernels"] = in_kernels(node, sources, other)
    return lambda now, values: ways.get(now.way, other)(now, values)


def in_kernels(node: fx.Node, sources: Nodes, other: Step) -> Step:
    """A convolution in our own kernels where they take its values, otherwise in another way."""
    weight_name, bias_name, [source] = f"{node.target}.weight", f"{node.target}.bias", node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[object, Pull | None]:
        x, weight, bias = tensor(values[source]).contiguous(), now.values[weight_name], now.values.get(bias_name)
        if not cuda_convolutions.usable(x, weight, bias):
            return other(now, values)

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            places, g = placed(now), g.contiguous()  # once for both kernels
            if weight_name in places.out:
                now.late.append((weight_name, cuda_convolutions.correlated(x, g)))
            if bias_name in places.out:
                now.late.append((bias_name, g.sum((1, 3, 4))))
            return [cuda_convolutions.convolved(g, weight, back=True)] if sources else []

        return cuda_convolutions.convolved(x, weight, bias), pull

    return step


def on_streams(node: fx.Node, sources: Nodes, fan: "Fan", once: bool) -> Step:
    """A convolution by the library, each client's on one of several streams, which meet before and after it."""
    names, [source] = (f"{node.target}.weight", f"{node.target}.bias"), node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        x, weight, bias = tensor(values[source]).contiguous(), now.values[names[0]], now.values.get(names[1])

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            places = placed(now)
            moving = [name if name in places.out else None for name in names]
            found = {name: torch.zeros_like(places.out[name]) for name in moving if name and not once}
            back = fan.back((g.contiguous(), x, weight), moving, places if once else Places(found), bool(sources))
            places.done.update(name for name in moving if name and once)
            now.late.extend(found.items())
            return back

        return fan.out(x, weight, bias), pull

    return step


@dataclass(frozen=True)
class Fan:
    """The library's convolution with these options for all clients, each on one of several streams.

    What they have together belongs to the stream they part from: it is allocated there. Channels and weights stay where
    they are, as in `lanes.client_by_client`.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]  # zeros on either side
    dilation: tuple[int, ...]
    groups: int

    def out(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Outputs (K, B, out, ...) of inputs (K, B, in, ...), weights (K, out, in, ...) and biases (K, out)."""
        y = x.new_empty(*x.shape[:2], weight.shape[1], *self._pixels(x, weight))

        def one(i: int) -> None:
            alone = torch.ops.aten.convolution(x[i], weight[i], None, *self._options())
            if bias is None:
                y[i] = alone
            else:  # on the way to the others; the library would add it in a pass of its own
                torch.add(alone, bias[i].view(-1, *[1] * len(self.stride)), out=y[i])

        lanes.abreast(one, len(x), x.device)
        return y

    def back(
        self, values: tuple[Tensor, Tensor, Tensor], names: Sequence[str | None], places: Places, passes: bool
    ) -> list[Tensor]:
        """The gradient of the inputs if it `passes`, of gradients of outputs, inputs and weights.

        Those of weight and bias are brought to their places where they have names; a client's weight, which may be such
        a place, is written over after its last use.
        """
        g, x, weight = values
        to_x = [torch.empty_like(x)] if passes else []
        mask = (passes, *(name is not None for name in names))

        def one(i: int) -> None:
            rows = g[i], x[i], weight[i]
            back, *own = torch.ops.aten.convolution_backward(*rows, [weight.shape[1]], *self._options(), mask)
            if passes:
                to_x[0][i] = back
            found = {name: part for name, part in zip(names, own, strict=True) if name is not None}
            row = Places({name: places.out[name][i] for name in found}, places.keep, places.scale)
            lanes.placed(row, found)

        if any(mask):
            lanes.abreast(one, len(x), x.device)
        return to_x

    def _options(self) -> tuple[object, ...]:
        """As torch's functions take them."""
        return self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups

    def _pixels(self, x: Tensor, weight: Tensor) -> list[int]:
        """The last axes of the outputs."""
        sizes = zip(x.shape[3:], weight.shape[3:], self.stride, self.padding, self.dilation, strict=True)
        return [(n + 2 * pad - gap * (taps - 1) - 1) // stride + 1 for n, taps, stride, pad, gap in sizes]
