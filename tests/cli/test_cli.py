import json
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.cli import terminal
from pfed1bs.cli.help import GROUPS, HELP, PARTS
from pfed1bs.engine import rest as resting
from pfed1bs.runs.config import load
from pfed1bs.runs.run import Run

SMALL = ["--clients", "4", "--steps", "2", "--batch", "8", "--data.partition", "iid", "--data.cap", "20"]


def run(*words: str) -> int:
    return cli.main(list(words))


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(word):
    code = f"import sys; from pfed1bs.cli import main as cli; cli.main(['{word}']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_run_leaves_a_folder_and_prints_its_summary(tmp_path, capsys):
    out = tmp_path / "run"
    assert run("run", *SMALL, "--rounds", "3", "--evaluate_every", "2", "--out", str(out), "--json") == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    [summary] = told["runs"]
    assert told["folder"] == summary["folder"] == str(out) and told["report"] == str(out / "report.html")
    assert summary["algorithm"] == "pfed1bs" and summary["rounds"] == 3 and summary["clients"] == 4
    assert "round 2 of 3, accuracy" in said.err and "round 3 of 3, accuracy" in said.err
    names = {path.name for path in out.iterdir()}
    wanted = {"config.toml", "env.json", "metrics.jsonl", "clients.csv", "checkpoint.safetensors", "summary.json"}
    assert wanted | {"plots", "report.html"} <= names
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert (
        sum(line["up_bytes"] + line["down_bytes"] + line["once_bytes"] for line in lines) / 2**20
        == summary["total_mib"]
    )
    assert len((out / "clients.csv").read_text().splitlines()) == 5


