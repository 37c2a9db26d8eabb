"""New processes that have imported torch and nothing of ours: forks of one, for which that import is paid once."""

import json
import os
import subprocess
import sys
from subprocess import CompletedProcess

HOST = """
import json, os, sys, tempfile, torch
for line in sys.stdin:
    code, variables, folder = json.loads(line)
    files = [tempfile.TemporaryFile() for _ in range(2)]
    child = os.fork()
    if not child:
        break
    end, told = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), []
    for file in files:
        file.seek(0)
        told.append(file.read().decode())
    print(json.dumps([end, *told]), flush=True)
else:
    sys.exit()
os.environ.update(variables)
os.chdir(folder)
for number, file in enumerate(files, 1):
    os.dup2(file.fileno(), number)
exec(code, {"__name__": "__main__"})
sys.stdout.flush(), sys.stderr.flush()
os._exit(0)  # to take torch apart takes as long as all the rest
"""
SCRIPT = "from pfed1bs.cli.main import script; script()"
OURS = ("PFED1BS_KERNEL", "MKL_CBWR")  # what a program may be told by variables, and is not by those around the tests


class Fresh:
    """The process that is forked, and the way to have it run programs, one at a time."""

    def __enter__(self):
        around = {name: value for name, value in os.environ.items() if name not in OURS}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.host = subprocess.Popen([sys.executable, "-c", HOST], env=around, **pipes)
        return self

    def __exit__(self, *_):
        self.host.communicate()

    def __call__(self, code, folder=".", **variables):
        """The end of a program and what it has said, under these variables of the environment."""
        self.host.stdin.write(json.dumps([code, variables, str(folder)]) + "\n")
        self.host.stdin.flush()
        return CompletedProcess(code, *json.loads(self.host.stdout.readline()))

    def command(self, *words, before="", **more):
        """The same for a command line of ours, with a line before it."""
        return self(f"import os, sys\n{before}\nsys.argv[1:] = {words!r}\n{SCRIPT}", **more)
