from functools import cache

import pytest
import torch
from torch import Tensor, nn

from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.algorithms.stc import ternary
from pfed1bs.core.options import keys
from pfed1bs.core.votes import pack
from pfed1bs.data import Federation, federate, load
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import hear, tell
from pfed1bs.engine.rounds import Round, simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

CLIENTS = 6
REPLICAS = [
    ("obda", {}),
    ("obda", {"tie": "zero"}),
    ("obda", {"mode": "gradient", "weights": "samples"}),
    ("signsgd", {}),
    ("signsgd", {"beta": 0.9}),
    ("ef-sign", {}),
    ("ef-sign", {"scales": "tensor"}),
    ("stc", {}),
    ("stc", {"p_up": 0.1, "p_down": 0.01, "weights": "equal"}),
    ("decomfl", {"moves": 2, "directions": 3}),
    ("decomfl", {"moves": 2, "directions": 3, "beta": 0.9, "draw": "signs"}),
    ("ferret", {}),
    ("powersgd", {}),
    ("powersgd", {"rank": 1, "server_lr": 0.5}),
    ("powersgd", {"factors": "half"}),
    ("powersgd", {"factors": "half", "rank": 1, "server_lr": 0.5}),
    ("eden-two", {}),
    ("eden-two", {"bits": 1.5, "down_bits": 2.0, "server_lr": 0.3}),
]
replicas = pytest.mark.parametrize(("name", "options"), REPLICAS)


@cache
def federation() -> Federation:
    return federate(load("digits"), CLIENTS, "dirichlet:0.5", cap=40)


@cache
def task() -> Task:
    return Task(build("mlp", federation().shape, federation().num_classes))


def rounds(algorithm: Algorithm, number: int, sampled: int = 2) -> list[Round]:
    return list(simulate(algorithm, federation(), rounds=number, sampled=sampled, steps=2, batch=8))


def tiny(name: str, **options: object) -> Algorithm:
    """A method on a model of four weights that start at 0.25, 0.5, -0.25 and 0."""
    model = nn.Linear(2, 2, bias=False)
    model.reset_parameters = lambda: None
    model.weight.data = torch.tensor([[0.25, 0.5], [-0.25, 0.0]])
    return make(name, Task(model), **options)


def cohort(sizes: list[int], round: int = 0) -> Cohort:
    ids = torch.arange(len(sizes))
    return Cohort(0, round, ids, torch.tensor(sizes), torch.full((len(sizes),), round - 1))


def voted(algorithm: Algorithm, server: State, signs: list[list[int]], sizes: list[int], round: int = 0) -> State:
    messages = [{"signs": pack(torch.tensor(row).float())} for row in signs]
    return algorithm.aggregate(server, messages, cohort(sizes, round))


@replicas
def test_copies_at_the_clients_equal_the_servers_weights_bit_for_bit(name, options):
    algorithm = make(name, task(), **options)
    server, caught_up = algorithm.init(CLIENTS)[0]["w"], 0
    for done in rounds(algorithm, 9):
        for client in done.cohort.ids:
            assert torch.equal(done.progress.clients["theta"][client], server)
        server, caught_up = done.progress.server["w"], caught_up + done.traffic.catch_up
    assert caught_up > 0


@replicas
def test_a_snapshot_replaces_all_that_was_missed(name, options):
    algorithm = make(name, task(), **options)
    done = rounds(algorithm, 4, sampled=CLIENTS)[-1]
    late = Cohort(0, 4, torch.tensor([0]), torch.tensor([1]), torch.tensor([-1]))
    news = tell(algorithm, done.progress.server, {}, late)  # nothing is left of the history
    assert [item.kind for item in news[0]] == ["snapshot"]
    clients, received = hear(algorithm, algorithm.init(1)[1], news)
    assert torch.equal(clients["theta"][0], done.progress.server["w"]) and received == {}
    for copied in algorithm.snapshot_layout.keys() - {"theta"}:
        assert torch.equal(clients[copied][0], done.progress.server[copied])


def test_missed_votes_cost_one_message_each():
    algorithm = make("obda", task())
    seen = dict.fromkeys(range(CLIENTS), -1)
    for done in rounds(algorithm, 9):
        size = 20 + (task().n + 7) // 8
        missed = [r for k in done.cohort.ids.tolist() for r in range(seen[k] + 1, done.number)]
        assert done.traffic.catch_up == sum(size if r else 20 for r in missed)  # that of round 0 is a header alone
        seen |= dict.fromkeys(done.cohort.ids.tolist(), done.number)


def test_obda_moves_every_weight_by_the_majority():
    algorithm = tiny("obda", step=0.5, decay=1.0)
    server, _ = algorithm.init(3)
    signs = [[1, 1, -1, -1], [1, -1, -1, -1], [-1, 1, -1, 1]]
    server = voted(algorithm, server, signs, [1, 1, 100])  # equal votes: sizes do not count
    assert server["w"].tolist() == [-0.25, 0, 0.25, 0.5]
    server = voted(algorithm, server, signs, [1, 1, 1], round=1)  # half the step in round 1
    assert server["w"].tolist() == [-0.5, -0.25, 0.5, 0.75]


