import tomllib
from pathlib import Path

import pytest

from pfed1bs.config import Config, UserError, as_tables, comments, load, nearest
from pfed1bs.extras import need

ROOT = Path(__file__).parent.parent


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


def test_flags_beat_the_recipe_and_the_recipe_beats_defaults(tmp_path):
    path = recipe(tmp_path, 'rounds = 7\nbatch = 5\n[algorithm]\nname = "pfed1bs"\nlam = 0.25\n')
    config = load(path, ["--rounds", "9", "--algorithm.gamma", "3"])
    assert (config.rounds, config.batch, config.algorithm["lam"], config.algorithm["gamma"]) == (9, 5, 0.25, 3.0)


def test_another_method_takes_over_the_optimiser_but_no_other_option(tmp_path):
    path = recipe(tmp_path, '[algorithm]\nname = "pfed1bs"\nlam = 0.25\nlr = 0.3\n')
    assert load(path, ["--algorithm.name", "fedavg"]).algorithm["lr"] == 0.3
    other = load(path).with_method("local", seed=5)
    assert other.seed == 5 and other.algorithm["lr"] == 0.3 and "lam" not in other.algorithm


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
        (["--algorithm.ratio", "2"], "algorithm.ratio must be m/n in", "0.1"),
        (["--algorithm.ratio", "0"], "algorithm.ratio must be m/n in", "0.1"),
        (["--algorithm.lr", "-1"], "algorithm.lr must be positive, got -1", "0.05"),
        (["--algorithm.lr", "nan"], "algorithm.lr", "--help"),
        (["--algorithm.momentum", "1"], "algorithm.momentum must be in", "plain SGD"),
        (["--rounds", "0"], "rounds must be at least 1, got 0", "--rounds 1"),
        (["--data.split", "x"], "data.split", "--help"),
        (["--rounds", "1.5"], "rounds", "--help"),
        (["again.toml"], "unexpected argument again.toml", "one recipe"),
    ],
)
def test_mistakes_name_the_key_and_the_way_out(flags, message, hint):
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as error:
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


def test_end_comments_are_the_help():
    assert comments(Config)["rounds"] == "T"


def test_nearest_lists_what_is_known_when_nothing_is_near():
    assert nearest("zzz", ["a", "b"]) == "known are a, b"
