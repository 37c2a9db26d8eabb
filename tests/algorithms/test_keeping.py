"""keep = best: every client begins alone, and another model has to win a trial on samples that are held by index."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pfed1bs.algorithms.base.companion import kept_of
from pfed1bs.algorithms.base.keeping import averaged
from pfed1bs.algorithms.base.private import REHEARSAL
from pfed1bs.algorithms.base.trial import ALONE, APART, FEW, FT, PROX, Trial, scores
from pfed1bs.algorithms.local import Local
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Cohort, buffers_of, model_of
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.nn.task import Task

NORMED = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def toy(clients=5, samples=16, train=12):
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randn(clients * samples, 8, generator=generator)
    rows = torch.arange(clients * samples).view(clients, samples)
    labels = (inputs[:, 0] > 0).long()
    return Federation(inputs, labels, tuple(rows[:, :train]), tuple(rows[:, train:]), rows.flatten(), 2)


def cohort(data, ids, round=0):
    return Cohort(0, round, torch.tensor(ids), data.sizes[ids], torch.full((len(ids),), round - 1))


def method(module=None, **options):
    return PFed1BSDelta(Task(module or nn.Linear(8, 2)), **{"lr": 0.5, "ratio": 0.5, "keep": "best", **options})


def worked(algorithm, data, ids=(0, 1), round=0, clients=None, **changes):
    """Client states and messages after the local work of one round; `changes` replace parts of the state."""
    who = cohort(data, list(ids), round)
    clients = {**(clients or algorithm.init(len(ids))[1]), **changes}
    return algorithm.local(clients, {}, who, data.batches(who.ids, round, 0, 3, 4))


def poisoned(data, held):
    """The same federation with other inputs for the held training samples of each client."""
    inputs = data.inputs.clone()
    for rows, mask in zip(data.train, held, strict=True):
        inputs[rows[mask[: len(rows)]]] += 100.0
    return replace(data, inputs=inputs)


def test_half_of_a_clients_samples_is_held_by_their_place_the_same_in_every_round_and_stack():
    trial, data = Trial(4, 0, 1.0, seed=3), toy()
    held = trial.held(cohort(data, [0, 1, 4]))
    assert held.sum(1).tolist() == [6, 6, 6] and held.shape == (3, 12)
    assert torch.equal(trial.held(cohort(data, [4], round=9))[0], held[2])
    assert not torch.equal(held[0], held[1])
    assert not torch.equal(Trial(4, 0, 1.0, seed=4).held(cohort(data, [0])), held[:1])


def withheld(trial, size, choice):
    """In which turns of twice the time between two trials an update leaves the held half out; else it is of all."""
    who = Cohort(0, 0, torch.tensor([3]), torch.tensor([size]), torch.tensor([-1]))
    left = []
    for turn in range(2 * (trial.rounds + trial.again)):
        seen = trial.seen({"turns": torch.tensor([turn]), "choice": torch.tensor([choice])}, who)
        assert torch.equal(seen, ~trial.held(who)) or bool(seen.all())
        left += [] if bool(seen.all()) else [turn]
    return left


def test_who_is_alone_leaves_held_samples_out_during_a_trial_and_forty_rounds_before_the_next():
    trial = Trial(20, 80, 1.0, seed=3)
    first, second = [*range(20)], [*range(60, 120)]
    assert APART == 40 and FEW == 50
    assert withheld(trial, 50, ALONE) == [*first, *second, *range(160, 200)]
    assert withheld(trial, 49, ALONE) == [*range(200)]  # few samples: until it is no longer alone
    for size, choice in ((49, PROX), (50, PROX), (49, FT), (50, FT)):
        assert withheld(trial, size, choice) == [*first, *range(100, 120)]


def test_where_trials_follow_soon_who_is_alone_sends_of_no_held_sample_and_after_the_only_one_of_all():
    for again, size in ((APART - 1, 50), (APART, 50), (1, 50), (1, 2)):
        assert withheld(Trial(4, again, 1.0, 3), size, ALONE) == [*range(2 * (4 + again))]
    assert withheld(Trial(4, APART + 1, 1.0, 3), 50, ALONE) == [turn for turn in range(90) if turn % 45 != 4]
    for size in (2, 50):
        assert withheld(Trial(4, 0, 1.0, 3), size, ALONE) == [0, 1, 2, 3]


def test_each_client_of_a_stack_leaves_out_what_it_would_leave_out_by_itself():
    who = Cohort(0, 0, torch.arange(4), torch.tensor([49, 50, 49, 50]), torch.full((4,), -1))
    clients = {"turns": torch.full((4,), 30), "choice": torch.tensor([ALONE, ALONE, PROX, PROX])}
    trial = Trial(20, 80, 1.0, seed=3)
    seen, held = trial.seen(clients, who), trial.held(who)
    assert seen.all(1).tolist() == [False, True, True, True] and torch.equal(seen[0], ~held[0])


@pytest.mark.parametrize("state", ["trial", "alone", "free", "free on trial", "free alone for ever"])
def test_held_samples_reach_neither_scouts_nor_what_is_sent_until_a_shared_model_has_won(state):
    algorithm, data = method(trial=4, again=0 if "ever" in state else 2), toy(2)
    held = algorithm.keeping.trial.held(cohort(data, [0, 1]))
    turns = torch.full((2,), {"trial": 0, "free": 4, "free on trial": 6}.get(state, 5))
    changes = {"turns": turns, "choice": torch.full((2,), ALONE if "alone" in state or state == "trial" else PROX)}
    (one, said), (two, other) = (worked(algorithm, own, **changes) for own in (data, poisoned(data, held)))
    all_samples = state in ("free", "free alone for ever")
    assert torch.equal(said["signs"], other["signs"]) != all_samples
    assert torch.equal(said["scale"], other["scale"]) != all_samples
    assert torch.equal(one["alone/w"], two["alone/w"]) and torch.equal(one["near/w"], two["near/w"])
    assert not torch.equal(one["w"], two["w"])  # the model that is used loses no sample
    (_, said), (_, other) = (worked(algorithm, own, **changes) for own in (data, poisoned(data, ~held)))
    assert not torch.equal(said["signs"], other["signs"])


def test_scouts_are_scored_on_held_samples_alone_in_the_second_half_of_a_trial():
    algorithm, data = method(trial=4, again=2), toy(2)
    held = algorithm.keeping.trial.held(cohort(data, [0, 1]))
    sums = [
        worked(algorithm, own, turns=torch.tensor([turn, turn]))[0]["sums"]
        for turn in range(5)
        for own in (data, poisoned(data, held), poisoned(data, ~held))
    ]
    assert [int(found[0, -1, -1]) for found in sums[::3]] == [0, 0, 8, 8, 0]  # two batches of four
    assert not torch.equal(sums[6][:, 0], sums[7][:, 0])
    labels = worked(algorithm, data, turns=torch.tensor([3, 3]), sums=sums[6])[0]["sums"]
    assert int(labels[0, -1, -1]) == 16  # and they add up
    assert torch.equal(worked(algorithm, data, turns=torch.tensor([0, 6]), sums=sums[6])[0]["sums"], 0 * sums[6])


def test_the_score_is_the_probability_of_the_right_label_and_products_of_pairs_are_summed():
    task = Task(nn.Linear(1, 2, bias=False))
    models = [{"w": torch.tensor([[0.0, weight]])} for weight in (0.0, 1.0, 2.0)]
    x, y = torch.tensor([[[1.0], [1.0], [1.0]]]), torch.tensor([[1, 1, 0]])
    p = [0.5, 1 / (1 + 2.718281828**-1), 1 / (1 + 2.718281828**-2)]
    rows = [[*p, 1], [*p, 1], [1 - p[0], 1 - p[1], 1 - p[2], 1]]
    expected = [[sum(row[i] * row[j] for row in rows) for j in range(4)] for i in range(4)]
    torch.testing.assert_close(scores(task, models, [(x, y)]), torch.tensor([expected]))
    torch.testing.assert_close(scores(task, models, [(x, y), (x, y)]), 2 * torch.tensor([expected]))


def summed(*rows):
    """The sums of products of the scores (alone, ft, prox) of some samples."""
    values = torch.cat([torch.tensor(rows, dtype=torch.float32), torch.ones(len(rows), 1)], 1)
    return (values.T @ values)[None]


def chosen(sums, size=8, choice=ALONE, margin=1.0):
    return int(Trial(4, 0, margin, 0).verdict(sums, torch.tensor([size]), torch.tensor([choice])))


def test_leaving_a_choice_needs_evidence_against_that_pairs_own_differences():
    # ft is better than alone by 0.25 on average, wherever it differs: mean square 0.25, of 4 samples held: error 0.25.
    sure = summed((0, 1, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1))
    assert chosen(sure, margin=0.99) == chosen(sure, margin=1.0) == FT and chosen(sure, margin=1.01) == ALONE
    assert chosen(sure, size=32, margin=1.99) == FT  # four times the samples, half the error
    # prox is better than alone by as much, and differs everywhere: mean square 0.75, error 0.43.
    split = summed((0, 0, 1), (0, 0, 1), (1, 1, 0), (1, 1, 1))
    assert chosen(split, margin=0.57) == PROX and chosen(split, margin=0.58) == ALONE
    # Both beat alone: the better one.
    both = summed((0.5, 0.6, 0.7), (0.5, 0.6, 0.7))
    assert chosen(both) == PROX and chosen(both, choice=FT) == PROX and chosen(both, choice=PROX) == PROX
    worse = summed((0.9, 0.6, 0.7), (0.9, 0.6, 0.7))
    assert [chosen(worse, choice=choice) for choice in (ALONE, FT, PROX)] == [ALONE] * 3


def test_a_client_without_evidence_stays_where_it_is():
    for size, margin in ((1, 0.0), (1, 1.0), (8, 0.0)):
        nothing = torch.zeros(1, 4, 4) if size == 8 else summed((0.0, 1.0, 1.0))
        assert chosen(nothing, size=size, margin=margin) == ALONE
        assert chosen(nothing, size=size, choice=PROX, margin=margin) == PROX


def test_a_client_with_one_sample_holds_none_and_stays_alone():
    data = toy(2, samples=4, train=1)
    *_, done = simulate(method(trial=2), data, rounds=4, steps=2, batch=4)
    assert done.progress.clients["choice"].tolist() == [ALONE, ALONE]


def test_a_client_that_no_shared_model_convinces_has_the_bits_of_training_alone():
    data, task = toy(), Task(NORMED)
    best = PFed1BSDelta(task, lr=0.5, keep="best", trial=2, again=2, margin=1e6)
    *_, with_trials = simulate(best, data, rounds=7, steps=2, batch=4)
    *_, alone = simulate(Local(task, lr=0.5), data, rounds=7, steps=2, batch=4)
    for name, value in model_of(alone.progress.clients).items():
        assert torch.equal(with_trials.progress.clients[name], value), name


def forced(monkeypatch, choice):
    monkeypatch.setattr(Trial, "verdict", lambda self, sums, sizes, old: torch.full_like(old, choice))


@pytest.mark.parametrize(("choice", "name"), [(PROX, "near"), (ALONE, "alone")])
def test_the_winner_is_installed_with_the_statistics_of_its_scout(monkeypatch, choice, name):
    forced(monkeypatch, choice)
    algorithm, data = method(NORMED, trial=3, again=3), toy(2)
    _, clients = algorithm.init(2)
    clients["choice"] = torch.full((2,), FT)  # so that all choices are new
    for turn in range(3):
        clients, _ = worked(algorithm, data, round=turn, clients=clients)
    scout = kept_of(clients, name)
    assert {*scout} == {*model_of(clients)}
    assert all(torch.equal(clients[key], value) for key, value in scout.items())
    others = [kept_of(clients, other) for other in ("near", "alone", "shared") if other != name]
    for other in others:
        assert not torch.equal(other["buffer/1.running_mean"], scout["buffer/1.running_mean"])
    after, _ = worked(algorithm, data, round=3, clients=clients)  # from now on it is trained, the scout rests
    assert not torch.equal(after["w"], clients["w"]) and torch.equal(after[f"{name}/w"], scout["w"])


def test_who_has_chosen_to_be_near_the_shared_model_is_pulled_as_with_prox(monkeypatch):
    forced(monkeypatch, PROX)
    algorithm, data = method(NORMED, trial=1, again=0, lam=0.7), toy(2)
    clients, _ = worked(algorithm, data)
    clients = {**clients, "theta": clients["theta"] + 0.3}  # far enough that the pull is seen
    after, _ = worked(algorithm, data, round=1, clients=clients)
    for lam, alike in ((0.7, True), (0.0, False)):
        bare = {name: clients[name] for name in clients if name.startswith(("w", "theta", "shared", "buffer"))}
        there = cohort(data, [0, 1], 1), data.batches(torch.tensor([0, 1]), 1, 0, 3, 4)
        near, _ = PFed1BSDelta(algorithm.task, lr=0.5, keep="prox", lam=lam).local(bare, {}, *there)
        assert torch.equal(after["w"], near["w"]) == alike


def test_the_fine_tuned_model_comes_with_the_statistics_of_its_run(monkeypatch):
    forced(monkeypatch, FT)
    algorithm, data = method(NORMED, trial=1, again=0), toy(2)
    clients, _ = worked(algorithm, data)
    for round in (1, 2):
        clients, _ = worked(algorithm, data, round=round, clients=clients)
        tuned = PFed1BSDelta(algorithm.task, lr=0.5, keep="ft")
        before = {**clients}
        clients, _ = worked(algorithm, data, round=round + 5, clients=before)
        expected, _ = tuned.local(
            {name: before[name] for name in before if name.startswith(("w", "theta", "shared", "buffer"))},
            {},
            cohort(data, [0, 1], round + 5),
            data.batches(torch.tensor([0, 1]), round + 5, 0, 3, 4),
        )
        assert all(torch.equal(clients[name], value) for name, value in model_of(expected).items())


def test_scores_use_each_candidates_own_statistics():
    """With one BatchNorm for all three a scout would be scored as another model."""
    algorithm, data = method(NORMED, trial=1), toy(2)
    theta = algorithm.init(2)[1]["theta"] * 2  # so that the first weights and the shared ones part
    clients, _ = worked(algorithm, data, theta=theta)
    held = algorithm.keeping.trial.held(cohort(data, [0, 1]))
    batches = data.batches(torch.tensor([0, 1]), 0, 0, 3, 4)
    u, buffers, _ = algorithm.descent.run(theta, algorithm.task.buffers(2), batches(only=~held))
    models = [kept_of(clients, "alone"), {"w": u, **buffers}, kept_of(clients, "near")]
    assert len({float(model["buffer/1.running_var"].sum()) for model in models}) == 3
    assert torch.equal(scores(algorithm.task, models, batches("held", 2, only=held)), clients["sums"])
    assert all(torch.equal(kept_of(clients, "shared")[name], value) for name, value in buffers.items())


def test_own_models_follow_the_shared_one_except_where_a_client_is_alone():
    algorithm = method()
    _, clients = algorithm.init(3)
    clients["choice"] = torch.tensor([PROX, ALONE, FT])
    clients = {**clients, "theta": torch.ones_like(clients["w"]), "w": torch.zeros_like(clients["w"])}
    after = algorithm.absorb(clients, {"theta": torch.full((18,), 3.0)}, 5)
    assert torch.equal(after["w"], torch.tensor([2.0, 0.0, 2.0])[:, None].expand(3, 18))
    assert torch.equal(after["near/w"], clients["near/w"] + 2)
    assert torch.equal(after["alone/w"], clients["alone/w"])
    still = method(follow=False).absorb(clients, {"theta": clients["theta"][0] + 1}, 5)
    assert torch.equal(still["w"], clients["w"]) and torch.equal(still["near/w"], clients["near/w"])


def test_a_mean_counts_ten_models_alike_and_a_later_one_as_a_tenth():
    for turns, part in ((0, 1.0), (3, 1 / 4), (9, 1 / 10), (10, 1 / 10), (40, 1 / 10)):
        clients = {"w": torch.zeros(1, 2), "buffer/count": torch.tensor([3]), "turns": torch.tensor([turns])}
        after = averaged(clients, {"w": torch.ones(1, 2), "buffer/count": torch.tensor([7])})
        assert after["w"].tolist() == [pytest.approx([part] * 2)] and after["turns"].tolist() == [turns + 1]
        assert after["buffer/count"].tolist() == [7]


def test_trials_come_again_with_fresh_scouts():
    algorithm, data = method(NORMED, trial=2, again=3, margin=1e6), toy(2)
    trial = algorithm.keeping.trial
    assert trial.turn({"turns": torch.arange(12)}).tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1]
    assert Trial(2, 0, 1.0, 0).turn({"turns": torch.arange(4)}).tolist() == [0, 1, 2, 3]
    _, clients = algorithm.init(2)
    work = []
    for turn in range(6):
        last = clients
        clients, _ = worked(algorithm, data, round=turn, clients={k: v for k, v in clients.items() if "log/" not in k})
        work.append(float(clients["log/work"][0]))
    assert work == [4.0, 4.0, 2.0, 2.0, 2.0, 4.0] and clients["turns"].tolist() == [6, 6]
    begun, _ = worked(algorithm, data, round=5)  # a client that has never been on trial, same round
    assert torch.equal(clients["alone/w"], begun["alone/w"])
    assert torch.equal(clients["alone/buffer/1.running_mean"], begun["alone/buffer/1.running_mean"])
    near = algorithm.keeping.near(
        {"w": last["theta"], **kept_of(last, "shared")},
        algorithm.lam,
        last["theta"],
        data.batches(torch.tensor([0, 1]), 5, 0, 3, 4)(only=~trial.held(cohort(data, [0, 1]))),
    )
    assert all(torch.equal(clients[f"near/{name}"], value) for name, value in near.items())


def test_a_client_whose_labels_contradict_the_others_stays_alone_and_the_others_do_not():
    data = toy(6, samples=120, train=40)
    odd = torch.cat([data.train[0], data.test[0]])
    data.labels[odd] = 1 - data.labels[odd]
    options = {"lr": 0.1, "ratio": 1.0}
    found = {}
    for name, algorithm in {
        "best": method(**options, trial=6),
        "prox": method(**options, keep="prox", lam=1.0),
        "alone": Local(Task(nn.Linear(8, 2)), lr=0.1),
    }.items():
        *_, done = simulate(algorithm, data, rounds=12, steps=4, batch=8)
        found[name] = evaluate(algorithm, data, done.progress)["personal"].clients
        if name == "best":
            choice = done.progress.clients["choice"]
    assert choice[0] == ALONE and (choice[1:] != ALONE).sum() >= 3
    assert found["best"][0] == found["alone"][0] > found["prox"][0]


def test_a_client_whose_trial_is_over_is_not_touched_by_the_trials_of_others():
    algorithm = method(trial=2)
    runs = [list(simulate(algorithm, toy(), rounds=6, sampled=2, steps=2, batch=4, chunk=chunk)) for chunk in (None, 1)]
    together, alone = (run[-1].progress.clients for run in runs)
    assert {int(turns) for turns in together["turns"]} != {2}  # some clients are past their trial, some are not
    assert all(torch.equal(together[name], alone[name]) for name in together)
    assert buffers_of(together) == {}


def test_options_that_change_nothing_beside_the_others_are_named():
    task = Task(nn.Linear(8, 2))
    assert PFed1BSDelta(task, lam=5.0).remark == PFed1BSDelta(task, keep="best", trial=3, lam=5.0).remark == ""
    told = "changes nothing beside the other options"
    assert PFed1BSDelta(task, keep="ft", lam=5.0, margin=2.0).remark == f"margin, lam {told}"
    assert PFed1BSDelta(task, loudness=0.1).remark == f"loudness {told}"
    assert PFed1BSDelta(task, loudness=0.1, epsilon=1.0).remark == REHEARSAL
