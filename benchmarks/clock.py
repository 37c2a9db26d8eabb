"""How long a table takes by the clock: any command of pfed1bs from its start to its end, one row each.

    python benchmarks/clock.py results/tables-gpu.json compare cifar10-delta --rounds 300 --seeds 0,1,2 --parallel 6
    BESIDE="9 processes of other runs" python benchmarks/clock.py results/tables-gpu.json compare mnist-2class

The row has the command, the seconds, what was run where and who else computed on the device meanwhile; rows of other
commands in the file stay. A command that fails leaves no row, and one that finds finished runs is refused: what is not
run takes no time.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from pfed1bs.runs.environment import environment


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, words = Path(sys.argv[1]), sys.argv[2:]
    if {"--resume", "--join"} & {*words}:
        sys.exit("error: runs that are there already take no time\n  -> leave --resume and --join out")
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pfed1bs", *words], check=True, stdout=subprocess.DEVNULL)
    command = shlex.join(["pfed1bs", *words])
    facts = {"command": command, "beside": os.environ.get("BESIDE", "not said")}
    row = {**environment(), **facts, "seconds": round(time.perf_counter() - began, 1)}
    before = json.loads(out.read_text())["runs"] if out.exists() else []
    rows = [*(old for old in before if old["command"] != command), row]
    out.write_text(json.dumps({"runs": rows}, indent=1) + "\n")
    print(f"{row['seconds']} s: {command}")


if __name__ == "__main__":
    main()
