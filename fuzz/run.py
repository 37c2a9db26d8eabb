"""Feed targets with inputs that nobody sent, for so many minutes of processor time, and write down what came of it.

    python fuzz/run.py messages npz --minutes 5 --parallel 4 --out results/fuzz.json

The inputs are guided by the coverage of the package, which needs atheris: `make fuzz`, or README.md beside this file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import ceil
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from signal import SIGKILL

from book import Record, about, earlier, write

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"  # one file for every target, an input in a line, in hexadecimal digits
MEMORY = Path("/dev/shm")  # files that are read lie in memory, where the system has a place for that
SLICE = 100  # seconds after which a new process goes on with what was found
ROOM = 256 << 20  # bytes that one input may take above all inputs before it
BEGIN = 25  # seconds that a process may take to begin and to end
LEAST = 5  # seconds for which one is worth while
LATE = 300  # seconds after its time at which it is ended from outside, and hangs
SHARE = {"messages": 6}  # times the minutes of the others
KEPT = 16 << 10  # bytes of inputs that are kept for a target
FLAGS = [
    "-timeout=20",
    "-report_slow_units=99",
    "-rss_limit_mb=4096",
    "-print_final_stats=1",
    "-use_value_profile=1",
    "-max_len=8192",
]


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    path = CORPUS / f"{name}.txt"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def peak() -> int:
    """Bytes that this process has had at most."""
    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def child(name: str, flags: list[str]) -> None:
    """Fuzz a target in this process; it ends with a status that is not 0 if something was found."""
    import atheris

    with atheris.instrument_imports(include=["pfed1bs"]):
        import targets
    target = targets.TARGETS[name]
    for data in targets.seeds()[name]:
        target(data)

    def one(data: bytes) -> None:
        before = peak()
        target(data)
        if peak() - before > ROOM:
            raise MemoryError(f"an input of {len(data)} bytes took {peak() - before >> 20} MiB")

    atheris.Setup([sys.argv[0], *flags], one)
    print(f"set_up: {time.process_time()}", file=sys.stderr, flush=True)
    atheris.Fuzz()


class Run:
    """The processes of all targets; the one that has most minutes left is next."""

    def __init__(self, room: Path, records: dict[str, Record], goals: dict[str, float], until: float) -> None:
        self.room, self.records, self.goals, self.until = room, records, goals, until
        self.busy, self.seed, self.lock = dict.fromkeys(goals, 0.0), 0, threading.Lock()
        import targets

        known = targets.seeds()
        for name in goals:
            for path in (room / name, room / f"{name}-found"):
                path.mkdir(parents=True)
            for i, data in enumerate([*known[name], *corpus(name)]):
                (room / name / f"{i:04d}").write_bytes(data)

    def take(self) -> tuple[str, int, int] | None:
        """A target, the seconds it gets, and a seed; None if there is nothing to do."""
        with self.lock:
            left = {name: self.goals[name] - record.cpu_minutes * 60 for name, record in self.records.items()}
            left = {name: left[name] - self.busy[name] for name in self.goals if not self.records[name].found}
            name = max(left, key=lambda one: left[one], default="")
            need, room = left.get(name, 0.0), int(min(self.until - time.monotonic(), SLICE))
            if need <= 0 or room < LEAST:
                return None
            seconds = min(room, max(LEAST, ceil(need)))
            self.busy[name] += seconds
            self.seed += 1
            return name, seconds, self.records[name].processes + self.seed

    def work(self, out: Path | None) -> None:
        """Do what is left, one process after the other, and write it down."""
        while job := self.take():
            name, seconds, seed = job
            patience = min(seconds + LATE, self.until + BEGIN - time.monotonic())
            status, log, spent = ended(name, self.room, patience, [f"-max_total_time={seconds}", f"-seed={seed}"])
            with self.lock:
                self.busy[name] -= seconds
                self.records[name].add(log, spent)
                found = self.room / f"{name}-found"
                if status and not (status == -SIGKILL and patience < seconds + LATE):  # cut, not found
                    print(name, log[-3000:], file=sys.stderr)
                    (found / f"status-{seed}").write_text(str(status))
                self.records[name].found = [path.read_bytes().hex() for path in sorted(found.iterdir())]
                if out:
                    write(out, self.records)


def ended(name: str, room: Path, patience: float, flags: list[str]) -> tuple[int, str, float]:
    """A process that fuzzes, for so many seconds at most: its status, what it wrote, and its processor time."""
    words = [sys.executable, __file__, "--child", name, str(room / name), f"-artifact_prefix={room / name}-found/"]
    with tempfile.TemporaryDirectory(dir=room) as files, open(Path(files) / "log", "w+", errors="replace") as log:
        env = {**os.environ, "TMPDIR": files, "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen([*words, *flags, *FLAGS], env=env, stdout=log, stderr=log)
        alarm = threading.Timer(patience, process.kill)
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        alarm.cancel()
        log.seek(0)
        return process.returncode, log.read(), usage.ru_utime + usage.ru_stime


def merged(name: str, room: Path) -> list[bytes]:
    """The fewest inputs that cover what all of them cover, the shortest first."""
    least = room / f"{name}-least"
    least.mkdir()
    words = [sys.executable, __file__, "--child", name, "-merge=1", str(least), str(room / name)]
    subprocess.run([*words, *FLAGS], capture_output=True, check=False)
    return sorted((path.read_bytes() for path in least.iterdir()), key=lambda data: (len(data), data))


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Write inputs to the corpus, as many as there is room for."""
    import targets

    lines, size, known = [], 0, targets.seeds()[name]
    for data in inputs:
        size += len(data)
        if data not in known and size <= KEPT:
            lines.append(data.hex())
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def main() -> int:
    """Fuzz the targets that are asked for, all if none is."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return 0
    import targets

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*targets.TARGETS], help=f"of {', '.join(targets.TARGETS)}")
    parser.add_argument(
        "--minutes", type=float, default=5, help="of processor time for each; messages get six times it"
    )
    parser.add_argument("--parallel", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which it ends, done or not")
    parser.add_argument("--out", type=Path, help="JSON file that the records are added to")
    parser.add_argument("--resume", action="store_true", help="count the minutes that --out has already")
    parser.add_argument("--keep", action="store_true", help="write the inputs that cover most to fuzz/corpus")
    given = parser.parse_args()
    about()
    until = time.monotonic() + given.seconds - BEGIN
    goals = {name: 60 * given.minutes * SHARE.get(name, 1) for name in given.names}
    records = {name: Record() for name in given.names} | (earlier(given.out, given.names) if given.resume else {})
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as room:
        run = Run(Path(room), records, goals, until)
        with ThreadPoolExecutor(given.parallel) as pool:
            list(pool.map(lambda _: run.work(given.out), range(given.parallel)))
        for name in given.names if given.keep else []:
            keep(name, merged(name, Path(room)))
    for name, record in records.items():
        print(name, json.dumps(asdict(record)), flush=True)
    return int(any(record.found for record in records.values()))


if __name__ == "__main__":
    sys.exit(main())
