"""Everything that reads what others wrote, with thousands of inputs that nobody meant; `make fuzz` takes longer."""

import random
import resource
import time

import pytest

import disk
from book import Record, about, earlier, write
from run import Run, corpus
from targets import TARGETS, mutant, seeds

COUNT = {"snapshots": 60, "config": 60, "owners": 60}  # slow ones
SEEDS = seeds()


@pytest.fixture(scope="module", autouse=True)
def little_room():
    """Memory for all of them together; a header that promises more than there is asks for gigabytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    disk.clean()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_anything_but_read_or_refused(name):
    chance, known = random.Random(name), [*SEEDS[name], *corpus(name)]
    for data in known:
        TARGETS[name](data)
    for _ in range(COUNT.get(name, 300)):
        TARGETS[name](mutant(chance, chance.choice(known), chance.choice(known)))


def test_processor_time_is_counted_without_that_of_imports_and_what_a_process_that_was_cut_did_counts():
    record = Record()
    record.add("set_up: 6.5\n#9\tNEW cov: 3 ft: 4 corp: 2/9b\nstat::number_of_executed_units: 12\npeak_rss_mb: 7", 18.5)
    record.add("set_up: 6\n#40\tpulse cov: 2 ft: 4 corp: 1/9b", 12)
    assert record == Record(cpu_minutes=0.3, inputs=52, processes=2, peak_mib=7, edges=3, corpus=2)
    record.add("no module named torch", 2)
    assert (record.cpu_minutes, record.processes) == (0.3, 3)


def test_the_target_with_most_minutes_left_is_next_until_the_time_is_over(tmp_path):
    records = {"rice": Record(cpu_minutes=1), "idx": Record(), "npz": Record(found=["00"])}
    run = Run(tmp_path, records, {"rice": 200, "idx": 101, "npz": 900}, time.monotonic() + 1000)
    assert [(job[:2] if (job := run.take()) else None) for _ in range(5)] == [
        ("rice", 100),
        ("idx", 100),
        ("rice", 40),
        ("idx", 5),
        None,
    ]
    late = Run(tmp_path / "late", {"rice": Record()}, {"rice": 200}, time.monotonic() + 4)
    assert late.take() is None


def test_minutes_are_resumed_for_the_same_code_only(tmp_path, monkeypatch):
    about.cache_clear()
    monkeypatch.setenv("PFED1BS_COMMIT", "one")
    write(tmp_path / "out.json", {"rice": Record(cpu_minutes=2.5, processes=1), "idx": Record()})
    assert earlier(tmp_path / "out.json", ["rice", "idx"]) == {"rice": Record(cpu_minutes=2.5, processes=1)}
    about.cache_clear()
    monkeypatch.setenv("PFED1BS_COMMIT", "two")
    assert earlier(tmp_path / "out.json", ["rice", "idx"]) == {}
    about.cache_clear()
