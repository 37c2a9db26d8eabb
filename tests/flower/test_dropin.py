"""OneBit and OneBitFedAvg around an app that knows nothing of them, in one process with Flower's own objects."""

import logging
import pickle
import random

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg
from safetensors.torch import load_file
from torch import nn

from dropin_grid import RUN, Desk, identity
from dropin_toy import RATIO, N, federated, model, stepped, target, toy
from pfed1bs import OneBitCode, decode_step, encode_step, encode_update
from pfed1bs.cli.main import main
from pfed1bs.flower import OneBit, OneBitFedAvg
from pfed1bs.flower.dropin_arrays import Frame, made
from pfed1bs.flower.states import Shelf

FOLDER = {"state": "device"}
MEAN = sum(k * target(100 + k) for k in range(1, 5)) / 10  # of 4 nodes, by their samples
logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random.seed(0)


def flat(arrays):
    return np.concatenate([arrays[name].numpy().ravel() for name in ("a", "b")])


def test_the_app_sees_whole_models_and_the_server_returns_them():
    app = toy()
    desk, strategy, result = federated(rounds=8, app=app, first=None)
    assert not desk.errors and len(app.given) == 4 * 16
    for _, content in app.given:
        assert [*content] == ["config", "arrays"] and [*content["arrays"]] == [*model()]
    assert [*result.arrays] == [*model()] and result.arrays["a"].shape == (10, 20)
    start, end = np.linalg.norm(MEAN), np.linalg.norm(flat(result.arrays) - MEAN)
    assert end < 0.6 * start  # FedAvg: 0.8^8 = 0.17; here with the noise of 150 signs


def test_replicas_have_the_bits_of_the_server(tmp_path):
    desk, strategy, _ = federated(rounds=4)
    for context in desk.contexts.values():
        assert np.array_equal(context.state["onebit"]["theta"].numpy(), strategy.nodes.theta.numpy())
        assert int(context.state["onebit"]["version"].numpy()) == strategy.nodes.version == 4


def test_what_a_node_sends_is_what_the_public_functions_send():
    desk, _, _ = federated(rounds=1)
    code = OneBitCode(N, RATIO)
    for node, _, said in desk.came[:4]:
        after = stepped(model(), node)
        update = torch.from_numpy(np.concatenate([after["a"].ravel(), after["b"]]))  # from zeros
        assert said["up"] == encode_update(code, update, round=0, samples=0)


def test_the_step_of_the_server_is_as_long_as_that_of_the_public_functions_bounded_by_its_noise():
    desk, strategy, _ = federated(rounds=1)
    code, heard = OneBitCode(N, RATIO), []
    for node, _, _ in desk.came[:4]:
        after = stepped(model(), node)
        update = torch.from_numpy(np.concatenate([after["a"].ravel(), after["b"]]))
        heard.append(encode_update(code, update, round=0, samples=node - 100))
    step = decode_step(code, encode_step(code, heard, round=0), round=0)
    assert float(strategy.nodes.theta.norm() / step.norm()) == pytest.approx(1, abs=0.01)


def test_with_a_first_model_from_the_seed_nobody_is_sent_one():
    desk, _, _ = federated(rounds=3, share=0.5)
    assert not any("arrays" in records for _, records, _ in desk.sent)


def test_without_it_every_node_is_sent_the_model_once():
    desk, _, _ = federated(rounds=6, share=0.5, first=None)
    whole = [node for node, records, _ in desk.sent if "arrays" in records]
    assert sorted(whole) == sorted({node for node, _, _ in desk.sent})


def test_evaluation_is_sent_news_and_they_are_not_sent_again():
    desk, strategy, result = federated(rounds=2)
    assert [len(own["news"]) for _, _, own in desk.sent] == [1] * 8 + [0] * 4 + [1] * 4
    assert result.evaluate_metrics_clientapp[2]["sum"] == pytest.approx(
        float(flat(result.arrays)[:200].sum()), rel=1e-5
    )


def test_statistics_and_counters_stay_at_the_node():
    app = toy()
    _, _, result = federated(rounds=3, app=app)
    assert result.arrays["bn.num_batches_tracked"].numpy() == 0 and (result.arrays["bn.running_var"].numpy() == 1).all()
    for node, content in app.given[-4:]:
        arrays = content["arrays"]
        assert arrays["bn.num_batches_tracked"].numpy() == 3 and (arrays["bn.running_var"].numpy() == node).all()


