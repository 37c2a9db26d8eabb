"""A sweep over any key: which runs it makes, what their folders are called, and that it goes on."""

import json

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.studies.comparison import variant
from pfed1bs.studies.sweeping import points, swept
from run_folders import TINY


def test_a_sweep_is_every_combination_of_the_values():
    assert points(["steps=5,10", "data.partition=iid,labels:2"]) == [
        (("steps", "5"), ("data.partition", "iid")),
        (("steps", "5"), ("data.partition", "labels:2")),
        (("steps", "10"), ("data.partition", "iid")),
        (("steps", "10"), ("data.partition", "labels:2")),
    ]
    assert points([]) == [()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["algorithm.lam"], "KEY=VALUE,VALUE"),
        (["algorithm.lam=0,,1"], "KEY=VALUE,VALUE"),
        (["seed=0,1"], "seed cannot be swept here: name seeds with --seeds|seed cannot"),
        (["algorithm.name=local,ditto"], "algorithm.name cannot"),
        (["steps=1", "steps=2"], "steps cannot"),
    ],
)
def test_what_is_no_sweep_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        points(text)


def test_a_method_without_the_option_is_run_once(tmp_path):
    methods = [variant("ditto"), variant("local"), variant("ditto lam=3")]
    runs = swept(None, TINY, methods, [0, 1], ["algorithm.lam=0,1e-1"])
    names = ["ditto-lam=0-s{}", "local-s{}", "ditto-lam=3.0-s{}", "ditto-lam=1e-1-s{}"]
    assert [entry.name for entry in runs] == [name.format(seed) for seed in (0, 1) for name in names]
    assert [entry.config.algorithm.get("lam") for entry in runs[:4]] == [0.0, None, 3.0, 0.1]


@pytest.mark.usefixtures("no_page")
def test_any_key_can_be_swept_and_the_sweep_goes_on_where_it_stopped(tmp_path, capsys):
    words = ["compare", *TINY, "--algorithms", "local", "--seeds", "0", "--out", str(tmp_path / "s")]
    assert cli.main([*words, "--sweep", "steps=1,2"]) == 0
    told = capsys.readouterr().out
    assert "local steps=1" in told and "local steps=2" in told
    first = tmp_path / "s" / "local-steps=1-s0" / "metrics.jsonl"
    before = first.read_text()
    assert cli.main([*words, "--sweep", "steps=1,2,3", "--resume", "--json"]) == 0
    assert first.read_text() == before  # with its seconds
    rows = json.loads((tmp_path / "s" / "table.json").read_text())
    assert [row["label"] for row in rows["runs"]] == ["local steps=1", "local steps=2", "local steps=3"]
    assert [row["label"] for row in rows["over_seeds"]] == [row["label"] for row in rows["runs"]]
