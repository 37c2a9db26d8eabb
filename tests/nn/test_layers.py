"""Layers for sequences and normalisation, losses and dropout: stacked clients against plain autograd, one at a time."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core import rng
from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import stream
from pfed1bs.nn import dropout
from pfed1bs.nn.task import Task
from promise import assert_alike

LETTERS, LENGTH, WIDTH = 7, 5, 6


class Recurrent(nn.Module):
    """Letters, a recurrent layer and logits for every place."""

    def __init__(self, kind, **options):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.memory = kind(WIDTH, 5, batch_first=True, **options)
        self.last = nn.Linear(5, LETTERS)

    def forward(self, x):
        states, _ = self.memory(self.letters(x))
        return self.last(states)


class LastState(Recurrent):
    def forward(self, x):
        return self.last(self.memory(self.letters(x))[1].transpose(0, 1)).expand(-1, LENGTH, -1)


class Attending(nn.Module):
    """torch.nn.MultiheadAttention over letters."""

    def __init__(self):
        super().__init__()
        self.letters, self.attention = nn.Embedding(LETTERS, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.last = nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        h = self.letters(x)
        return self.last(self.attention(h, h, h, need_weights=False)[0])


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.last = nn.Embedding(LETTERS, WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        h = self.letters(x)
        return self.last(F.scaled_dot_product_attention(h, h, h, is_causal=True))


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.letters, self.norm, self.last = nn.Embedding(LETTERS, WIDTH), norm, nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.letters(x))))


STACKED = {
    "gru": lambda: Recurrent(nn.GRU),
    "gru-two": lambda: Recurrent(nn.GRU, num_layers=2),
    "gru-plain": lambda: Recurrent(nn.GRU, bias=False),
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm-two": lambda: Recurrent(nn.LSTM, num_layers=2, bias=False),
    "layer-norm": lambda: Normed(nn.LayerNorm(WIDTH)),
    "group-norm": lambda: Normed(nn.GroupNorm(1, LENGTH)),
}
APART = {
    "attention": (Attending, r"attention \(MultiheadAttention\)"),
    "products": (Products, "scaled_dot_product_attention"),
    "last-state": (lambda: LastState(nn.GRU), "getitem"),
    "two-ways": (lambda: Both(), r"memory \(GRU\)"),
}


class Both(Recurrent):
    def __init__(self):
        super().__init__(nn.GRU, bidirectional=True)
        self.last = nn.Linear(10, LETTERS)


def problem(model, clients=3, batch=4, **options):
    task = Task(model, **options)
    w = torch.stack([task.init(seed) for seed in range(clients)])
    x = torch.randint(LETTERS, (clients, batch, LENGTH), generator=stream(0, "x"))
    y = torch.randint(LETTERS, (clients, batch, LENGTH), generator=stream(0, "y"))
    return task, w, x, y


def plain(model, task, w, x, y, loss=lambda outputs, y: F.cross_entropy(outputs.flatten(0, -2), y.flatten())):
    """Gradients and losses by loss.backward() on one ordinary module per client."""
    grads, losses = [], []
    for k in range(len(w)):
        one = copy.deepcopy(model)
        one.load_state_dict({part.name: w[k, part.slice].view(part.shape) for part in task.parts}, strict=False)
        found = loss(one(x[k]), y[k])
        found.backward()
        grads.append(torch.cat([p.grad.flatten() for p in one.parameters() if p.requires_grad]))
        losses.append(found.detach())
    return torch.stack(grads), torch.stack(losses)


@pytest.mark.parametrize("name", STACKED)
def test_gradients_of_stacked_layers_are_those_of_autograd(name):
    model = STACKED[name]()
    task, w, x, y = problem(model)
    grad, loss, _ = task.gradient(w, x, y, {})
    expected = plain(model, task, w, x, y)
    torch.testing.assert_close(grad, expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, expected[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(task.logits(w, x, {})[1], _one(model, task, w[1])(x[1]).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("token", [-1, LETTERS])
def test_a_token_that_no_row_stands_for_is_refused_and_never_another_clients_row(token):
    task, w, x, y = problem(next(iter(STACKED.values()))())
    x[1, 2, 3] = token
    for work in (lambda: task.gradient(w, x, y, {}), lambda: task.logits(w, x, {})):
        with pytest.raises(UserError, match=f"has {LETTERS} rows, but a sample has the token {token}"):
            work()


@pytest.mark.parametrize("name", APART)
def test_layers_that_are_not_known_go_client_by_client_and_say_so_once(name):
    make, reason = APART[name]
    model = make()
    task, w, x, y = problem(model)
    with pytest.warns(UserWarning, match=f"is computed client by client: its part .*{reason}") as said:
        grad, loss, _ = task.gradient(w, x, y, {})
        task.gradient(w, x, y, {})
        task.logits(w, x, {})
    assert len(said) == 1
    expected = plain(model, task, w, x, y)
    torch.testing.assert_close(grad, expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, expected[1], rtol=1e-5, atol=1e-6)


def test_layers_that_torch_cannot_stack_go_client_by_client_where_unknown_modules_are_stacked(monkeypatch):
    """As on a GPU, where modules of unknown parts are computed through vmap."""
    task, w, x, y = problem(LastState(nn.GRU))
    monkeypatch.setattr(type(task._network), "one_by_one", lambda self, device, training: bool(self._reason))
    with pytest.warns(UserWarning, match=r"client by client: torch cannot do it all at once \(Batching rule"):
        grad = task.gradient(w, x, y, {})[0]
    torch.testing.assert_close(grad, plain(LastState(nn.GRU), task, w, x, y)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 32])
@pytest.mark.parametrize("name", [*STACKED, *APART])
def test_a_client_alone_equals_itself_inside_a_stack_bit_for_bit(name, batch, threads):
    threads(1)
    model = STACKED[name]() if name in STACKED else APART[name][0]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task, w, x, y = problem(model, clients=5, batch=batch)
        whole, one = task.gradient(w, x, y, {}), task.gradient(w[2:3], x[2:3], y[2:3], {})
        outputs, own = task.logits(w, x, {}), task.logits(w[2:3], x[2:3], {})
    assert_alike((*one[:2], own), (whole[0][2:3], whole[1][2:3], outputs[2:3]))


def _one(model, task, w):
    one = copy.deepcopy(model).eval()
    one.load_state_dict({part.name: w[part.slice].view(part.shape) for part in task.parts}, strict=False)
    return one


def dropping(p=0.5, layer=nn.Dropout):
    return nn.Sequential(nn.Embedding(LETTERS, WIDTH), layer(p), nn.Linear(WIDTH, LETTERS))


@pytest.mark.parametrize("stacked", [True, False])
def test_dropout_draws_from_each_clients_own_stream(stacked, threads):
    threads(1)
    task, w, x, y = problem(dropping(), clients=4, batch=3, stacked=stacked, seed=7)
    before, buffers = torch.get_rng_state(), task.buffers(4)
    assert list(buffers) == ["buffer/1.key"] and len(buffers["buffer/1.key"].unique()) == 4
    grad, loss, after = task.gradient(w, x, y, buffers)
    alone = task.gradient(w[2:3], x[2:3], y[2:3], {name: value[2:3] for name, value in buffers.items()})
    assert_alike(alone[:2], (grad[2:3], loss[2:3]))
    assert torch.equal(after["buffer/1.key"], buffers["buffer/1.key"] + 1)
    again = task.gradient(w, x, y, after)
    assert not torch.equal(again[1], loss), "the next step draws anew"
    assert torch.equal(task.gradient(w, x, y, buffers)[0], grad), "the same keys draw the same"
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_another_one_for_another_seed_and_none_in_evaluation_mode():
    model = dropping()
    task, w, x, _ = problem(model)
    assert not torch.equal(task.buffers(3)["buffer/1.key"], Task(model, seed=1).buffers(3)["buffer/1.key"])
    expected = _one(model, task, w[0])(x[0]).detach()
    torch.testing.assert_close(task.logits(w, x, task.buffers(3))[0], expected, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean_and_drops_the_share_it_should():
    layer = dropout.Dropout(0.3, channels=False)
    y = layer(torch.ones(200, 500))
    assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.005)
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]


def test_dropout_of_channels_drops_whole_ones():
    y = dropout.Dropout(0.5, channels=True)(torch.ones(50, 8, 3, 3))
    assert set(y.flatten(2).mean(2).unique().tolist()) == {0.0, 2.0}


def test_the_draws_of_dropout_are_the_portable_generators():
    drawn = dropout.uniform(torch.tensor(-5), (4,)).tolist()
    assert drawn == [rng.word(-5 & rng.MASK, i) & (dropout.WHOLE - 1) for i in range(4)]


def own(outputs, y):
    return (outputs.squeeze(-1) - y).abs().mean(1)


def numbers(*shape):
    return torch.randn(shape, generator=stream(0, "numbers"))


LOSSES = {
    "mse": ("mse", lambda: numbers(3, 4, 2), 2, F.mse_loss),
    "mse-one": ("mse", lambda: numbers(3, 4), 1, lambda o, y: F.mse_loss(o.squeeze(-1), y)),
    "bce": ("bce", lambda: (numbers(3, 4, 2) > 0).float(), 2, F.binary_cross_entropy_with_logits),
    "bce-int": ("bce", lambda: (numbers(3, 4) > 0).long(), 1,
                lambda o, y: F.binary_cross_entropy_with_logits(o.squeeze(-1), y.float())),
    "own": (own, lambda: numbers(3, 4), 1, lambda o, y: (o.squeeze(-1) - y).abs().mean()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_of_autograd(name):
    loss, targets, outputs, expected = LOSSES[name]
    model, y, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs)), targets(), numbers(3, 4, 6)
    task = Task(model, loss)
    w = torch.stack([task.init(seed) for seed in range(3)])
    grad, found, _ = task.gradient(w, x, y, {})
    by_hand = plain(model, task, w, x, y, expected)
    torch.testing.assert_close(grad, by_hand[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, by_hand[1], rtol=1e-5, atol=1e-6)
    each = task.loss.samples(task.logits(w, x, {}), y)
    assert each.shape == (3, 4)
    torch.testing.assert_close(each.mean(1), found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_client_alone_has_the_loss_it_has_in_a_stack(name, threads):
    threads(1)
    loss, targets, outputs, _ = LOSSES[name]
    y, x = targets(), numbers(3, 4, 6)
    task = Task(nn.Linear(6, outputs), loss)
    w = torch.stack([task.init(seed) for seed in range(3)])
    whole, alone = task.gradient(w, x, y, {}), task.gradient(w[1:2], x[1:2], y[1:2], {})
    assert_alike(alone[:2], (whole[0][1:2], whole[1][1:2]))


def test_targets_that_do_not_fit_are_refused_with_the_way_out():
    task, x = Task(nn.Linear(6, 3)), numbers(1, 4, 6)
    w = task.init(0)[None]
    with pytest.raises(ValueError, match=r"whole labels.*outputs \(1, 4, 3\) and targets \(1, 4\) of torch.float32"):
        task.gradient(w, x, numbers(1, 4), {})
    with pytest.raises(ValueError, match=r"outputs \(1, 4, 3\) and targets \(1, 4\) must have one shape"):
        Task(nn.Linear(6, 3), "mse").gradient(w, x, numbers(1, 4), {})
    with pytest.raises(ValueError, match="must return one number a client, got shape"):
        Task(nn.Linear(6, 3), lambda outputs, y: outputs.mean()).gradient(w, x, numbers(1, 4), {})
    with pytest.raises(ValueError, match="unknown loss 'mes'.*mse"):
        Task(nn.Linear(6, 3), "mes")
    with pytest.raises(ValueError, match="bits is no metric of the loss mse; there are r2, mae, test_loss"):
        Task(nn.Linear(6, 3), "mse", metric="bits")


def test_frozen_weights_are_constants_and_n_is_what_is_trained():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    task, x, y = Task(model), numbers(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    assert task.n == 18 and task.buffers(2) == {}
    w = torch.stack([task.init(seed) for seed in range(2)])
    expected = plain(model, task, w, x, y)
    for found in (task, Task(model, stacked=False)):
        torch.testing.assert_close(found.gradient(w, x, y, {})[0], expected[0], rtol=1e-5, atol=1e-6)
