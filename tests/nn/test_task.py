"""Gradients, logits and features of stacked clients against plain PyTorch, one client at a time."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core.rng import stream
from pfed1bs.nn.models import build, mlp
from pfed1bs.nn.parts import Part
from pfed1bs.nn.task import Task
from promise import assert_alike


class Small(nn.Module):
    """Convolution, BatchNorm, frozen scale and two linear layers, written as a forward function."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.tensor([2.0]), requires_grad=False)
        self.hidden = nn.Linear(12, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        h = F.max_pool2d(torch.tanh(self.norm(self.conv(x))), 2)
        return self.head(F.relu(self.hidden(self.scale * h.flatten(1))))


class Branching(nn.Module):
    """A module with a branch on values, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


def randn(name, *shape):
    return torch.randn(*shape, generator=stream(1, name))


def labels(classes, *shape):
    return torch.randint(classes, shape, generator=stream(1, "labels"))


def problem(model, shape, classes, clients=3, batch=4):
    """A task with different weights for every client, and one batch each."""
    task = Task(model)
    w = torch.stack([task.init(seed) for seed in range(clients)])
    return task, w, randn("x", clients, batch, *shape), labels(classes, clients, batch), task.buffers(clients)


def plain(model, task, w, x, y, buffers):
    """Gradient, loss, buffers, eval logits by loss.backward() on one ordinary module per client."""
    grads, losses, states, logits = [], [], [], []
    for k in range(len(w)):
        one = copy.deepcopy(model)
        values = {part.name: w[k, part.slice].view(part.shape) for part in task.parts}
        values |= {name.removeprefix("buffer/"): value[k] for name, value in buffers.items()}
        one.load_state_dict(values, strict=False)  # what is frozen stays
        loss = F.cross_entropy(one(x[k]), y[k])
        loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in one.parameters() if p.requires_grad]))
        losses.append(loss.detach())
        states.append({f"buffer/{name}": value.detach() for name, value in one.state_dict().items()})
        logits.append(one.eval()(x[k]).detach())
    after = {name: torch.stack([state[name] for state in states]) for name in buffers}
    return torch.stack(grads), torch.stack(losses), after, torch.stack(logits)


MODELS = {
    "mlp": (lambda: build("mlp", (6,), 4), (6,), 4),
    "vgg8": (lambda: build("vgg8", (2, 32, 32), 4), (2, 32, 32), 4),
    "small": (Small, (2, 4, 4), 4),
}


@pytest.fixture(params=MODELS)
def case(request):
    make, shape, classes = MODELS[request.param]
    return make(), shape, classes


def test_gradient_of_a_linear_model_by_hand():
    task = Task(nn.Linear(2, 2, bias=False))
    w = torch.zeros(1, 4)
    x, y = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[0, 0]])
    grad, loss, buffers = task.gradient(w, x, y, {})
    # softmax is (1/2, 1/2), so each sample adds (-1/2, 1/2) times x; their mean is (2, 3).
    assert grad.tolist() == [[-1.0, -1.5, 1.0, 1.5]]
    assert loss.tolist() == pytest.approx([0.6931472])
    assert buffers == {}


def test_gradient_loss_and_buffers_are_those_of_one_module_per_client(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    grad, loss, after = task.gradient(w, x, y, buffers)
    expected_grad, expected_loss, expected_after, _ = plain(model, task, w, x, y, buffers)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)  # float32, sums in another order
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
    assert after.keys() == expected_after.keys()
    for name in after:
        torch.testing.assert_close(after[name], expected_after[name], rtol=1e-5, atol=1e-6)


def test_logits_are_those_of_one_module_per_client_in_evaluation_mode(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    after = task.gradient(w, x, y, buffers)[2]
    one = copy.deepcopy(model).eval()
    for k in range(len(w)):
        values = {part.name: w[k, part.slice].view(part.shape) for part in task.parts}
        values |= {name.removeprefix("buffer/"): value[k] for name, value in after.items()}
        one.load_state_dict(values, strict=False)
        torch.testing.assert_close(task.logits(w, x, after)[k], one(x[k]).detach(), rtol=1e-4, atol=1e-5)


def test_computing_clients_one_after_the_other_gives_the_same(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    loop = Task(model, stacked=False)
    for stacked, single in zip(task.gradient(w, x, y, buffers)[:2], loop.gradient(w, x, y, buffers)[:2], strict=True):
        torch.testing.assert_close(stacked, single, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(task.logits(w, x, buffers), loop.logits(w, x, buffers), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(task.features(w, x, buffers), loop.features(w, x, buffers), rtol=1e-4, atol=1e-5)


def test_client_alone_equals_itself_inside_a_stack_bit_for_bit_with_one_thread(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        grad, loss, after = task.gradient(w, x, y, buffers)
        alone = task.gradient(w[1:2], x[1:2], y[1:2], {name: value[1:2] for name, value in buffers.items()})
        logits, one = task.logits(w, x, after), task.logits(w[1:2], x[1:2], {k: v[1:2] for k, v in after.items()})
    finally:
        torch.set_num_threads(threads)
    assert_alike((*alone[:2], one), (grad[1:2], loss[1:2], logits[1:2]))


def test_the_loss_without_a_gradient_is_the_same_and_so_are_the_buffers(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    before = {name: value.clone() for name, value in buffers.items()}
    loss, after = task.losses(w, x, y, buffers)
    _, expected, expected_after = task.gradient(w, x, y, buffers)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert after.keys() == expected_after.keys() and all(
        torch.equal(after[name], expected_after[name]) for name in after
    )
    assert all(torch.equal(buffers[name], before[name]) for name in buffers)


@pytest.mark.parametrize("batch", [2, 7, 16, 33, 64])
def test_the_loss_of_a_client_alone_is_that_inside_a_stack_bit_for_bit(batch, threads):
    threads(1)  # as a worker has it: with more, a product of one client may be cut in two
    for clients in (2, 5, 9):
        task, w, x, y, _ = problem(build("mlp", (6,), 4), (6,), 4, clients, batch)
        together = task.losses(w, x, y, {})[0]
        assert together.tolist() == [
            float(task.losses(w[k : k + 1], x[k : k + 1], y[k : k + 1], {})[0]) for k in range(clients)
        ]


def test_descend_is_a_step_along_the_gradient(case):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    grad, loss, after = task.gradient(w, x, y, buffers)
    stepped = task.descend(w, x, y, buffers, 0.5, 0.1)
    torch.testing.assert_close(stepped[0], w - 0.5 * (grad + 0.1 * w), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stepped[1], loss, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(stepped[2][name], after[name]) for name in after)


@pytest.mark.parametrize("threads", [1, 2])
def test_descend_in_place_gives_the_same_bits(case, threads):
    model, shape, classes = case
    task, w, x, y, buffers = problem(model, shape, classes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = task.descend(w, x, y, buffers, 0.5, 0.1)[0]
        other = task.descend(w, x, y, buffers, 0.5, 0.1, out=torch.full_like(w, torch.nan))[0]
        same = task.descend(w, x, y, buffers, 0.5, 0.1, out=w)[0]
    finally:
        torch.set_num_threads(before)
    assert same is w
    assert torch.equal(w, expected) and torch.equal(other, expected)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_only_the_moving_parameters_move(case, stacked, head):
    model, shape, classes = case
    _, w, x, y, buffers = problem(model, shape, classes)
    task = Task(model, stacked=stacked)
    moving = [part for part in task.parts if part.head == head]
    full = task.descend(w, x, y, buffers, 0.5, 0.1)[0]
    some, _, after = task.descend(w, x, y, buffers, 0.5, 0.1, moving=[part.name for part in moving])
    expected = w.clone()
    for part in moving:
        expected[:, part.slice] = full[:, part.slice]
    torch.testing.assert_close(some, expected, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(some[:, p.slice], w[:, p.slice]) for p in task.parts if p not in moving)
    assert after.keys() == buffers.keys()


def test_descend_by_hand():
    task = Task(nn.Linear(2, 2, bias=False))
    w = torch.zeros(1, 4)
    x, y = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[0, 0]])
    assert task.descend(w, x, y, {}, 2.0)[0].tolist() == [[2.0, 3.0, -2.0, -3.0]]  # the gradient is (-1, -1.5, 1, 1.5)


def test_weights_may_be_one_row_shown_to_all_clients():
    task, w, x, y, buffers = problem(Small(), (2, 4, 4), 4)
    shown = w[:1].expand(3, -1)
    expected = task.descend(shown.clone(), x, y, buffers, 0.5)[0]
    assert torch.equal(task.descend(shown, x, y, buffers, 0.5)[0], expected)


def test_inputs_are_left_as_they_were():
    task, w, x, y, buffers = problem(Small(), (2, 4, 4), 4)
    old = w.clone(), {name: value.clone() for name, value in buffers.items()}
    task.gradient(w, x, y, buffers)
    task.descend(w, x, y, buffers, 0.5)
    assert torch.equal(w, old[0]) and not w.requires_grad
    assert all(torch.equal(buffers[name], old[1][name]) for name in buffers)


def test_parts_tile_the_flat_weights_in_order_of_named_parameters():
    task = Task(Small())
    assert task.n == 152
    assert task.parts == (
        Part("conv.weight", slice(0, 54), (3, 2, 3, 3), "weight", False),
        Part("conv.bias", slice(54, 57), (3,), "bias", False),
        Part("norm.weight", slice(57, 60), (3,), "norm", False),
        Part("norm.bias", slice(60, 63), (3,), "norm", False),
        Part("hidden.weight", slice(63, 123), (5, 12), "weight", False),
        Part("hidden.bias", slice(123, 128), (5,), "bias", False),
        Part("head.weight", slice(128, 148), (4, 5), "weight", True),
        Part("head.bias", slice(148, 152), (4,), "bias", True),
    )


def test_features_times_head_are_the_logits():
    task, w, x, _, buffers = problem(Small(), (2, 4, 4), 4)
    features = task.features(w, x, buffers)
    weight, bias = (w[:, part.slice].view(3, *part.shape) for part in task.parts if part.head)
    assert features.shape == (3, 4, 5)
    expected = features @ weight.mT + bias[:, None]
    torch.testing.assert_close(task.logits(w, x, buffers), expected, rtol=1e-5, atol=1e-6)


def test_penalty_sees_features_and_adds_its_gradient():
    task = Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    w, x, y = torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([[[2.0]]]), torch.tensor([[0]])
    grad, loss, _ = task.gradient(w, x, y, {}, penalty=lambda features, y: features.square().sum((1, 2)))
    # the feature is 6: its square adds 36 to the loss and 2 * 6 * 2 to the first weight's gradient.
    assert grad.tolist() == [[24.0, -3.0, 3.0]]
    assert loss.tolist() == pytest.approx([36.6931472])


def test_penalty_may_be_constant():
    task, w, x, y, buffers = problem(Small(), (2, 4, 4), 4)
    grad, loss, _ = task.gradient(w, x, y, buffers)
    same, more, _ = task.gradient(w, x, y, buffers, penalty=lambda features, y: torch.ones(3))
    assert torch.equal(same, grad) and torch.equal(more, loss + 1)


def test_init_repeats_itself_for_the_same_seed_only():
    task = Task(mlp((6,), 4))
    first = task.init(7)
    assert torch.equal(first, Task(mlp((6,), 4)).init(7))
    assert not torch.equal(first, task.init(8))


def test_init_does_not_advance_the_global_random_state():
    task = Task(mlp((6,), 4))
    before = torch.get_rng_state()
    task.init(7)
    assert torch.equal(torch.get_rng_state(), before)


def test_init_draws_the_usual_distribution_of_linear_layers():
    w = Task(nn.Linear(100, 50)).init(0)
    assert w.abs().max() <= 0.1  # uniform in +-1/sqrt(100)
    assert w.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)


def test_module_with_a_branch_on_values_says_how_to_go_on():
    task = Task(Branching(), stacked=True)
    with pytest.raises(ValueError, match=r"Branching cannot be computed for all clients at once .*stacked=False"):
        task.gradient(torch.zeros(2, 8), torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=torch.int64), {})


@pytest.mark.filterwarnings("ignore:Branching is computed client by client")
@pytest.mark.parametrize("stacked", [None, False])
def test_module_with_a_branch_on_values_works_one_client_after_the_other(stacked):
    task = Task(Branching(), stacked=stacked)
    x = torch.tensor([[[1.0, 2.0, 3.0]], [[-1.0, -2.0, -3.0]]])
    grad = task.gradient(torch.zeros(2, 8), x, torch.zeros(2, 1, dtype=torch.int64), {})[0]
    assert grad.tolist() == [[-0.5, -1.0, -1.5, 0.5, 1.0, 1.5, -0.5, 0.5]] * 2


def test_missing_buffers_are_refused():
    task, w, x, y, _ = problem(Small(), (2, 4, 4), 4)
    with pytest.raises(ValueError, match="begin with task.buffers"):
        task.gradient(w, x, y, {})


def test_features_of_a_model_without_linear_layer_are_refused():
    task = Task(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()))
    with pytest.raises(ValueError, match="input of the last torch.nn.Linear, and Sequential has none"):
        task.features(torch.zeros(1, task.n), torch.zeros(1, 1, 1, 2, 2), {})


def test_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="needs trainable parameters"):
        Task(nn.Linear(2, 2).requires_grad_(False))
