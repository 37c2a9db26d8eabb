"""What users of a real federation write: run config, node config, app folder, keys, their own data."""

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import ConfigRecord, RecordDict

from flower_desk import Desk
from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.cli.main import main
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import PROVIDED
from pfed1bs.flower.client import Client
from pfed1bs.flower.grid import content_of, record
from pfed1bs.flower.serving import Folder, serve, tiers
from pfed1bs.flower.settings import Rules, read, tables
from pfed1bs.runs.config import load

SMALL = {"rounds": 2, "clients": 3, "steps": 2, "batch": 8, "data.cap": 60}


def flat(nested, prefix=""):
    """Keys as Flower flattens them."""
    found = {}
    for key, value in nested.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return found


def test_keys_are_those_of_recipes_and_empty_ones_are_not_given():
    run = {"rounds": 7, "sampled": "", "algorithm.name": "ditto", "algorithm.lam": 0.5, "data.augment": False}
    config, rules = read({**run, "min_clients": 3, "timeout": 10})
    assert (config.rounds, config.sampled, config.method, config.algorithm["lam"]) == (7, None, "ditto", 0.5)
    assert (rules.min_clients, rules.timeout, rules.resume) == (3, 10, False)


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ({"algorithm.lamda": 1.0}, "unknown key algorithm.lamda", "algorithm.lam"),
        ({"min_client": 3}, "unknown key min_client", "did you mean min_clients"),
        ({"min_clients": "3"}, "min_clients must be int, got '3'", "min_clients=2"),
        ({"resume": 1}, "resume must be bool", "resume=False"),
        ({"min_clients": 9, "clients": 5}, "min_clients must be in 1 .. 5", "min_clients=5"),
        ({"min_clients": 0}, "min_clients must be in 1 .. 20", "min_clients=20"),
        ({"timeout": 0.0}, "timeout must be positive", "timeout=600"),
        ({"resume": True}, "resume needs to know the run folder", "out="),
        ({"algorithm.name": "local", "algorithm.gamma": 1.0}, "unknown key algorithm.gamma", ""),
    ],
)
def test_mistakes_name_the_key_and_the_way_out(keys, message, hint):
    with pytest.raises(UserError, match=message) as error:
        read(keys)
    assert hint in error.value.hint


@pytest.mark.parametrize("name", REGISTRY)
def test_the_app_lists_every_option_of_every_method_and_reads_back_as_it_was_written(name):
    config = load(
        None,
        ["--algorithm.name", name, "--algorithm.lr", "0.025", "--rounds", "9", "--data.cap", "40", "--clients", "7"],
    )
    values = flat(tables(config))
    listed = {key.removeprefix("algorithm.") for key in values if key.startswith("algorithm.")}
    assert {option.name for option in fields(algorithm_class(name))} - {*PROVIDED} <= listed
    again, _ = read(values)
    assert again == replace(config, max_weight=2.0, max_norm=2.0), "clients of a real federation are believed less"
    assert read(flat(tables(replace(config, max_weight=3.0))))[0].max_weight == 3.0


def test_an_app_for_many_clients_leaves_liars_out_where_the_method_can():
    def robust(name, clients):
        return tables(load(None, ["--algorithm.name", name, "--clients", str(clients)]))["algorithm"]["robust"]

    assert [robust("pfed1bs-delta", clients) for clients in (7, 8)] == ["", "trimmed"] and robust("fedavg", 8) == ""
    config = load(None, ["--algorithm.name", "pfed1bs-delta", "--clients", "8"])
    assert tables(config, {})["algorithm"]["robust"] == ""  # a run that goes on has what it had
    assert read(flat(tables(config)))[0].algorithm["robust"] == "trimmed"


def test_init_writes_a_folder_of_one_file_and_keeps_what_is_there(tmp_path, capsys):
    assert main(["flower", "init", str(tmp_path / "app"), "--rounds", "3", "--algorithm.lam", "0.25"]) == 0
    content = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    app = content["tool"]["flwr"]["app"]
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["pyproject.toml"]
    assert app["components"]["clientapp"] == "pfed1bs.flower.client_app:app"
    assert app["config"]["rounds"] == 3 and app["config"]["algorithm"]["lam"] == 0.25
    assert main(["flower", "init", str(tmp_path / "app")]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["flower", "start"]) == 2


