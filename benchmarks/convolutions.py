"""3 x 3 convolutions of 20 clients: one launch for all of them beside cuDNN's, grouped and client by client on streams.

    python benchmarks/convolutions.py --out results/convolutions.json

For every convolution of VGG8 and of VGG16: forward, gradient of the inputs, gradient of the weights, in a CUDA graph,
and the largest difference from cuDNN beside it. `normalisations` has BatchNorm with pooling and ReLU after each,
beside a copy of its inputs. `networks` has a whole step, forward and back, in each of the ways. `--tf32` measures with
the factors of the library's products rounded to 11 bits; every row says whether they were, ours never are.
A row that fails says why, and the file is written after every row.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from pfed1bs.core.graphs import milliseconds
from pfed1bs.nn.cuda_convolutions import convolved, correlated
from pfed1bs.nn.cuda_normalisations import Layer, differentiated, normalised
from pfed1bs.nn.lanes import _measured, abreast
from pfed1bs.nn.models import build
from pfed1bs.nn.network import Network
from pfed1bs.nn.stacked import Places
from pfed1bs.runs.environment import environment
from pfed1bs.runs.precision import multiply

SHAPES = {"VGG8": [(3, 16, 32), (16, 32, 16), (32, 64, 8), (64, 128, 4), (128, 128, 2)]}
SHAPES["VGG16"] = [
    *((3, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8)),
    *((256, 512, 4), (512, 512, 4), (512, 512, 2)),
]


def ours(x, w, bias, g):
    return convolved(x, w, bias), convolved(g, w, back=True), correlated(x, g)


def backwards(g, x, w, groups):
    """The library's gradients of inputs and weights."""
    rest = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups, (True, True, False))
    return torch.ops.aten.convolution_backward(g, x, w, *rest)[:2]


def grouped(x, w, bias, g):
    """All clients as groups of channels."""
    clients = len(x)
    inputs = x.transpose(0, 1).flatten(1, 2)
    weights, errors = w.flatten(0, 1), g.transpose(0, 1).flatten(1, 2)
    y = F.conv2d(inputs, weights, bias.flatten(), padding=1, groups=clients)
    to_x, to_w = backwards(errors, inputs, weights, clients)
    apart = [value.unflatten(1, (clients, -1)).transpose(0, 1) for value in (y, to_x)]
    return *apart, to_w.view_as(w)


def on_streams(x, w, bias, g):
    """One client after the other, on several streams."""

    def one(i):
        return F.conv2d(x[i], w[i], bias[i], padding=1), *backwards(g[i], x[i], w[i], 1)

    return [torch.stack(values) for values in zip(*abreast(one, len(x), x.device), strict=True)]


def measured(clients, pictures, name, shape):
    """A row: milliseconds of every way, and how far ours are from cuDNN's."""
    channels, out, size = shape
    x = torch.randn(clients, pictures, channels, size, size, device="cuda")
    g = torch.randn(clients, pictures, out, size, size, device="cuda")
    flat = torch.randn(clients, out * channels * 9 + out + 1, device="cuda")  # at any address, as among others
    w = flat[:, 1 : 1 + out * channels * 9].unflatten(1, (out, channels, 3, 3))
    bias = flat[:, -out:]
    ways = {"ours": ours, "grouped": grouped, "streams": on_streams}
    found = {way: call(x, w, bias, g) for way, call in ways.items()}
    apart = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found["ours"], found["streams"], strict=True)]
    parts = {"forward": lambda: convolved(x, w, bias), "inputs": lambda: convolved(g, w, back=True)}
    parts |= {"weights": lambda: correlated(x, g)}
    taken = {way: milliseconds(lambda call=call: call(x, w, bias, g)) for way, call in ways.items()}
    taken |= {part: milliseconds(work) for part, work in parts.items()}
    work = 2 * 3 * clients * pictures * size * size * channels * out * 9
    return {"ms": taken, "apart": apart, "gflop": work / 1e9}


def normalising(clients, pictures, name, shape):
    """A row: milliseconds of our BatchNorm with pooling and ReLU, forward and back."""
    _, channels, size = shape
    x = torch.randn(clients, pictures, channels, size, size, device="cuda")
    weight, bias, mean, var = torch.rand(4, clients, channels, device="cuda")
    batches = torch.zeros(clients, dtype=torch.int64, device="cuda")
    own = Layer(weight, bias, mean, var, batches, 1e-5, 0.1, True, 2, True)
    y, kept = normalised(x, own)
    works = {"forward": lambda: normalised(x, own), "back": lambda: differentiated(x, y, own, kept), "copy": x.clone}
    return {"ms": {part: milliseconds(work) for part, work in works.items()}, "megabytes": x.nbytes / 1e6}


def whole(clients, pictures, name):
    """Milliseconds of a forward and a backward pass of a network in each way."""
    module = build(name.lower(), (3, 32, 32), 10)
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    network, taken = Network(module, names, None, None), {}
    network._ways = lambda ways, now, x: taken.update({way: tried(_measured, work, now) for way, work in ways.items()})
    values = {
        key: value.detach().expand(clients, *value.shape).clone().cuda()
        for key, value in (*module.named_parameters(), *module.named_buffers())
    }
    x = torch.randn(clients, pictures, 3, 32, 32, device="cuda")
    network(values, x, True, Places({key: values[key] for key, _ in module.named_parameters()}, 1.0, -0.01))
    return {"ms": taken}


def tried(call, *given):
    """What a call finds, or why it fails: the others are worth having."""
    try:
        return call(*given)
    except (OSError, RuntimeError) as error:
        return {"failed": str(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--networks", default="VGG8,VGG16")
    parser.add_argument("--tables", default="rows,normalisations,networks", help="those that are measured")
    parser.add_argument("--tf32", action="store_true", help="let the library round factors to 11 bits")
    parser.add_argument("--out", type=Path)
    own = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    multiply(torch.device("cuda"), own.tf32)
    names = own.networks.split(",")
    works = [("rows", measured, name, shape) for name in names for shape in SHAPES[name]]
    works += [("normalisations", normalising, name, shape) for name in names for shape in SHAPES[name]]
    works += [("networks", whole, name) for name in names]
    found = {**environment("cuda"), "command": shlex.join(["python", *sys.argv])}
    found |= {"rows": [], "normalisations": [], "networks": []}
    for table, call, *given in (work for work in works if work[0] in own.tables.split(",")):
        row = dict(zip(("network", "shape"), given, strict=False)) | {"tf32": own.tf32}
        found[table].append(row | tried(call, own.clients, own.pictures, *given))
        print(json.dumps(found[table][-1]), flush=True)
        if own.out:
            own.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
