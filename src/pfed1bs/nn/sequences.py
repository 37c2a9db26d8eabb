"""Embedding, GRU and LSTM for all clients at once: one batched product a step of time, and their way back by hand.

A client's bits do not depend on the others: products are batched, sums and products of two numbers are rounded the same
everywhere, and tanh and sigmoid run on slices of wider rows, so that torch computes row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from pfed1bs.core.errors import UserError
from pfed1bs.nn.stacked import Nodes, Pass, Pull, Step, placed, tensor

Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # of inputs and state, and their biases, stacked
NAMES = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")


class Sweep(NamedTuple):
    """One layer over time: its outputs, and the way from their gradient to those of its gates."""

    outputs: Tensor  # (K, B, L, H)
    back: Callable[[Tensor], tuple[Tensor, Tensor]]  # -> of the input's and the state's part of the gates (K, B, L, G)


def embedding(node: fx.Node) -> Step:
    """Rows of each client's table."""
    name, [source] = f"{node.target}.weight", node.all_input_nodes

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        table, tokens = now.values[name], tensor(values[source])
        clients, rows, width = table.shape
        offsets = torch.arange(0, clients * rows, rows, device=tokens.device)
        outside = (tokens < 0) | (tokens >= rows)  # they would be another client's rows
        if tokens.device.type == "cpu" and bool(outside.any()):
            raise UserError(
                f"{node.target} has {rows} rows, but a sample has the token {int(tokens[outside][0])}",
                "tokens count from 0; give Embedding as many rows as there are",
            )
        at = tokens + offsets.view(-1, *(1 for _ in tokens.shape[1:]))
        at = at.masked_fill(outside, clients * rows)  # which a GPU refuses by itself

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            if name in placed(now).out:
                found = torch.ops.aten.embedding_dense_backward(g, at, clients * rows, -1, False)
                now.late.append((name, found.view(table.shape)))
            return []

        return table.reshape(-1, width)[at], pull

    return step


def recurrent(node: fx.Node, sources: Nodes, layer: nn.RNNBase) -> Step:
    """The outputs of all times; states begin with 0."""
    [source], run = node.all_input_nodes, gru if isinstance(layer, nn.GRU) else lstm

    def step(now: Pass, values: Mapping[fx.Node, object]) -> tuple[Tensor, Pull]:
        x, done = tensor(values[source]), list[tuple[Tensor, Weights, Sweep]]()
        for level in range(layer.num_layers):
            weights = _weights(now, f"{node.target}.", level)
            inputs = _product(x.flatten(1, 2), weights[0], weights[2]).view(*x.shape[:3], -1)
            done.append((x, weights, run(inputs, weights)))
            x = done[-1][2].outputs

        def pull(now: Pass, g: Tensor) -> list[Tensor]:
            for level in reversed(range(layer.num_layers)):
                x, weights, ran = done[level]
                of_inputs, of_states = ran.back(g)
                before = torch.cat([torch.zeros_like(ran.outputs[:, :, :1]), ran.outputs[:, :, :-1]], 2)
                rows = (_gradient(of_inputs, x), _gradient(of_states, before), _sum(of_inputs), _sum(of_states))
                names = [f"{node.target}.{name}{level}" for name in NAMES]
                now.late.extend((n, part()) for n, part in zip(names, rows, strict=True) if n in placed(now).out)
                if level or sources:
                    g = torch.bmm(of_inputs.flatten(1, 2), weights[0]).view(x.shape)
            return [g] if sources else []

        return x, pull

    return step


