"""Going on with a federation without saying everything again, and mistakes that are told in two lines."""

import logging
import sys
from types import SimpleNamespace

import pytest

from flower_desk import Desk, finished, same
from pfed1bs.cli.main import main
from pfed1bs.core.errors import UserError
from pfed1bs.flower import server_app
from pfed1bs.flower.client import Client
from pfed1bs.flower.resuming import defaults, flat, heard, resumed, told
from pfed1bs.flower.server import Stopped
from pfed1bs.flower.serving import Folder, serve
from pfed1bs.flower.settings import read, tables
from pfed1bs.report import go_on
from pfed1bs.runs.config import load

APP = flat(tables(load(None, "--clients 3 --rounds 9 --steps 2 --batch 8 --data.cap 30".split())))
ASKED = {"algorithm.name": "ditto", "algorithm.lam": 0.3, "rounds": 2, "timeout": 5.0, "min_clients": 3, "seed": 4}


class Nodes(Desk):
    """Clients that know what Flower tells them, the run config, and what the server does."""

    def __init__(self, run, folder):
        self.run, self.letter = run, {}
        super().__init__(resumed(run, APP), folder, before=self.read)

    def read(self, question, node, content):
        self.letter = content
        return content

    def client(self, node):
        node = {"partition-id": self.online[node], "state": str(self.folder)}
        return Client.of({**self.run, **heard(self.letter)}, node)

    def served(self):
        return serve(self, self.config, self.rules, told(resumed(self.run, APP), self.run))


def test_a_run_goes_on_with_what_its_folder_says_and_clients_hear_of_it(tmp_path):
    out = {"out": str(tmp_path / "run")}
    Nodes({**APP, **ASKED, **out}, tmp_path).served()
    later = Nodes({**APP, **out, "resume": True, "rounds": 3}, tmp_path)
    assert (later.config.method, later.config.algorithm["lam"], later.config.seed) == ("ditto", 0.3, 4)
    assert (later.config.rounds, later.rules.timeout, later.rules.min_clients) == (3, 5.0, 3)
    folder = later.served()
    whole = Desk({**APP, **ASKED, "rounds": 3}, tmp_path / "whole")
    last = finished(whole)
    ours = later.states(last, Folder(folder, later.config).federation)
    assert all(same(ours[k], state) for k, state in whole.states(last).items())
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_what_differs_from_the_folder_is_said_in_two_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(server_app, "defaults", lambda: APP)
    out = {"out": str(tmp_path / "run")}
    Nodes({**APP, **ASKED, **out}, tmp_path).served()
    for wrong, line, hint in (
        ({**out, "resume": True, "rounds": 3, "algorithm.lr": 0.5, "seed": 5}, "algorithm.lr was 0.05, now 0.5", "use"),
        ({"algorithm.name": "dito"}, "unknown algorithm", "did you mean ditto?"),
        ({"algorithm.name": "ditto", "algorithm.lamm": 0.1}, "unknown key algorithm.lamm", "algorithm.lam?"),
    ):
        capsys.readouterr()
        with pytest.raises(UserError) as raised:
            server_app.main(None, SimpleNamespace(run_config={**APP, **wrong}))
        first, second = capsys.readouterr().err.splitlines()[-2:]
        assert first.startswith("error: ") and line in first and second.startswith("hint: ") and hint in second
        record = logging.LogRecord("flwr", logging.ERROR, "", 0, "raised", (), (raised.type, raised.value, raised.tb))
        assert len(logging.Formatter().format(record).splitlines()) == 2  # Flower's own line, and the error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Stopped("too few; the run can go on with resume=true"), "too few; the run can go on with resume=true"),
        (OSError(28, "No space left on device", "run/lock"), "[Errno 28] No space left on device: 'run/lock'"),
    ],
)
def test_a_server_that_stops_says_so_in_one_line(error, line, capsys, monkeypatch):
    def stop(*words):
        raise error

    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(server_app, "serve", stop)
    with pytest.raises(type(error)):
        server_app.main(None, SimpleNamespace(run_config=APP))
    assert capsys.readouterr().err == f"error: {line}\n"


def test_the_defaults_of_an_app_are_found_beside_its_modules(tmp_path, monkeypatch, capsys):
    assert defaults() == {}
    assert main(["flower", "init", str(tmp_path / "app"), "--rounds", "3"]) == 0
    assert "pyproject.toml: pfed1bs-delta" in capsys.readouterr().out  # not the method that transfers nothing
    monkeypatch.syspath_prepend(tmp_path / "app")
    found = defaults()
    assert (found["rounds"], found["algorithm.name"], found["min_clients"]) == (3, "pfed1bs-delta", 2)
    assert read(found)[0].method == "pfed1bs-delta"
    assert resumed({**found, "out": str(tmp_path), "resume": True}, found)["rounds"] == 3  # nothing to go on with


def test_a_client_reads_its_run_config_without_the_parser_of_flags(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonargparse", None)  # to import it fails now; every message would pay for it
    assert read({**APP, "out": "run", "algorithm.name": "pfed1bs-delta", "algorithm.lr": 0.1})[0].algorithm["lr"] == 0.1


def test_what_a_server_tells_of_a_run_is_checked():
    assert heard({}) == {} and heard({"run": '{"seed": 3}'}) == {"seed": 3}
    for wrong in ("[1]", '{"seed": [1]}', "no json", 7):
        with pytest.raises(ValueError, match="run|Expecting"):
            heard({"run": wrong})


def test_an_unfinished_federation_is_gone_on_with_by_flower(tmp_path, capsys):
    desk = Desk({**APP, "out": str(tmp_path / "run")}, tmp_path)
    Folder(tmp_path / "run", desk.config).open().close()
    assert go_on(tmp_path / "run") == f"flwr run APP SUPERLINK --stream -c \"out='{tmp_path}/run' resume=true\""
    assert main(["report", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "flwr run APP SUPERLINK" in told and "pfed1bs run" not in told
