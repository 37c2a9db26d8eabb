"""Feed targets with inputs that nobody sent, for so many minutes of processor time, and write down what came of it.

    python fuzz/run.py messages npz --minutes 5 --out results/fuzz.json

With atheris the inputs are guided by the coverage of the package; `make fuzz` sets that up.
"""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"  # one file for every target, an input in a line, in hexadecimal digits
MEMORY = Path("/dev/shm")  # files that are read lie in memory, where the system has a place for that
SLICE = 300  # seconds after which a new process goes on with what was found
ROOM = 256 << 20  # bytes that one input may take above all inputs before it
SHARE = {"messages": 6}  # times the minutes of the others
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
    atheris.Fuzz()


def fuzz(name: str, minutes: float, room: Path, out: Path | None) -> dict[str, object]:
    """The record of a target, written down after every slice: processor time, inputs, what was found."""
    inputs, found = room / name, room / f"{name}-found"
    for path in (inputs, found):
        path.mkdir()
    import targets

    for i, data in enumerate([*targets.seeds()[name], *corpus(name)]):
        (inputs / f"{i:04d}").write_bytes(data)
    record: dict[str, object] = {"cpu_minutes": 0.0, "inputs": 0, "peak_mib": 0}
    spent, runs, most = 0.0, 0, 0
    while spent < 60 * minutes and not any(found.iterdir()):
        words = [sys.executable, __file__, "--child", name, str(inputs), f"-artifact_prefix={found}/"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        log = subprocess.run(
            [*words, f"-max_total_time={SLICE}", *FLAGS],
            env={**os.environ, "TMPDIR": str(room), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs += int((re.search(r"number_of_executed_units: (\d+)", log.stderr) or [0, 0])[1])
        most = max(most, int((re.search(r"peak_rss_mb: +(\d+)", log.stderr) or [0, 0])[1]))
        if log.returncode:
            print(name, log.stderr[-3000:], file=sys.stderr)
            (found / "status").write_text(str(log.returncode))
        record = {"cpu_minutes": round(spent / 60, 2), "inputs": runs, "peak_mib": most}
        covered = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", log.stderr)
        record |= dict(zip(("edges", "corpus"), map(int, covered[-1]), strict=True)) if covered else {}
        record["found"] = [path.read_bytes().hex() for path in sorted(found.iterdir())]
        if out:
            add(out, name, record)
    return record


def merged(name: str, room: Path) -> list[bytes]:
    """The fewest inputs that cover what all of them cover."""
    (room / f"{name}-least").mkdir()
    words = [sys.executable, __file__, "--child", name, "-merge=1", str(room / f"{name}-least"), str(room / name)]
    subprocess.run([*words, *FLAGS], capture_output=True, check=False)
    return sorted(path.read_bytes() for path in (room / f"{name}-least").iterdir())


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
    parser.add_argument("--out", type=Path, help="JSON file that the records are added to")
    parser.add_argument("--keep", action="store_true", help="write the inputs that cover most to fuzz/corpus")
    given = parser.parse_args()
    bad = 0
    for name in given.names:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as room:
            record = fuzz(name, given.minutes * SHARE.get(name, 1), Path(room), given.out)
            if given.keep:
                kept = [data for data in merged(name, Path(room)) if data not in targets.seeds()[name]]
                CORPUS.mkdir(exist_ok=True)
                (CORPUS / f"{name}.txt").write_text("".join(f"{data.hex()}\n" for data in kept if len(data) <= 1024))
        print(name, json.dumps(record), flush=True)
        bad += len(record["found"])  # type: ignore[arg-type]
    return min(bad, 1)


def add(path: Path, name: str, record: dict[str, object]) -> None:
    """Put a record beside those of other targets."""
    content = json.loads(path.read_text()) if path.exists() else {"targets": {}}
    content["targets"][name] = record
    content["command"] = "make fuzz"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    content |= {"commit": commit, "python": platform.python_version(), "processor": platform.machine()}
    content["cpus"] = os.cpu_count()
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
