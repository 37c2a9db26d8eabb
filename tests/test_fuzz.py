"""Everything that reads what others wrote, with thousands of inputs that nobody meant; `make fuzz` takes longer."""

import random
import resource

import pytest

import disk
from run import corpus
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
