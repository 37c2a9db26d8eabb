"""Models after training answer as they were judged: out of run folders, out of clients' files, and as plain weights."""

import csv
import json
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import pfed1bs
from flower_desk import Desk
from pfed1bs.algorithms import REGISTRY
from pfed1bs.cli.main import main
from pfed1bs.core.errors import UserError
from pfed1bs.engine.rest import own_models
from pfed1bs.flower.client import Client
from pfed1bs.flower.serving import serve
from pfed1bs.nn.models import build
from pfed1bs.runs import card
from pfed1bs.runs.config import load
from pfed1bs.runs.run import Run, federation
from pfed1bs.runs.trained import opened, personal_model

SMALL = "--clients 2 --sampled 1 --steps 3 --batch 8 --rounds 2 --data.cap 30 --device cpu".split()
RULED = ("fedproto", "knnper")  # they answer by more than a network


def normed(shape, classes):
    """With statistics, dropout, and a layer that is not trained."""
    layers = nn.Linear(shape[-1], 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, classes)
    layers[0].requires_grad_(False)
    return nn.Sequential(nn.Flatten(), *layers)


@cache
def digits():
    """Data of all runs with the flags of SMALL, and the samples as the data set has them."""
    samples = pfed1bs.load("digits")
    return federation(load(None, SMALL)), np.concatenate([samples.train_inputs, samples.test_inputs])


def run(folder, *flags, samples=None):
    """A run without its report."""
    list(Run.prepare(load(None, [*SMALL, *flags, "--out", str(folder)]), samples=samples).rounds())
    with (folder / "clients.csv").open() as file:
        return {int(row["client"]): row for row in csv.DictReader(file)}


def held(client):
    """A client's test samples as they come, and their labels."""
    data, inputs = digits()
    return torch.from_numpy(inputs[data.samples[data.test[client]]]), data.labels[data.test[client]]


def percent(outputs, y):
    return round(100 * float((outputs.argmax(-1) == y).double().mean()), 4)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_model_has_the_accuracy_that_was_recorded(name, tmp_path):
    recorded = run(tmp_path / "run", "--algorithm.name", name, samples=lambda config: digits()[0])
    for client, row in recorded.items():
        x, y = held(client)
        found = opened(tmp_path / "run", client)
        vars(found)["data"] = digits()[0]
        assert percent(found.model()(x), y) == float(row["accuracy"])
        if "accuracy_global" in row:
            assert percent(found.model(shared=True)(x), y) == float(row["accuracy_global"])
        else:
            with pytest.raises(UserError, match=f"{name} has no shared model"):
                found.model(shared=True)
        own, judged = own_models(found.state), found._weights("personal")
        kept = own.keys() == judged.keys() and all(torch.equal(own[key], judged[key]) for key in own)
        assert kept == found.algorithm.kept
    out = tmp_path / "model.safetensors"
    if name in RULED:
        with pytest.raises(UserError, match="answers by more than a network"):
            card.export(found, False, out)
        return
    assert [path.name for path in card.export(found, False, out)] == ["model.safetensors", "model.md"]
    network = build("mlp", (1, 8, 8), 10)
    network.load_state_dict(load_file(out))
    with safe_open(out, "pt") as file:
        told = file.metadata()
    constants = json.loads(told["normalise"])
    assert percent(network((x - constants["mean"][0]) / constants["std"][0]), y) == float(row["accuracy"])
    assert float(told["accuracy"]) == float(row["accuracy"]) and json.loads(told["method"])["name"] == name


@pytest.fixture
def pixels(tmp_path, monkeypatch):
    """Pictures of two owners, one of them in the dark, in the file p.npz of the current folder."""
    monkeypatch.chdir(tmp_path)
    rng, owners = np.random.default_rng(0), np.arange(80) % 2
    y = rng.integers(0, 3, 80)
    x = (rng.integers(0, 60, (80, 1, 6)) + 40 * y[:, None, None] + 60 * owners[:, None, None]).astype(np.uint8)
    np.savez("p.npz", x=x, y=y, owners=owners)
    return x, y


