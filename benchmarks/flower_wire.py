"""Bytes on the wire of a federation on loopback: a counting proxy between every SuperNode and the SuperLink.

    python benchmarks/flower_wire.py --out results/flower-wire.json

It takes about three minutes and sends nothing off the machine. The proxy reads the lengths in HTTP's headers and puts
every request and its response under the request's path. Polls that find nothing and heartbeats come with time, not with
messages, and are counted apart. TLS is off; it adds about 30 bytes to each record of at most 16 kB.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from flower_processes import Processes, free_ports  # noqa: E402
from pfed1bs.cli.main import main as pfed1bs  # noqa: E402
from pfed1bs.core.origin import commit  # noqa: E402

NODES, ROUNDS = 3, 4
METHODS = ("pfed1bs", "fedavg")
POLLS = ("pull-messages", "heartbeat")  # in the paths of requests that come with time
EMPTY = 400  # bytes of the longest response to a poll that says there is nothing


class Counts:
    """Bytes by kind of request, both ways, over all nodes."""

    def __init__(self):
        self.lock, self.up, self.down, self.requests = threading.Lock(), Counter(), Counter(), Counter()

    def add(self, path, up, down):
        name = path.rpartition("/")[2]
        if any(word in name for word in POLLS):
            name += " (idle)" if down <= EMPTY else ""
        with self.lock:
            self.up[name] += up
            self.down[name] += down
            self.requests[name] += 1

    def now(self):
        with self.lock:
            return Counter(self.up), Counter(self.down), Counter(self.requests)


def one_message(source):
    """The bytes of the next HTTP message, and its first line; empty at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = source.readline()
        if not line:
            return b"", ""
        head += line
    lines = head.decode("latin-1").lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    if fields.get("transfer-encoding") == "chunked":
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += source.readline()
    else:
        body = source.read(int(fields.get("content-length", 0)))
    return head + body, lines[0]


def serve(client, port, counts):
    """Pass requests and responses on, one after the other, until a side ends."""
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        inbound, outbound = client.makefile("rb"), server.makefile("rb")
        while True:
            request, first = one_message(inbound)
            if not request:
                return
            server.sendall(request)
            response, _ = one_message(outbound)
            client.sendall(response)
            counts.add(first.split(" ")[1], len(request), len(response))


def proxy(port, target, counts):
    """Listen, and give every connection a thread."""
    listener = socket.create_server(("127.0.0.1", port))

    def accept():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, target, counts), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def measured(processes, app, folder, name, counts):
    """What a round of a method costs a node, and what its messages are."""
    processes.run(app, out=str(folder), **{"algorithm.name": name})

    def ended(number):
        path = folder / "events.log"
        return path.exists() and f"round {number}: counted 0 1 2" in path.read_text()

    processes.until("the first round", lambda: ended(0), 120)
    before, began = counts.now(), time.monotonic()
    processes.until("the last round", lambda: ended(ROUNDS - 2), 120)
    after, seconds = counts.now(), time.monotonic() - began
    processes.until("the end", (folder / "summary.json").exists, 60)
    up, down, requests = (new - old for new, old in zip(after, before, strict=True))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1 : ROUNDS - 1]
    per = NODES * (ROUNDS - 2)

    def busy(count):
        return sum(value for key, value in count.items() if "idle" not in key and "heartbeat" not in key) / per

    def payload(key):
        return sum(line[key] for line in lines) / per

    return {
        "payload": {"up": payload("up_bytes"), "down": payload("down_bytes")},
        "protobuf": {"up": payload("protobuf_up_bytes"), "down": payload("protobuf_down_bytes")},
        "wire": {"up": round(busy(up), 1), "down": round(busy(down), 1)},
        "idle": {"up": sum(up.values()) / per - busy(up), "seconds": round(seconds / (ROUNDS - 2), 2)},
        "bar_up": 12_000 + 1.01 * payload("up_bytes"),
        "by_request_up": {key: round(value / per, 1) for key, value in sorted(up.items())},
        "requests": {key: round(value / per, 2) for key, value in sorted(requests.items())},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        app = Path(home) / "app"
        flags = ["--clients", str(NODES), "--rounds", str(ROUNDS), "--data.partition", "iid", "--steps", "2"]
        pfed1bs(["flower", "init", str(app), *flags])
        ports = free_ports(NODES)
        with Processes(Path(home) / "home", via=dict(enumerate(ports))) as processes:
            counts = Counts()
            for port in ports:
                proxy(port, processes.port, counts)
            processes.superlink()
            for k in range(NODES):
                processes.supernode(k)
            found = {name: measured(processes, app, Path(home) / name, name, counts) for name in METHODS}
    result = {"command": "python benchmarks/flower_wire.py", "commit": commit(), "flwr": "1.41.0"}
    result |= {"unit": "bytes per client and round", "nodes": NODES, "methods": found}
    print(json.dumps(result, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