def test_of_a_module_only_what_is_trained_is_shared():
    def first():
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        net.register_buffer("mask", torch.rand(5))
        net[0].bias.requires_grad_(False)
        return net

    before = torch.random.get_rng_state()
    (frame, values), (again, same) = made(first, 3, ()), made(first, 3, ())
    assert frame.local == {"0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked", "mask"}
    assert frame == again and torch.equal(frame.flat(values), frame.flat(same)) and frame.n == 12 + 6 + 8
    assert not torch.equal(frame.flat(values), frame.flat(made(first, 4, ())[1]))
    assert torch.equal(before, torch.random.get_rng_state())
    assert "2.weight" in made(first, 3, ("2.*",))[0].local


def test_a_weight_with_two_names_is_sent_once_and_stays_one():
    def first():
        net = nn.ModuleDict({"in": nn.Embedding(5, 3), "mid": nn.Linear(3, 3), "out": nn.Linear(3, 5, bias=False)})
        net["out"].weight = net["in"].weight
        return net

    frame, values = made(first, 0, ())
    assert frame.n == 15 + 12 and not frame.local and frame == Frame.read(frame.written())
    model = frame.model(frame.flat(values) + 1, {})
    assert torch.equal(model["in.weight"], values["in.weight"] + 1) and torch.equal(
        model["out.weight"], model["in.weight"]
    )
    assert made(first, 0, ("in.*",))[0].local == {"in.weight", "out.weight"}


def test_the_bytes_of_a_round_are_in_the_metrics():
    desk, _, result = federated(rounds=3)
    found = each(result)
    assert sum(one["onebit-up"] for one in found) == desk.up and sum(one["onebit-down"] for one in found) == desk.down
    plain = federated_plainly()
    for way, bytes_ in (("up", plain.up), ("down", plain.down)):  # small numbers differ in their lengths
        assert sum(one[f"onebit-full-{way}"] for one in found) == pytest.approx(bytes_, rel=0.01)


def federated_plainly():
    desk = Desk(toy(), 4)
    with identity(1):
        FedAvg().start(desk, model(), num_rounds=3)
    return desk


@pytest.mark.parametrize("first", [model, None])
@pytest.mark.parametrize("folder", [{}, FOLDER])
def test_lost_replies_and_restarts_cost_rounds_and_nothing_else(first, folder):
    desk, strategy, result = federated(
        rounds=10, share=0.6, first=first, node_config=folder, lost=0.2, restarts=0.2, seed=3
    )
    assert not desk.errors and np.linalg.norm(flat(result.arrays) - MEAN) < 0.7 * np.linalg.norm(MEAN)
    told = [*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values()]
    lacking = sum(one["onebit-lacking"] for one in told)
    assert (lacking == 0) == bool(folder)
    for _, _, said in desk.came:
        assert set(said) == {"protocol", "held", "up"} - (set() if "up" in said else {"up"})


def test_news_that_a_node_has_heard_are_passed_over():
    desk, strategy, _ = federated(rounds=2, nodes=2)
    strategy.nodes.seen = dict.fromkeys(desk.contexts, 1)  # as if the last replies had been lost
    theta = strategy.nodes.theta.numpy()
    with identity(1):
        messages = strategy.configure_evaluate(3, strategy.arrays, ConfigRecord(), desk)
        assert all(len(message.content["onebit"]["news"]) == 1 for message in messages)
        metrics = strategy.aggregate_evaluate(3, desk.send_and_receive(messages))
    assert metrics["onebit-lacking"] == 0 and {*strategy.nodes.seen.values()} == {2}
    assert all(np.array_equal(one.state["onebit"]["theta"].numpy(), theta) for one in desk.contexts.values())


def test_contexts_that_travel_as_in_flowers_simulation_give_the_same_bits():
    class Simulated(Desk):
        """Messages and contexts go to another process and back; where the app fails the context stays as it was."""

        def answer(self, node, message):
            kept, self.contexts[node] = self.contexts[node], pickle.loads(pickle.dumps(self.contexts[node]))
            reply = super().answer(node, pickle.loads(pickle.dumps(message)))
            self.contexts[node] = kept if reply.has_error() else pickle.loads(pickle.dumps(self.contexts[node]))
            return reply

    def failing(arrays, message):
        return {} if message.metadata.dst_node_id == 102 and message.content["config"]["server-round"] == 2 else arrays

    thetas = []
    for kind in (Desk, Simulated):
        desk = kind(OneBit(toy(failing), first=model), 3)
        strategy = OneBitFedAvg(FedAvg(), ratio=RATIO, first=model)
        with identity(1):
            result = strategy.start(desk, model(), num_rounds=4)
        assert len(desk.errors) == 1 and all(not found["onebit-lacking"] for found in each(result))
        thetas.append(strategy.nodes.theta)
        for context in desk.contexts.values():
            assert np.array_equal(context.state["onebit"]["theta"].numpy(), strategy.nodes.theta.numpy())
    assert torch.equal(*thetas)


