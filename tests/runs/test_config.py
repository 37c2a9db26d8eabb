import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from pfed1bs import make
from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import need
from pfed1bs.core.options import keys
from pfed1bs.runs.config import as_tables, free, known_keys, load, with_role
from tiny import linear

ROOT = Path(__file__).parents[2]


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_those_of_the_design():
    config = load(None)
    assert (config.clients, config.sampled, config.steps, config.batch, config.rounds, config.seed) == (
        20,
        None,
        10,
        64,
        100,
        0,
    )
    assert config.device == "auto" and config.method == "pfed1bs"
    assert config.algorithm["lr"] == 0.05 and config.algorithm["ratio"] == 0.1 and config.algorithm["lam"] == 5e-4


def test_the_digits_recipe_is_the_default():
    config = load(str(ROOT / "recipes" / "digits.toml"))
    default = load(None)
    assert config.data == default.data and config.model == default.model and config.algorithm == default.algorithm
    assert (config.rounds, config.clients, config.steps, config.batch) == (100, 20, 10, 64)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid(path):
    assert load(str(path)).rounds >= 1


def test_a_recipe_that_comes_along_is_found_by_its_name_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("mnist-2class") == load(str(ROOT / "recipes" / "mnist-2class.toml"))
    (tmp_path / "digits").write_text("rounds = 3\n")
    assert load("digits").rounds == 3


def test_recipes_of_tables_have_the_methods_and_seeds_that_they_promise():
    paper = {"fedavg", "obda", "obcsaa", "zsign", "eden", "fedbat", "pfed1bs"}
    for name, seeds in (("fmnist-few", 10), ("cifar10-few", 5), ("svhn-few", 5), ("cifar100-few", 3)):
        compared = load(str(ROOT / "recipes" / f"{name}.toml")).compare
        normalising = {"fedbn"} if name != "fmnist-few" else set()
        others = {"local", "fedavg-ft", "ditto", "pfed1bs-delta", "delta-float32"}
        assert set(compared.algorithms) == paper | others | normalising
        assert compared.seeds == list(range(seeds))
    assert load(str(ROOT / "recipes" / "mnist-all.toml")).compare.algorithms == ["all"]


def test_flags_beat_the_recipe_and_the_recipe_beats_defaults(tmp_path):
    path = recipe(tmp_path, 'rounds = 7\nbatch = 5\n[algorithm]\nname = "pfed1bs"\nlam = 0.25\n')
    config = load(path, ["--rounds", "9", "--algorithm.gamma", "3"])
    assert (config.rounds, config.batch, config.algorithm["lam"], config.algorithm["gamma"]) == (9, 5, 0.25, 3.0)


def test_another_method_takes_over_the_optimiser_but_no_other_option(tmp_path):
    path = recipe(tmp_path, '[algorithm]\nname = "pfed1bs"\nlam = 0.25\nlr = 0.3\n')
    assert load(path, ["--algorithm.name", "fedavg"]).algorithm["lr"] == 0.3
    other = load(path, compared=["local"]).with_method("local", seed=5)
    assert other.seed == 5 and other.algorithm["lr"] == 0.3 and "lam" not in other.algorithm


def test_the_defaults_of_a_method_stay_with_it(tmp_path):
    path = recipe(tmp_path, '[algorithm]\nname = "pfed1bs"\nmu = 0.5\n')
    for own in (
        load(path, ["--algorithm.name", "signsgd"]).algorithm,
        load(path, compared=["pfed1bs", "signsgd"]).with_method("signsgd", 0).algorithm,
        load(path).with_method("signsgd", 0).algorithm | {"mu": 0.5},
    ):
        assert own["lr"] == keys(algorithm_class("signsgd"))["lr"].default == 0.005 and own["mu"] == 0.5