def test_certificates_name_the_hosts_and_are_signed_by_the_authority(tmp_path, capsys):
    words = ["flower", "certificates", str(tmp_path / "keys"), "--hosts", "10.0.0.7,server.lan", "--nodes", "2"]
    assert main(words) == 0
    keys = tmp_path / "keys"
    root, server = (x509.load_pem_x509_certificate((keys / name).read_bytes()) for name in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["10.0.0.7", "server.lan"]
    assert load_ssh_public_key((keys / "node1.pub").read_bytes()).key_size == 384
    assert (keys / "node0").stat().st_mode & 0o077 == 0 and (keys / "server.key").stat().st_mode & 0o077 == 0
    assert main(words) == 2 and "never written over" in capsys.readouterr().err


def test_a_message_is_one_record_and_others_are_refused():
    content = {"round": 3, "up": b"\x00\xff", "held": [], "news": [b"a", b""], "log/loss": [0.5], "speak": True}
    assert content_of(RecordDict.inflate(*inflated(record(content)))) == content
    with pytest.raises(ValueError, match="one ConfigRecord 'pfed1bs'"):
        content_of(RecordDict({"other": ConfigRecord({"round": 3})}))
    with pytest.raises(ValueError, match="one ConfigRecord"):
        content_of(RecordDict({"pfed1bs": ConfigRecord(), "more": ConfigRecord()}))


def inflated(records):
    """What RecordDict.inflate takes: its bytes, and its children by their names."""
    children = {name: ConfigRecord.inflate(child.deflate()) for name, child in records.children.items()}
    return records.deflate(), children


def test_the_estimate_of_wire_bytes_is_what_was_measured_and_within_the_bar():
    found = json.loads((Path(__file__).parents[2] / "results/flower-wire.json").read_text())["methods"]
    for cost in found.values():
        assert cost["wire"]["up"] <= 12_000 + 1.01 * cost["payload"]["up"]
        line = {f"protobuf_{way}_bytes": cost["protobuf"][way] for way in ("up", "down")}
        line |= {"protobuf_messages": 1, "up_bytes": 0, "down_bytes": 0, "once_bytes": 0}
        estimate = tiers([line])["wire"]
        assert all(abs(estimate[way] - cost["wire"][way]) < 0.01 * cost["wire"][way] for way in ("up", "down"))


def test_a_node_must_say_which_client_it_is():
    with pytest.raises(UserError, match="partition-id must be in 0 .. clients - 1 = 2, got 3"):
        Client.of(SMALL, {"partition-id": 3})
    with pytest.raises(UserError, match="got None"):
        Client.of(SMALL, {})


def test_clients_train_on_files_of_their_own_and_the_server_sees_none(tmp_path):
    """Each client has other samples, not all labels, and the result depends on them."""
    run = {**SMALL, "min_clients": 1, "shape": "4x4", "classes": 5, "data.min_size": 1, "data.normalise": "client"}
    generator = np.random.default_rng(0)
    desk = Desk(run, tmp_path)
    for k in range(3):
        x, y = generator.random((40, 4, 4), np.float32), generator.integers(k, k + 3, 40)
        np.savez(tmp_path / f"own{k}.npz", x=x, y=y)

    def client(node):
        k = node - 100
        return Client.of(run, {"partition-id": k, "data": str(tmp_path / f"own{k}.npz"), "state": str(tmp_path)})

    desk.client = client
    desk.algorithm = client(100).algorithm
    assert desk.algorithm.task.n == 16 * 256 + 256 + 256 * 5 + 5
    server = desk.server()
    done = list(server.rounds())
    assert done[-1].progress.seen.tolist() == [1, 1, 1] and done[0].cohort.sizes.tolist() == [30, 30, 30]
    ids, scores = server.judge(done[-1].progress)
    assert scores["personal"].samples.tolist() == [10, 10, 10]
    states = desk.states(done[-1].progress)
    assert not torch.equal(states[0]["w"], states[1]["w"])


def test_own_data_of_another_shape_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 3, 3), np.float32), y=np.arange(40) % 2)
    run = {**SMALL, "shape": "4x4", "classes": 2, "data.normalise": "none"}
    client = Client.of(run, {"partition-id": 0, "data": str(tmp_path / "own.npz")})
    with pytest.raises(UserError, match=r"have shape \(3, 3\), the federation's \(4, 4\)"):
        client.answer("query", {"federation": "f"})


