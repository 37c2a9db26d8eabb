"""Tuning: the same rule and number of runs for all methods, judged on training samples; what diverges is a result."""

import json
import tomllib
from multiprocessing import Pipe
from pathlib import Path

import pytest

from pfed1bs import make
from pfed1bs.algorithms import REGISTRY
from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.data import federate
from pfed1bs.data import load as load_data
from pfed1bs.engine.metrics import METRICS
from pfed1bs.engine.rounds import Schedule, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import load
from pfed1bs.runs.run import federation
from pfed1bs.studies import comparison, performing, tuning
from pfed1bs.studies.search import Search
from run_folders import TINY
from tiny import chain

SMALL = [*TINY, "--steps", "2"]


def tune(*words):
    return cli.main(["tune", *SMALL, *words])


def study(folder, names=("local",), seeds=(100,), points=3, more=()):
    found = tuning.Study(load(None, [*SMALL, *more], list(names)), tuple(names), seeds, points, folder)
    for wave in found.waves():
        assert len([*performing.performed(wave, folder, 1)]) == len(wave)
    return found


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_has_its_local_step_and_its_server_step_searched(name):
    searched = tuning.axes(name)
    options = [axis.option for axis in searched]
    known = {field for field in ("lr", "server_lr", "step") if field in make(name, chain()).__dataclass_fields__}
    assert known <= set(options) and len(set(options)) == len(options) <= 3
    start = Search(searched)
    make(name, chain(), **start.options(start.wanted()[0]))


def test_the_search_can_be_kept_to_some_options(tmp_path, capsys):
    assert [axis.option for axis in tuning.axes("ditto", ("lr", "lam"))] == ["lr", "lam"]
    words = ["--algorithms", "local,ditto", "--searched", "server_lr", "--out", str(tmp_path / "t")]
    assert tune(*words) == 2 and "local has no server_lr to search" in capsys.readouterr().err


def test_any_number_above_0_can_be_searched_and_what_cannot_is_refused(tmp_path, capsys):
    assert [axis.option for axis in tuning.axes("pfedme", ("lr", "meta_lr"))] == ["lr", "meta_lr"]
    for option in ("sever_lr", "inner", "v0"):  # no option at all, a whole number, a word
        words = ["--algorithms", "pfedme,pfed1bs", "--searched", f"lr,{option}", "--out", str(tmp_path / "t")]
        assert tune(*words) == 2 and f"{option} cannot be searched in pfedme, pfed1bs" in capsys.readouterr().err


def test_the_search_begins_with_the_values_of_the_recipe(tmp_path):
    more = ["--algorithm.lr", "0.7", "--options.ditto.lam", "0.02"]
    found = tuning.Study(load(None, [*SMALL, *more], ["local", "ditto"]), ("local", "ditto"), (100,), 3, tmp_path)
    starts = [{axis.option: axis.start for axis in item.search.axes} for item in found.methods]
    assert starts == [{"lr": 0.7}, {"lr": 0.7, "server_lr": 1.0, "lam": 0.02}]


def test_the_search_can_begin_with_the_defaults_whatever_the_recipe_has_found(tmp_path):
    recipe = tmp_path / "found.toml"
    recipe.write_text("[algorithm]\nmu = 0.25\n[options.decomfl]\nlr = 0.7\ndirections = 2\nmoves = 1\n")
    words = [str(recipe), "--algorithms", "decomfl", "--points", "1", "--seeds", "100", *SMALL]
    for word, lr in (("recipe", 0.7), ("defaults", 0.05)):
        assert cli.main(["tune", *words, "--from", word, "--out", str(tmp_path / word)]) == 0
        [found] = json.loads((tmp_path / word / "tuning.json").read_text())["methods"]
        assert found["options"]["lr"] == lr
        [path] = (tmp_path / word).glob("*/config.toml")
        told = tomllib.loads(path.read_text())["algorithm"]
        assert (told["directions"], told["lr"], told["mu"]) == (2, lr, 0.25)  # what is not searched stays
    assert cli.main(["tune", *words, "--from", "nowhere", "--out", str(tmp_path / "x")]) == 2


def test_every_knob_is_an_option_of_its_method():
    for name, knob in tuning.KNOBS.items():
        assert knob in [axis.option for axis in tuning.axes(name)]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_option_that_is_searched_changes_what_is_judged(name):
    data = federate(load_data("digits"), 3, "iid", cap=24)
    schedule, searched = Schedule(2, None, steps=4, batch=8), tuning.axes(name)

    def loss(**options):
        method = make(name, Task(build("mlp", data.shape, data.num_classes)), **options)
        [*_, done] = simulate(method, data, schedule)
        return evaluate(method, data, done.progress, schedule)["personal"].loss.tolist()

    starts = {axis.option: axis.start for axis in searched}
    first = loss(**starts)
    for axis in searched:
        assert loss(**starts | {axis.option: axis.value(-1)}) != first, axis.option


