"""Run folders listed, filtered, compared, and their rounds handed to other programs."""

import csv
import json
import struct
from datetime import UTC, datetime

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.report import events, listing
from run_folders import ENV, run_folder


@pytest.fixture
def home(tmp_path):
    for name, seed, last in (("pfed1bs", 0, 91.5), ("pfed1bs", 1, 92.5), ("local", 0, 88.0)):
        run_folder(tmp_path / "runs", name, seed, (50.0, last))
    (tmp_path / "runs" / "2" / "summary.json").unlink()  # not finished
    return tmp_path / "runs"


def test_runs_are_listed_with_what_they_came_to_finished_or_not(home, capsys):
    assert cli.main(["runs", str(home), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = {run["folder"]: run for run in told["runs"]}
    assert told["folder"] == str(home) and told["report"] is None
    assert {(run["method"], run["seed"], run["finished"]) for run in found.values()} == {
        *(("pfed1bs", 0, True), ("pfed1bs", 1, True), ("local", 0, False))
    }
    assert found[str(home / "1")]["accuracy"] == 92.5 and found[str(home / "1")]["MiB"] == 8144 / 2**20
    assert cli.main(["runs", str(home), "--sort", "value"]) == 0
    told = capsys.readouterr().out
    assert [place for _, place in sorted((told.index(value), value) for value in ("88.00", "91.50", "92.50"))] == [
        *("88.00", "91.50", "92.50")
    ]


def test_conditions_choose_among_runs_by_any_key(home):
    runs = listing.kept([home])
    chosen = {
        text: sorted(run.path.name for run in listing.chosen(runs, text.split()))
        for text in ("method=pfed1bs", "accuracy>=92", "seed=0 method!=local", "algorithm.lr=0.05", "finished=false")
    }
    assert chosen == {
        "method=pfed1bs": ["0", "1"],
        "accuracy>=92": ["1"],
        "seed=0 method!=local": ["0"],
        "algorithm.lr=0.05": ["0", "1", "2"],
        "finished=false": ["2"],
    }
    for text, message in (("acuracy>1", "did you mean accuracy"), ("seed", "KEY=VALUE"), ("seed=x", "x is no number")):
        with pytest.raises(ValueError, match=message):
            listing.chosen(runs, [text])


def test_two_runs_differ_in_keys_results_and_a_first_round(home, capsys):
    assert cli.main(["runs", str(home / "0"), str(home / "1"), "--differ", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["seed"] for run in told["runs"]] == [0, 1]
    lines = [list(line.values()) for line in told["differences"]]
    assert ["config", "seed", "0", "1"] in lines and ["result", "accuracy", "91.5", "92.5"] in lines
    assert lines[-1] == ["rounds", "accuracy, round 4", "91.5", "92.5"]
    assert listing.differences(*[listing.Kept.read(home / "0")] * 2) == [
        ["rounds", "all but seconds", "the same", "the same"]
    ]
    assert cli.main(["runs", str(home), "--differ"]) == 2
    assert "--differ takes two runs, got 3" in capsys.readouterr().err


def test_rounds_of_all_runs_are_one_csv_file(home, tmp_path):
    assert cli.main(["runs", str(home), "--csv", str(tmp_path / "rounds.csv")]) == 0
    with (tmp_path / "rounds.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12 and {line["method"] for line in lines} == {"pfed1bs", "local"}
    own = [line for line in lines if line["folder"] == str(home / "1")]
    assert [line["accuracy"] for line in own] == ["", "50.0", "", "92.5"] and own[3]["up_bytes"] == "1000"
    assert [line["round"] for line in own] == ["1", "2", "3", "4"]  # as plots and TensorBoard count them


def test_seeds_of_one_setting_have_a_mean_with_its_interval_that_fits_sixty_columns(home, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert cli.main(["runs", str(home), "--json"]) == 0
    [alike] = json.loads(capsys.readouterr().out)["over_seeds"]  # one run of local is not finished
    assert (alike["label"], alike["mean"], alike["seeds"]) == ("pfed1bs", 92.0, 2)
    assert alike["interval"] == pytest.approx([92 - 6.3531, 92 + 6.3531])  # 12.7062 times the standard error, 0.5
    run_folder(home, "pfed1bs", 0, (50.0, 70.0), options="lr = 0.1")
    run_folder(home, "pfed1bs", 1, (50.0, 71.0), options="lr = 0.1")
    assert cli.main(["runs", str(home)]) == 0
    told = capsys.readouterr().out
    assert "85.65..98.35" in told and "pfed1bs lr=0.1" in told and "64.15..76.85" in told
    assert max(map(len, told.splitlines())) <= 60


def test_without_a_folder_of_runs_the_way_to_one_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["runs"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no folder runs here\nhint: `pfed1bs run` makes one")


def test_what_is_not_there_and_what_is_nothing_are_told_alike(home):
    one, other = (listing.Kept.read(home / name) for name in "01")
    assert listing._told({"a": None}, "a") == listing._told({}, "a") == "none"
    (other.path / "env.json").write_text(json.dumps({**ENV, "chunk": None}))
    assert not [line for line in listing.differences(one, other) if line[1] == "chunk"]


def test_an_age_has_one_unit():
    assert [listing.age(seconds) for seconds in (3, 150, 7200, 400_000)] == ["3 s", "2 min", "2 h", "5 d"]


def records(data):
    """The records of an event file, their checksums checked."""
    while data:
        (length,) = struct.unpack_from("<Q", data)
        body = data[12 : 12 + length]
        assert struct.unpack_from("<I", data, 8) == (events.masked(data[:8]),)
        assert struct.unpack_from("<I", data, 12 + length) == (events.masked(body),)
        yield body
        data = data[16 + length :]


def test_the_checksum_is_castagnolis():
    assert events.crc32c(b"123456789") == 0xE3069283
    assert events.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_event_files_hold_every_number_of_every_round(home, tmp_path, capsys):
    (home / "0" / "env.json").write_text(json.dumps({**ENV, "time": "2026-01-02T03:04:05Z"}))
    assert (
        cli.main(["runs", str(home), "--where", "seed=0", "method=pfed1bs", "--tensorboard", str(tmp_path / "tb")]) == 0
    )
    path = tmp_path / "tb" / "0" / "events.out.tfevents.1767323045.pfed1bs"
    assert capsys.readouterr().out.strip() == str(path)
    first, *rounds = records(path.read_bytes())
    begun = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert first == b"\x09" + struct.pack("<d", begun) + b"\x1a\x0dbrain.Event:2"
    assert len(rounds) == 4
    assert rounds[3][:11] == b"\x09" + struct.pack("<d", begun + 2.0) + b"\x10\x04"  # 0.5 s a round; the fourth
    assert b"\x0a\x0f\x0a\x08accuracy\x15" + struct.pack("<f", 91.5) in rounds[3]
    assert b"accuracy" not in rounds[2] and b"agreement" in rounds[2]


def test_a_number_is_a_varint():
    assert [events.varint(value) for value in (0, 127, 128, 300)] == [b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02"]
