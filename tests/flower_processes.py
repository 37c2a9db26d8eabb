"""A federation of real processes on loopback: one SuperLink, SuperNodes, and runs; everything is stopped at the end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

BIN = Path(shutil.which("flower-superlink", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "").parent
QUIET = {  # nothing may leave this machine
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def descendants(root):
    """Processes that a process has started, and those that they have."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [*children.get(root, [])]
    for number in found:
        found += children.get(number, [])
    return found


class Processes:
    """What a test starts; leaving the `with` block ends all of it."""

    def __init__(self, home, keys=None, via=None):
        self.home, self.keys = Path(home), keys
        self.port, *self.runtime = free_ports(9)
        self.public = "127.0.0.1"  # where nodes find the SuperLink, or the gate before it
        self.via = via or {}  # port that a node connects to instead
        self.running = {}
        self.home.mkdir(parents=True, exist_ok=True)
        secure = f'root-certificates = "{keys}/ca.crt"' if keys else "insecure = true"
        (self.home / "config.toml").write_text(f'[superlink.it]\naddress = "127.0.0.1:{self.port}"\n{secure}\n')
        self.env = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in [*self.running]:
            self.kill(name)

    def start(self, name, words):
        """A process with its children in a group of their own, its words in NAME.log."""
        log = (self.home / f"{name}.log").open("ab")
        with log:
            self.running[name] = subprocess.Popen(
                words, cwd=self.home, env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        return self.running[name]

    def kill(self, name):
        """Pull the plug: kill -9 for a process and all it has started."""
        process = self.running.pop(name)
        for number in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait(60)

    def log(self, name):
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, what, condition, seconds=240):
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.home.glob("*.log")
        )
        raise AssertionError(f"{what} did not happen in {seconds} s\n{logs}")

    def superlink(self, *words):
        secure = ["--insecure"]
        if self.keys:
            secure = ["--ssl-ca-certfile", f"{self.keys}/ca.crt", "--ssl-certfile", f"{self.keys}/server.pem"]
            secure += ["--ssl-keyfile", f"{self.keys}/server.key", "--enable-supernode-auth"]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self.start("superlink", [f"{BIN}/flower-superlink", *secure, *where, *words])
        self.until("the SuperLink", lambda: self.listens("127.0.0.1"))

    def gate(self, host="127.0.0.2"):
        """What the network sees: another address, where the SuperLink does not listen."""
        where = ["--host", host, "--port", str(self.port), "--superlink", f"127.0.0.1:{self.port}"]
        self.start("gate", [sys.executable, "-m", "pfed1bs", "flower", "gate", str(self.keys), *where])
        self.until("the gate", lambda: self.listens(host))
        self.public = host

    def listens(self, host):
        with socket.socket() as one:
            return one.connect_ex((host, self.port)) == 0

    def supernode(self, number, key=None):
        """The node of a partition."""
        secure = ["--insecure"]
        if self.keys:
            secure = ["--root-certificates", f"{self.keys}/ca.crt"]
            secure += ["--auth-supernode-private-key", str(key or f"{self.keys}/node{number}")]
        where = ["--superlink", f"{self.public}:{self.via.get(number, self.port)}"]
        where += ["--port", str(self.runtime[number])]
        node = ["--node-config", f"partition-id={number} state='{self.home}/state{number}'"]
        return self.start(f"node{number}", [f"{BIN}/flower-supernode", *secure, *where, *node])

    def flwr(self, *words, seconds=600, home=None):
        """A command of Flower's, to its end; by somebody else, who has a home of his own."""
        env = {**self.env, "FLWR_HOME": str(home or self.home)}
        done = subprocess.run(
            [f"{BIN}/flwr", *words], cwd=self.home, env=env, capture_output=True, text=True, timeout=seconds
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, app, *words, **keys):
        """Submit a run; values are written as TOML."""
        values = " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
        code, text = self.flwr("run", str(app), "it", *words, "-c", values)
        assert code == 0, text
        return text