@pytest.mark.usefixtures("no_page")
def test_the_written_configuration_repeats_the_run(tmp_path):
    first, again = tmp_path / "a", tmp_path / "b"
    assert run("run", *SMALL, "--rounds", "2", "--out", str(first)) == 0
    assert run("run", str(first / "config.toml"), "--out", str(again)) == 0
    assert _metrics(first) == _metrics(again)


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algorithm.name", "pfed1bs-delta"], "some models still learn; with more --rounds"),
        (["--algorithm.name", "fedavg", "--rest", "1e9"], "all models at rest after round 1"),
        (["--algorithm.name", "local", "--rest", "1e9"], "rest changes nothing"),
        (["--algorithm.name", "local"], ""),
        (["--algorithm.name", "fedavg", "--rest", "0"], ""),
    ],
)
def test_a_run_says_how_it_ended_and_what_changed_nothing(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(resting, "LEFT", float("inf"))
    assert run("run", *SMALL, "--rounds", "2", *words, "--out", str(tmp_path / "run")) == 0
    said = capsys.readouterr().err
    assert told in said and sum(word in said for word in ("still learn", "at rest after", "nothing")) == bool(told)


def _metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.usefixtures("no_page")
def test_resume_equals_uninterrupted(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    flags = [*SMALL, "--checkpoint_every", "2", "--evaluate_every", "1", "--sampled", "3"]
    assert run("run", *flags, "--rounds", "5", "--out", str(whole)) == 0
    assert run("run", *flags, "--rounds", "3", "--out", str(cut)) == 0
    assert run("run", *flags, "--rounds", "5", "--out", str(cut), "--resume") == 0
    assert _metrics(whole) == _metrics(cut)
    assert (whole / "clients.csv").read_text() == (cut / "clients.csv").read_text()


def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on_from_it(tmp_path):
    config = load(None, [*SMALL, "--rounds", "4", "--checkpoint_every", "0", "--out", str(tmp_path / "run")])
    running = Run.prepare(config).rounds()
    next(running), next(running)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    rest = list(Run.prepare(config).rounds(resume=True))
    assert [record["round"] for record in rest] == [2, 3]
    assert [line["round"] for line in _metrics(tmp_path / "run")] == [0, 1, 2, 3]


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("pfed1bs.cli.commands.env_command", interrupted)
    assert run("env") == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def interrupt_after(rounds, monkeypatch):
    whole = Run.rounds

    def some(self, resume=False):
        for record in whole(self, resume):
            yield record
            if record["round"] + 1 == rounds:
                raise KeyboardInterrupt

    monkeypatch.setattr(Run, "rounds", some)


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_message_after_ctrl_c_is_the_command_that_goes_on(command, tmp_path, monkeypatch, capsys):
    out = tmp_path / "with blanks"
    words = [command, *SMALL, "--rounds", "3", "--out", str(out)]
    words += ["--algorithm.name", "ditto"] if command == "run" else ["--algorithms", "ditto", "--seeds", "3"]
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        assert run(*words, "--algorithm.lam", "0.25") == 130
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message.startswith("error: interrupted") and str(out) in message
    assert hint.startswith("hint: go on with: pfed1bs ")
    assert run(*shlex.split(hint.partition("pfed1bs ")[2])) == 0
    folder = out if command == "run" else out / "ditto-s3"
    assert [line["round"] for line in _metrics(folder)] == [0, 1, 2]
    assert "lam = 0.25" in (folder / "config.toml").read_text()


def test_a_full_disk_is_a_failure_with_the_way_out(fresh):
    answer = fresh.command("list", "--json", before="os.dup2(os.open('/dev/full', os.O_WRONLY), 1)")
    assert answer.returncode == 1 and answer.stderr.count("\n") == 2
    assert answer.stderr.startswith("error: disk full") and "hint: free some space" in answer.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["run", "--algorithm.lamda", "1"], 2, "error: unknown key algorithm.lamda\nhint: did you mean algorithm.lam?"),
        (["run", "--data.name", "mnits"], 2, "mnist"),
        (["run", "--data.partition", "labells:2"], 2, "labels"),
        (["run", "--model.name", "mlpp"], 2, "mlp"),
        (["run", "--resume"], 2, "--out"),
        (["run", "--clients", "1000"], 2, "error: "),
        (["compare", "--seeds", "x"], 2, "--seeds 0,1,2"),
        (["compare", "--algorithms", "locl"], 2, "local"),
        (["flower", "gat"], 2, "error: unknown command flower gat\nhint: did you mean gate?"),
        (["flower", "gate", "--host", "x"], 2, "flower gate needs to know the folder"),
        (["flower", "gate", "keys"], 2, "hint: a flag is written --key value"),
        (["flower", "gate", "keys", "--host", "x"], 2, "keys/ca.crt is missing"),
        (["run", "mnist-2clas"], 2, "hint: did you mean mnist-2class?"),
        (["run", "recipes/digits.toml"], 2, "hint: did you mean digits?"),
        (["bench", "kernel"], 2, "error: unknown benchmark kernel\nhint: did you mean kernels?"),
        (["report", "nowhere"], 2, "nowhere"),
        (["report", "--jsn", "x"], 2, "--jsn"),
        (["rnu"], 2, "did you mean run?"),
        (["env", "--jso"], 2, "--jso"),
        (["run", "--round", "5"], 2, "did you mean rounds?"),
        (["run", "--clients", "100000"], 2, "100000 clients with 14 samples each are more than the 1797 samples"),
        (["run", "--data.root", "nowhere"], 2, "data.root = nowhere is no folder"),
        (["run", "--device", "cuda:77"], 2, "there is no device cuda:77 here"),
        (["run", "--seed", "18446744073709551616"], 2, "seed must be in 0 .. 2^64 - 1"),
        (["compare", "--algorithms", "local", "--seeds", "-1"], 2, "seed must be in 0 .. 2^64 - 1"),
        (["data", "--clients", "3", "--picture", "x.xyz"], 2, "x.xyz names no kind of picture"),
        (["run", "--device", "gpu"], 2, "unknown device gpu"),
        (["compare", "--resume"], 2, "--out"),
        (["compare", "--algorithms", "local,local"], 2, "local with seed 0 stands twice"),
        (["compare", "--algorithms", "local", "--seeds", "0,0"], 2, "local with seed 0 stands twice"),
        (["compare", "--seeds", "1,2", "--seed", "5"], 2, "--seed or --seeds, not both"),
        (["compare", "--algorithms", ""], 2, "nothing to compare"),
        (
            ["compare", "--algorithms", "local,fedavg", "--algorithm.ratio", "1"],
            2,
            "an option of pfed1bs, pfed1bs-delta",
        ),
        (["compare", "--algorithms", "local", "--options.ditto.lam", "1"], 2, "ditto is not among the methods"),
        (["compare", "--algorithm.name", "ditto"], 2, "--algorithms ditto"),
        (["compare", "--runs", "pfed1bs-delta stp=0.3"], 2, "did you mean algorithm.step?"),
        (["compare", "--runs", "pfed1bs-delta step"], 2, "must be key=value, got step"),
        (["compare", "--runs", "local lr=0.05"], 2, "local lr=0.05 with seed 0 is the same as local with seed 0"),
        (["compare", "--algorithms", "local", "--runs", "stc p_up=2"], 2, "algorithm.p_up must be a share"),
        (["compare", "--algorithms", "local,fedrep", "--steps", "1"], 2, "fedrep shares the steps"),
    ],
)
def test_mistakes_exit_with_2_and_a_hint(words, code, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == code
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and text in said.err and "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_folder_is_not_touched(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("precious")
    assert run("run", *SMALL, "--out", str(tmp_path)) == 2
    assert "exists" in capsys.readouterr().err and (tmp_path / "metrics.jsonl").read_text() == "precious"


@pytest.mark.usefixtures("no_page")
def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, capsys):
    assert run("run", *SMALL, "--rounds", "1", "--out", str(tmp_path / "run")) == 0
    words = ["run", *SMALL, "--rounds", "2", "--batch", "9", "--out", str(tmp_path / "run"), "--resume"]
    assert run(*words) == 2
    assert "batch was 8, now 9" in capsys.readouterr().err