def test_obda_can_weigh_votes_by_samples():
    algorithm = tiny("obda", step=0.5, weights="samples")
    server, _ = algorithm.init(3)
    server = voted(algorithm, server, [[1, 1, -1, -1], [1, -1, -1, -1], [-1, 1, -1, 1]], [1, 1, 3])
    assert server["w"].tolist() == [0.75, 0, 0.25, -0.5]


def test_ties_repeat_the_previous_move_or_make_none():
    signs, sizes = [[1, 1, -1, -1], [1, -1, -1, 1]], [1, 1]
    algorithm = tiny("obda", step=0.5, decay=0.0)
    server = {**algorithm.init(2)[0], "vote": pack(torch.tensor([1.0, 1, 1, -1]))}
    assert voted(algorithm, server, signs, sizes)["w"].tolist() == [-0.25, 0, 0.25, 0.5]
    algorithm = tiny("obda", step=0.5, decay=0.0, tie="zero")
    after = voted(algorithm, algorithm.init(2)[0], signs, sizes)
    assert after["w"].tolist() == [-0.25, 0.5, 0.25, 0] and after["vote"].tolist() == [2, 1, 0, 1]
    assert algorithm.down["vote"].size == 1  # two bits each


def batches(x: Tensor, y: Tensor):
    class Same:
        steps = 2

        def __call__(self, name: str = "train", steps: int | None = None):
            return iter([(x, y)] * 2)

    return Same()


def test_gradient_votes_are_taken_at_the_shared_model_and_update_votes_after_training():
    x, y = torch.tensor([[[1.0, -1.0]]]), torch.tensor([[0]])
    who = cohort([1])
    for name, options in (("obda", {"mode": "gradient"}), ("signsgd", {})):
        algorithm = tiny(name, lr=0.1, mu=0.0, **options)
        _, clients = algorithm.init(1)
        state, said = algorithm.local(clients, {}, who, batches(x, y))
        # Logits -0.25, -0.25: the gradient is (p - onehot) x^T with p = 1/2: [[-.5, .5], [.5, -.5]]
        assert said["signs"].tolist() == [[-1, 1, 1, -1]]
        expected = clients["theta"] - 0.1 * torch.tensor([[-0.5, 0.5, 0.5, -0.5]])
        assert torch.allclose(state["w"], expected, atol=1e-6)  # one step, though there are two batches
    algorithm = tiny("obda", lr=0.1, mu=0.0)
    state, said = algorithm.local(clients, {}, who, batches(x, y))
    assert said["signs"].tolist() == [[-1, 1, 1, -1]]
    assert float((state["w"] - clients["theta"]).abs().min()) > 0.09  # two steps


@pytest.mark.parametrize(("mode", "judged"), [("update", "w"), ("gradient", "tuned")])
def test_obda_judges_the_trained_model_where_one_is_trained_and_else_the_tuned_one(mode, judged):
    algorithm = tiny("obda", lr=0.1, mode=mode)
    server, clients = algorithm.init(1)
    clients["w"] = torch.tensor([[1.0, 2, 3, 4]])
    x, y = torch.tensor([[[1.0, -1.0]]]), torch.tensor([[0]])
    models = algorithm.personal(server, clients, cohort([1], 1), batches(x, y))
    assert torch.equal(models["personal"]["w"], clients["w"] if judged == "w" else models["tuned"]["w"])


def test_signum_votes_with_the_momentum():
    algorithm = tiny("signsgd", beta=0.9, mu=0.0)
    _, clients = algorithm.init(1)
    clients["m"] = torch.tensor([[1.0, -1, 0.01, -0.01]])
    x, y = torch.tensor([[[1.0, -1.0]]]), torch.tensor([[0]])
    state, said = algorithm.local(clients, {}, cohort([1]), batches(x, y))
    assert torch.allclose(state["m"], torch.tensor([[0.85, -0.85, 0.059, -0.059]]), atol=1e-6)
    assert said["signs"].tolist() == [[1, -1, 1, -1]]


def test_ef_sign_keeps_what_the_scaled_signs_lose():
    said, error = tiny("ef-sign").compress(torch.tensor([[3.0, -1, 0, 0]]))
    assert said["signs"].tolist() == [[1, -1, 1, 1]] and said["scale"].tolist() == [1]
    assert error.tolist() == [[2, 0, -1, -1]]


def test_ef_sign_has_a_scale_per_tensor_if_asked():
    algorithm = make("ef-sign", Task(nn.Linear(2, 1)), scales="tensor")
    said, error = algorithm.compress(torch.tensor([[3.0, -1, 5]]))
    assert said["scale"].tolist() == [[2, 5]] and error.tolist() == [[1, 1, 0]]
    assert algorithm.up["scale"].size == 8
    said, _ = tiny("ef-sign", scales="tensor").compress(torch.tensor([[3.0, -1, 0, 0]]))
    assert said["scale"].tolist() == [[1]]  # one of one tensor, in the shape that the message has