def test_options_of_a_method_apply_when_it_is_chosen_and_flags_beat_them(tmp_path):
    path = recipe(tmp_path, "[options.fedavg]\nserver_lr = 0.5\n")
    assert load(path).with_method("fedavg", 0).algorithm["server_lr"] == 0.5
    assert load(path, ["--algorithm.name", "fedavg"]).algorithm["server_lr"] == 0.5
    assert load(path, ["--algorithm.name=fedavg", "--algorithm.server_lr", "0.1"]).algorithm["server_lr"] == 0.1


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (["--algorithm.lamda", "1"], "unknown key algorithm.lamda", "did you mean algorithm.lam?"),
        (["--algorithm.lam", "x"], "algorithm.lam", "--help"),
        (["--sampled", "30"], "sampled = 30 is more than clients = 20", ""),
        (["--algorithm.name", "fedavgg"], "unknown algorithm fedavgg", "did you mean fedavg?"),
        (["--algorithm.ratio", "2"], "algorithm.ratio must be a share in (0, 1], got 2", "the default is 0.1"),
        (["--algorithm.ratio", "0"], "algorithm.ratio must be a share in (0, 1], got 0", "the default is 0.1"),
        (["--algorithm.lr", "-1"], "algorithm.lr must be positive, got -1", "the default is 0.05"),
        (["--algorithm.lr", "nan"], "algorithm.lr must be positive, got nan", "the default is 0.05"),
        (["--algorithm.momentum", "1"], "algorithm.momentum must be in [0, 1), got 1", "the default is 0"),
        (["--rounds", "0"], "rounds must be at least 1, got 0", "the default is 100"),
        (["--data.split", "x"], "data.split must be one of pooled, official, got x", "--help"),
        (["--rounds", "1.5"], "rounds must be a whole number, got 1.5", "--help"),
        (["--sampled", "half"], "sampled must be a whole number, or null, got half", "--help"),
        (["--rounds"], "argument --rounds", "--key value"),
        (["--round", "5"], "unknown key round", "did you mean rounds?"),
        (["--data.part", "iid"], "unknown key data.part", "did you mean data.partition?"),
        (["--lam", "1"], "unknown key lam", "did you mean algorithm.lam?"),
        (["--algorithm.name=fedavg", "--algorithm.ratio", "1"], "unknown key algorithm.ratio", "an option of pfed1bs,"),
        (["--algorithm.zzz", "1"], "unknown key algorithm.zzz", "--help"),
        (["--compare.seeds", "1"], "unknown key compare.seeds", "--help"),
        (["--options.ditto.lam", "1"], "unknown key options.ditto.lam", "ditto is not among"),
        (["again.toml"], "unexpected argument again.toml", "one recipe"),
    ],
)
def test_mistakes_name_the_key_and_the_way_out(flags, message, hint):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        load(None, flags)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round = 3", "unknown key round"),
        ("[data]\nnam = 'x'", "unknown key data.nam"),
        ("[options.fedavg]\nlam = 1", "unknown key options.fedavg.lam"),
        ("[options.nobody]\nlam = 1", "unknown algorithm nobody"),
        ("rounds = 'many'", "rounds"),
        ("rounds = ", "not a TOML file"),
        ("algorithm = 3", "must be tables"),
    ],
)
def test_mistakes_in_a_recipe_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load(recipe(tmp_path, text))


def test_a_missing_recipe_is_named_with_the_nearest_one(tmp_path):
    (tmp_path / "digits.toml").write_text("")
    with pytest.raises(UserError, match="no recipe") as error:
        load(str(tmp_path / "digit.toml"))
    assert "digits.toml" in error.value.hint


def test_written_configuration_reads_back_as_the_same(tmp_path):
    config = load(None, ["--rounds", "3", "--data.cap", "50", "--algorithm.name", "fedavg", "--model.bn", "avg"])
    text = need("tomli_w", "cli").dumps(as_tables(config))
    assert load(recipe(tmp_path, text)) == config
    assert tomllib.loads(text)["data"]["cap"] == 50


def test_every_key_of_every_method_has_help_and_every_number_a_range():
    for name in REGISTRY:
        for key, told in known_keys(name).items():
            assert told.help, f"{name}: {key}"
            assert told.range or told.type not in (int, float, int | None), f"{name}: {key}"


def test_keys_that_a_checkpoint_need_not_agree_in_are_read_off_the_fields():
    where = {"out", "device", "threads", "evaluate_every", "data.root"}
    assert set(with_role("machine")) == where and set(with_role("simulator")) == {
        "chunk",
        "checkpoint_every",
        "tf32",
        "potential",
    }
    assert set(free()) == {*where, *with_role("simulator"), "rounds", "compare", "options"}


@pytest.mark.parametrize(
    ("name", "options"),
    [("local", {"lr": -3}), ("pfed1bs", {"ratio": 7}), ("local", {"train": "some"}), ("eden", {"bits": 5.0})],
)
def test_make_refuses_what_the_command_line_refuses(name, options):
    [(key, value)] = options.items()
    with pytest.raises(UserError) as flagged:
        load(None, [f"--algorithm.name={name}", f"--algorithm.{key}={value}"])
    with pytest.raises(UserError) as made:
        make(name, linear(), **options)
    assert made.value.message == flagged.value.message and f"algorithm.{key} must be" in made.value.message


def test_a_plain_field_of_an_own_method_is_an_option_too():
    @dataclass(frozen=True)
    class Own(algorithm_class("local")):
        strength: float = 0.5

    assert keys(Own)["strength"].default == 0.5 and "task" not in keys(Own)


def test_infinity_can_be_written():
    assert load(None, ["--algorithm.name", "zsign", "--algorithm.z", "inf"]).algorithm["z"] == float("inf")


def test_what_a_flag_says_stands_in_the_written_configuration_also_over_options_of_the_recipe(tmp_path):
    path = recipe(tmp_path, "[options.fedavg]\nserver_lr = 0.5\n")
    config = load(path, ["--algorithm.name=fedavg", "--algorithm.server_lr", "0.1"])
    assert load(recipe(tmp_path, need("tomli_w", "cli").dumps(as_tables(config)))) == config


def test_flags_of_a_comparison_go_to_all_methods_that_have_the_option_and_to_one_by_name():
    flags = ["--algorithm.lam", "0.25", "--algorithm.lr", "0.5", "--options.ditto.lam", "0.75"]
    config = load(None, flags, compared=["pfed1bs", "ditto", "local"])
    made = {name: config.with_method(name, 0).algorithm for name in ("pfed1bs", "ditto", "local")}
    assert {name: options["lr"] for name, options in made.items()} == {"pfed1bs": 0.5, "ditto": 0.5, "local": 0.5}
    assert made["pfed1bs"]["lam"] == 0.25 and made["ditto"]["lam"] == 0.75 and "lam" not in made["local"]


def test_nearest_lists_what_is_known_when_nothing_is_near():
    assert nearest("zzz", ["a", "b"]) == "known are a, b."
