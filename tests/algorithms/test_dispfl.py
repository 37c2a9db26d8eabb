"""DisPFL: two clients computed by hand, the masks, and what a relayed link costs."""

from dataclasses import replace
from math import exp

import pytest
import torch
from hypothesis import given as drawn_by
from hypothesis import strategies as st
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.algorithms.base.masks import drawn, evolved, highest, kept
from pfed1bs.core.votes import pack, unpack
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.facts.costs import bits
from pfed1bs.facts.printed import NETS
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import HEADER, fixed_size
from tiny import aggregated, close, cohort, given, plus

STEPS = [((1.0, 0), (2.0, 1)), ((-0.5, 2), (1.0, 3))]
REGROW = [((1.0, 3), (-1.0, 0))]
MASKS = [[True, True, False, False], [False, True, True, False]]
WEIGHTS = [[1.0, 2.0, 0.0, 0.0], [0.0, 4.0, 6.0, 0.0]]
MIXED = [[1.0, 3.0, 0.0, 0.0], [0.0, 3.0, 6.0, 0.0]]  # weight 1 exists at both clients, so both hold its mean


def four():
    """Logits (a x, b x, c x, d x): one weight per class, two of the four exist."""
    return Task(nn.Linear(1, 4, bias=False))


def states():
    return {"mask": torch.tensor(MASKS), "w": torch.tensor(WEIGHTS)}


