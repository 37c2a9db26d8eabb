"""Run folders written by hand, read back and described on a page."""

import json
import re
import sys
import tomllib
from base64 import b64decode
from html.parser import HTMLParser

import pytest

from pfed1bs import report
from pfed1bs.cli import main as cli
from pfed1bs.report import columns, panels, repeat, tables
from pfed1bs.report.groups import Spread, groups
from pfed1bs.report.headline import headline
from pfed1bs.report.tables import environment, notes, settings
from pfed1bs.runs.config import load
from run_folders import COMMAND, records_of, run_folder


def page_of(records, home):
    report.write(records, home / "report.html")
    return (home / "report.html").read_text(encoding="utf-8")


def cells(page):
    """The result table as lists of words, without tags."""
    rows = re.findall(r"<tr data-group.*?</tr>", page[: page.index('<h2 id="curves"')], re.DOTALL)
    texts = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", text).replace("&nbsp;", " ").strip() for text in row] for row in texts]


def test_a_record_holds_what_the_files_say(tmp_path):
    record = report.read(run_folder(tmp_path, seed=7))
    assert (record.algorithm, record.seed, record.number("accuracy")) == ("pfed1bs", 7, 91.5)
    assert record.config["algorithm"] == {"name": "pfed1bs", "lr": 0.05}
    assert record.env["kernel"] == "native"
    assert [row.get("accuracy") for row in record.metrics] == [None, 50.25, None, 91.5]
    assert record.clients[1] == {"client": 1, "train_samples": 40, "test_samples": 15, "accuracy": 88.25, "loss": 0.4}


def test_bytes_sent_are_up_and_down_and_once(tmp_path):
    assert report.read(run_folder(tmp_path)).sent() == [2072, 4096, 6120, 8144]


