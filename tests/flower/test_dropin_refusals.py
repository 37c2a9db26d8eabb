"""What the drop-in refuses: every error says what is wrong and the way out, and nothing is lost."""

import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg

from dropin_grid import Desk, identity
from dropin_toy import federated, model, toy
from pfed1bs.core.errors import UserError
from pfed1bs.flower import OneBit, OneBitFedAvg, dropin_trust
from pfed1bs.flower.grid import Timely

logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "keeps moments of all n weights") for name in ("FedAdam", "FedYogi", "FedAdagrad", "FedAvgM")),
        ("QFedAvg", "weighs clients by their losses and"),
        ("Krum", "chooses among whole models"),
        ("Bulyan", "chooses among whole models"),
    ],
)
def test_strategies_that_do_more_than_average_are_refused_with_the_reason(name, reason):
    with pytest.raises(UserError, match=f"{name} cannot be wrapped: .*{reason}.*; put FedAvg or FedProx inside"):
        OneBitFedAvg(getattr(strategies, name)(*[0.1] * (name == "QFedAvg")))


def test_a_strategy_with_an_average_of_its_own_is_told_where_it_belongs():
    class Saving(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)

    noisy = strategies.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)
    with pytest.raises(UserError, match="handed sketches of m numbers.*belongs into a subclass of OneBitFedAvg"):
        OneBitFedAvg(Saving())
    with pytest.raises(UserError, match="clips and adds noise to n weights"):
        OneBitFedAvg(noisy)
    with pytest.raises(UserError, match="OneBitFedAvg cannot be wrapped"):
        OneBitFedAvg(OneBitFedAvg(FedAvg()))
    with pytest.raises(UserError, match=r"around a strategy, got ABCMeta; OneBitFedAvg\(FedAvg"):
        OneBitFedAvg(FedAvg)


def test_options_are_checked_before_anybody_waits():
    with pytest.raises(UserError, match=r"ratio must be a share in \(0, 1\], got 10"):
        OneBitFedAvg(FedAvg(), ratio=10)
    for seed in (-1, 2**63):
        with pytest.raises(UserError, match="seed must be in"):
            OneBitFedAvg(FedAvg(), seed=seed)


def test_an_app_of_the_old_kind_is_refused():
    with pytest.raises(UserError, match=r"client_fn.*; register functions with @app.train"):
        OneBit(ClientApp(lambda context: None))
    with pytest.raises(UserError, match="around a ClientApp once, got OneBit"):
        OneBit(OneBit(ClientApp()))


def spoiled(change, **options):
    """What the nodes complain of, when their app returns something else in the second round."""
    rounds = []

    def changed(arrays, message):
        rounds.append(message.content["config"]["server-round"])
        return change(dict(arrays)) if rounds[-1] == 2 else arrays

    desk, strategy, result = federated(rounds=3, nodes=2, app=toy(changed), **options)
    assert result.arrays is not None and strategy.nodes.version == 2  # the second round is as if it had not been
    assert result.evaluate_metrics_clientapp[3]["steps"] == 2
    return desk.errors


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda a: a | {"a": a["a"].T}, r"a was float32 of shape \(10, 20\) .*is now float32 of shape \(20, 10\)"),
        (lambda a: a | {"b": a["b"].astype(np.float64)}, "b was float32 .*is now float64"),
        (lambda a: {k: v for k, v in a.items() if k != "b"}, "the array b was .*is now not there; return the arrays"),
        (lambda a: a | {"new": a["b"]}, r"the array new was not there .*is now float32 of shape \(100,\)"),
        (lambda a: a | {"b": a["b"] * np.nan}, "NaN or infinity; lower the learning rate"),
    ],
)
def test_other_arrays_than_before_end_the_nodes_round_and_nothing_else(change, complaint):
    errors = spoiled(change, state="device" if "NaN" in complaint else None)
    assert len(errors) == 2
    with pytest.raises(ValueError, match=complaint):
        raise ValueError(errors[0])


