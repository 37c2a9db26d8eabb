"""What clients cost that take part now and then: pfed1bs-delta in its steady state, in closed form."""

from dataclasses import dataclass
from math import ceil, floor
from statistics import mean

from pfed1bs.algorithms.base.anchors import advised, away, layout, period
from pfed1bs.algorithms.base.onebit import sketch_size
from pfed1bs.facts.printed import NETS
from pfed1bs.wire.messages import HEADER, fixed_size

SHOWN = ((20, 20), (20, 5), (100, 20), (100, 10), (1_000, 100), (1_000, 10), (10_000, 100), (100_000, 100))  # K, S


COLUMNS = ("K", "S", "m/n", "snapshot", "up", "down", "of fedavg")


@dataclass(frozen=True)
class Steady:
    """Bytes of one client in a round it takes part in, headers included, after many rounds."""

    clients: int
    sampled: int
    weights: int
    ratio: float  # m / n
    every: int  # rounds from one coded snapshot to the next; 0: snapshots are in float32
    up: int
    down: float  # expected

    @property
    def of_fedavg(self) -> float:
        """The same client's bytes with fedavg, divided by these."""
        return 2 * (HEADER.size + 4 * self.weights) / (self.up + self.down)

    @property
    def facts(self) -> dict[str, object]:
        """Everything, for JSON."""
        return {**vars(self), "of_fedavg": self.of_fedavg}


def missed(message: float, snapshot: float, share: float, since: int = 0) -> float:
    """Expected bytes down: the messages since a client's last round, or a snapshot and the `since` messages after it.

    With p = S / K the number G of those messages has P(G > g) = (1 - p)^g, and with c = snapshot / message + since and
    k = floor(c) the mean of min(G, c) is (1 - (1 - p)^k) / p + (c - k) (1 - p)^k.
    """
    c = snapshot / message + since
    left = (1 - share) ** floor(c)
    return message * ((1 - left) / share + (c - floor(c)) * left)


def steady(n: int, clients: int, sampled: int, ratio: float = 0.0, coded: bool | None = None) -> Steady:
    """The steady state for n weights with the rules of pfed1bs-delta, unless m / n or the kind of snapshot is given."""
    share = sampled / clients
    ratio = ratio or advised(share)
    message = HEADER.size + ceil(sketch_size(n, ratio) / 8) + 4
    every = period(n, message)
    every = every if (away(share, every) if coded is None else coded) else 0
    snapshot = (fixed_size(layout(n)) or 0) if every else HEADER.size + 4 * n
    down = mean(missed(message, snapshot, share, since) for since in range(every or 1))
    return Steady(clients, sampled, n, ratio, every, message, down)


def table() -> list[Steady]:
    """The MLP with fewer and fewer clients in a round."""
    return [steady(NETS["mlp"].n, clients, sampled) for clients, sampled in SHOWN]


def lines(rows: list[Steady]) -> list[tuple[str, ...]]:
    """The rows in words."""
    return [
        (
            f"{row.clients:,}",
            f"{row.sampled:,}",
            f"{row.ratio:.3g}",
            f"4 bits, every {row.every}" if row.every else "float32",
            f"{row.up:,}",
            f"{row.down:,.0f}",
            f"1/{row.of_fedavg:.0f}",
        )
        for row in rows
    ]