def test_every_method_has_the_same_number_of_runs_and_the_best_mean_wins(tmp_path):
    found = study(tmp_path, ("local", "ditto", "apfl"), (100, 101), points=4)
    told = found.plain()
    assert [item["runs"] for item in told["methods"]] == [8, 8, 8]
    for item in told["methods"]:
        assert len(item["points"]) == 4 and item["accuracy"] == max(point["mean"] for point in item["points"])
        assert all(point["mean"] == pytest.approx(sum(point["scores"]) / 2) for point in item["points"])
    assert told["seeds"] == [100, 101] and told["points"] == 4 and {"command", "commit", "processor"} <= told.keys()
    assert len([*tmp_path.glob("*/summary.json")]) == 24 and not [*tmp_path.glob("*/checkpoint.safetensors")]


def test_means_that_differ_in_their_last_bits_tie(tmp_path):
    item = study(tmp_path, points=1).methods[0]
    item.heard((1.0,), (85.2, 86.4))  # 85.80000000000001 in floats
    item.heard((-1.0,), (84.8, 86.8))
    assert item.search.tried[(1.0,)] == item.search.tried[(-1.0,)] == 85.8


def test_runs_that_have_ended_need_no_process(tmp_path, monkeypatch):
    found = study(tmp_path, points=2)
    wave = tuning.entries(found.judged, [found.methods[0].variant(place) for place in found.methods[0].scores], (100,))

    class Begun(Exception):
        """A process would have been."""

    class Context:
        Pipe = staticmethod(Pipe)

        def Process(self, **_):  # noqa: N802
            raise Begun

    monkeypatch.setattr(comparison, "get_context", lambda _: Context())
    assert [*performing.performed(wave, tmp_path, 2)] == wave
    (tmp_path / wave[0].name / "summary.json").unlink()
    found = performing.performed(wave, tmp_path, 2)
    assert [next(found) for _ in wave[1:]] == wave[1:]
    with pytest.raises(Begun):
        next(found)


def test_tuning_judges_on_training_samples_with_the_score_of_tables(tmp_path):
    found = study(tmp_path, points=1)
    [folder] = [path.parent for path in tmp_path.glob("*/summary.json")]
    [line] = [line for line in (folder / "clients.csv").read_text().splitlines() if line[0] == "0"]
    held = federation(load(None, [*SMALL, "--data.validate", "true", "--seed", "100"]))
    assert line.split(",")[1:3] == [str(len(held.train[0])), str(len(held.test[0]))]
    assert json.loads((folder / "summary.json").read_text())["accuracy"] == found.methods[0].scores[(0.0,)][0]


def test_a_run_that_diverges_is_the_worst_result_and_a_point(tmp_path):
    found = study(tmp_path, more=["--algorithm.mu", "1", "--algorithm.lr", "1e25"])
    [item] = found.plain()["methods"]
    assert item["runs"] == 3 and [point["scores"] for point in item["points"]] == [[None]] * 3
    assert item["accuracy"] == 0 and not item["refused"]


def test_where_less_is_better_the_least_mean_wins_and_a_run_that_diverges_does_not():
    item = tuning.Tuned("local", Search(tuning.axes("local")), metric=METRICS["bits"])
    for place, scores in {(0.0,): (3.0, 2.0), (1.0,): (1.0, 2.0), (-1.0,): (0.5, None)}.items():
        item.heard(place, scores)
    told = json.loads(json.dumps(item.plain(), allow_nan=False))
    assert item.best == told["bits"] == 1.5 and told["options"] == item.search.options((1.0,))
    assert [point["mean"] for point in told["points"]] == [2.5, 1.5, None]


def test_the_score_is_the_metric_of_the_task(tmp_path):
    found = study(tmp_path, points=3, more=["--model.metric", "perplexity"])
    [item] = found.plain()["methods"]
    assert item["perplexity"] == min(point["mean"] for point in item["points"]) >= 1
    assert found.plain()["score"].startswith("perplexity after the last round")


def test_a_value_that_a_method_refuses_is_written_down_as_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", ())
    found = study(tmp_path, ("pfedme",), points=4)
    [item] = found.plain()["methods"]
    assert [point["options"] for point in item["points"]][1:3] == [{"lam": 5.0}, {"lam": 19.74}]
    assert [point["options"] for point in item["refused"]][:2] == [{"lam": 45.0}, {"lam": 25.98}]
    assert "must be in [0, 1)" in item["refused"][0]["why"] and item["runs"] == 4


def test_a_method_whose_defaults_are_refused_is_an_error(tmp_path):
    with pytest.raises(UserError, match="it needs steps >= 2"):
        study(tmp_path, ("fedrep",), more=["--steps", "1"])


def test_seeds_of_tables_are_refused(tmp_path, capsys):
    assert tune("--algorithms", "local", "--seeds", "0,100", "--out", str(tmp_path / "t")) == 2
    assert "seed 0 is one of the recipe's tables" in capsys.readouterr().err and not (tmp_path / "t").exists()


