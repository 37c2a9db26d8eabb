"""What the lines of a finished run come to."""

from statistics import fmean

from pfed1bs.core.origin import commit, release
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.metrics import METRICS
from pfed1bs.runs.config import Config, Options
from pfed1bs.runs.environment import argv
from pfed1bs.runs.late import last_scores

MIB = 2**20
Record = dict[str, float | int]


def spent(algorithm: Algorithm, steps: int) -> int | None:
    """The gradients that a client computes in a round of so many steps, if the method says it."""
    told = getattr(algorithm, "gradients", None)
    return None if told is None else int(told(steps))


def summarised(config: Config, algorithm: Algorithm, lines: list[Record]) -> Options:
    """What a finished run comes to: the last round, never the best one, and the mean of the last evaluations."""
    n, told = algorithm.task.n, algorithm.task.loss.metrics
    newcomers = int(config.data.newcomers * config.clients)
    sampled = config.sampled or config.clients - newcomers
    scores = {key: value for key, value in lines[-1].items() if key.startswith((*told, "newcomer_"))}
    rested = lines[-1].get("rest") == 1 and len(lines) < config.rounds
    judged = [(int(line["round"]), line[told[0]]) for line in lines if told[0] in line]
    planned = config.evaluate_every, config.rounds if rested else len(lines)
    return {
        "algorithm": config.method,
        "dataset": config.data.name,
        "partition": config.data.partition,
        "cap": config.data.cap,
        "model": config.model.name,
        "parameters": n,
        "clients": config.clients,
        **({"newcomers": newcomers} if newcomers else {}),
        "sampled": sampled,
        "seed": config.seed,
        "rounds": len(lines),
        "rested": rested,
        "gradients": spent(algorithm, config.steps),
        "metric": told[0],
        "better": METRICS[told[0]].better,
        **scores,
        **({f"{told[0]}_late": fmean(last_scores(judged, len(lines), *planned))} if judged else {}),
        **_sent(lines, 8 * n * sampled),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "version": release(),
        "commit": commit(),
        "command": argv(),
    }


def _sent(lines: list[Record], fedavg: int) -> Options:
    """What crossed the network, beside the bytes that fedavg sends in a round."""
    total = {key: sum(line[f"{key}_bytes"] for line in lines) for key in ("up", "down", "broadcast", "once")}
    sent = total["up"] + total["down"]
    return {
        "mib_per_round": sent / MIB / len(lines),
        "total_mib": (sent + total["once"]) / MIB,
        "up_mib": total["up"] / MIB,
        "down_mib": total["down"] / MIB,
        "broadcast_mib": total["broadcast"] / MIB,
        "once_bytes": total["once"],
        "ratio_to_fedavg": sent / len(lines) / fedavg,
    }
