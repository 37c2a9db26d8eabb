"""Who is told what: replicas that catch up, snapshots, messages for one client, and the bytes of all that."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elsewhere import Away, Elsewhere
from pfed1bs.algorithms.base.method import Method
from pfed1bs.engine import answers as spoken
from pfed1bs.engine.answers import listen, say
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.exchange import News, agreeing, hear, remember, replaced, rows, tell
from pfed1bs.engine.ledger import Traffic, traffic
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Refused, encode


@dataclass(frozen=True)
class Bare(Method):
    """A method that needs no task, and says only what a test needs."""

    task: None = None
    paper = personalises = down = up = init = broadcast = local = aggregate = None


@dataclass(frozen=True)
class Adder(Bare):
    """Ten integers at the server, replicated at every client; a round doubles them and adds what is broadcast.

    A broadcast is 8 bytes of payload (an amount for either half), a snapshot 40, an answer 4; a header is 20.
    """

    down = {"amounts": Floats((2,))}
    up = {"number": Floats()}
    replicates = True
    snapshot_layout = {"total": Floats((10,))}

    def init(self, clients):
        return {"total": torch.zeros(10), "amounts": torch.zeros(2)}, {"replica": torch.zeros(clients, 10)}

    def broadcast(self, server, cohort):
        return {"amounts": server["amounts"]} if cohort.round else {}

    def absorb(self, clients, received, round):
        if "total" in received:
            return {"replica": received["total"].expand_as(clients["replica"]).clone()}
        return {"replica": 2 * clients["replica"] + received["amounts"].repeat_interleave(5)}

    def snapshot(self, server):
        return {"total": server["total"]}

    def replica(self, state):
        return state["replica"] if "replica" in state else state["total"]

    def local(self, clients, received, cohort, batches):
        assert received == {}
        return clients, {"number": (cohort.ids + 2).float()}

    def aggregate(self, server, received, cohort):
        number = sum(float(message["number"]) for message in received)
        amounts = torch.tensor([number, number * cohort.round - 7])
        return {"total": 2 * server["total"] + amounts.repeat_interleave(5), "amounts": amounts}


@dataclass(frozen=True)
class Endless(Adder):
    """The same without a snapshot."""

    snapshot_layout = {}


@dataclass(frozen=True)
class Personal(Bare):
    """Every client is told a pair of its own and a number for all; it answers with three signs."""

    down = {"own": Floats((2,)), "common": Floats()}
    up = {"signs": Signs(3)}

    def broadcast(self, server, cohort):
        return {"own": torch.stack([cohort.ids.float(), cohort.sizes.float()], 1), "common": torch.tensor(0.5)}


def cohort_of(ids, round=0, seen=None):
    ids = torch.tensor(ids)
    return Cohort(0, round, ids, 10 + ids, torch.full_like(ids, -1) if seen is None else seen[ids])


def play(algorithm, clients, participants):
    """All that happens in rounds with the given participants."""
    server, states = algorithm.init(clients)
    seen, history = torch.full((clients,), -1), {}
    steps = []
    for t, ids in enumerate(participants):
        cohort = cohort_of(ids, t, seen)
        news = tell(algorithm, server, history, cohort)
        before = {name: value.clone() for name, value in states.items()}
        mine, received = hear(algorithm, rows(states, cohort.ids), news)
        assert all(torch.equal(value, before[name]) for name, value in states.items())
        assert all(torch.equal(replica, server["total"]) for replica in mine["replica"])
        assert bool(agreeing(algorithm, mine, news).all())
        mine, said = algorithm.local(mine, received, cohort, None)
        states, uplinks = replaced(states, cohort.ids, mine), say(algorithm, said, cohort)
        server = algorithm.aggregate(server, listen(algorithm, uplinks, cohort), cohort)
        seen = seen.index_fill(0, cohort.ids, t)
        history = remember(algorithm, history, news, seen)
        sent = [[(item.kind, item.round) for item in items] for items in news]
        bill = traffic(algorithm, news, uplinks, cohort)
        steps.append(SimpleNamespace(news=sent, bill=bill, history=history, server=server))
    return steps


COHORTS = st.lists(st.sets(st.integers(0, 4), min_size=1).map(sorted), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(COHORTS, st.sampled_from([Adder(), Endless()]))
def test_a_replica_equals_the_server_at_every_participation_however_many_rounds_were_missed(participants, algorithm):
    for t, step in enumerate(play(algorithm, 5, participants)):
        for items in step.news:
            assert items[-1][1] == t
            assert items == [("snapshot", t)] or [kind for kind, _ in items] == ["down"] * len(items)
            assert [round for _, round in items] == list(range(t - len(items) + 1, t + 1))


def test_clients_that_share_memory_and_missed_different_rounds_end_apart():
    algorithm, news = (
        Adder(),
        [News("down", r, encode(Adder.down, {"amounts": torch.ones(2)}, kind="down", round=r)) for r in (1, 2)],
    )
    after, _ = hear(algorithm, {"replica": torch.ones(1, 10).expand(3, 10)}, [news[1:], news, news[1:]])
    assert after["replica"].tolist() == [[3] * 10, [7] * 10, [3] * 10]


@dataclass(frozen=True)
class Patient(Adder):
    """The same, but nothing comes of the broadcast of round 1."""

    def absorb(self, clients, received, round):
        return clients if round == 1 else super().absorb(clients, received, round)


def test_news_for_some_after_news_for_all_leave_what_others_hold_alone():
    news = [News("down", r, encode(Adder.down, {"amounts": torch.ones(2)}, kind="down", round=r)) for r in (1, 2)]
    states = {"replica": torch.ones(2, 10)}
    after, _ = hear(Patient(), states, [news[:1], news])
    assert after["replica"].tolist() == [[1] * 10, [3] * 10] and states["replica"].tolist() == [[1] * 10] * 2


def test_the_server_of_the_example_really_changes():
    assert play(Adder(), 2, [[0, 1], [0]])[-1].server["total"].tolist() == [12] * 5 + [-19] * 5


def test_a_returning_client_gets_the_broadcasts_it_missed_or_the_snapshot_if_that_is_shorter():
    steps = play(Adder(), 3, [[0, 1, 2], [0], [0, 1], [0], [0, 1, 2]])
    assert steps[2].news == [[("down", 2)], [("down", 1), ("down", 2)]]  # 2 x 28 bytes, the snapshot has 60
    assert steps[4].news == [[("down", 4)], [("down", 3), ("down", 4)], [("snapshot", 4)]]  # instead of 4 x 28


def test_without_a_snapshot_all_missed_broadcasts_are_sent():
    steps = play(Endless(), 2, [[0], [0], [0], [0], [1]])
    assert steps[-1].news == [[("down", round) for round in range(5)]]
    assert steps[-1].bill.down == 20 + 4 * 28  # the broadcast of round 0 is empty


def test_a_broadcast_that_was_only_replaced_by_a_snapshot_is_kept_for_the_others():
    steps = play(Adder(), 3, [[0, 1], [0, 1], [0, 1], [2], [0]])
    assert steps[3].news == [[("snapshot", 3)]]
    assert steps[4].news == [[("down", 3), ("down", 4)]]


def test_the_bytes_of_a_round_are_counted():
    steps = play(Adder(), 3, [[0, 1], [0, 1], [0, 1], [2], [0, 1]])
    assert [step.bill for step in steps] == [
        Traffic(up=48, down=40, broadcast=20, catch_up=0, side=4 * 20 + 2 * 4, once=16),
        Traffic(up=48, down=56, broadcast=28, catch_up=0, side=4 * 20 + 2 * 4, once=0),
        Traffic(up=48, down=56, broadcast=28, catch_up=0, side=4 * 20 + 2 * 4, once=0),
        Traffic(up=24, down=60, broadcast=60, catch_up=60, side=2 * 20 + 4, once=8),
        Traffic(up=48, down=112, broadcast=56, catch_up=56, side=6 * 20 + 2 * 4, once=0),
    ]
    assert steps[3].bill.total == 24 + 60 + 8


def test_history_is_forgotten_when_everybody_has_heard_it():
    steps = play(Endless(), 3, [[0, 1, 2], [0, 1], [0], [0, 1, 2]])
    assert [sorted(step.history) for step in steps] == [[], [1], [1, 2], []]


def test_history_is_never_longer_than_a_snapshot():
    steps = play(Adder(), 2, [[0]] * 6)
    assert [sorted(step.history) for step in steps] == [[0], [1], [2], [3], [4], [5]]
    assert all(sum(map(len, step.history.values())) <= 40 for step in steps)
    assert [sorted(step.history) for step in play(Endless(), 2, [[0]] * 3)] == [[0], [0, 1], [0, 1, 2]]


def test_messages_for_one_client_are_encoded_one_by_one_and_heard_as_a_stack():
    cohort = cohort_of([1, 4])
    news = tell(Personal(), {}, {}, cohort)
    assert [len(items) for items in news] == [1, 1] and news[0][0].data != news[1][0].data
    states = {"w": torch.zeros(2, 3)}
    after, received = hear(Personal(), states, news)
    assert after is states
    assert received["own"].tolist() == [[1, 11], [4, 14]] and received["common"].tolist() == [0.5, 0.5]
    assert hear(Personal(), {"w": torch.zeros(1, 3)}, news[1:])[1]["own"].tolist() == [4, 14]
    bill = traffic(Personal(), news, [], cohort)
    assert (bill.down, bill.broadcast, bill.catch_up, bill.side) == (64, 64, 0, 2 * (20 + 4))
    assert remember(Personal(), {}, news, torch.tensor([0, 0])) == {}


def test_answers_are_decoded_one_by_one_with_their_signs_packed():
    cohort = cohort_of([0, 2])
    messages = say(Personal(), {"signs": torch.tensor([[1.0, -1, 1], [-1, -1, 1]])}, cohort)
    assert [message[20:] for message in messages] == [b"\x05", b"\x04"]
    assert [message["signs"].tolist() for message in listen(Personal(), messages, cohort)] == [[5], [4]]
    with pytest.raises(ValueError, match="signs must be"):
        say(Personal(), {"signs": torch.tensor([[1.0, 0, 1], [-1, -1, 1]])}, cohort)


def test_answers_that_are_decoded_early_are_the_same_and_a_flipped_bit_is_refused_at_its_turn(monkeypatch):
    monkeypatch.setattr(spoken, "LONG", 1)
    cohort = cohort_of([0, 2, 3, 5, 6, 7, 8, 9])
    signs = torch.tensor([[1.0, -1, 1], [-1, -1, 1]]).repeat(4, 1)
    messages = say(Personal(), {"signs": signs}, cohort)
    assert [one["signs"].tolist() for one in listen(Personal(), messages, cohort, early=True)] == [[5], [4]] * 4
    messages[3] = messages[3][:-1] + bytes([messages[3][-1] ^ 1])
    answers = iter(listen(Personal(), messages, cohort, early=True))
    assert [next(answers)["signs"].tolist() for _ in range(3)] == [[5], [4], [5]]
    with pytest.raises(Refused, match="checksum"):
        next(answers)


def test_an_answer_under_another_sample_count_is_refused_when_its_turn_comes():
    cohort = cohort_of([0, 2])
    messages = say(Personal(), {"signs": torch.ones(2, 3)}, cohort)
    answers = iter(listen(Personal(), messages[::-1], cohort))
    with pytest.raises(Refused, match="sample count is 12, expected 10"):
        next(answers)


def test_a_method_that_says_nothing_costs_nothing():
    @dataclass(frozen=True)
    class Silent(Bare):
        down = {}
        up = {}

    cohort = cohort_of([0, 1])
    news = tell(Silent(), {}, {}, cohort)
    assert news == [[], []] and say(Silent(), {}, cohort) == []
    assert hear(Silent(), {"w": torch.zeros(2, 1)}, news)[1] == {}
    assert traffic(Silent(), news, [], cohort) == Traffic(up=0, down=0)


def test_rows_are_taken_and_put_back_without_changing_the_original():
    state = {"w": torch.arange(6.0).reshape(3, 2), "step": torch.arange(3)}
    at = torch.tensor([0, 2])
    part = {name: value + 10 for name, value in rows(state, at).items()}
    after = replaced(state, at, part)
    assert after["w"].tolist() == [[10, 11], [2, 3], [14, 15]] and after["step"].tolist() == [10, 1, 12]
    assert state["w"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert rows(state, torch.arange(3)) is state
    whole = {"w": torch.ones(3, 2), "step": torch.ones(3)}
    assert replaced(state, torch.arange(3), whole) is whole


def test_neighbouring_rows_are_no_copies():
    state = {"w": torch.arange(6.0).reshape(3, 2)}
    assert rows(state, torch.tensor([1, 2]))["w"].data_ptr() == state["w"][1:].data_ptr()


@pytest.mark.parametrize("at", [[2, 1, 0], [0, 0], [1, 3], [7, 8, 9], [-1, 0, 1], [0, 2, 1]])
def test_places_that_do_not_ascend_or_do_not_exist_are_refused(at):
    state, at = {"w": torch.arange(3.0)}, torch.tensor(at)
    with pytest.raises(ValueError, match="places must ascend below the number of rows"):
        rows(state, at)
    with pytest.raises(ValueError, match="places must ascend below the number of rows"):
        replaced(state, at, {"w": torch.zeros(len(at))})


def test_a_part_with_another_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="2 places cannot be filled from rows"):
        replaced({"w": torch.arange(3.0)}, torch.tensor([0, 1]), {"w": torch.zeros(3)})


@dataclass(frozen=True)
class Speaker(Bare):
    """Says signs and numbers."""

    up = {"signs": Signs(1000), "numbers": Floats((7000,))}


class Crossing(Elsewhere):
    """Notes what leaves the device, and which of it goes to memory that the device writes by itself."""

    def __init__(self):
        super().__init__()
        self.left, self.pinned = [], []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.empty and (kwargs or {}).get("pin_memory"):
            self.pinned.append(tuple(args[0]))
        source = args[-1] if func is torch.Tensor.copy_ else args[0] if func is torch.Tensor.cpu else None
        if isinstance(source, Away):
            self.left.append((tuple(source.shape), source.dtype))
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("pinned, waits", [(1, [(3, 125), (3, 7000)]), (spoken.PINNED, [(3, 7000)]), (1 << 20, [])])
def test_signs_leave_a_device_packed_and_long_fields_into_pinned_memory(monkeypatch, pinned, waits):
    signs, some = torch.ones(3, 1000), cohort_of([0, 1, 2])
    signs[:, ::3] = -1
    message = {"signs": signs, "numbers": torch.arange(21e3).view(3, 7000)}
    expected = say(Speaker(), message, some)
    monkeypatch.setattr(spoken, "PINNED", pinned)
    left = {((3, 125), torch.uint8), ((3, 7000), torch.float32)}
    with Crossing() as crossing:
        away = {name: field.to("cuda") for name, field in message.items()}
        assert say(Speaker(), away, some) == expected
        assert {*crossing.left} == left and crossing.pinned == waits
        crossing.left.clear()
        fields, good = spoken.ready(Speaker.up, away)
    assert good and say(Speaker(), fields, some) == expected
    assert {*crossing.left} == left and crossing.pinned[len(waits) :] == [(3, 125), (3, 7000)]  # nobody waits
