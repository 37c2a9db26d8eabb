"""Work on several threads, each of which computes alone."""

import os
import threading

import pytest
import torch

from pfed1bs.engine.workers import ahead, alone, portions, spread


def test_results_come_in_the_order_of_the_items(threads):
    threads(2)
    assert spread(lambda item: item * item, [3, 1, 2, 5]) == [9, 1, 4, 25]


def test_every_thread_computes_alone_and_the_number_of_threads_comes_back(threads):
    threads(2)
    assert spread(lambda _: torch.get_num_threads(), range(4)) == [1, 1, 1, 1]
    assert torch.get_num_threads() == 2


def test_one_piece_computes_alone_too_where_it_was_asked_for(threads):
    threads(2)
    assert spread(lambda _: (torch.get_num_threads(), threading.get_ident()), [0]) == [(1, threading.get_ident())]
    assert torch.get_num_threads() == 2


def test_pieces_for_another_device_wait_for_each_other_and_leave_the_threads_as_they_are(threads):
    threads(2)
    told = spread(lambda _: (torch.get_num_threads(), threading.get_ident()), range(3), torch.device("cuda"))
    assert told == [(2, threading.get_ident())] * 3
    for numbers, count in ((1 << 21, 2), (1000, 1)):  # few are dealt with before other threads are awake
        with alone(torch.device("cuda"), numbers):
            assert torch.get_num_threads() == count


def test_the_number_of_threads_comes_back_after_an_error(threads):
    threads(2)
    with pytest.raises(ValueError, match="no such client"), alone():
        assert torch.get_num_threads() == 1
        raise ValueError("no such client")
    assert torch.get_num_threads() == 2


def test_two_pieces_run_at_the_same_time_on_threads_that_stay(threads):
    threads(2)
    meeting = threading.Barrier(2, timeout=30)

    def meet(_: int) -> int:
        meeting.wait()
        return threading.get_ident()

    first, second = (set(spread(meet, range(2))) for _ in range(2))
    assert len(first) == 2
    assert first == second


def test_an_error_is_raised_when_nothing_runs_any_more(threads):
    threads(2)
    begun, ended = threading.Event(), []

    def work(item: str) -> None:
        if item == "bad":
            begun.wait(30)
            raise ValueError("no such client")
        begun.set()
        ended.append(torch.ones(100, 100).sum().item())

    with pytest.raises(ValueError, match="no such client"):
        spread(work, ["bad", "good"])
    assert ended == [10_000.0]
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(threads):
    threads(2)
    assert spread(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if not child:
        os._exit(0 if spread(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_portions_cover_all_clients_in_order_a_chunk_divided_among_the_threads(threads):
    threads(2)
    assert [part.tolist() for part in portions(5, None)] == [[0, 1, 2], [3, 4]]
    assert [part.tolist() for part in portions(5, 2)] == [[0], [1], [2], [3], [4]]
    assert [part.tolist() for part in portions(5, 3, torch.device("cuda"))] == [[0, 1, 2], [3, 4]]
    assert portions(0, None) == []


def test_work_that_is_done_ahead_comes_in_order_and_never_further_than_asked(threads):
    threads(4)
    begun = []

    def work(i):
        begun.append(i)
        return i * i

    for taken, result in enumerate(ahead(work, range(20), 3)):
        assert result == taken * taken and max(begun) <= taken + 3
    assert sorted(begun) == list(range(20))


def test_whoever_computes_alone_has_the_same_threads_ahead_each_of_which_computes_alone(threads):
    threads(2)
    meeting = threading.Barrier(2, timeout=30)

    def meet(_: int) -> tuple[int, int]:
        meeting.wait()
        return threading.get_ident(), torch.get_num_threads()

    before = set(ahead(meet, range(2)))
    with alone(), alone():
        meanwhile = set(ahead(meet, range(2)))
    assert before == meanwhile and {count for _, count in before} == {1}
    threads(1)
    with alone():
        assert set(ahead(lambda _: threading.get_ident(), range(2))) == {threading.get_ident()}


def test_nothing_is_left_running_when_work_ahead_is_given_up(threads):
    threads(2)
    running = []

    def work(i):
        running.append(i)
        if i == 2:
            raise ValueError("message 2")
        return running.remove(i) or i

    with pytest.raises(ValueError, match="message 2"):
        list(ahead(work, range(50), 4))
    assert running == [2]
    for result in ahead(lambda i: i, range(50), 4):
        if result == 3:
            break
