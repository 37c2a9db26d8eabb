"""What seeds change (--vary), and rounds of equal work (--gradients)."""

import json
import tomllib
from fractions import Fraction

import pytest
import torch

from pfed1bs import make
from pfed1bs.algorithms import REGISTRY
from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.engine.rounds import Turn, begin, prepare
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.report.groups import groups
from pfed1bs.report.records import collect
from pfed1bs.report.tables import notes
from pfed1bs.runs.config import load
from pfed1bs.runs.run import Simulator, federation, method
from pfed1bs.runs.summary import spent
from pfed1bs.studies.comparison import entries, variant
from pfed1bs.studies.design import Design, spending, varied
from run_folders import TINY

FREE = [word for at, word in enumerate(TINY) if "--steps" not in TINY[max(at - 1, 0) : at + 1]]  # without their steps


class Counting(Task):
    """A task that counts the gradients of all clients together, and a loss alone as a third of one."""

    computed: Fraction = Fraction(0)

    def gradient(self, w, *more, **named):
        self.computed += len(w)
        return super().gradient(w, *more, **named)

    def descend(self, w, *more, **named):
        self.computed += len(w)
        return super().descend(w, *more, **named)

    def losses(self, w, *more, **named):
        self.computed += Fraction(len(w), 3)
        return super().losses(w, *more, **named)


@pytest.mark.parametrize(
    "text",
    [
        *REGISTRY,
        *("pfed1bs-delta keep=ft", "pfed1bs-delta keep=best", "perfedavg order=hessian-free", "pfedme inner=3"),
        *("pfedme inner=2 outer=3", "dispfl regrow=random", "obda mode=gradient", "fedrep head_share=0.3"),
        *("pfed1bs momentum=0.5", "ditto momentum=0.5", "fedrep momentum=0.5", "scaffold control=start"),
        *("decomfl directions=7", "decomfl directions=2 difference=forward"),
    ],
)
def test_a_round_takes_the_gradients_that_the_method_says(text):
    item, clients, steps = variant(text), 3, 4
    data = federation(load(None, TINY))
    task = Counting(build("mlp", data.shape, data.num_classes))
    algorithm = make(item.name, task, **item.options)
    now = begin(algorithm, clients)
    plan = prepare(algorithm, now, data.sizes, 0, None)
    Turn(algorithm, data, now.clients, plan.news, plan.active, steps, 2)(torch.arange(clients))
    assert task.computed == clients * spent(algorithm, steps)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("fedavg", 20),
        ("ditto", 10),
        ("pfed1bs-delta", 10),
        ("pfed1bs-delta keep=ft", 20),
        ("pfedme", 4),
        ("dispfl", 19),
    ],
)
def test_a_budget_of_gradients_sets_the_steps_of_each_method(text, steps):
    [entry] = entries(load(None, TINY), [variant(text)], [0], Design(gradients=20))
    assert entry.config.steps == steps


@pytest.mark.parametrize(
    ("text", "moves", "taken"),
    [("decomfl directions=7", 4, 20), ("decomfl", 2, 14), ("decomfl directions=2 difference=forward", 20, 20)],
)
def test_losses_are_bought_with_gradients_three_for_one(text, moves, taken):
    [entry] = entries(load(None, TINY), [variant(text)], [0], Design(gradients=20))
    assert entry.config.algorithm["moves"] == moves
    assert spent(method(entry.config, (1, 8, 8), 10), entry.config.steps) == taken


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ditto", "ditto cannot spend 7 gradients a round: one step takes 2; try --gradients 6 or 8"),
        ("pfedme outer=3", "one step takes 15; try --gradients 15"),
        ("decomfl directions=11", "decomfl cannot spend 7 gradients a round: that is less than one of its steps"),
    ],
)
def test_a_budget_that_does_not_divide_is_refused_in_words(text, told):
    with pytest.raises(UserError, match=told):
        entries(load(None, TINY), [variant(text)], [0], Design(gradients=7))