def test_a_resumed_tuning_repeats_no_finished_run_and_may_have_more_points(tmp_path, capsys):
    words = ["--algorithms", "local,fedavg", "--seeds", "100", "--out", str(tmp_path / "t")]
    assert tune(*words, "--points", "3") == 0
    first = json.loads((tmp_path / "t" / "tuning.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").glob("*/summary.json")}
    assert len(before) == 6 and tune(*words, "--points", "3") == 2 and "exists" in capsys.readouterr().err
    assert tune(*words, "--points", "5", "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = json.loads((tmp_path / "t" / "tuning.json").read_text())
    for old, new in zip(first["methods"], again["methods"], strict=True):
        assert new["points"][:3] == old["points"] and new["runs"] == 5
    with pytest.raises(UserError, match="was run with other settings: clients was 3, now 4"):
        study(tmp_path / "t", more=["--clients", "4"])
    for fewer, said in (
        (["--points", "4"], "points 5"),
        (["--points", "5", "--seeds", "101"], "seeds 100"),
        (["--points", "5", "--algorithms", "local"], "algorithms fedavg"),
    ):
        assert (
            tune(*words, *fewer, "--resume") == 2 and f"has more than was asked for: {said}" in capsys.readouterr().err
        )
    assert json.loads((tmp_path / "t" / "tuning.json").read_text()) == again


@pytest.mark.usefixtures("forked_runs")
def test_runs_side_by_side_find_what_runs_one_after_the_other_find_though_some_diverge(tmp_path, capsys):
    words = ["--algorithms", "local", "--seeds", "100,101", "--points", "3", "--json"]
    words += ["--algorithm.momentum", "0.9", "--algorithm.mu", "1e21", "--rounds", "3"]  # diverges with any step
    assert tune(*words, "--out", str(tmp_path / "apart")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "apart") and told["tuning"]["methods"][0]["interval"] is None
    assert len(told["runs"]) == 6 and {run["accuracy"] for run in told["runs"][:2]} == {None}
    assert all(Path(run["folder"]).is_dir() and run["algorithm"] == "local" for run in told["runs"])
    assert tune(*words, "--out", str(tmp_path / "beside"), "--parallel", "2") == 0
    ours, theirs = (json.loads((tmp_path / name / "tuning.json").read_text()) for name in ("apart", "beside"))
    assert ours["methods"] == theirs["methods"] and ours["methods"][0]["points"][0]["scores"] == [None, None]


def test_what_was_found_is_printed_and_written_to_a_recipe(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text('# mine\nrounds = 2\n\n[options.local]\nlr = 1e-9\nmu = 0.5\n\n[data]\nname = "digits"\n')
    words = ["--algorithms", "local,apfl", "--seeds", "100", "--points", "1", "--write", str(recipe)]
    words += ["--options.local.lr", "0.5"]
    assert cli.main(["tune", str(recipe), *SMALL, *words, "--out", str(tmp_path / "t")]) == 0
    said = capsys.readouterr().out
    assert "[options.apfl]\nlr = 0.05\nserver_lr = 1.0\nalpha = 0.5\n" in said and "open end: local, apfl" in said
    found = tomllib.loads(recipe.read_text())
    assert found["options"] == {"local": {"lr": 0.5, "mu": 0.5}, "apfl": {"lr": 0.05, "server_lr": 1.0, "alpha": 0.5}}
    assert found["data"] == {"name": "digits"} and recipe.read_text().startswith("# mine\nrounds = 2\n")
    assert load(str(recipe)).rounds == 2


def test_a_budget_of_gradients_holds_in_tuning_too(tmp_path):
    words = ["--algorithms", "local,ditto", "--seeds", "100", "--points", "1", "--gradients", "4", "--clients", "3"]
    words += ["--batch", "4", "--rounds", "2", "--data.cap", "12", "--data.partition", "iid"]
    assert cli.main(["tune", *words, "--out", str(tmp_path / "t")]) == 0
    runs = [json.loads(path.read_text()) for path in (tmp_path / "t").glob("*/summary.json")]
    assert [run["gradients"] for run in runs] == [4, 4]
    assert json.loads((tmp_path / "t" / "tuning.json").read_text())["gradients"] == 4


def test_runs_of_slow_methods_are_begun_first_and_others_stay_in_their_order(tmp_path):
    runs = comparison.entries(load(None, SMALL, []), comparison.methods(["local", "fedavg", "ditto"]), (100,))
    for name, seconds in (("fedavg", 5.0), ("ditto", 7.0), ("ditto", 6.0)):
        folder = tmp_path / f"{name}-{seconds}"
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"algorithm": name, "seconds": seconds}))
    assert [run.config.method for run in performing.longest_first(runs, tmp_path)] == ["ditto", "fedavg", "local"]