def each_others():
    """The masks and weights of the two clients, exchanged."""
    return {
        "mask/0": torch.tensor([[-1.0, 1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]),
        "values/0": torch.tensor([[4.0, 6.0], [1.0, 2.0]]),
    }


def slope(w, sample):
    x, y = sample
    total = sum(exp(value * x) for value in w)
    return [(exp(value * x) / total - (c == y)) * x for c, value in enumerate(w)]


def trained():
    """SGD of step 0.5 from the mixtures, under the masks."""
    for k, (w, mask) in enumerate(zip(MIXED, MASKS, strict=True)):
        for samples in STEPS:
            w = [value * own for value, own in zip(plus(w, (-0.5, slope(w, samples[k]))), mask, strict=True)]
        yield w


def replaced(w, mask, scores):
    """The mask without its smallest weight, and with the highest score of those that are missing then."""
    mask = list(mask)
    mask[min((i for i in range(4) if mask[i]), key=lambda i: abs(w[i]))] = False
    mask[max((i for i in range(4) if not mask[i]), key=lambda i: scores[i])] = True
    return mask


@pytest.mark.parametrize("round", [1, 2])
def test_weights_are_averaged_over_those_who_have_them_and_trained_under_the_mask(round):
    method = make("dispfl", four(), lr=0.5, mu=0.0, horizon=1, neighbours=1)
    state, said = method.local(states(), each_others(), cohort(round), given(train=STEPS, regrow=REGROW))
    expected = list(trained())
    assert close(state["w"], expected)
    assert torch.equal(state["mask"], torch.tensor(MASKS))  # from round `horizon` on masks stay
    assert close(said["values"], [expected[0][:2], expected[1][1:3]])
    assert said["mask"].tolist() == [[0b0011], [0b0110]]


def test_the_smallest_weight_gives_way_to_the_steepest_and_the_judged_model_keeps_it():
    method = make("dispfl", four(), lr=0.5, mu=0.0, anneal=1.0, horizon=4, regrow="gradient", neighbours=1)
    batches = given(train=STEPS, regrow=REGROW)
    state, said = method.local(states(), each_others(), cohort(2), batches)  # share (1 + cos(pi / 2)) / 2 of 2 weights
    expected = list(trained())
    assert close(state["w"], expected)
    masks = []
    for k, (w, mask) in enumerate(zip(expected, MASKS, strict=True)):
        masks.append(replaced(w, mask, [abs(value) for value in slope(w, REGROW[0][k])]))
    assert state["mask"].tolist() == masks and masks != MASKS
    assert close(
        said["values"].flatten(), [w[i] for w, mask in zip(expected, masks, strict=True) for i in range(4) if mask[i]]
    )
    assert torch.equal(unpack(said["mask"], 4) > 0, torch.tensor(masks))


def test_two_neighbours_are_averaged_with_the_own_model():
    method = make("dispfl", four())
    third = {"mask/1": torch.tensor([[1.0, -1.0, 1.0, -1.0]] * 2), "values/1": torch.tensor([[10.0, 20.0]] * 2)}
    mixed = method.mixed(torch.tensor(WEIGHTS), torch.tensor(MASKS).float(), {**each_others(), **third})
    # weight 0: 1 and 10; 1: 2 and 4; 2: 6 and 20; each under the own mask
    assert mixed.tolist() == [[5.5, 3.0, 0.0, 0.0], [0.0, 3.0, 13.0, 0.0]]


def test_random_regrowth_draws_from_every_clients_own_stream():
    method = make("dispfl", four(), regrow="random")
    scores = method.scores(torch.zeros(2, 4), {}, cohort(3), given())
    assert torch.equal(scores, cohort(3).uniform("regrow", 4)) and not torch.equal(scores[0], scores[1])


def test_one_client_hears_its_neighbour_without_a_client_axis():
    method = make("dispfl", four(), lr=0.5, mu=0.0, horizon=1, neighbours=1)
    whole, _ = method.local(states(), each_others(), cohort(1), given(train=STEPS, regrow=REGROW))
    first = {name: field[0] for name, field in each_others().items()}
    mine = given(train=[pairs[:1] for pairs in STEPS], regrow=[pairs[:1] for pairs in REGROW])
    alone, _ = method.local({name: value[:1] for name, value in states().items()}, first, cohort(1), mine)
    assert torch.equal(alone["w"], whole["w"][:1])


def test_the_server_relays_the_last_message_of_the_other_client():
    method = make("dispfl", four(), neighbours=1)
    server, clients = method.init(2)
    assert method.broadcast(server, cohort(0)) == {}
    said = {"mask": pack(torch.tensor(MASKS) * 2.0 - 1), "values": torch.tensor([[1.0, 2.0], [4.0, 6.0]])}
    relayed = method.broadcast(aggregated(method, server, said), cohort(1))
    assert torch.equal(relayed["mask/0"], said["mask"].flip(0)) and torch.equal(
        relayed["values/0"], said["values"].flip(0)
    )
    assert torch.equal(unpack(server["mask"], 4) > 0, clients["mask"])
    assert torch.equal(server["values"], clients["w"][clients["mask"]].view(2, 2))


@pytest.mark.parametrize(("ids", "neighbours"), [([1, 4, 6], 2), ([0, 2, 3, 5], 1), ([3], 1), ([2, 7], 3)])
def test_neighbours_take_part_in_the_round_and_are_others_if_there_are_any(ids, neighbours):
    method = make("dispfl", four(), neighbours=neighbours)
    server = {"mask": torch.zeros(8, 1, dtype=torch.uint8), "values": torch.arange(8.0)[:, None].expand(8, 2)}
    some = Cohort(0, 3, torch.tensor(ids), torch.ones(len(ids)), torch.zeros(len(ids)))
    relayed = method.broadcast(server, some)
    senders = torch.stack([relayed[f"values/{j}"][:, 0] for j in range(neighbours)], 1).int().tolist()
    for client, heard in zip(ids, senders, strict=True):
        assert set(heard) <= set(ids)
        if neighbours < len(ids):
            assert client not in heard and len(set(heard)) == neighbours
    again = method.broadcast(server, Cohort(0, 4, some.ids, some.sizes, some.seen))
    if len(ids) == 4:
        assert not torch.equal(again["values/0"], relayed["values/0"])


def test_small_layers_stay_dense_and_the_rest_has_the_density_of_the_table():
    assert kept(Task(build("mlp", (1, 28, 28), 10)).parts, 0.5) == [98_939, 256, 2_560, 10]
    parts = Task(build("vgg8", (3, 32, 32), 10)).parts
    counts = kept(parts, 0.5)
    assert sum(counts) == 140_037
    assert all(
        count == part.slice.stop - part.slice.start
        for part, count in zip(parts, counts, strict=True)
        if part.kind == "norm"
    )


def test_two_layers_share_in_proportion_to_the_sum_of_their_sizes():
    parts = Task(nn.Sequential(nn.Linear(20, 10, bias=False), nn.Linear(10, 5, bias=False))).parts
    assert kept(parts, 0.18) == [30, 15]  # 45 weights, 30 : 15
    assert kept(parts, 0.184) == [31, 15]  # 46 weights, 30.67 : 15.33
    assert kept(parts, 0.8) == [150, 50]  # the second layer is full
    assert kept(parts, 1.0) == [200, 50]


@drawn_by(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=4), st.floats(0.01, 1))
def test_the_counts_add_up_and_fit(shapes, density):
    layers = [nn.Linear(a, b) for a, b in shapes]
    parts = Task(nn.Sequential(*layers)).parts
    counts = kept(parts, density)
    assert sum(counts) == round(density * parts[-1].slice.stop)
    assert all(0 <= count <= part.slice.stop - part.slice.start for part, count in zip(parts, counts, strict=True))


