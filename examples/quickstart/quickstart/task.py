"""Model, data and training, as in any PyTorch project; nothing here knows of Flower's messages or of bits."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import pfed1bs

PARTITIONS = 20


class Net(nn.Module):
    """Two convolutions and three linear layers, of the sizes of Flower's PyTorch quickstart; 44,426 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x.flatten(1))))))


@cache
def federation(name: str) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Pictures of 28 x 28, labels, and the rows of each node for training and test; 8 x 8 digits are enlarged."""
    data = pfed1bs.federate(pfed1bs.load(name), PARTITIONS, "iid", cap=100)
    return functional.interpolate(data.inputs, (28, 28)), data.labels, data.train, tuple(at[:25] for at in data.test)


def loaders(name: str, partition: int) -> tuple[DataLoader, DataLoader]:
    """The training and test samples of one node."""
    x, y, train, test = federation(name)
    mine, held = (TensorDataset(x[rows], y[rows]) for rows in (train[partition], test[partition]))
    return DataLoader(mine, batch_size=32, shuffle=True), DataLoader(held, batch_size=256)


def everyone(name: str) -> DataLoader:
    """The test samples of all nodes, for the server."""
    x, y, _, test = federation(name)
    return DataLoader(TensorDataset(x[torch.cat(test)], y[torch.cat(test)]), batch_size=256)


def train(net: nn.Module, samples: DataLoader, epochs: int, lr: float) -> float:
    """SGD with momentum; the mean loss."""
    optimiser, total = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), 0.0
    net.train()
    for _ in range(epochs):
        for x, y in samples:
            optimiser.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / (epochs * len(samples))


@torch.no_grad()
def test(net: nn.Module, samples: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy."""
    net.eval()
    outputs = [(net(x), y) for x, y in samples]
    logits, labels = (torch.cat(part) for part in zip(*outputs, strict=True))
    return functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()
