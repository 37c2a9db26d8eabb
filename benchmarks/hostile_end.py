"""What is left of a federation after benchmarks/hostile.py, beside the same one without those who attacked it."""

import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from flower_desk import Desk, same  # noqa: E402
from pfed1bs.flower.server import start  # noqa: E402
from pfed1bs.flower.serving import Folder  # noqa: E402
from pfed1bs.flower.states import Shelf  # noqa: E402
from pfed1bs.runs import checkpoint  # noqa: E402
from pfed1bs.runs.folder import identity  # noqa: E402


def server_of(folder, rounds):
    """The server's state after so many rounds."""
    tensors, _ = checkpoint.read(folder / f"after-{rounds}.safetensors")
    return {key.removeprefix("server/"): value for key, value in tensors.items() if key.startswith("server/")}


def counted(folder):
    """By round: the clients that were counted."""
    found = re.findall(r"round (\d+): counted ([\d ]*),", (folder / "events.log").read_text())
    return {int(round): [int(word) for word in ids.split()] for round, ids in found}


def reference(home, run, taken, rounds):
    """The same rounds in one process with these clients only: progress, states and accuracy."""
    desk = Desk({**run, "rounds": rounds}, Path(tempfile.mkdtemp(dir=home)))
    server, everyone, progress = desk.server(), desk.online, start(desk.algorithm, desk.config.clients)
    for round in range(rounds):
        desk.online = {node: k for node, k in everyone.items() if k in taken[round]}
        progress = server.round(progress, wanted=1).progress
    ids, scores = server.judge(progress)
    states = desk.states(progress)
    return progress, {k: states[k] for k in ids.tolist()}, float(scores["personal"].clients.mean()), desk


def table(sent, folder, taken):
    """By question and kind: how many were sent, what the link made of them, how many counted, what the server said."""
    said = {}
    for round, client, reason in re.findall(
        r"round (\d+): client (\d+) is not (?:counted|judged): (.*)", (folder / "events.log").read_text()
    ):
        said.setdefault((int(round), int(client)), []).append(reason)
    found = {}
    for line in (line for line in sent if line["kind"]):
        one = found.setdefault(
            f"{line['asked']}: {line['kind']}", {"sent": 0, "link": Counter(), "counted": 0, "server": []}
        )
        one["sent"] += 1
        one["link"][line.get("link", "not sent")] += 1
        one["counted"] += line["asked"] == "train" and line["client"] in taken.get(line["round"], [])
        for reason in said.get((line["round"], line["client"]), [])[:1]:
            if len(one["server"]) < 2 and reason[:160] not in one["server"]:
                one["server"].append(reason[:160])
    return found


def judged(home, run, sizes):
    """What came of it; sizes: honest clients, rounds of refused messages, rounds of lies."""
    (honest, rounds, _), folder, told = sizes, home / "run", json.loads((home / "sent.json").read_text())
    taken, sent = counted(folder), told.pop("sent")
    refused, lied = after_refusals(home, run, taken, honest, rounds), after_lies(home, run, taken, sizes)
    said = (folder / "events.log").read_text()
    good = told["alive"] and refused["server_same_bits"] and refused["clients_same_bits"] and lied["finite"]
    paths = "/home/secret" in said  # of a client, in the server's log
    return {
        "good": good and not refused["hostile_counted"] and not paths,
        **told,
        "messages": sum(bool(line["kind"]) for line in sent),
        "refused": refused,
        "lies": lied,
        "after": {"rounds": len(lines(folder)), "accuracy": lines(folder)[-1]["accuracy"]},
        "events": {
            "lines": said.count("\n"),
            "longest": max(map(len, said.splitlines())),
            "paths": paths,
        },
        "strangers": sorted(set(re.findall(r"is not admitted: (.*)", said)))[:8],
        "kinds": table(sent, folder, taken),
    }


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def after_refusals(home, run, taken, honest, rounds):
    """The federation with all hostile answers, and the one in which those who were counted were alone."""
    progress, states, accuracy, desk = reference(home, run, taken, rounds)
    name = Folder(home / "run", desk.config).federation
    shelves = [Shelf.of(home / "kept" / f"state{k}", name, k, identity(desk.config)) for k in range(honest)]
    kept = [shelf.states()[int(progress.seen[k])] for k, shelf in enumerate(shelves)]
    return {
        "rounds": rounds,
        "hostile_counted": sum(k >= honest for round in range(rounds) for k in taken[round]),
        "honest_counted": [len([k for k in taken[round] if k < honest]) for round in range(rounds)],
        "server_same_bits": same(server_of(home / "run", rounds), progress.server),
        "clients_same_bits": all(same(kept[k], states[k]) for k in range(honest)),
        "accuracy": lines(home / "run")[rounds - 1]["accuracy"],
        "accuracy_without_them": accuracy,
    }


def after_lies(home, run, taken, sizes):
    """The same federation after rounds with a liar, and the one in which the honest were alone."""
    honest, rounds, lies = sizes
    alone = {round: [k for k in ids if k < honest] for round, ids in taken.items()}
    progress, _, accuracy, _ = reference(home, run, alone, rounds + lies)
    ours, theirs = server_of(home / "run", rounds + lies), progress.server
    recorded = lines(home / "run")[rounds : rounds + lies]
    return {
        "rounds": lies,
        "liar_counted": sum(honest in taken[round] for round in range(rounds, rounds + lies)),
        "finite": all(bool(value.isfinite().all()) for value in ours.values()),
        "bounded": [{key: line.get(key) for key in ("capped", "clipped", "clamped")} for line in recorded],
        "theta_moved": float((ours["theta"] - theirs["theta"]).norm() / theirs["theta"].norm()),
        "accuracy": recorded[-1]["accuracy"],
        "accuracy_median": recorded[-1].get("accuracy_median"),
        "accuracy_without_it": accuracy,
    }
