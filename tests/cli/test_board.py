"""The progress of many runs, read from their folders."""

import json

import pytest

from pfed1bs.cli.board import Board, clock
from pfed1bs.runs.config import load
from pfed1bs.studies.comparison import Entry


def line(number, **more):
    return json.dumps({"round": number, **more}) + "\n"


@pytest.fixture
def board(tmp_path):
    found = Board(tmp_path, total=3)
    for seed in (0, 1):
        (tmp_path / f"local-s{seed}").mkdir()
        found.add([Entry(f"local-s{seed}", load(None, ["--seed", str(seed), "--rounds", "10"]))])
    return found


def write(board, run, text):
    with (board.folder / run / "metrics.jsonl").open("a") as file:
        file.write(text)


def test_the_board_counts_rounds_as_they_are_written(board):
    assert board.counted() == (0, 30)  # two runs that are known, and one that is not yet
    write(board, "local-s0", line(0) + line(1, accuracy=91.5))
    assert board.counted() == (2, 28)
    write(board, "local-s0", '{"round": 2, "accu')
    assert board.counted() == (2, 28)
    write(board, "local-s0", 'racy": 92.25}\n')
    assert board.counted() == (3, 27)
    assert [run.told() for run in board.runs] == ["92.25 @3", ""]


def test_a_run_that_ends_early_leaves_no_rounds(board):
    write(board, "local-s0", line(0, accuracy=90.0))
    (board.folder / "local-s0" / "summary.json").write_text("{}")
    assert board.counted() == (1, 20)
    assert board.told().startswith("1 of 3 runs, ") and board.runs[0].told() == "90.00"


def test_rounds_that_were_there_before_do_not_count_for_the_speed(board):
    (board.folder / "ditto-s0").mkdir()
    write(board, "ditto-s0", "".join(line(number) for number in range(6)))
    board.add([Entry("ditto-s0", load(None, ["--rounds", "10"]))])
    assert board.counted() == (6, 24) and ", 0.0 rounds/s, 0:00 elapsed" in board.told()


def test_metrics_that_are_begun_again_are_read_again(board):
    write(board, "local-s0", line(0) + line(1) + line(2))
    assert board.counted()[0] == 3
    (board.folder / "local-s0" / "metrics.jsonl").write_text(line(0))
    assert board.counted()[0] == 1


def test_metrics_that_are_begun_again_and_longer_by_now_are_read_again(board):
    write(board, "local-s0", line(0) + line(1))
    assert board.counted()[0] == 2
    (board.folder / "local-s0" / "metrics.jsonl").write_text("".join(line(number, loss=0.25) for number in range(4)))
    assert board.counted()[0] == 4


def test_the_board_shows_the_last_scores_by_method_and_seed(board, capsys):
    write(board, "local-s0", line(0, accuracy=91.5))
    write(board, "local-s1", line(0, accuracy=90.25))
    board.console.width = 60
    with board.console.capture() as drawn:
        board.console.print(board.drawn())
    said = drawn.get()
    assert "0 of 3 runs" in said and "seed 1" in said and "91.50 @1" in said and "90.25 @1" in said


def test_times_are_read_as_on_a_clock():
    assert [clock(seconds) for seconds in (0, 59.9, 61, 3661)] == ["0:00", "0:59", "1:01", "1:01:01"]