@pytest.mark.usefixtures("no_page")
def test_a_run_with_all_its_rounds_cannot_be_resumed_without_more(tmp_path, capsys):
    words = ["run", *SMALL, "--rounds", "2", "--out", str(tmp_path / "run")]
    assert run(*words) == 0
    before = (tmp_path / "run" / "summary.json").read_text()
    assert run(*words, "--resume") == 2
    assert "has 2 rounds, 2 were asked for" in capsys.readouterr().err
    assert (tmp_path / "run" / "summary.json").read_text() == before


@pytest.mark.usefixtures("no_page")
def test_a_cut_checkpoint_is_refused_and_kept(tmp_path, capsys):
    assert run("run", *SMALL, "--rounds", "1", "--out", str(tmp_path / "run")) == 0
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert run("run", *SMALL, "--rounds", "2", "--out", str(tmp_path / "run"), "--resume") == 2
    assert "damaged or cut off" in capsys.readouterr().err and path.exists()


@pytest.mark.parametrize("options", [["--algorithm.lr", "1e9", "--algorithm.mu", "1"], ["--algorithm.lr", "1e12"]])
@pytest.mark.parametrize("method", ["pfed1bs", "pfed1bs-delta"])
def test_divergence_stops_with_round_and_client_and_keeps_the_last_good_checkpoint(method, options, tmp_path, capsys):
    words = ["run", *SMALL, "--rounds", "50", "--algorithm.name", method, *options, "--out", str(tmp_path / "run")]
    code, said = run(*words), capsys.readouterr().err
    assert (code, "round" in said, "client" in said, "algorithm.lr" in said) == (1, True, True, True)


def test_data_shows_who_holds_what(tmp_path, capsys):
    assert run("data", "--clients", "5", "--json", "--picture", str(tmp_path / "who.svg")) == 0
    held = json.loads(capsys.readouterr().out)
    assert len(held["train"]) == 5 and sum(map(sum, held["train"])) + sum(map(sum, held["test"])) == 1797
    assert "<svg" in (tmp_path / "who.svg").read_text()
    assert run("data", "--clients", "5") == 0
    assert "client" in capsys.readouterr().out


def test_list_shows_every_method_with_its_bits(capsys):
    assert run("list", "--json") == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["local"]["up"] == 0 and rows["fedavg"]["up"] == 32 * 19210
    assert rows["pfed1bs"]["up"] == rows["pfed1bs"]["down"] == 8 * 241
    assert run("list") == 0


def test_costs_and_env_print(capsys):
    assert run("costs") == 0 and run("costs", "--json") == 0 and run("env") == 0 and run("env", "--json") == 0
    assert "kernel" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in HELP)], ids=" ".join)
