"""PowerSGD: one power step by hand, nothing lost only late, and FedAvg at full rank."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.compressors import LowRank
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task


def data():
    return federate(load("digits"), 4, "dirichlet:0.5", cap=60)


def digits():
    return Task(build("mlp", (1, 8, 8), 10))


def test_one_power_step_of_a_diagonal_matrix():
    code = LowRank(Task(nn.Linear(2, 2, bias=False)).parts, 1)
    said = code.compress(torch.tensor([[3.0, 0, 0, 1]]), torch.tensor([[1.0, 1]]))
    torch.testing.assert_close(code.decompress(said), torch.tensor([[2.7, 0.3, 0.9, 0.1]]))
    assert float(said["p"].norm()) == pytest.approx(1) and float(said["q"].norm()) == pytest.approx(8.2**0.5)
    assert list(code.layout) == ["p", "q"]


def test_clients_and_server_keep_what_the_factors_lose():
    model = nn.Linear(2, 2)
    algorithm = make("powersgd", Task(model), rank=1, server_lr=0.5)
    server, _ = algorithm.init(2)
    server |= {"q": torch.tensor([1.0, 1]), "error": torch.tensor([1.0, 0, 0, 1, 0, 0])}
    # P Q^T of both is diag(2, 0); with the memory diag(3, 1); biases 4 and 0 by shares 1/4 and 3/4
    said = {"p": torch.tensor([1.0, 0]), "q": torch.tensor([2.0, 0])}
    messages = [{**said, "vectors": torch.tensor([4.0, 0])}, {**said, "vectors": torch.tensor([0.0, 4])}]
    who = Cohort(0, 0, torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([-1, -1]))
    after = algorithm.aggregate(server, messages, who)
    torch.testing.assert_close(after["error"], torch.tensor([0.3, -0.3, -0.9, 0.9, 0, 0]))
    torch.testing.assert_close(after["w"] - server["w"], 0.5 * torch.tensor([2.7, 0.3, 0.9, 0.1, 1, 3]))
    clients = algorithm.absorb(algorithm.init(1)[1], {name: after[name] for name in algorithm.down}, 1)
    assert torch.equal(clients["q"][0], after["q"]) and torch.equal(clients["theta"][0], after["w"])


def test_a_client_sends_its_memory_with_its_update():
    federation = data()
    algorithm = make("powersgd", digits(), rank=1)
    _, clients = algorithm.init(1)
    clients["error"] = 0.01 * torch.randn(1, algorithm.task.n, generator=torch.Generator().manual_seed(0))
    who = Cohort(0, 0, torch.tensor([0]), torch.tensor([60]), torch.tensor([-1]))
    state, said = algorithm.local(clients, {}, who, federation.batches(who.ids, 0, 0, 2, 8))
    whole = state["w"] - clients["theta"] + clients["error"]
    torch.testing.assert_close(algorithm.code.decompress(said) + state["error"], whole, rtol=0, atol=1e-6)
    assert float(state["error"].norm()) > 0.1 * float(whole.norm())


def test_at_full_rank_it_is_fedavg():
    ends = []
    for name, options in (("powersgd", {"rank": 1000}), ("fedavg", {})):
        *_, done = simulate(make(name, digits(), **options), data(), rounds=3, steps=3, batch=8)
        ends.append(done.progress.server["w"])
    torch.testing.assert_close(*ends, rtol=0, atol=1e-5)


def test_what_is_not_sent_waits_at_one_of_the_sides():
    algorithm = make("powersgd", digits(), rank=1)
    moved = algorithm.init(1)[0]["w"].double()
    for done in simulate(algorithm, data(), rounds=5, steps=3, batch=8):
        clients, shares = done.progress.clients, done.cohort.weights
        moved += shares @ (clients["w"] - clients["theta"]).double()
        waiting = shares @ clients["error"].double() + done.progress.server["error"]
        assert float((done.progress.server["w"] + waiting - moved).abs().max()) < 1e-6  # float32, few sums
        assert float(waiting.norm()) > 0.01
        assert not clients["error"][:, algorithm.code.plain].any()  # biases have no memory


def test_nothing_is_nothing_and_a_dead_factor_comes_back():
    code = LowRank(Task(nn.Linear(5, 4)).parts, 2)
    said = code.compress(torch.zeros(1, 24), torch.randn(1, 10, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(code.decompress(said), torch.zeros(1, 24)) and not said["q"].any()
    x = torch.randn(1, 24, generator=torch.Generator().manual_seed(1))
    assert float(code.compress(x, said["q"])["q"].norm()) > 0.5


def test_the_first_factor_is_random_and_the_same_for_all():
    server, clients = make("powersgd", digits()).init(3)
    assert torch.equal(clients["q"], server["q"].expand(3, -1)) and float(server["q"].std()) == pytest.approx(
        1, abs=0.1
    )


def test_convolutions_are_matrices_with_a_row_for_every_output():
    code = LowRank(Task(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Flatten(), nn.Linear(8, 2))).parts, 3)
    assert [shape for _, *shape in code.matrices] == [[8, 75, 3], [2, 8, 2]]
    assert {name: codec.shape for name, codec in code.layout.items()} == {"p": (28,), "q": (241,), "vectors": (10,)}


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_a_client_alone_sends_what_it_sends_among_others(rank):
    code = LowRank(digits().parts, rank)
    generator = torch.Generator().manual_seed(0)
    x, start = (torch.randn(5, size, generator=generator) for size in (19_210, code.layout["q"].shape[0]))
    together = code.compress(x, start)
    for i in range(5):
        alone = code.compress(x[i : i + 1], start[i : i + 1])
        assert all(torch.equal(alone[name][0], together[name][i]) for name in together)
        assert torch.equal(code.decompress(alone)[0], code.decompress(together)[i])
