"""FedPer and FedRep: two clients computed by hand, and what never leaves a client."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.algorithms.fedrep import FedRep
from pfed1bs.nn.task import Task
from tiny import aggregated, chain, chain_slope, close, cohort, given, linear, mean, plus

BODY = 0.5  # the shared body that both clients receive
HEADS = [[0.4, -0.3], [-0.2, 0.6]]  # what the clients kept
HEAD_STEPS, BODY_STEPS = [((1.0, 0), (2.0, 1))], [((-0.5, 0), (1.0, 1))]


def server():
    return {"w": torch.tensor([BODY, 9.0, 9.0])}  # its head is never used


def states():
    return {"w": torch.tensor([[7.0, *head] for head in HEADS])}  # an old body, which the received one replaces


def received(method):
    return method.broadcast(server(), cohort())


def test_fedper_trains_body_and_own_head_together_and_averages_the_body():
    method = make("fedper", chain(), lr=0.5, mu=0.1)
    batches = given(train=HEAD_STEPS + BODY_STEPS, tune=HEAD_STEPS)
    assert close(received(method)["w"], [BODY])
    state, said = method.local(states(), received(method), cohort(), batches)
    expected = []
    for k, head in enumerate(HEADS):
        w = [BODY, *head]
        for samples in HEAD_STEPS + BODY_STEPS:
            w = plus(w, (-0.5, chain_slope(w, samples[k])), (-0.5 * 0.1, w))
        expected.append(w)
    assert close(state["w"], expected)
    new = aggregated(method, server(), said)
    body = mean(expected)[0]
    assert close(new["w"], [body, 9.0, 9.0])
    judged = method.personal(new, state, cohort(1), batches)
    assert close(judged["personal"]["w"], [[body, *w[1:]] for w in expected])
    assert "global" not in judged


@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.0), (0.1, 0.9)])
def test_fedrep_moves_the_head_first_and_then_only_the_body(mu, momentum):
    method = make("fedrep", chain(), lr=0.5, mu=mu, momentum=momentum)
    batches = given(train=HEAD_STEPS + BODY_STEPS, head=HEAD_STEPS, body=BODY_STEPS)
    state, said = method.local(states(), received(method), cohort(), batches)
    expected = []
    for k, head in enumerate(HEADS):
        w = [BODY, *head]
        w = [BODY, *plus(w, (-0.5, chain_slope(w, HEAD_STEPS[0][k])), (-0.5 * mu, w))[1:]]
        w = [plus(w, (-0.5, chain_slope(w, BODY_STEPS[0][k])), (-0.5 * mu, w))[0], *w[1:]]
        expected.append(w)
    assert close(state["w"], expected)
    assert close(aggregated(method, server(), said)["w"], [mean(expected)[0], 9.0, 9.0])


def test_fedrep_trains_the_head_once_more_on_the_last_body_before_it_is_judged():
    method = make("fedrep", chain(), lr=0.5, mu=0.0, tune_steps=1)
    judged = method.personal(server(), states(), cohort(), given(tune=HEAD_STEPS + BODY_STEPS))
    expected = []
    for k, head in enumerate(HEADS):
        w = [BODY, *head]
        expected.append([BODY, *plus(w, (-0.5, chain_slope(w, HEAD_STEPS[0][k])))[1:]])
    assert close(judged["personal"]["w"], expected)


@pytest.mark.parametrize(("share", "steps", "head"), [(0.5, 10, 5), (0.9, 10, 9), (0.99, 10, 9), (0.01, 2, 1)])
def test_fedrep_leaves_steps_for_both(share, steps, head):
    assert make("fedrep", chain(), head_share=share).head_steps(steps) == head


def test_fedrep_refuses_rounds_of_one_step():
    with pytest.raises(ValueError, match="it needs steps >= 2, got 1"):
        make("fedrep", chain()).head_steps(1)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_fedrep_refuses_a_share_that_leaves_nothing(share):
    with pytest.raises(ValueError, match=r"head_share inside \(0, 1\)"):
        FedRep(chain(), head_share=share).head_steps(4)


def test_a_model_without_a_body_is_refused():
    with pytest.raises(ValueError, match=r"split into its head, the last torch.nn.Linear, and the body before it"):
        _ = make("fedper", linear()).down


def test_a_head_that_is_not_last_among_the_weights_stays_too():
    layers = nn.ModuleDict({"head": nn.Linear(1, 2, bias=False), "body": nn.Conv1d(1, 1, 1)})
    task = Task(Turned(layers))
    method = make("fedper", task)
    assert [part.name for part in task.parts if part.head] == ["layers.head.weight"]
    assert method.body.tolist() == [False, False, True, True]
    update = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    message = method.compressor.compress(update, cohort())
    assert message["update"].tolist() == [[3.0, 4.0]]
    decoded = method.compressor.decompress({"update": message["update"][0]}, cohort())
    assert decoded.tolist() == [0.0, 0.0, 3.0, 4.0]


class Turned(nn.Module):
    """A model that holds its head before its body."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers["head"](self.layers["body"](x.unsqueeze(1)).squeeze(1))


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedproto", "knnper", "fedavg-ft"])
def test_methods_that_need_a_head_say_so(name):
    options = {"tune": "head"} if name == "fedavg-ft" else {}
    with pytest.raises(ValueError, match=r"last torch.nn.Linear|ends in a trainable torch.nn.Linear"):
        method = make(name, Task(nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten())), **options)
        server, clients = method.init(2)
        method.personal(server, clients, cohort(), given(tune=HEAD_STEPS))
