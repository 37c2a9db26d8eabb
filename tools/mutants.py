"""Small faults put into the code one by one, and which of them no test sees.

    python tools/mutants.py --count 300 --seed 0 --parallel 2 --out results/mutants.json

A mutant is one changed operator, comparison, condition or number in one of FILES: the methods, the messages, the votes,
who is told what, replicas and rest. At first all tests of these rooms run without a fault, to see how long each takes
and which lines it runs; those that fail, for want of a package for instance, are left out and listed. Then each mutant
meets the tests that run its line, the shortest first, in a copy of the sources of its own. It is killed when one fails
or time runs out. What errors say and the defaults of options are left alone. With --out the work may stop at any time
and go on later; --again tries survivors once more.
"""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from faults import ROOT, Mutant, mutants
from surveying import SOURCE, Chosen, Survey, side_by_side, start, surveyed

FILES = ["algorithms/[!_]*.py", "algorithms/base/[!_]*.py", "wire/[!_]*.py", "core/votes.py"]
FILES += ["engine/exchange.py", "engine/replicas.py", "engine/rest.py"]
FACTS = "import json; from pfed1bs.runs.environment import environment; print(json.dumps(environment('cpu')))"


def judged(chosen: list[Mutant], survey: Survey, own: argparse.Namespace) -> Iterator[tuple[Mutant, str]]:
    """What becomes of each mutant, until time is over."""
    begun = time.monotonic()

    def begin(folder: Path, mutant: Mutant) -> int:
        (folder / mutant.file).write_text(mutant.text)
        tests = survey.tests(mutant)
        limit = own.limit + int(3 * sum(survey.seconds[test] for test in tests))
        return start(folder, sorted({test.split("::")[0] for test in tests}), Chosen(tests), limit)

    yield from ((mutant, "survived") for mutant in chosen if not survey.tests(mutant))  # no test runs its line
    waiting = (one for one in chosen if time.monotonic() - begun < own.seconds and survey.tests(one))
    jobs = ((mutant, lambda folder, mutant=mutant: begin(folder, mutant)) for mutant in waiting)
    for mutant, folder, status in side_by_side(jobs, own.parallel):
        shutil.copy(ROOT / mutant.file, folder / mutant.file)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 5:
            sys.exit(f"pytest found no test for {mutant.file}")
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM)
        yield mutant, "time" if late else "killed" if status else "survived"


class Record:
    """The file in which outcomes are kept, so that work goes on where it stopped; reasons written there stay."""

    def __init__(self, chosen: list[Mutant], facts: dict[str, object], out: Path | None) -> None:
        before = json.loads(out.read_text())["mutants"] if out and out.exists() else []
        known = {(item["file"], *item["diff"]): item for item in before}
        self.facts, self.out = facts, out
        self.found = {mutant: known.get((str(mutant.file), *mutant.item()["diff"])) for mutant in chosen}

    def left(self, again: bool) -> list[Mutant]:
        """Those that were not tried, and before them survivors to be tried again."""
        survivors = [mutant for mutant, item in self.found.items() if item and item["outcome"] == "survived"]
        return [*(survivors if again else []), *(mutant for mutant, item in self.found.items() if not item)]

    def add(self, mutant: Mutant, outcome: str) -> None:
        """Write it down and say it."""
        item = mutant.item(outcome, str(self.facts["commit"]))
        reason = (
            {"reason": old["reason"]} if outcome == "survived" and "reason" in (old := self.found[mutant] or {}) else {}
        )
        self.found[mutant] = {**item, **reason}
        print(outcome, mutant.file, *item["diff"], sep="\n  ", flush=True)
        items = [item for item in self.found.values() if item]
        ends = Counter(item["outcome"] for item in items)
        if self.out:
            facts = {
                **self.facts,
                "run": len(items),
                "killed": ends["killed"] + ends["time"],
                "out_of_time": ends["time"],
            }
            lines = ",\n  ".join(map(json.dumps, sorted(items, key=lambda item: item["outcome"] != "survived")))
            self.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "mutants": [\n  {lines}\n ]\n}}\n')

    def __str__(self) -> str:
        items = [item for item in self.found.values() if item]
        killed = sum(item["outcome"] != "survived" for item in items)
        return f"{killed} of {len(items)} killed, {len(self.found) - len(items)} to do"


def main() -> None:
    """Sample, run, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=3600, help="after which no mutant begins")
    parser.add_argument(
        "--limit",
        type=int,
        default=60,
        help="seconds of the processor for one mutant, beside three times those its tests take",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1, help="mutants at a time")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--only", default="", help="what paths must have, keeping|trial for instance")
    parser.add_argument("--out", type=Path)
    own = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import hypothesis  # noqa: F401 (here, so that it is done once, before the processes part)
    import pytest  # noqa: F401
    import torch._dynamo  # which torch loads at the first gradient

    torch.set_num_threads(1)
    files = sorted(file.relative_to(ROOT) for glob in FILES for file in (ROOT / SOURCE).glob(glob))
    possible = [mutant for file in files if re.search(own.only, str(file)) for mutant in mutants(file)]
    chosen = random.Random(own.seed).sample(possible, min(own.count, len(possible)))
    survey = surveyed(own.parallel)
    if not survey.seconds:
        sys.exit("no test could run")
    print(len(survey.seconds), "tests, left out:", *survey.failing, sep="\n  ", flush=True)
    told = subprocess.run([sys.executable, "-c", FACTS], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    facts = {**json.loads(told.stdout), "command": shlex.join(["python", *sys.argv]), "possible": len(possible)}
    record = Record(chosen, {**facts, "tests": len(survey.seconds), "left_out": survey.failing}, own.out)
    with suppress(KeyboardInterrupt):
        for mutant, outcome in judged(record.left(own.again), survey, own):
            record.add(mutant, outcome)
    print(record)


if __name__ == "__main__":
    main()