def test_statistics_dropout_frozen_weights_and_each_clients_own_normalisation_come_back(pixels, tmp_path, capsys):
    flags = "--data.name p.npz --data.partition natural --data.normalise client --model.name test_trained:normed"
    recorded = run(tmp_path / "run", *flags.split(), "--sampled", "2", "--algorithm.name", "pfed1bs-delta")
    data = federation(load(str(tmp_path / "run" / "config.toml")))
    sets = pfed1bs.load("p.npz")
    for client, row in recorded.items():
        at = data.test[client]
        x = np.concatenate([sets.train_inputs, sets.test_inputs])[data.samples[at]]
        model = personal_model("run", client)
        assert torch.equal(model.normalised(torch.from_numpy(x)), data.inputs[at])  # with the bits of training
        assert torch.allclose(model(torch.from_numpy(x)), model(torch.from_numpy(x / 255).float()), atol=1e-4)
        np.savez(f"{client}.npz", x=x, y=data.labels[at].numpy())
        assert main(["predict", "run", "--client", str(client), f"{client}.npz", "--json"]) == 0
        assert round(json.loads(capsys.readouterr().out)["accuracy"], 4) == float(row["accuracy"])
    assert {name for name, _ in model.network.named_buffers()} == {
        "2.running_mean",
        "2.running_var",
        "2.num_batches_tracked",
    }
    assert torch.equal(model.network[1].weight, build("test_trained:normed", (1, 1, 6), 3)[1].weight)
    assert not torch.equal(model.network[2].running_mean, personal_model("run", 0).network[2].running_mean)
    with pytest.raises(UserError, match="uint8 pixels or floats from 0 to 1"):
        model(torch.from_numpy(x).long())
    assert main(["predict", "run", "--shared", "0.npz"]) == 2
    assert "say whose with --client" in capsys.readouterr().err
    assert main(["predict", "run", "--client", "1", "--shared", "1.npz", "--out", "answers.npz"]) == 0
    told = np.load("answers.npz")
    assert (told["answers"] == told["outputs"].argmax(-1)).all() and len(told["answers"]) == 10