def test_clients_with_data_of_their_own_must_be_told_what_to_normalise_them_by(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.array([[20.0], [22.0]] * 20, np.float32), y=np.arange(40) % 2)
    run, node = {**SMALL, "shape": "1", "classes": 2}, {"partition-id": 0, "data": str(tmp_path / "own.npz")}
    with pytest.raises(UserError, match="cannot know the mean and deviation of all.*data.normalise to none, to client"):
        Client.of(run, node).answer("query", {"federation": "f"})
    (tmp_path / "normalise.json").write_text('{"mean": [50.0], "std": [30.0]}')
    shared = Client.of({**run, "data.constants": str(tmp_path / "normalise.json")}, node).data
    assert shared.inputs.unique().tolist() == pytest.approx([-1.0, -28 / 30])
    own = Client.of({**run, "data.normalise": "client"}, node).data
    assert own.inputs.unique().tolist() == pytest.approx([-1.0, 1.0], abs=0.2)
    with pytest.raises(UserError, match="is for simulations"):
        Client.of({**run, "data.newcomers": 0.5}, node)


def test_a_server_without_data_must_be_told_what_samples_look_like():
    config, rules = read({"data.name": "own.npz"})
    with pytest.raises(UserError, match="cannot know what samples"):
        rules.problem(config)
    assert read({"data.name": "own.npz", "shape": "3x32x32", "classes": 7})[1].problem(config) == ((3, 32, 32), 7)
    with pytest.raises(UserError, match="whole numbers with x between"):
        read({"shape": "1xa", "classes": 7})[1].problem(config)


def test_the_folder_of_a_federation_goes_on_where_it_stopped(tmp_path):
    out = str(tmp_path / "run")
    desk = Desk({**SMALL, "out": out}, tmp_path)
    serve(desk, desk.config, desk.rules)
    folder = Folder(tmp_path / "run", desk.config)
    names = {path.name for path in folder.path.iterdir()}
    assert {"config.toml", "env.json", "metrics.jsonl", "clients.csv", "summary.json", "events.log"} <= names
    with pytest.raises(UserError, match="exists"):
        serve(desk, desk.config, desk.rules)
    longer = Desk({**SMALL, "rounds": 4, "out": out, "resume": True, "evaluate": False}, tmp_path)
    serve(longer, longer.config, longer.rules)
    assert "evaluate" in {question for question, _ in desk.asked} - {question for question, _ in longer.asked}
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 4
    whole = Desk({**SMALL, "rounds": 4}, tmp_path / "whole")
    *_, last = whole.server().rounds()
    ours = longer.states(last.progress, folder.federation)
    assert all(torch.equal(ours[k]["w"], state["w"]) for k, state in whole.states(last.progress).items())
    with pytest.raises(UserError, match="has 4 rounds"):
        serve(longer, longer.config, longer.rules)
    missing = Desk({**SMALL, "out": str(tmp_path / "nowhere"), "resume": True}, tmp_path)
    with pytest.raises(UserError, match="holds no federation"):
        serve(missing, missing.config, missing.rules)


def test_letters_that_the_servers_locale_does_not_know_end_no_federation(tmp_path, monkeypatch):
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "ascii")
    with Folder(tmp_path / "run", Desk(SMALL, tmp_path).config).open() as folder:
        folder.event("client 1 is not counted: \u2603")
    assert b"\xe2\x98\x83" in (folder.path / "events.log").read_bytes()


def test_a_federation_that_was_killed_before_its_first_round_begins_again_under_its_name(tmp_path):
    desk = Desk({**SMALL, "out": str(tmp_path / "run"), "resume": True}, tmp_path)
    with Folder(tmp_path / "run", desk.config).open() as folder:
        name = folder.federation
    serve(desk, desk.config, desk.rules)
    assert folder.federation == name and "goes on with round 0" in (folder.path / "events.log").read_text()
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_server_waits_a_while_for_another_in_its_folder(tmp_path, monkeypatch):
    desk = Desk({**SMALL, "out": str(tmp_path / "run"), "resume": True}, tmp_path)
    other = Folder(tmp_path / "run", desk.config).open()
    monkeypatch.setattr("pfed1bs.runs.locking.sleep", lambda seconds: other.close())
    serve(desk, desk.config, desk.rules)
    monkeypatch.setattr("pfed1bs.runs.locking.sleep", lambda seconds: None)
    longer = Desk({**SMALL, "rounds": 3, "out": str(tmp_path / "run"), "resume": True}, tmp_path)
    with (
        Folder(tmp_path / "run", longer.config).open(resume=True),
        pytest.raises(UserError, match="another process works in"),
    ):
        serve(longer, longer.config, longer.rules)


def test_the_document_has_every_key_of_a_federation_with_its_default():
    page = (Path(__file__).parents[2] / "docs/flower.md").read_text()
    for key in fields(Rules):
        if key.name not in ("shape", "classes"):
            default = str(key.default).lower() if isinstance(key.default, bool) else key.default
            assert f"| `{key.name}` | {default} |" in page
