"""Numbers in README and docs stand in files of results/, and those files say where they come from."""

import json
import re
import tomllib

import pytest
import sheet
import sources
import tuned

from pfed1bs import make
from pfed1bs.algorithms import REGISTRY
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.report.saved import saved
from pfed1bs.report.statistics import Against
from pfed1bs.runs.config import known_keys
from pfed1bs.runs.recipes import FOLDER as RECIPES
from pfed1bs.runs.summary import spent
from pfed1bs.studies import finished, plan, sheets

RUNS = [("a", 0, 90.0), ("a", 1, 92.0), ("b", 0, 90.0), ("b", 1, 91.0)]
TUNED = {  # recipes, and the searches whose options they have
    "mnist-all": ("tuning-mnist.json",),
    "fmnist-few": ("tuning-fmnist-few.json",),
    "svhn-few": ("tuning-svhn-few.json",),
    "cifar10-few": ("tuning-cifar10-few.json",),
    "cifar100-few": ("tuning-cifar100-few.json",),
    "mnist-bytes": ("tuning-bytes/mnist-bytes.json", "tuning-bytes/mnist-bytes-powersgd.json"),
    "mnist-bytes-low": ("tuning-bytes/mnist-bytes-low.json", "tuning-bytes/mnist-bytes-low-powersgd.json"),
}
ELSEWHERE = {"mnist-bytes": {"decomfl"}}  # whose options were searched for another recipe, with fewer bytes
OPEN = {  # best values that no other value encloses, after as many runs as every method has
    ("mnist-bytes", "delta-float32"): {"lr"},
    ("mnist-bytes-low", "decomfl"): {"lr"},
}
COUNTED = re.compile(r"^\| `([\w-]+)` \|.*\| (\d+) \| (\d+) \|$", re.MULTILINE)  # a table or figure, its runs
RESULTS = sorted((sources.ROOT / "results").rglob("*.json"))
ROWS = sorted((sources.ROOT / "results").rglob("*.jsonl"))
DIRTY: dict[str, str] = {}  # made while something was being changed, and not yet made again; why not


def test_every_number_in_the_documents_has_a_source():
    assert sources.missing() == []


def test_every_document_but_the_log_is_read():
    there = {f"docs/{path.name}" for path in (sources.ROOT / "docs").glob("*.md")}
    assert there - {*sources.PAGES} == {"docs/log.md"} and "docs/security.md" in sources.PAGES


def test_a_number_that_is_given_stands_in_its_block():
    for page in sources.PAGES:
        for block, _ in sources.blocks((sources.ROOT / page).read_text()):
            there = {number.lstrip("+-") for number in sources.numbers(sources.GIVEN.sub("", block))}
            for given in sources.GIVEN.findall(
                block if page != "CONTRIBUTING.md" else ""
            ):  # which shows how it is written
                assert {*given.split()} <= there, f"{page}: {given}"


def test_tables_in_the_documents_are_those_of_the_results():
    for page in sources.PAGES:
        for _, name, _ in sources.TABLE.findall((sources.ROOT / page).read_text()):
            assert (sources.ROOT / "results" / name).read_text() in (sources.ROOT / page).read_text(), name


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(sources.ROOT / "results")))
def test_every_result_is_plain_json_and_names_its_command_and_commit(path):
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path.name} has {name}"))
    places = [found, *found.get("runs", []), *(part for part in found.values() if isinstance(part, dict))]
    for name in ("command", "commit"):
        assert any(name in place or f"{name}s" in place for place in places), f"{path.name} has no {name}"


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.parent.name)
def test_every_row_has_options_that_its_method_has(path):  # otherwise no plan finds it any more
    for row in map(json.loads, path.read_text().splitlines()):
        own = {f"algorithm.{key}" for key in row["config"]["algorithm"]} - {"algorithm.name"}
        assert own <= known_keys(row["config"]["algorithm"]["name"]).keys(), row["label"]