def test_a_method_that_does_not_say_its_gradients_has_no_budget(monkeypatch):
    monkeypatch.delattr("pfed1bs.algorithms.base.method.Method.gradients")
    with pytest.raises(UserError, match=r"local does not say .* gradients\(steps\)"):
        spending(load(None, [*TINY, "--algorithm.name", "local"]), 4)


@pytest.mark.usefixtures("no_page")
def test_a_comparison_at_equal_gradients_writes_them_down(tmp_path):
    words = ["--algorithms", "local,ditto", "--gradients", "4", "--out", str(tmp_path / "c")]
    assert cli.main(["compare", *FREE, *words]) == 0
    runs = {run["algorithm"]: run for run in json.loads((tmp_path / "c" / "table.json").read_text())["runs"]}
    assert runs["local"]["gradients"] == runs["ditto"]["gradients"] == 4
    made = [tomllib.loads((tmp_path / "c" / f"{name}-s0" / "config.toml").read_text()) for name in ("local", "ditto")]
    assert [config["steps"] for config in made] == [4, 2]


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_work_is_given_in_one_way(command, tmp_path, capsys):
    words = ["--algorithms", "local", "--gradients", "4", "--out", str(tmp_path / "c")]
    assert cli.main([command, *TINY, *words]) == 2 and not (tmp_path / "c").exists()
    assert "by --steps or by --gradients" in capsys.readouterr().err


def drawn(config):
    """Who holds what, the first weights, and the first batch."""
    data = federation(config)
    algorithm = method(config, data.shape, data.num_classes)
    seed = Simulator(algorithm, data, config).schedule.seed
    batch = next(iter(data.batches(torch.arange(3), 0, seed, 1, 4)("train")))
    return {"partition": data.samples, "init": algorithm.init(3)[1]["w"], "batches": batch[0]}


@pytest.mark.parametrize("vary", ["partition", "init", "batches", "init,batches", "all"])
def test_seeds_change_what_varies_and_nothing_else(vary):
    config = load(None, TINY)
    first, second = (entry.config for entry in entries(config, [variant("local")], [0, 7], Design(varied(vary))))
    before, after = drawn(first), drawn(second)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    wanted = {"partition", "init", "batches"} if vary == "all" else set(vary.split(","))
    assert changed - {"batches"} == wanted - {"batches"}
    if "partition" not in wanted:  # other samples are other batches
        assert ("batches" in changed) == ("batches" in wanted)
    assert second.seed_of("batches") == (7 if "batches" in wanted else 0)
    plain = drawn(load(None, TINY))  # seed 0 has the bits it always had
    assert all(torch.equal(plain[name], before[name]) for name in plain)


def test_a_seed_of_its_own_beats_that_of_the_run():
    config = load(None, [*TINY, "--seed", "3", "--init_seed", "5"])
    assert [config.seed_of(part) for part in ("partition", "init", "batches")] == [3, 5, 3]
    [entry] = entries(config, [variant("local")], [4], Design(("batches",)))
    assert [entry.config.seed_of(part) for part in ("partition", "init", "batches")] == [0, 5, 4]


def test_what_cannot_vary_is_refused():
    with pytest.raises(UserError, match="seeds cannot change weather"):
        varied("init,weather")
    assert varied("batches,init") == ("init", "batches") and len(varied("all")) == 3


@pytest.mark.usefixtures("no_page")
def test_runs_with_other_randomness_are_kept_apart_and_the_report_says_what_varies(tmp_path):
    for vary in ("all", "init"):
        words = ["--algorithms", "local", "--seeds", "0,1", "--vary", vary, "--out", str(tmp_path / vary)]
        assert cli.main(["compare", *TINY, *words]) == 0
    found = groups(collect([tmp_path / "init"]))
    [told] = [note for note in notes(found) if "--vary" in note]
    assert told == "Seeds change init alone (--vary): \u00b1 says nothing about partition, batches."
    assert not [note for note in notes(groups(collect([tmp_path / "all"]))) if "--vary" in note]
    assert len(groups(collect([tmp_path]))) == 2