@pytest.mark.parametrize("density", [0.0, 1.5, 0.001])
def test_densities_that_leave_no_room_are_refused(density):
    parts = Task(nn.Sequential(nn.Linear(3, 40), nn.BatchNorm1d(40))).parts
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\] and cover normalisation"):
        kept(parts, density)


def test_what_is_left_over_goes_where_the_largest_part_was_cut_off():
    parts = Task(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 9, bias=False))).parts
    assert kept(parts, 13 / 48) == [5, 8]  # 13 * 7 / 20 = 4.55 and 13 * 13 / 20 = 8.45


def test_masks_have_the_counts_of_every_layer_at_first_and_after_every_change():
    parts = Task(nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 5))).parts
    counts = kept(parts, 0.3)
    mask = torch.stack([drawn(parts, counts, 0, client) for client in range(3)])
    assert not torch.equal(mask[0], mask[1]) and torch.equal(mask[2], drawn(parts, counts, 0, 2))
    generator = torch.Generator().manual_seed(0)
    w, scores = (torch.randn(mask.shape, generator=generator) for _ in range(2))
    new = evolved(mask, w * mask, scores, parts, counts, 0.4)
    for part, count in zip(parts, counts, strict=True):
        assert mask[:, part.slice].sum(1).tolist() == new[:, part.slice].sum(1).tolist() == [count] * 3
    assert (mask & ~new).sum() > 0


def test_the_highest_are_found_among_the_allowed_and_of_equal_ones_the_first():
    x = torch.tensor([[5.0, 1.0, 3.0, 3.0, 3.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    among = torch.tensor([[True, True, True, True, True, False], [False, True, False, True, True, True]])
    assert highest(x, 3, among).int().tolist() == [[1, 0, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0]]
    assert highest(-x, 1, among).int().tolist() == [[0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 28, 28)), ("vgg8", (3, 32, 32))])
def test_a_link_costs_the_kept_weights_and_a_mask(name, shape):
    method, net = make("dispfl", Task(build(name, shape, 10)), neighbours=1), NETS[name]
    cost = bits("dispfl", net.n, net.m, 1, 1, detail=replace(net.detail, neighbours=1))
    for layout, formula in ((method.up, cost.up), (method.down, cost.down)):
        assert fixed_size(layout) - HEADER.size == -(-formula // 8)


def test_a_tenth_of_twenty_clients_are_neighbours_and_bytes_count_every_link():
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    method = make("dispfl", Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))))
    first, second = simulate(method, data, rounds=2, sampled=3, steps=2, batch=8)
    link = 4 * 325 + 82  # half of 650 weights, and 650 bits
    assert first.traffic.up == second.traffic.up == 3 * (20 + link)
    assert (first.traffic.down, second.traffic.down) == (3 * 20, 3 * (20 + 2 * link))