def gru(inputs: Tensor, weights: Weights) -> Sweep:
    """Gates r, z, n: h <- (1 - z) n + z h with n = tanh(a_n + r b_n), a of the input and b of the state."""
    _, weight, _, bias = weights
    size, h = weight.shape[2], inputs.new_zeros(*inputs.shape[:2], weight.shape[2])
    states, gates, parts = [h], list[Tensor](), list[Tensor]()
    for now in inputs.unbind(2):
        own, room = _product(h, weight, bias), torch.empty_like(now, memory_format=torch.contiguous_format)
        torch.add(now[..., : 2 * size], own[..., : 2 * size], out=room[..., : 2 * size]).sigmoid_()
        r, z, n = torch.split(room, size, -1)
        torch.mul(r, own[..., 2 * size :], out=n).add_(now[..., 2 * size :]).tanh_()
        h = (h - n).mul_(z).add_(n)
        states.append(h)
        gates.append(room)
        parts.append(own[..., 2 * size :])

    def back(g: Tensor) -> tuple[Tensor, Tensor]:
        of_inputs, of_states = torch.empty_like(inputs), torch.empty_like(inputs)
        late = torch.zeros_like(h)
        for t in reversed(range(len(gates))):
            r, z, n = torch.split(gates[t], size, -1)
            late = late + g[:, :, t]
            to_n = (1 - n * n) * (1 - z) * late
            to_z, to_r = (1 - z) * z * (states[t] - n) * late, (1 - r) * r * parts[t] * to_n
            of_inputs[:, :, t] = torch.cat([to_r, to_z, to_n], -1)
            of_states[:, :, t] = own = torch.cat([to_r, to_z, to_n * r], -1)
            late = late * z + torch.bmm(own, weight)
        return of_inputs, of_states

    return Sweep(torch.stack(states[1:], 2), back)


def lstm(inputs: Tensor, weights: Weights) -> Sweep:
    """Gates i, f, g, o: c <- f c + i g, h = o tanh(c)."""
    _, weight, _, bias = weights
    size, h = weight.shape[2], inputs.new_zeros(*inputs.shape[:2], weight.shape[2])
    cells, states, gates = [h], list[Tensor](), list[Tensor]()
    for now in inputs.unbind(2):
        room = inputs.new_empty(*h.shape[:2], 5 * size)
        torch.add(now, _product(h, weight, bias), out=room[..., : 4 * size])
        i, f, g, o, wide = torch.split(room, size, -1)
        i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
        cells.append(cells[-1] * f + i * g)
        wide.copy_(cells[-1]).tanh_()
        h = o * wide
        states.append(h)
        gates.append(room)

    def back(g: Tensor) -> tuple[Tensor, Tensor]:
        found, late, late_cell = torch.empty_like(inputs), torch.zeros_like(h), torch.zeros_like(h)
        for t in reversed(range(len(gates))):
            i, f, c, o, wide = torch.split(gates[t], size, -1)
            late = late + g[:, :, t]
            late_cell = late_cell + (1 - wide * wide) * o * late
            to = ((1 - i) * i * c * late_cell, (1 - f) * f * cells[t] * late_cell, (1 - c * c) * i * late_cell)
            found[:, :, t] = own = torch.cat([*to, (1 - o) * o * wide * late], -1)
            late, late_cell = torch.bmm(own, weight), late_cell * f
        return found, found

    return Sweep(torch.stack(states, 2), back)


def _weights(now: Pass, prefix: str, level: int) -> Weights:
    w, u, b, c = (now.values.get(f"{prefix}{name}{level}") for name in NAMES)
    return tensor(w).data, tensor(u).data, b, c


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows (K, R, in) times the transposed weight (K, out, in), plus the bias."""
    return torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)


def _gradient(of_gates: Tensor, inputs: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.bmm(of_gates.flatten(1, 2).mT, inputs.flatten(1, 2))


def _sum(of_gates: Tensor) -> Callable[[], Tensor]:
    return lambda: of_gates.flatten(1, 2).mT.sum(2)


def known(layer: nn.Module) -> bool:
    """Whether an embedding or recurrent layer is one of those above."""
    if type(layer) is nn.Embedding:
        return layer.padding_idx is None and layer.max_norm is None and not layer.scale_grad_by_freq
    plain: Sequence[type] = (nn.GRU, nn.LSTM)
    if type(layer) not in plain:
        return False
    assert isinstance(layer, nn.RNNBase)
    return layer.batch_first and not (layer.bidirectional or layer.dropout or layer.proj_size)
