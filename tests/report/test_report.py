"""Run folders written by hand, read back and described on a page."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from pfed1bs import report
from pfed1bs.report import panels, tables
from pfed1bs.report.groups import Spread, groups
from pfed1bs.report.tables import notes
from run_folders import COMMAND, records_of, run_folder


def page_of(records, home):
    report.write(records, home / "report.html")
    return (home / "report.html").read_text(encoding="utf-8")


def cells(page):
    """The result table as lists of words, without tags."""
    rows = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", page[: page.index("<h2>Pictures")], re.DOTALL)
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
    assert row == ["pfed1bs", "91.50", "0.001930", "0.01469 1/68", "90.50", "0.001442", "0.007767", "2.0", "0"]
    for text in ("17,226", "88.25", "3.11.9", COMMAND, "algorithm.lr", "One seed only"):
        assert text in page


def test_the_page_of_a_comparison_has_deviations_and_the_difference_to_local_training(tmp_path):
    scores = {"pfed1bs": (92.0, 94.0), "local": (91.0, 92.0)}
    folders = [
        run_folder(tmp_path / "runs", name, seed, (50, score), accuracy_global=score - 10)
        for name, pair in scores.items()
        for seed, score in enumerate(pair)
    ]
    for folder, other in zip(folders[:2], folders[2:], strict=True):  # the same clients
        (folder / "clients.csv").write_text((other / "clients.csv").read_text())
    ours, local = cells(page_of(list(map(report.read, folders)), tmp_path))
    assert ours[1] == "93.00 \N{PLUS-MINUS SIGN}1.41"
    assert ours[4] == "+1.50 \N{PLUS-MINUS SIGN}0.71"
    assert ours[6] == "83.00 \N{PLUS-MINUS SIGN}1.41"
    assert (local[4], local[5], ours[-1]) == ("\N{EN DASH}", "90.50 \N{PLUS-MINUS SIGN}0.71", "0, 1")


def test_the_page_says_when_runs_differ_in_more_than_the_method(tmp_path):
    first, second = run_folder(tmp_path / "runs", "pfed1bs"), run_folder(tmp_path / "runs", "fedavg")
    config = (second / "config.toml").read_text()
    (second / "config.toml").write_text(config.replace("batch = 64", "batch = 32"))
    told = notes(groups([report.read(first), report.read(second)]))
    assert "These runs differ in batch (64, 32), not only in the method." in told


def test_markup_in_names_is_escaped_everywhere(tmp_path):
    page = page_of(records_of(tmp_path / "runs", "<script>alert(1)</script>", "local"), tmp_path)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5
    assert "<script" not in (tmp_path / "plots" / "accuracy-rounds.svg").read_text()


class Tags(HTMLParser):
    """Attributes of all tags."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_is_self_contained_and_its_references_hold(tmp_path):
    page = page_of(records_of(tmp_path / "runs", "pfed1bs", "local", "fedavg"), tmp_path)
    tags = Tags()
    tags.feed(page)
    assert not {tag for tag, _ in tags.found} & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", page)
    ids = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page))
    assert {first or second for first, second in named} <= set(ids)
    names = {"accuracy-bytes", "accuracy-clients", "accuracy-rounds", "diagnostics", "training-loss", "wire"}
    assert sum(tag == "svg" for tag, _ in tags.found) == len(names)
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{name}{ending}" for name in names for ending in (".svg", ".csv")
    }


def test_colours_of_the_pictures_follow_the_page(tmp_path):
    page = page_of(records_of(tmp_path / "runs", "pfed1bs"), tmp_path)
    drawn = page[page.index("<svg") : page.rindex("</svg>")]
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)
    for name in set(re.findall(r"var\((--c-[0-9a-f]{6})\)", drawn)):
        assert page.count(f"{name}: #") == 2  # once for the light page, once for the dark one


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch, name):
    records = records_of(tmp_path / "runs", "pfed1bs")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {name}, .*pip install {name} .*'\.\[report\]'"):
        report.write(records, tmp_path / "report.html")


def test_importing_the_report_imports_no_plotting():
    code = "import sys, pfed1bs.report; sys.exit(any(name in sys.modules for name in ('matplotlib', 'jinja2')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_clients_are_told_by_quantiles_and_few_of_them_are_drawn(tmp_path, monkeypatch):
    records = records_of(tmp_path / "runs", "pfed1bs")
    monkeypatch.setattr(tables, "LISTED", 1)
    [table] = tables.clients(groups(records))
    assert table.title == "2 clients, seed 0: accuracy %" and table.heads[0] == "share of clients below"
    assert table.rows[0] == ["0 %", "30", "10", "88.25"] and table.rows[-1] == ["100 %", "40", "15", "91.50"]
    monkeypatch.setattr(panels, "DOTS", 1)
    page = page_of(records, tmp_path)
    assert "1 of 2 clients" in page and "share of clients below" in page