def test_every_command_has_a_help_that_fits_the_terminal(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with suppress(SystemExit):
        assert run(*words) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: pfed1bs") and "examples:\n  pfed1bs" in said
    written = [line for line in said.splitlines() if not line.startswith(("usage: ", "  pfed1bs "))]
    assert max(map(len, written)) <= 60


@pytest.mark.parametrize("part", [(name, part) for name in PARTS for part in PARTS[name]], ids=" ".join)
def test_every_part_of_a_command_has_a_help(part, capsys):
    with suppress(SystemExit):
        assert run(*part, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: pfed1bs {' '.join(part)}") and f"examples:\n  pfed1bs {' '.join(part)}" in said


def test_every_command_stands_in_one_group():
    grouped = sum(GROUPS.values(), ())
    assert set(HELP) <= set(grouped) and len(grouped) == len(set(grouped))


def test_columns_that_just_fit_stay_in_one_table():
    assert terminal.parts([0, 1, 2], [10, 5, 5], 24) == [[0, 1, 2]]  # 20 and two gaps of 2
    assert terminal.parts([0, 1, 2], [10, 5, 5], 23) == [[0, 1], [0, 2]]
    assert terminal.parts([0, 1], [10, 50], 20) == [[0, 1]]  # it would not get narrower


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_the_terminal_and_loses_no_digit(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    heads = ["method", "personal", "MiB/round", "nothing", "what is sent", "global"]
    lines = [["pfed1bs-delta", "96.50\u00b10.02", "0.0100", "\u2013", "signs and a scale", "95.84\u00b10.03"]] * 2
    terminal.show_table("a title", heads, lines, [False, True, True, True, False, True])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    for text in (*heads[:3], *lines[0][:3], "global", "95.84\u00b10.03", *lines[0][4].split()):
        assert text in said
    assert ("nothing" in said) == (width >= 80)


def test_version_and_help(capsys):
    assert run("--version") == 0 and run() == 0
    with pytest.raises(SystemExit):
        run("run", "--help")
    assert "--algorithm.lam" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--algorithm.name=ditto"], ["--algorithm.name", "ditto"]])
def test_help_shows_the_options_of_the_method_that_is_named(words, capsys):
    with pytest.raises(SystemExit):
        run("run", *words, "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "pull of the personal model towards the received one (default 0.1)" in said and "--algorithm.gamma" not in said
    )


@pytest.mark.parametrize("words", [["bench"], ["bench", "--help"]])
def test_bench_lists_what_can_be_measured(words, capsys):
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "pfed1bs bench kernels|gpu" in said and "against a copy of the same memory" in " ".join(said.split())


@pytest.mark.parametrize("name", ["kernels", "gpu"])
def test_a_benchmark_has_a_help_of_its_own(name, capsys):
    with pytest.raises(SystemExit):
        run("bench", name, "--help")
    assert f"usage: pfed1bs bench {name}" in capsys.readouterr().out


def test_the_benchmark_of_a_gpu_names_it_in_its_file(tmp_path, monkeypatch, capsys):
    def measured(vgg16):
        yield "kernels", {"operation": "hadamard", "ms": 0.1}
        assert json.loads((tmp_path / "gpu.json").read_text())["kernels"]  # kept, should the rest be cut off

    monkeypatch.setattr("pfed1bs.facts.bench_gpu.measured", measured)
    monkeypatch.setattr("pfed1bs.cli.benches.environment", lambda device: {"device": "NVIDIA Toy", "driver": "1.2"})
    assert run("bench", "gpu", "--json", "--out", str(tmp_path / "gpu.json")) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert found["device"] == "NVIDIA Toy" and found["kernels"] == [{"operation": "hadamard", "ms": 0.1}]
    assert found["python_ms"] > 0  # of the host, which rounds of small models wait for


def test_the_benchmark_of_a_gpu_says_what_to_do_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr("torch.version.cuda", None)
    assert run("bench", "gpu") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: `pfed1bs bench gpu` needs a GPU: torch") and "hint: run it where" in said


def test_a_benchmark_says_what_it_was_made_with_and_is_kept_by_processor(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pfed1bs.facts.bench.kernels", lambda: [{"operation": "transform"}])
    assert run("bench", "kernels", "--json", "--out", str(tmp_path / "results")) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["rows"] == [{"operation": "transform"}] and {"command", "commit", "device", "threads"} <= found.keys()
    [kept] = (tmp_path / "results").glob("kernels-*.json")
    assert json.loads(kept.read_text()) == found and said.err == f"{kept}\n"