def test_arrays_that_are_one_in_the_apps_model_are_not_moved_apart():
    app = ClientApp()

    @app.train()
    def train(message, context):
        last = 0.9 * message.content["arrays"]["out"].numpy() + 0.1 * np.arange(50, dtype=np.float32)
        record = ArrayRecord({name: Array(last) for name in ("in", "out")})  # both were loaded into one parameter
        return Message(RecordDict({"arrays": record, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    desk, strategy = Desk(OneBit(app), 2), OneBitFedAvg(FedAvg(fraction_evaluate=0.0), ratio=0.5)
    with identity(1):
        strategy.start(
            desk, ArrayRecord({name: Array(np.ones(50, np.float32)) for name in ("in", "out")}), num_rounds=2
        )
    assert strategy.nodes.version == 2 and len(desk.errors) == 2  # 1 is the first version; the second round is refused
    assert "the arrays in and out are one in the app's model" in desk.errors[0] and "`first`" in desk.errors[0]


def test_arrays_that_are_not_those_of_the_first_model_are_refused_at_the_start():
    part = ArrayRecord({name: array for name, array in model().items() if name != "b"})
    with pytest.raises(
        UserError, match=r"b is float32 of shape \(100,\) in the model that `first` makes, and not there"
    ):
        OneBitFedAvg(FedAvg(), first=model).start(Desk(toy(), 2), part)


@pytest.mark.parametrize("count", [0, 2])
def test_the_reply_of_training_holds_one_array_record(count):
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"]
        return Message(RecordDict({f"part{i}": arrays for i in range(count)}), reply_to=message)

    desk, _, result = federated(rounds=1, app=app, inner=FedAvg(fraction_evaluate=0.0))
    assert f"must hold the model in one ArrayRecord, and holds {count} of them" in desk.errors[0]
    assert "keep it in context.state" in desk.errors[0]


def test_a_message_of_the_strategy_holds_one_array_record():
    class Two(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = [*super().configure_train(server_round, arrays, config, grid)]
            messages[0].content["control"] = arrays
            return messages

    with pytest.raises(UserError, match="a message of Two must hold the model in one ArrayRecord, and holds 2"):
        federated(inner=Two())


def test_only_one_side_wrapped_is_found_on_both():
    with pytest.raises(UserError, match=r"node 101 sent no record 'onebit': only one side.*app = OneBit\(app\)"):
        federated(rounds=1, client=toy(), first=None)
    desk = Desk(OneBit(toy()), 2)
    with identity(1):
        FedAvg().start(desk, model(), num_rounds=1)
    assert "the server sent no record 'onebit'" in desk.errors[0] and "OneBitFedAvg(strategy)" in desk.errors[0]


def test_sides_of_different_releases_are_told_so(monkeypatch):
    inner = OneBit(toy())

    def newer(message, context):
        message.content["onebit"]["protocol"] = 2
        return inner(message, context)

    desk, _, _ = federated(rounds=1, client=newer, first=None)
    assert "speaks version 2 of the drop-in's messages, this side 1; install the same release" in desk.errors[0]

    def answering(message, context):
        reply = inner(message, context)
        reply.content["onebit"]["protocol"] = 2
        return reply

    with pytest.raises(UserError, match="node 101 speaks version 2"):
        federated(rounds=1, client=answering, first=None)


def test_a_first_model_that_is_made_otherwise_is_found_at_once():
    def other():
        record = model()
        record["b"] = Array(np.ones(100, np.float32))
        return record

    desk, _, _ = federated(rounds=1, client=OneBit(toy(), first=other))
    assert "from the seed is not the server's; give OneBit and OneBitFedAvg the same `first`" in desk.errors[0]
    desk, _, _ = federated(rounds=1, client=OneBit(toy()))
    assert "makes the first model from a seed, and this node cannot" in desk.errors[0]
    with pytest.raises(UserError, match="first must return a torch module or an ArrayRecord, got int"):
        federated(first=lambda: 3)


def test_models_of_other_types_are_refused_before_the_first_round():
    doubles = ArrayRecord({"w": Array(np.zeros(5))})
    with pytest.raises(UserError, match=r"the array w is float64; give the model .float\(\)"), identity(1):
        OneBitFedAvg(FedAvg()).start(Desk(toy(), 2), doubles)
    whole = ArrayRecord({"w": Array(np.zeros(5, np.int64))})
    with pytest.raises(UserError, match="hold no weights that can be shared"), identity(1):
        OneBitFedAvg(FedAvg()).start(Desk(toy(), 2), whole)


def test_arrays_that_the_nodes_cannot_know_are_refused():
    desk, strategy, result = federated(rounds=1)
    with identity(1), pytest.raises(UserError, match="not those that aggregate_train returned.*begin anew"):
        strategy.configure_train(2, model(), ConfigRecord(), desk)
    with pytest.raises(UserError, match="no model before the first round"):
        OneBitFedAvg(FedAvg()).arrays  # noqa: B018


def test_an_answer_that_says_nonsense_is_left_out():
    inner = OneBit(toy(), first=model)

    def answering(message, context):
        reply = inner(message, context)
        if context.node_id == 101:
            reply.content["onebit"]["held"] = "all"
        return reply

    _, strategy, _ = federated(rounds=1, client=answering)
    assert {*strategy.nodes.counted} == {*strategy.nodes.seen} == {102, 103, 104}


def test_a_damaged_update_is_left_out_and_the_others_count():
    inner = OneBit(toy(), first=model)

    def answering(message, context):
        reply = inner(message, context)
        if context.node_id == 101 and "up" in reply.content["onebit"]:
            up = reply.content["onebit"]["up"]
            reply.content["onebit"]["up"] = up[:-1] + bytes([up[-1] ^ 1])
        return reply

    _, strategy, _ = federated(rounds=2, client=answering)
    assert strategy.nodes.version == 2 and {*strategy.nodes.counted} == {102, 103, 104}


def test_a_node_that_claims_a_huge_update_counts_for_little():
    def shouting(arrays, message):
        return {k: v * 1e6 if v.dtype == np.float32 else v for k, v in arrays.items()}

    quiet, loud = OneBit(toy(), first=model), OneBit(toy(shouting), first=model)
    _, strategy, _ = federated(rounds=1, nodes=5, client=lambda m, c: (loud if c.node_id == 101 else quiet)(m, c))
    assert strategy.nodes.theta.norm() < 200  # of targets of length 52, at 0.2 of the way, and the noise


def test_a_replica_that_is_not_the_servers_is_replaced():
    desk, strategy, _ = federated(rounds=2, nodes=2)
    state = desk.contexts[101].state["onebit"]
    state["theta"] = Array(state["theta"].numpy() + 1)
    for server_round in (3, 4, 5):
        with identity(1):
            messages = strategy.configure_train(server_round, strategy.arrays, ConfigRecord(), desk)
            _, metrics = strategy.aggregate_train(server_round, desk.send_and_receive(messages))
        assert metrics["onebit-lacking"] == (server_round == 4)  # in round 3 there is no news, and so no checksum
    assert desk.contexts[101].state["onebit"]["version"].numpy() == strategy.nodes.version - 1


def answering(change):
    """A client whose node 101 has its replies changed by `change(records)`."""
    inner = OneBit(toy(), first=model)

    def answer(message, context):
        reply = inner(message, context)
        if context.node_id == 101:
            change(reply.content)
        return reply

    return answer


CHANGES = {
    "not like": [
        lambda records: records.update(metrics=MetricRecord({"num-examples": 1})),
        lambda records: records["metrics"].update(steps=[1, 2]),
    ],
    "one MetricRecord with num-examples, and no arrays": [
        lambda records: records.update(metrics=MetricRecord({"steps": 1})),
        lambda records: records.update(more=MetricRecord({"num-examples": 1, "steps": 1})),
        lambda records: records.update(x=ArrayRecord({})),
    ],
    "not finite": [lambda records: records["metrics"].update(steps=math.nan)],
    "must be a positive number": [
        lambda records: records["metrics"].update({"num-examples": 0}),
        lambda records: records["metrics"].update({"num-examples": -5.0}),
    ],
}


@pytest.mark.parametrize(("reason", "change"), [(why, one) for why, many in CHANGES.items() for one in many])
def test_records_that_would_end_flowers_strategy_cost_their_node_its_round(reason, change, monkeypatch):
    said = []
    monkeypatch.setattr(dropin_trust.log, "warning", lambda *words: said.append(words[0] % words[1:]))
    _, strategy, result = federated(rounds=1, client=answering(change))
    assert {*strategy.nodes.counted} == {102, 103, 104} and strategy.nodes.version == 1
    assert result.evaluate_metrics_clientapp[1]["steps"] == 1
    assert said and all(line.startswith("node 101 is not counted: its") and reason in line for line in said)


@pytest.mark.parametrize("change", CHANGES["one MetricRecord with num-examples, and no arrays"])
def test_of_two_nodes_the_one_that_would_end_flowers_strategy_is_not_counted(change):
    _, strategy, _ = federated(rounds=1, nodes=2, client=answering(change))
    assert {*strategy.nodes.counted} == {102}


def test_after_the_first_round_a_single_answer_that_cannot_be_averaged_ends_nothing():
    inner, answered = OneBit(toy(), first=model), []

    def answer(message, context):
        answered.append(context.node_id)
        if answered.count(102) > 2:  # it has trained and evaluated
            answered.remove(102)
            raise RuntimeError("silence")
        reply = inner(message, context)
        if answered.count(101) > 2:
            reply.content.update(metrics=MetricRecord({"steps": 1}))
        return reply

    _, strategy, _ = federated(rounds=2, nodes=2, client=answer)
    assert answered.count(101) == 4 and strategy.nodes.version == 1


def test_a_node_that_claims_to_have_all_samples_weighs_ten_times_the_median():
    def claim(number):
        return answering(lambda records: records["metrics"].update({"num-examples": number}))

    (_, all_, _), (_, ten, _), (_, one, _) = (federated(rounds=1, client=claim(samples)) for samples in (10**15, 30, 1))
    assert torch.equal(all_.nodes.theta, ten.nodes.theta) and not torch.equal(all_.nodes.theta, one.nodes.theta)
    with pytest.raises(UserError, match="at least 1, the median itself, got 0.5"):
        OneBitFedAvg(FedAvg(), max_weight=0.5)


def test_after_the_first_round_answers_of_nothing_but_nonsense_end_nothing():
    inner, answered = OneBit(toy(), first=model), []

    def answer(message, context):
        reply = inner(message, context)
        reply.content["onebit"]["protocol"] = 7 if len(answered) >= 4 else 1  # after training and evaluation
        answered.append(context.node_id)
        return reply

    _, strategy, _ = federated(rounds=2, nodes=2, client=answer)
    assert strategy.nodes.version == 1 and len(answered) == 8


def test_a_step_that_would_make_the_model_infinite_is_not_taken():
    _, strategy, _ = federated(rounds=1)
    nodes, before = strategy.nodes, strategy.nodes.theta.clone()
    assert not nodes.move(torch.full((nodes.method.m,), 3e38), 1e3)
    assert nodes.version == 1 and torch.equal(nodes.theta, before)


def test_the_loop_of_start_waits_for_no_answer_beyond_its_time():
    class Looking(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            looks.append(grid)
            return super().configure_train(server_round, arrays, config, grid)

    looks = []
    desk, _, _ = federated(rounds=1, inner=Looking())
    assert isinstance(looks[0], Timely) and looks[0].contexts is desk.contexts