def test_ef_sign_adds_the_servers_memory_before_it_signs():
    algorithm = tiny("ef-sign")
    server = {**algorithm.init(2)[0], "error": torch.tensor([0.0, 0, 0, 4])}
    message = {"signs": pack(torch.tensor([1.0, 1, -1, -1])), "scale": torch.tensor(2.0)}
    other = {"signs": pack(torch.tensor([1.0, -1, 1, -1])), "scale": torch.tensor(4.0)}
    after = algorithm.aggregate(server, [message, other], cohort([3, 1]))
    # 3/4 (2, 2, -2, -2) + 1/4 (4, -4, 4, -4) + memory = (2.5, 0.5, -0.5, 1.5), scale 1.25
    assert after["signs"].tolist() == [1, 1, -1, 1] and float(after["scale"]) == 1.25
    assert after["error"].tolist() == [1.25, -0.75, 0.75, 0.25]
    assert after["w"].tolist() == [1.5, 1.75, -1.5, 1.25]


def test_the_step_of_the_server_scales_the_mean_and_not_what_waits():
    ef, stc = tiny("ef-sign", server_lr=0.5), tiny("stc", p_up=0.5, p_down=0.25, server_lr=0.5)
    server = {**ef.init(1)[0], "error": torch.tensor([0.0, 0, 0, 4])}
    message = {"signs": pack(torch.tensor([1.0, 1, -1, -1])), "scale": torch.tensor(2.0)}
    after = ef.aggregate(server, [message], cohort([3]))
    assert (after["w"] - server["w"] + after["error"]).tolist() == [1, 1, -1, 3]  # memory + (2, 2, -2, -2) / 2
    server = {**stc.init(1)[0], "residual": torch.tensor([0.0, 0, 3, 0])}
    after = stc.aggregate(server, [{"update": torch.tensor([8.0, -8, 0, 0])}], cohort([1]))
    assert (after["move"] + after["residual"]).tolist() == [4, -4, 3, 0]


def test_every_method_that_averages_updates_has_the_step_of_the_server():
    votes, steps = {"obda", "signsgd"}, {"pfed1bs-delta", "delta-float32", "decomfl"}  # steps by another name
    own = votes | steps | {"pfed1bs", "local", "fedproto", "dispfl"}  # the last have no shared weights
    have = {name for name in REGISTRY if "server_lr" in keys(algorithm_class(name))}
    assert have == set(REGISTRY) - own
    assert {keys(algorithm_class(name))["server_lr"].default for name in have} == {1.0}


def test_ternary_keeps_the_largest_with_their_mean_magnitude():
    assert ternary(torch.tensor([[5.0, -3, 1, 0], [0, 1, 2, -6]]), 2).tolist() == [[4, -4, 0, 0], [0, 0, 4, -4]]
    assert ternary(torch.zeros(4), 2).tolist() == [0, 0, 0, 0]


def test_stc_sends_now_or_later_at_both_sides():
    algorithm = tiny("stc", p_up=0.5, p_down=0.25)
    server = {**algorithm.init(2)[0], "residual": torch.tensor([0.0, 0, 3, 0])}
    messages = [{"update": torch.tensor([2.0, -2, 0, 0])}, {"update": torch.tensor([4.0, 0, 0, -4])}]
    after = algorithm.aggregate(server, messages, cohort([1, 1]))
    # mean (3, -1, 0, -2) + residual: (3, -1, 3, -2); one of four is sent
    assert after["move"].tolist() in ([3, 0, 0, 0], [0, 0, 3, 0])
    assert torch.equal(after["move"] + after["residual"], torch.tensor([3.0, -1, 3, -2]))
    assert torch.equal(after["w"], server["w"] + after["move"])


@pytest.mark.parametrize("name", ["ef-sign", "stc"])
def test_nothing_is_lost_only_late(name):
    """All updates = what was sent + what still waits, at a client over three rounds."""
    algorithm = make(name, task())
    sent, kept = torch.zeros(task().n), "error" if name == "ef-sign" else "residual"
    total = torch.zeros(task().n)
    _, clients = algorithm.init(1)
    for t in range(3):
        who = Cohort(0, t, torch.tensor([0]), torch.tensor([40]), torch.tensor([t - 1]))
        state, said = algorithm.local(clients, {}, who, federation().batches(who.ids, t, 0, 2, 8))
        total += (state["w"] - clients["theta"])[0]
        sent += (algorithm.move(said, t) if name == "ef-sign" else said["update"])[0]
        clients = {key: value for key, value in state.items() if not key.startswith("log/")}
    assert torch.allclose(sent + clients[kept][0], total, atol=1e-6)  # float32 sums
    assert float(clients[kept].norm()) > 0.1 * float(total.norm())