@pytest.mark.parametrize("name", ["config.toml", "env.json", "metrics.jsonl", "clients.csv", "summary.json"])
def test_a_missing_file_is_named_with_the_way_to_finish_the_run(tmp_path, name):
    folder = run_folder(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is missing in .*--resume"):
        report.read(folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.toml", "rounds = ", "Invalid value"),
        ("env.json", "[1]", "expected one object, got a list"),
        ("summary.json", "{}", "names no algorithm"),
        ("summary.json", '{"algorithm": "local", "accuracy": "high"}', "accuracy must be a number, got 'high'"),
        ("metrics.jsonl", '{"round": 0, "up', "no whole round"),
        ("metrics.jsonl", '{"round": 0, "up\n{"round": 1}\n', "line 1: "),
        ("metrics.jsonl", '{"round": 0, "up_bytes": 1}\n', "line 1: down_bytes is missing"),
        ("metrics.jsonl", '{"round": 3, "up_bytes": 1, "down_bytes": 1}\n', "must hold round 0, got round 3"),
        ("clients.csv", "client,accuracy\n0,1\n", "the header lacks train_samples, test_samples, loss"),
        ("clients.csv", "client,train_samples,test_samples,accuracy,loss\n0,1,2\n", "line 2 does not have 5 columns"),
        ("clients.csv", "client,train_samples,test_samples,accuracy,loss\n", "no client"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path, name, content, reason):
    folder = run_folder(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(name) + " is damaged: .*" + re.escape(reason)):
        report.read(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        report.read(tmp_path / "nowhere")


@pytest.mark.parametrize(("kept", "rounds"), [(-1, 4), (-2, 3), (-40, 3)])
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path, kept, rounds):
    folder = run_folder(tmp_path)
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(whole[:kept])
    record = report.read(folder)
    assert len(record.metrics) == rounds
    told = [note for note in notes(groups([record])) if "metrics.jsonl" in note]
    assert told == (
        [f"metrics.jsonl of 0 ends after round {rounds} of 4; its curves stop there."] if rounds < 4 else []
    )


def test_a_comparison_folder_gives_all_its_runs(tmp_path):
    inside = tmp_path / "compare"
    run_folder(inside, "local"), run_folder(inside, "fedavg")
    (inside / "compare.json").write_text("[]")
    alone = run_folder(tmp_path / "single")
    assert [record.algorithm for record in report.collect([inside, alone])] == ["local", "fedavg", "pfed1bs"]


def test_runs_that_differ_in_more_than_the_seed_stay_apart(tmp_path):
    folders = [run_folder(tmp_path, seed=seed, options=f"lam = {lam}") for seed in (1, 0) for lam in (0.5, 2)]
    found = groups(map(report.read, folders))
    assert [group.label for group in found] == ["pfed1bs lam=0.5", "pfed1bs lam=2"]
    assert [[record.seed for record in group.records] for group in found] == [[0, 1], [0, 1]]
    assert [group.variant for group in found] == [0, 1]


def test_a_curve_is_the_mean_over_seeds_where_all_have_a_value(tmp_path):
    folders = [run_folder(tmp_path, seed=0, accuracies=(50, 90)), run_folder(tmp_path, seed=1, accuracies=(54, 94))]
    (group,) = groups(map(report.read, folders))
    assert [(point.rounds, point.sent, point.value.mean) for point in group.curve("accuracy")] == [
        (2, 4096, 52),
        (4, 8144, 92),
    ]
    assert group.curve("accuracy")[1].value.deviation == pytest.approx(8**0.5)
    assert Spread.of([3.0]) == Spread(3.0, None)
    ends = [Spread.of([1.0, 9.0], key).interval[0] for key in ("accuracy_late", "bits")]
    assert ends[0] == 0 and ends[1] < 0  # a share cannot be less


def test_a_run_that_ended_at_rest_keeps_its_last_value_while_others_go_on(tmp_path):
    folders = [run_folder(tmp_path, seed=0, accuracies=(50, 90)), run_folder(tmp_path, seed=1, accuracies=(54, 94))]
    for folder, rested in zip(folders, (True, False), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "rested": rested}))
    lines = (folders[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folders[0] / "metrics.jsonl").write_text("".join(lines[:2]))
    (group,) = groups(map(report.read, folders))
    assert [(point.rounds, point.value.mean) for point in group.curve("accuracy")] == [(2, 52), (4, 72)]
    assert group.curve("accuracy")[1].sent == (4096 + 8144) / 2


def test_no_runs_are_no_report(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        report.write([], tmp_path / "report.html")


def test_the_page_shows_the_numbers_of_the_files(tmp_path):
    page = page_of([report.read(run_folder(tmp_path / "runs"))], tmp_path)
    (row,) = cells(page)
    assert row == ["pfed1bs", "91.50", "0.001930", "1/68", "90.50", "2.0", "0"]
    for text in ("17,226", "88.25", "3.11.9", COMMAND, "algorithm.lr", "One seed only", "1000 B", "7.953 KiB"):
        assert text in page
    assert "<h1>pfed1bs: 91.50 % accuracy at 1/68 of FedAvg&#39;s bytes</h1>" in page


def test_the_page_of_a_comparison_has_deviations_and_the_difference_to_local_training(tmp_path):
    scores = {"pfed1bs": (92.0, 94.0), "local": (91.0, 92.0)}
    folders = [
        run_folder(tmp_path / "runs", name, seed, (50, score), accuracy_global=score - 10)
        for name, pair in scores.items()
        for seed, score in enumerate(pair)
    ]
    for folder, other in zip(folders[:2], folders[2:], strict=True):  # the same clients
        (folder / "clients.csv").write_text((other / "clients.csv").read_text())
    page = page_of(list(map(report.read, folders)), tmp_path)
    ours, local = cells(page)
    assert ours[1:4] == ["93.00 \N{PLUS-MINUS SIGN}1.41", "80.29 \u2026 100.00", "+1.50 -4.9 \u2026 +7.9"]
    assert ours[7] == "83.00 \N{PLUS-MINUS SIGN}1.41"
    assert (local[3], local[6], ours[-1]) == ("\N{EN DASH}", "90.50 \N{PLUS-MINUS SIGN}0.71", "0, 1")
    shown = "no difference to training alone is shown (+1.5 points), at 1/68 of FedAvg&#39;s bytes"
    assert f"<h1>pfed1bs: {shown}</h1>" in page
    assert "95 % interval -4.85 to +7.85. It holds 0: no difference is shown." in page
    assert "Differences to local, seed by seed" in page and "differences.csv" in page


def test_the_page_says_when_runs_differ_in_more_than_the_method(tmp_path):
    first, second = run_folder(tmp_path / "runs", "pfed1bs"), run_folder(tmp_path / "runs", "fedavg")
    config = (second / "config.toml").read_text()
    (second / "config.toml").write_text(config.replace("batch = 64", "batch = 32"))
    told = notes(groups([report.read(first), report.read(second)]))
    assert "These runs differ in batch (64, 32), not only in the method." in told


class Tags(HTMLParser):
    """Attributes of all tags."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    return page_of(records_of(home / "runs", "<script>alert(1)</script>", "pfed1bs", "local", "fedavg"), home), home


def test_markup_in_names_is_escaped_everywhere(page):
    text, home = page
    assert text.count("<script") == 1 and "<script>alert" not in text  # the page's own
    assert text.count("&lt;script&gt;") >= 5
    assert "<script" not in (home / "plots" / "accuracy-rounds.svg").read_text()


def test_the_page_is_self_contained_and_its_references_hold(page):
    text, home = page
    tags = Tags()
    tags.feed(text)
    assert not {tag for tag, _ in tags.found} & {"link", "img", "iframe", "object"}
    assert not [attrs for tag, attrs in tags.found if tag == "script" and attrs]
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", text)
    ids = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text))
    assert {first or second for first, second in named} <= set(ids)
    names = {"accuracy-bytes", "accuracy-clients", "accuracy-rounds", "diagnostics", "training-loss", "wire"}
    names |= {"differences"}
    assert sum(tag == "svg" for tag, _ in tags.found) == len(names)
    assert {path.name for path in (home / "plots").iterdir()} == {
        f"{name}{ending}" for name in names for ending in (".svg", ".csv")
    }


def test_the_numbers_of_a_picture_travel_with_the_page(page):
    text, home = page
    for name in ("accuracy-rounds", "wire"):
        data = re.search(rf'download="{name}.csv" href="data:text/csv;base64,([^"]*)"', text)[1]
        assert b64decode(data).decode() == (home / "plots" / f"{name}.csv").read_text()


def test_lines_dots_and_rows_say_which_method_they_are(page):
    text, _ = page
    assert [*dict.fromkeys(re.findall(r'<tr data-group="(\d)" data-label="([^"]*)"', text))][1:] == [
        *(("1", "pfed1bs"), ("2", "local"), ("3", "fedavg"))
    ]
    rounds = text[text.index('<figure id="accuracy-rounds"') :].partition("</figure>")[0]
    lines = re.findall(r'<g class="line" data-group="(\d)"><title>(.*?)</title>', rounds)
    assert sorted(lines)[1:] == [("1", "pfed1bs"), ("2", "local"), ("3", "fedavg")]


def test_colours_of_the_pictures_follow_the_page(page):
    text, _ = page
    drawn = text[text.index("<svg") : text.rindex("</svg>")]
    ink = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})\b", drawn))
    assert not ink
    for name in set(re.findall(r"var\((--c-[0-9a-f]{6})\)", drawn)):
        assert text.count(f"{name}: #") == 3  # for the light page, the dark one, and paper


def test_the_configuration_is_what_all_share_and_what_is_a_methods_own(tmp_path):
    folders = [run_folder(tmp_path, name, options=f"lr = {lr}") for name, lr in (("pfed1bs", 0.1), ("fedavg", 0.2))]
    found = settings(groups(map(report.read, folders)))
    assert found.own == [("pfed1bs", "lr=0.1"), ("fedavg", "lr=0.2")]
    assert found.shared["batch"] == "64" and found.shared["seed"] == "0"


def test_environments_are_one_box_in_which_differences_stand_out(tmp_path):
    folders = [run_folder(tmp_path, seed=seed) for seed in (0, 1, 2)]
    env = json.loads((folders[0] / "env.json").read_text())
    (folders[0] / "env.json").write_text(json.dumps({**env, "threads": 4}))
    lines = environment([report.read(folder) for folder in folders])
    assert ("python", "3.11.9", False) in lines and ("threads", "4 (1\u00d7), 2 (2\u00d7)", True) in lines


def test_the_headline_prefers_the_fewest_bytes_among_the_best_and_training_alone_where_that_is_as_good(tmp_path):
    def said(home, **scores):
        folders = [run_folder(home, name, accuracies=(1, at), total_mib=mib) for name, (at, mib) in scores.items()]
        return headline(groups(map(report.read, folders)))

    cheap = said(tmp_path / "a", fedavg=(91.0, 9.0), pfed1bs=(90.8, 1.0), local=(80.0, 0.0))
    assert cheap.title == "pfed1bs: +10.8 points over training alone (one seed) at 1/68 of FedAvg's bytes"
    assert cheap.told[2] == (
        "It was chosen as the one with the fewest bytes of 2 methods with a mean within 0.3 points of the highest; "
        "one seed shows nothing of chance."
    )
    alone = said(tmp_path / "b", fedavg=(91.0, 9.0), local=(90.8, 0.0))
    assert alone.title == "Training alone: no method's mean is more than 0.3 points above it, and it sends nothing"


def test_the_headline_says_what_is_shown_of_the_nearest_other_and_the_result_in_plain_words(tmp_path):
    scores = {"pfed1bs": (92.0, 93.0), "fedavg": (90.0, 91.1), "local": (80.0, 81.5)}
    folders = [
        run_folder(tmp_path, name, seed, (50, at)) for name, pair in scores.items() for seed, at in enumerate(pair)
    ]
    told = headline(groups(map(report.read, folders))).told
    assert told[0] == (
        "In plain words: on new samples of their own, the models of 2 devices were right 92 times in 100, where models "
        "that each device trained alone were right 81 times. For that, devices and server sent each other 1/68 of what "
        "FedAvg, the usual way of learning together, would send."
    )
    assert told[2] == (  # 1.95 with a standard error of 0.05, times 12.706
        "It was chosen for its mean, the highest of 3 in these runs. Paired by seed, it is +1.95 points from fedavg, "
        "95 % interval +1.31 to +2.59: a difference is shown, though chosen after looking."
    )


def test_the_headline_says_which_methods_have_the_very_scores_of_training_alone(tmp_path):
    scores = {"pfed1bs": (80.0, 81.5), "fedavg": (80.0, 91.1), "local": (80.0, 81.5)}
    folders = [
        run_folder(tmp_path, name, seed, (50, at)) for name, pair in scores.items() for seed, at in enumerate(pair)
    ]
    assert headline(groups(map(report.read, folders))).told[-1] == (
        "pfed1bs ended with the scores of training alone in every seed, to the last digit: messages were sent and "
        "counted, and they changed no answer that was judged."
    )


def test_the_headline_names_the_fewest_bytes_where_seeds_do_not_tell_the_methods_apart(tmp_path):
    def said(home, **scores):
        folders = [
            run_folder(home, name, seed, (50, at), total_mib=mib)
            for name, (mib, *pair) in scores.items()
            for seed, at in enumerate(pair)
        ]
        return headline(groups(map(report.read, folders)))

    noisy = said(tmp_path / "a", fedavg=(9.0, 96.7, 97.6), pfed1bs=(1.0, 96.5, 96.4), local=(0.0, 91.1, 91.2))
    assert noisy.title == "pfed1bs: +5.3 points over training alone at 1/68 of FedAvg's bytes"
    assert noisy.told[2] == (  # -0.7 with a standard error of 0.5, times 12.706
        "It was chosen as the one with the fewest bytes of 2 methods above which no other is shown to be, or by at "
        "most 0.3 points. Paired by seed, it is -0.70 points from fedavg, 95 % interval -7.05 to +5.65: no difference "
        "is shown."
    )
    clear = said(tmp_path / "b", fedavg=(9.0, 97.1, 97.1), pfed1bs=(1.0, 96.4, 96.4), local=(0.0, 91.1, 91.1))
    assert clear.title.startswith("fedavg: +6.0") and "the highest of 3" in clear.told[2]
    alone = said(tmp_path / "c", fedavg=(9.0, 90.0, 96.0), local=(0.0, 91.0, 91.0))
    assert alone.title == "Training alone: no method is shown to be ahead of it, and it sends nothing"


def test_a_saved_table_gives_the_page_of_its_runs_without_their_clients(tmp_path, capsys):
    for name, at in (("local", 88.0), ("pfed1bs", 91.5)):
        for seed in (0, 1):
            run_folder(tmp_path / "runs", name, seed, (50.0, at + seed))
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    whole = (tmp_path / "runs" / "report.html").read_text()
    saved = tmp_path / "runs" / "table.json"
    capsys.readouterr()
    assert cli.main(["report", str(saved), "--against", "local", "--out", str(tmp_path / "again")]) == 0
    said = capsys.readouterr().out
    assert "+3.50" in said and said.endswith("again/report.html\n")
    page = (tmp_path / "again" / "report.html").read_text()
    assert [row[:3] for row in cells(page)] == [row[:3] for row in cells(whole)]
    title = re.compile("<h1>.*</h1>")
    assert title.search(page)[0] == title.search(whole)[0] and "Differences to local" in page
    assert 'id="clients"' not in page and 'id="accuracy-rounds"' in page
    saved.write_text(json.dumps({"runs": [{"algorithm": "local", "seed": 0, "accuracy": 1.0}]}))
    assert cli.main(["report", str(saved), "--out", str(tmp_path / "no")]) == 2
    assert "holds too little for a page" in capsys.readouterr().err


def test_a_page_holds_all_that_repeats_it_and_no_folder_of_whoever_made_it(tmp_path):
    command = "pfed1bs compare /home/ann/mine.toml --runs 'pfed1bs lam=2' --out=/home/ann/x --resume"
    folders = [
        run_folder(tmp_path / "runs", name, seed, options=options, command=command, version="1.2", commit="abc+")
        for name, options in (("local", "lr = 0.1"), ("pfed1bs", "lam = 1"), ("pfed1bs", "lam = 2"))
        for seed in (0, 1)
    ]
    records = list(map(report.read, folders))
    found = repeat.repeated(records, groups(records))
    assert found.asked == ["pfed1bs compare mine.toml --runs 'pfed1bs lam=2' --out=x"]
    assert (found.version, found.commit, found.changed, found.took) == ("1.2", "abc", True, "12 seconds")
    told = tomllib.loads(found.recipe)
    assert told["compare"] == {"algorithms": ["local", "pfed1bs"], "seeds": [0, 1]} and told["batch"] == 64
    assert told["options"] == {"local": {"lr": 0.1}, "pfed1bs": {"lam": 1}}
    assert found.commands == ["pfed1bs compare recipe.toml --runs 'pfed1bs lam=2'"]
    (tmp_path / "recipe.toml").write_text(found.recipe)
    config = load(str(tmp_path / "recipe.toml"))
    assert config.compare.seeds == [0, 1] and config.clients == 2
    page = page_of(records, tmp_path)
    assert "/home/ann" not in page and "pip install -c constraints.txt torch" in page and "lam = 1" in page


def test_runs_that_differ_in_more_than_the_method_are_repeated_one_by_one(tmp_path):
    first, second = run_folder(tmp_path / "runs", "pfed1bs"), run_folder(tmp_path / "runs", "fedavg", seed=3)
    config = (second / "config.toml").read_text()
    (second / "config.toml").write_text(config.replace("batch = 64", "batch = 32"))
    records = [report.read(first), report.read(second)]
    assert repeat.commands(groups(records)) == [
        "pfed1bs compare recipe.toml --algorithms '' --runs pfed1bs --batch=64 --seeds 0",
        "pfed1bs compare recipe.toml --algorithms '' --runs fedavg --batch=32 --seeds 3",
    ]


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch, name):
    records = records_of(tmp_path / "runs", "pfed1bs")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {name}, .*pip install {name} .*'\.\[report\]'"):
        report.write(records, tmp_path / "report.html")


def test_importing_the_report_imports_no_plotting(fresh):
    code = "import sys, pfed1bs.report; sys.exit(any(name in sys.modules for name in ('matplotlib', 'jinja2')))"
    assert fresh(code).returncode == 0


def test_many_clients_are_told_by_quantiles_and_few_of_them_are_drawn(tmp_path, monkeypatch):
    records = records_of(tmp_path / "runs", "pfed1bs")
    monkeypatch.setattr(tables, "LISTED", 1)
    [table] = tables.clients(groups(records))
    assert table.title == "2 clients, seed 0: accuracy %" and table.heads[0] == "share of clients below"
    assert table.rows[0] == ["0 %", "30", "10", "88.25"] and table.rows[-1] == ["100 %", "40", "15", "91.50"]
    monkeypatch.setattr(panels, "DOTS", 1)
    page = page_of(records, tmp_path)
    assert "1 of 2 clients" in page and "share of clients below" in page


def test_an_end_of_all_percents_is_short_on_a_terminal():
    cell = columns._interval(Spread.of([97.0, 99.9], "accuracy"), 2)
    low = 98.45 - 12.706 * 1.45  # Student's 0.975 quantile with one degree of freedom, and the error of the mean
    assert cell.short == f"{low:.2f}..100" and cell.text == f"{low:.2f} … 100.00"
