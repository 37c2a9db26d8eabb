"""Clients that lie: who they are, what they say, what the server makes of it, and that it is the same everywhere."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.algorithms.base.robust import OWN, agreement, trimmed, unknown
from pfed1bs.core.errors import UserError
from pfed1bs.core.votes import pack, unpack
from pfed1bs.data import federate
from pfed1bs.data import load as load_data
from pfed1bs.engine.answers import listen, say
from pfed1bs.engine.attacking import KINDS, Attack, attacking, poisoned
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate, scored
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import load
from pfed1bs.wire.messages import read_header

CLIENTS = 6
SIZE = {"steps": 1, "batch": 4, "device": "cpu"}


@cache
def data():
    return federate(load_data("digits"), CLIENTS, "dirichlet:0.5", cap=60)


def method(name, **options):
    return make(name, Task(build("mlp", (1, 8, 8), 10)), **options)


def cohort(round=0):
    return Cohort(0, round, torch.arange(CLIENTS), data().sizes, torch.full((CLIENTS,), -1))


class Known:
    """A method whose local work is done once; what it comes to stays the same."""

    def __init__(self, algorithm):
        self.algorithm, self.done = algorithm, None

    def __getattr__(self, name):
        return getattr(self.algorithm, name)

    def local(self, *given):
        self.done = self.done or self.algorithm.local(*given)
        return tuple(map(dict, self.done))


def said(algorithm):
    """What every client says in round 0, as bytes, and as the server reads it."""
    server, clients = algorithm.init(CLIENTS)
    received = {} if algorithm.replicates else algorithm.broadcast(server, cohort())
    state, message = algorithm.local(clients, received, cohort(), data().batches(torch.arange(CLIENTS), 0, 0, 2, 4))
    sent = say(algorithm, message, cohort(), algorithm.known(state, "up", 0))
    return sent, [*listen(algorithm, sent, cohort(), algorithm.known(server, "up", 0))]


def test_random_signs_are_as_often_up_as_down_and_say_nothing_of_the_true_ones():
    known = Known(method("pfed1bs"))
    true, told = (said(one)[1] for one in (known, attacking(known, Attack.of("random:1"))))
    m = known.sketch.m
    for ours, theirs in zip(true, told, strict=True):
        lie = unpack(theirs["sketch"], m)
        for total in (lie.sum(), lie @ unpack(ours["sketch"], m)):
            assert abs(float(total)) < 5 * m**0.5  # standard deviations of a sum of m signs


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "local"])
def test_liars_of_every_method_say_something_else_that_is_valid_and_the_honest_what_they_would(name):
    known = Known(method(name))
    honest, liars = said(known)[0], Attack.of("sign-flip:0.5").by(CLIENTS)
    for kind in KINDS:
        sent, _ = said(attacking(known, Attack.of(f"{kind}:0.5")))  # whatever cannot be decoded raises
        same = torch.tensor([ours == theirs for ours, theirs in zip(sent, honest, strict=True)])
        assert bool(same[~liars].all()), kind
        if kind in ("sign-flip", "random", "scale"):
            assert not bool(same[liars].any()), kind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sign-flip", [[-3.0, 4.0], [-3.0, 4.0]]),
        ("constant", [[3.0, 4.0], [3.0, 4.0]]),
        ("scale", [[-300.0, 400.0], [-300.0, 400.0]]),
        ("label-flip", [[3.0, -4.0], [3.0, -4.0]]),
        ("replay", [[3.0, -4.0], [3.0, -4.0]]),
    ],
)
def test_what_a_liar_makes_of_an_update(kind, expected):
    lying = attacking(method("fedavg"), Attack.of(f"{kind}:1:100"))
    found = lying._forged("update", method("fedavg").up["update"], torch.tensor([[3.0, -4.0]] * 2), cohort())
    assert found.tolist() == expected


def test_colluders_put_the_length_of_their_update_where_they_agreed_to():
    lying = attacking(method("fedavg"), Attack.of("collude:1:0.25"))
    found = lying._forged("update", method("fedavg").up["update"], torch.randn(2, 100), cohort())
    assert (found != 0).sum(1).tolist() == [25, 25] and torch.equal(found[0].sign(), found[1].sign())


def test_who_replays_says_in_every_round_what_it_said_first():
    lying = attacking(method("obda"), Attack.of("replay:0.5"))
    first, *_, last = simulate(lying, data(), rounds=3, **SIZE)
    same = [ours[20:] == theirs[20:] for ours, theirs in zip(first.uplinks, last.uplinks, strict=True)]
    assert same == Attack.of("replay:0.5").by(CLIENTS).tolist()
    assert [read_header(up).round for up in last.uplinks] == [2] * CLIENTS  # the bytes themselves would be refused


def test_the_liars_are_a_share_of_the_clients_drawn_from_the_seed():
    assert [int(Attack.of(f"random:{share}").by(20).sum()) for share in (0, 0.1, 0.3, 0.45, 1)] == [0, 2, 6, 9, 20]
    assert torch.equal(Attack.of("random:0.3", 1).by(20), Attack.of("scale:0.3", 1).by(20))
    assert not torch.equal(Attack.of("random:0.3", 1).by(20), Attack.of("random:0.3", 2).by(20))


def test_data_attacks_touch_training_labels_and_claims_of_liars_alone():
    labels, liars = data().labels, Attack.of("counts:0.5").by(CLIENTS)
    flipped = poisoned(data(), Attack.of("label-flip:0.5"))
    for client, lies in enumerate(liars.tolist()):
        own, tested = data().train[client], data().test[client]
        assert torch.equal(flipped.labels[own], 9 - labels[own] if lies else labels[own])
        assert torch.equal(flipped.labels[tested], labels[tested])
    claims = poisoned(data(), Attack.of("counts:0.5:10")).to("cpu").sizes
    assert torch.equal(claims, data().sizes * torch.where(liars, 10, 1))
    assert poisoned(data(), None) is data() and poisoned(data(), Attack.of("random:0.5")) is data()


@pytest.mark.parametrize("text", ["flip:0.1", "sign-flip", "sign-flip:2", "sign-flip:x", "scale:0.1:0", "collude:1:2"])
def test_an_attack_that_cannot_be_is_refused_with_the_way_out(text):
    with pytest.raises(UserError, match="attack") as error:
        load(None, ["--attack", text])
    assert error.value.hint


def packed(*rows):
    return [pack(torch.tensor(row)) for row in rows]


PLUS, MINUS, MIXED = [1.0] * 8, [-1.0] * 8, [1.0, -1.0] * 4


def test_agreement_counts_the_believed_with_one_voice_each():
    signs = packed(PLUS, PLUS, MINUS, MIXED)
    assert agreement(signs, torch.tensor([True] * 4), 8).tolist() == [1, 1, -1, 1]
    assert agreement(signs, torch.tensor([True, True, False, False]), 8).tolist() == [2, 2, -2, 0]


def test_who_is_against_the_others_is_left_out_and_taken_back_when_it_agrees_again():
    four = Cohort(0, 0, torch.tensor([0, 2, 3, 5]), torch.tensor([1, 1, 1000, 1]), torch.zeros(4))
    server, left = unknown(6), []
    for last in (MINUS, MINUS, PLUS, PLUS, PLUS):
        counted, found = trimmed(server, packed(PLUS, PLUS, last, MIXED), four, 8)
        server, left = {OWN: found[OWN]}, [*left, int(found["log/left"])]
        assert counted.sizes.tolist() == [1, 1, 0 if left[-1] else 1000, 1]
    assert left == [1, 1, 1, 0, 0] and server[OWN][[1, 4]].tolist() == [0, 0]


def test_who_lied_is_remembered_long_after_signs_have_stopped_to_agree():
    two, server = (
        Cohort(0, 90, torch.arange(2), torch.tensor([1, 1]), torch.zeros(2)),
        {OWN: torch.tensor([1.0, -1.0]).double()},
    )
    for _ in range(50):
        _, server = trimmed(server, packed(PLUS, MIXED), two, 8)  # whose product is 0
    assert server[OWN][1] < -0.5


def test_where_nobody_would_be_left_all_count():
    two = Cohort(0, 0, torch.arange(2), torch.tensor([3, 4]), torch.zeros(2))
    counted, found = trimmed({OWN: torch.full((2,), -9.0).double()}, packed(PLUS, MINUS), two, 8)
    assert torch.equal(counted.sizes, two.sizes) and int(found["log/left"]) == 0


def test_a_newcomer_has_not_the_mean_to_itself_where_most_are_not_believed_and_they_are_taken_back():
    four = Cohort(0, 50, torch.arange(4), torch.tensor([3, 4, 5, 6]), torch.zeros(4))
    server = {OWN: torch.tensor([-1.0, -2.0, -0.5, 0.0, 0.0]).double()}
    for _ in range(3):
        counted, found = trimmed(server, packed(PLUS, PLUS, PLUS, MIXED), four, 8)
        assert torch.equal(counted.sizes, four.sizes) and int(found["log/left"]) == 0
        server = {OWN: found[OWN]}
    assert (server[OWN][:4] >= 0).all()


def test_flipped_signs_harm_the_shared_model_less_when_it_is_robust():
    def shared(robust, attack):
        algorithm = attacking(method("pfed1bs-delta", robust=robust), attack)
        *_, last = simulate(algorithm, data(), rounds=12, steps=5, batch=16, device="cpu")
        return evaluate(algorithm, data(), last.progress)["global"].micro, last

    attack = Attack.of("sign-flip:0.34")
    (plain, _), (robust, last), (calm, _) = shared("none", attack), shared("trimmed", attack), shared("none", None)
    assert ((last.progress.server[OWN] < 0) == attack.by(CLIENTS)).all() and int(last.log["left"]) == 2
    assert plain + 5 < robust and robust > calm - 15  # 451 test samples


def test_scores_of_the_honest_stand_apart_from_those_of_liars():
    algorithm = method("fedavg")
    *_, last = simulate(algorithm, data(), rounds=1, **SIZE)
    scores, liars = evaluate(algorithm, data(), last.progress), torch.tensor([True, False, False, True, False, False])
    found, own = scored(scores, liars), scores["personal"]
    right, of = own.counts["correct"], own.samples
    assert found["accuracy"] == pytest.approx(float(100 * right[~liars].sum() / of[~liars].sum()))
    assert found["accuracy_attackers"] == pytest.approx(float(100 * right[liars].sum() / of[liars].sum()))
    assert found["accuracy_global"] == pytest.approx(scores["global"].rows(~liars).micro)
    assert scored(scores, ~torch.ones(6, dtype=torch.bool)) == scored(scores)


def test_a_run_with_an_attack_is_another_run():
    config = load(None, ["--attack", "sign-flip:0.3"])
    assert config.attacks == Attack("sign-flip", 0.3, 1.0, 0) and replace(config, attack=None) == load(None)