def test_tokens_and_regressions_are_answered_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = np.array([[(i + k) % 5 for k in range(9)] for i in range(60)])
    np.savez("letters.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    x = np.random.default_rng(0).normal(20, 5, (60, 4)).astype(np.float32)
    np.savez("line.npz", x=x, y=x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32))
    run(tmp_path / "a", *"--data.name letters.npz --data.partition iid --model.name gru --algorithm.name local".split())
    run(tmp_path / "b", *"--data.name line.npz --data.partition iid --model.loss mse --algorithm.name fedavg".split())
    assert main(["predict", "a", "--client", "1", "letters.npz"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 60 and {len(line.split()) for line in lines} == {8}
    assert main(["predict", "b", "--shared", "line.npz", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"answers", "r2", "mae"} and np.shape(told["answers"]) == (60, 1)
    model = personal_model("b", 0)
    for kind in (torch.uint8, torch.int64):  # whole numbers for a model of numbers
        whole = torch.from_numpy(x.round()).to(kind)
        assert torch.equal(model(whole), model(whole.float()))
    assert main(["predict", "a", "--client", "1", "line.npz"]) == 2
    assert "inputs must be whole numbers of shape (samples, 8)" in capsys.readouterr().err
    np.savez("other.npz", x=tokens[:, :-1] + 70)
    assert main(["predict", "a", "--client", "1", "other.npz"]) == 2
    assert "the model cannot take these inputs" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["pfed1bs-delta", "fedavg", "fedavg-ft"])
def test_the_file_of_a_client_on_flower_holds_its_model_and_the_servers_folder_the_shared_one(method, tmp_path):
    desk = Desk(
        {
            **{"rounds": 2, "clients": 2, "steps": 2, "batch": 8, "data.cap": 30, "out": str(tmp_path / "run")},
            "algorithm.name": method,
        },
        tmp_path,
    )
    folder = serve(desk, desk.config, desk.rules)
    name = json.loads((folder / "federation.json").read_text())["name"]
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    shared = personal_model(folder, 0, shared=True)
    with pytest.raises(UserError, match="the models of its clients are with them"):
        personal_model(folder, 0)
    for client, row in enumerate(rows):
        x, y = held(client)
        file = tmp_path / f"{name}-{client}.safetensors"
        assert percent(shared(x), y) == float(row["accuracy_global"])
        if method == "fedavg-ft":  # what is judged is made of the server's model, which is not there
            with pytest.raises(UserError, match="personal model of fedavg-ft is not in .*it takes what the server"):
                personal_model(file, client)
            continue
        assert percent(personal_model(file, client)(x), y) == float(row["accuracy"])
        with pytest.raises(UserError, match=f"is the file of client {client}, not of client 7"):
            personal_model(file, 7)
        with pytest.raises(UserError, match="the shared model is not in"):
            personal_model(file, client, shared=True)


def test_what_a_client_on_flower_writes_down_has_its_own_normalisation(pixels):
    own = {"data.name": "p.npz", "data.partition": "natural", "data.normalise": "client", "shape": "1x1x6"}
    clients = [Client.of({"clients": 2, "classes": 3, **own}, {"partition-id": k}) for k in (0, 1)]
    means = [json.loads(client.about)["mean"] for client in clients]
    assert means == clients[0].data.constants["mean"] and means[0][0] + 0.2 < means[1][0]
    alone = Client.of({"clients": 2, "classes": 3, **own}, {"partition-id": 1, "data": "p.npz"})
    assert [json.loads(alone.about)["mean"]] == alone.data.constants["mean"]


def test_what_cannot_be_is_refused_with_the_way_out(pixels, tmp_path, capsys):
    run(tmp_path / "run", "--data.newcomers", "0.5", "--rounds", "1")
    np.savez("small.npz", x=np.zeros((3, 4), np.float32))
    np.savez("none.npz", y=np.zeros(3))
    np.savez("nan.npz", x=np.full((3, 1, 8, 8), np.nan))
    np.savez("labels.npz", x=np.zeros((3, 1, 8, 8)), y=np.array([0, 1, 10]))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text("")
    (tmp_path / "other.txt").write_text("words")
    late = json.loads((tmp_path / "run" / "normalise.json").read_text())["newcomers"][0]
    mine = ["--client", str(1 - late)]
    for words, text in {
        ("predict", "nowhere", *mine, "small.npz"): "nowhere is no run folder",
        ("predict", "begun", *mine, "small.npz"): "begun has no checkpoint yet",
        ("predict", "other.txt", "small.npz"): "other.txt is damaged",
        ("predict", "run", "small.npz"): "whose model?",
        ("predict", "run", "--client", "2", "small.npz"): "there is no client 2",
        ("predict", "run", "--client", str(late), "small.npz"): f"client {late} is a newcomer",
        ("predict", "run", *mine, "small.npz"): "inputs must be numbers of shape (samples, 1, 8, 8), got (3, 4)",
        ("predict", "run", *mine, "none.npz"): "must hold an array x",
        ("predict", "run", *mine, "nan.npz"): "sample 0 holds NaN",
        ("predict", "run", *mine, "labels.npz"): "labels must lie in 0 .. 10 - 1",
        ("predict", "run", *mine, "gone.npz"): "no file gone.npz",
        ("predict", "run", *mine, "other.txt"): "other.txt is damaged or not what its name says",
        ("predict", "run", *mine): "arguments are required: FILE",
        ("export", "run", *mine): "where to?",
        ("export", "run", *mine, "--out", "model.pt"): "--out must end in .safetensors",
        ("export", "run", *mine, "--shared", "--out", "model.safetensors"): "pfed1bs has no shared model",
    }.items():
        assert main([*words]) == 2, words
        assert text in capsys.readouterr().err, words
    assert main(["export", "run", *mine, "--out", "model.safetensors"]) == 0
    assert "| accuracy | " in (tmp_path / "model.md").read_text()
    capsys.readouterr()
    assert main(["export", "run", *mine, "--out", "model.safetensors"]) == 2
    assert "model.safetensors exists" in capsys.readouterr().err


def test_a_card_does_not_claim_what_was_not_judged(tmp_path):
    run(tmp_path / "run", samples=lambda config: digits()[0])
    found = opened(tmp_path / "run", 1)
    assert isinstance(card.card(found, False)["accuracy"], float)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join([lines[1].replace('"round": 1', '"round": 0')]))
    assert card.card(found, False)["accuracy"] == "not judged after round 2; the last time after round 1"
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert card.card(found, False)["accuracy"] == "not known here: the run's folder has it"