def test_the_document_counts_the_runs_that_are_planned_and_those_that_are_there():
    text = (sources.ROOT / "docs" / "reproduce.md").read_text()
    told = {name: (int(runs), int(there)) for name, runs, there in COUNTED.findall(text)}
    for target in [target for name in plan.NAMES if not (target := plan.read(name, RECIPES)).of and not target.ticks]:
        path = sources.ROOT / "results" / target.name / "table.json"
        there = json.loads(path.read_text())["finished"] if path.exists() else 0
        assert told[target.name] == (len(target.planned(RECIPES)), there), target.name


NUMBER = re.compile(r"(?<![\w#])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def alike(one, other, apart):
    """Whether two texts differ in nothing but the last digits of numbers."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (one, other)]
    return NUMBER.sub("#", one) == NUMBER.sub("#", other) and numbers[0] == pytest.approx(numbers[1], abs=apart)


@pytest.mark.parametrize("name", plan.NAMES)
def test_the_files_of_a_table_are_those_of_its_rows_and_of_its_recipe(name, tmp_path):
    target, folder = plan.read(name, RECIPES), sources.ROOT / "results"
    runs, known = target.planned(RECIPES), finished.Finished.of(folder / (target.of or name))
    sheets.write(target, runs, known, tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (folder / name).iterdir()} - {"runs.jsonl"}
    for path in sorted(tmp_path.iterdir()):
        made, there = path.read_text(), (folder / name / path.name).read_text()
        if target.ticks and path.suffix == ".json":  # made at some commit, which is named
            made, there = (json.dumps(json.loads(text)["lines"]) for text in (made, there))
        assert alike(there, made, 0.5 if path.suffix == ".svg" else 1e-9), f"{path.name}: make docs-numbers"


def commits(plain):
    """Every commit that a file names."""
    if isinstance(plain, dict | list):
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            if key in ("commit", "commits"):
                yield from [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value
            else:
                yield from commits(value)


@pytest.mark.parametrize("path", [*RESULTS, *ROWS], ids=lambda path: str(path.relative_to(sources.ROOT / "results")))
def test_no_result_is_of_a_changed_tree_or_names_a_place_of_its_machine(path):
    text = path.read_text()
    named = [*commits([json.loads(line) for line in text.splitlines()] if path in ROWS else json.loads(text))]
    dirty = sorted(commit for commit in named if not re.fullmatch("[0-9a-f]{7,40}", commit))
    assert bool(dirty) == (path.name in DIRTY), f"{path.name} names {dirty}"
    assert "/tmp/" not in text, f"{path.name} names a place of the machine that made it"


@pytest.mark.parametrize(("recipe", "names"), TUNED.items())
def test_options_of_a_recipe_are_those_that_its_searches_found(recipe, names):
    plain = tomllib.loads((sources.ROOT / "recipes" / f"{recipe}.toml").read_text())
    named = {*plain["compare"]["algorithms"]}
    searched = set()
    for search in [json.loads((sources.ROOT / "results" / name).read_text()) for name in names]:
        for found in search["methods"]:
            assert json.loads(json.dumps(tuned.chosen(found))) == found  # by the rule of now
            searched.add(found["algorithm"])
            assert found["options"].items() <= plain["options"][found["algorithm"]].items(), found["algorithm"]
            assert found["runs"] == search["points"] * len(search["seeds"])
            ends = {option for option, edge in found["edges"].items() if edge.endswith("end")}
            assert ends == OPEN.get((recipe, found["algorithm"]), set()), found["algorithm"]
    assert searched == ({*REGISTRY} if named == {"all"} else named - ELSEWHERE.get(recipe, set()))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results that a test fills."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    yield tmp_path / "results"
    for name in vars(sources):
        getattr(getattr(sources, name), "cache_clear", lambda: None)()


def test_tables_of_comparisons_are_those_of_their_files():
    for path in sorted((sources.ROOT / "results").glob("*.md")):
        assert path.read_text() == sheet.sheet(path.with_suffix(".json")), path.name


def test_a_table_of_a_comparison_has_both_scores_their_differences_and_bytes(results):
    late = {90.0: 89.0, 91.0: 90.5, 92.0: 91.0}
    runs = [
        {"algorithm": name, "label": name, "seed": seed, "accuracy": value, "accuracy_late": late[value]}
        | {"total_mib": 2.5, "rounds": 100 - 10 * seed}
        for name, seed, value in RUNS
    ]
    item = {"method": "b", "difference": -0.5, "interval": [-6.85, 5.85], "p": 0.0004, "late": -0.25}
    paired = {"against": "a", "differences": [{**item, "late_interval": [-3.43, 2.93]}]}
    (results / "runs.json").write_text(json.dumps({"runs": runs, "paired": paired}))
    first, second = sheet.sheet(results / "runs.json").splitlines()[2:]
    assert first == "| `a` | 91.00 \u00b1 1.41 | 90.00 \u00b1 1.41 |  |  |  | 2.50 | 90 to 100 |"
    assert "| -0.50 (-6.85 to +5.85) | -0.25 (-3.43 to +2.93) | < 0.001 | 2.50 |" in second


def test_tables_and_rows_of_runs_at_rest_are_mended_from_their_curves(results):
    curve = [[10, 5, 50.0], [20, 9, 60.0], [25, 11, 75.0]]
    rest = {"algorithm": "a", "label": "a", "seed": 0, "metric": "accuracy", "rounds": 25, "rested": True}
    runs = [{**rest, "accuracy": 75.0, "accuracy_late": 1.0, "curve": curve}]
    runs += [{**rest, "label": "b", "rested": False, "accuracy": 80.0, "accuracy_late": 79.0, "curve": curve}]
    plain = {"recipe": {"rounds": 60, "evaluate_every": 10}, "runs": runs}
    (results / "runs.json").write_text(json.dumps({**plain, "paired": Against("b", ()).plain(runs)}))
    sheet.mend(results / "runs.json")
    found = json.loads((results / "runs.json").read_text())
    assert [run["accuracy_late"] for run in found["runs"]] == [(60 + 4 * 75) / 5, 79.0]
    assert found["paired"]["differences"][0]["late"] == 72 - 79
    row = {"config": plain["recipe"], "summary": runs[0], "clients": {"test_samples": [2, 1]}}
    row["curve"] = {"round": [9, 19, 24], "accuracy": [0.0, 33.3333, 66.6667]}
    (results / "runs.jsonl").write_text(f"{json.dumps(row)}\n")
    sheet.mend_rows(results / "runs.jsonl")
    [line] = (results / "runs.jsonl").read_text().splitlines()
    assert json.loads(line)["summary"]["accuracy_late"] == pytest.approx((100 + 4 * 200) / 15, abs=1e-12)


def test_a_table_takes_over_runs_that_were_made_again(results):
    def run(name, seed, value):
        own = {"algorithm": name, "label": name, "seed": seed, "accuracy": value, "accuracy_late": value, "options": {}}
        return {**own, "total_mib": 1.0, "rounds": 1, "seconds": 1.0, "curve": [[1, 5, value]]}

    runs = [run(*own) for own in RUNS]
    plain = {"recipe": {"rounds": 1}, "runs": runs, "paired": Against("a", ("b",)).plain(runs)}
    (results / "runs.json").write_text(json.dumps(plain))
    (results / "more.json").write_text(json.dumps({"runs": [run("b", 1, 93.0), run("a", 2, 94.0), run("b", 0, 90.5)]}))
    sheet.join(results / "runs.json", results / "more.json")
    found = json.loads((results / "runs.json").read_text())
    told = [(own["label"], own["seed"], own["accuracy"]) for own in found["runs"]]
    assert told == [("a", 0, 90.0), ("a", 1, 92.0), ("a", 2, 94.0), ("b", 0, 90.5), ("b", 1, 93.0)]
    assert [own["mean"] for own in found["over_seeds"]] == [92.0, 91.75]
    assert found["paired"]["differences"][0]["difference"] == 0.75 and found["paired"]["tested"] == ["b"]


def test_a_number_is_found_as_it_is_printed(results):
    (results / "b.json").write_text(json.dumps([93.287, {"x": 0.0031350108}, -0.07]))
    assert all(sources.traced(number, ["b.json"]) for number in ("93.29", "93.3", "1/319", "-0.07", "0.07", "0.31"))
    assert not any(sources.traced(number, ["b.json"]) for number in ("93.28", "1/318", "0.08"))


def test_a_number_without_a_source_is_missed(results, monkeypatch):
    text = "# A\n\nOf 1.25 (`results/a.json`), code `2.5`, 3.75 and arXiv 1912.00818.\n\n- 4.5 <!-- given: 4.5 -->\n\n"
    (results / "a.json").write_text(json.dumps({"curve": [3.75], "values": [1.249, 9]}))
    (results.parent / "page.md").write_text(text + "# B\n\n1.25 again")
    monkeypatch.setattr(sources, "PAGES", ("page.md",))
    assert [line.split(" in:")[0] for line in sources.missing()] == ["page.md: 3.75", "page.md: 1.25"]


def test_means_and_differences_of_runs_are_sources(results):
    runs = [{"algorithm": name, "seed": seed, "accuracy": value, "options": {}} for name, seed, value in RUNS]
    (results / "runs.json").write_text(json.dumps({"runs": runs}))
    for number in ("91.00", "1.41", "0.50", "6.85"):  # 0.5 and 12.706 * 0.5 on both sides
        assert sources.traced(number, ["runs.json"])


def test_the_highest_evaluation_of_curves_and_the_way_to_the_end_are_sources(results):
    ends = [("a", 0, 80.0), ("a", 1, 81.5), ("b", 0, 85.0), ("b", 1, 85.5)]
    runs = [{"algorithm": name, "seed": seed, "accuracy": value, "options": {}} for name, seed, value in ends]
    for run in runs:
        run["curve"] = [[10, 0, 70.25], [20, 0, run["accuracy"] + 10.0], [30, 0, run["accuracy"]]]
    (results / "runs.json").write_text(json.dumps({"runs": runs}))
    assert sources.traced("90.75", ["runs.json"])  # the mean of 90 and 91.5
    assert sources.traced("-10.00", ["runs.json"])  # from there to the end
    assert not sources.traced("91.50", ["runs.json"])  # of one run


def test_an_interval_stands_around_one_of_the_numbers_before_it():
    names = ["table-main/table.json"]
    right = "It is -0.08 (-0.12 to -0.05) there, and on MNIST (0.06 above it, 95 % interval 0.00 to 0.12) not."
    assert [*sources.uncertain(right, names)] == [*sources.uncertain("It is 0.08 (0.05 to 0.12) below.", names)] == []
    for wrong in ("-0.08 (-0.12 to -0.04)", "0.06 (0.05 to 0.12)", "0.09 (0.05 to 0.12)", "(0.05 to 0.12)"):
        assert len([*sources.uncertain(f"It is {wrong}.", names)]) == 1
    assert [*sources.uncertain("It is 0.08 (0.05 to 0.12) below.", [])] != []


def test_an_interval_without_a_source_is_missed_and_tables_of_methods_are_read_but_on_one_page(results, monkeypatch):
    (results / "a.json").write_text(json.dumps({"difference": 0.5, "other": 9.25, "interval": [0.4, 0.6]}))
    text = "Of 0.50 (0.40 to 0.60, `results/a.json`).\n\n0.50 (0.60 to 0.50).\n\n9.25 (0.40 to 0.60).\n\n"
    (results.parent / "page.md").write_text(f"{text}| method | x |\n|---|---|\n| a | 7.77 |\n")
    monkeypatch.setattr(sources, "PAGES", ("page.md",))
    told = [line.split(" in:")[0].removeprefix("page.md: ") for line in sources.missing()]
    assert told == ["0.50 (0.60 to 0.50)", "9.25 (0.40 to 0.60)", "7.77"]


def test_an_interval_stands_near_its_number(results):
    (results / "a.json").write_text(json.dumps({"difference": 0.5, "interval": [0.4, 0.6]}))
    assert [*sources.uncertain("0.50, 1.11, 2.22, 3.33, 4.44 (0.40 to 0.60)", ["a.json"])]


def test_a_number_ten_times_another_has_no_source(results):
    (results / "a.json").write_text(json.dumps([1.25]))
    assert sources.traced("1.25", ["a.json"]) and sources.traced("125.00", ["a.json"])
    assert not sources.traced("12.50", ["a.json"])


def test_tables_are_filled_in(results, monkeypatch):
    (results / "t.md").write_text("| new |\n")
    page = results.parent / "page.md"
    page.write_text("A\n\n<!-- results/t.md -->\n| old |\n<!-- end -->\nB\n")
    monkeypatch.setattr(sources, "PAGES", ("page.md",))
    sources.fill()
    assert page.read_text() == "A\n\n<!-- results/t.md -->\n| new |\n<!-- end -->\nB\n"


def test_of_equal_evaluations_the_first_is_the_highest_as_in_a_cell():
    def run(seed, *values):
        return {"label": "a", "seed": seed, "curve": [[10 * at, 0, value] for at, value in enumerate(values, 1)]}

    assert sources._highest([run(0, 70.0, 91.0, 90.0, 80.0), run(1, 70.0, 91.0, 92.0, 80.0)]) == {0: 91.0, 1: 91.0}


def joined(results, ours, theirs):
    """Two tables put together."""
    for name, plain in (("runs", ours), ("more", theirs)):
        (results / f"{name}.json").write_text(json.dumps(plain))
    sheet.join(results / "runs.json", results / "more.json")
    return json.loads((results / "runs.json").read_text())


def ended(name, seed, value):
    own = {"algorithm": name, "label": name, "options": {}, "seed": seed, "accuracy": value, "rounds": 10}
    return own | {"total_mib": 1.0, "mib_per_round": 0.1, "seconds": 1.0, "curve": [[10, 5, value]]}


def test_runs_that_are_taken_over_keep_the_settings_they_were_made_with(results):
    ours = {"recipe": {"steps": 10, "rest": 0.0, "data": {"cap": 100}}, "runs": [ended("local", 0, 90.0)]}
    runs = [ended("ditto", 0, 91.0), {**ended("apfl", 0, 92.0), "settings": {"steps": 10, "rest": 0.5}}]
    found = joined(results, ours, {"recipe": {"steps": 5, "rest": 0.0, "data": {"cap": 300}}, "runs": runs})
    told = {run["label"]: run.get("settings") for run in found["runs"]}
    assert told == {"local": None, "ditto": {"steps": 5, "data.cap": 300}, "apfl": {"rest": 0.5, "data.cap": 300}}
    steps = {record.algorithm: record.config["steps"] for record in saved(results / "runs.json")}
    assert steps == {"local": 10, "ditto": 5, "apfl": 10}


def test_joined_tables_test_what_was_tested(results):
    runs = [ended(name, seed, 90.0 + 2 * at + seed * (at + 1)) for at, name in enumerate("abc") for seed in (0, 1)]
    paired = {"against": "a", "tested": ["b"], "differences": []}
    plain = {"recipe": {"steps": 1}, "paired": paired}
    assert joined(results, {**plain, "runs": runs}, {**plain, "runs": runs[:1]})["paired"]["tested"] == ["b"]


def test_runs_of_tables_did_as_much_work_as_their_settings_say():
    task, counted = Task(build("mlp", (1, 28, 28), 10)), 0
    for path in RESULTS:
        plain = json.loads(path.read_text())
        runs = plain.get("runs", ()) if isinstance(plain, dict) and "recipe" in plain else ()
        for run in (run for run in runs if "gradients" in run and run["model"] == "mlp"):
            counted += 1
            made = make(run["algorithm"], task, **run["options"])
            assert spent(made, {**plain["recipe"], **run.get("settings", {})}["steps"]) == run["gradients"], path.name
    assert counted > 1000