def each(result):
    return [*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values()]


def test_the_personal_model_is_in_the_state_folder(tmp_path):
    app = toy()
    federated(rounds=3, nodes=2, app=app, state=tmp_path / "kept")
    found = Shelf(
        tmp_path / "kept" / f"onebit-{RUN}-0.safetensors", '{"seed": 0, "ratio": 0.5, "rotate": true}'
    ).states()
    assert [*found] == [2]  # an evaluation has told that training was counted, so that the state before it went
    given = next(
        content["arrays"] for node, content in app.given[::-1] if node == 101 and "lr" not in content["config"]
    )
    assert found[2]["model/bn.num_batches_tracked"] == 3 and found[2]["model/a"].shape == (10, 20)
    assert given["bn.running_var"].numpy()[0] == 101


def test_the_file_of_a_node_is_exported_for_load_state_dict(tmp_path, capsys):
    federated(rounds=2, nodes=2, state=tmp_path / "kept")
    file, out = tmp_path / "kept" / f"onebit-{RUN}-1.safetensors", tmp_path / "mine.safetensors"
    assert main(["export", str(file), "--out", str(out)]) == 0
    found = load_file(out)
    assert {*found} == {*model()} and found["a"].shape == (10, 20) and found["bn.num_batches_tracked"] == 2
    assert f"onebit-{RUN}-1" in out.with_suffix(".md").read_text() and str(out) in capsys.readouterr().out
    for words in (["predict", str(file), "x.npz"], ["export", str(file), "--shared", "--out", "other.safetensors"]):
        assert main(words) == 2 and not (tmp_path / "other.safetensors").exists()
    told = capsys.readouterr().err
    assert "of an app that has the network itself" in told and "holds one model" in told


def test_a_training_that_was_not_counted_is_undone_from_the_file(tmp_path):
    client = OneBit(toy(), first=model, state=tmp_path)
    desk, strategy, _ = federated(rounds=1, nodes=2, client=client)
    for _ in range(2):  # the replies of the first time are lost
        with identity(1):
            messages = strategy.configure_train(2, strategy.arrays, ConfigRecord(), desk)
            replies = desk.send_and_receive(messages)
    with identity(1):
        _, metrics = strategy.aggregate_train(2, replies)
    assert metrics["steps"] == 2  # the counter of the second training stands where the first one's had


def test_large_models_go_to_a_file_by_themselves(monkeypatch, tmp_path):
    monkeypatch.setattr("pfed1bs.flower.dropin_client.LARGE", 1000)
    desk, _, _ = federated(rounds=2, nodes=2, first=None)
    assert len([*(tmp_path / "pfed1bs-state").glob("*.safetensors")]) == 2 and not any(
        c.state for c in desk.contexts.values()
    )


def test_what_has_no_model_in_it_goes_to_the_app_as_it_is():
    desk, _, _ = federated(rounds=1)
    question = RecordDict({"question": ConfigRecord({"who": "you"})})
    with identity(1):
        [reply] = desk.send_and_receive([Message(question, 101, "query")])
    assert reply.content == question


def test_functions_may_be_registered_after_the_wrapping():
    app = ClientApp()
    wrapped = OneBit(app)

    @wrapped.query()
    def query(message, context):
        return Message(RecordDict({"yes": ConfigRecord({"x": 1})}), reply_to=message)

    with identity(1):
        [reply] = Desk(wrapped, 1).send_and_receive([Message(RecordDict(), 101, "query")])
    assert "yes" in reply.content


@pytest.mark.parametrize("inner", [FedMedian, FedTrimmedAvg])
def test_medians_and_trimmed_means_of_sketches_lead_to_the_middle(inner):
    _, _, result = federated(rounds=6, nodes=5, inner=inner(fraction_evaluate=0.0))
    middle = np.median([target(101 + k) for k in range(5)], axis=0)
    assert np.linalg.norm(flat(result.arrays) - middle) < 0.6 * np.linalg.norm(middle)


def test_a_strategy_that_chooses_nodes_in_its_own_way_can_be_wrapped():
    class Own(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return [*super().configure_train(server_round, arrays, config, grid)][:2]

    desk, _, result = federated(rounds=2, inner=Own())
    assert len(desk.sent) == 2 * (2 + 4) and result.arrays is not None
