"""What a round costs: the lengths of its messages, as they were sent."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain

from pfed1bs.engine.contract import Algorithm, Cohort
from pfed1bs.engine.exchange import News
from pfed1bs.wire.messages import HEADER

SEED_BYTES = 8  # the 64-bit seed that every client is given once


@dataclass(frozen=True)
class Traffic:
    """Bytes of one round, headers included; `down` counts a broadcast once for every receiver, as the paper does."""

    up: int
    down: int
    broadcast: int = 0  # the downlink if every different message is sent once, to all who need it
    catch_up: int = 0  # part of `down`: what clients had missed
    side: int = 0  # part of `up` and `down`: headers and single numbers
    once: int = 0  # in neither of them: the seed, for clients that join

    @property
    def total(self) -> int:
        """Everything, as unicast."""
        return self.up + self.down + self.once


def traffic(algorithm: Algorithm, news: list[list[News]], uplinks: list[bytes], cohort: Cohort) -> Traffic:
    """What a round has cost."""
    sent = [*chain.from_iterable(news)]
    times = Counter(map(id, sent))  # who was away is sent hundreds, the same ones as others
    pieces = [(item, times[key]) for key, item in dict(zip(map(id, sent), sent, strict=True)).items()]
    layouts = {"down": algorithm.down, "up": algorithm.up, "snapshot": algorithm.snapshot_layout}
    scalars = {
        kind: sum(codec.size or 0 for codec in layout.values() if codec.shape == ()) for kind, layout in layouts.items()
    }
    messages = [(item.kind, item.data, n) for item, n in pieces] + [("up", data, 1) for data in uplinks]
    return Traffic(
        up=sum(map(len, uplinks)),
        down=sum(n * len(item.data) for item, n in pieces),
        broadcast=sum(len(data) for data in {id(item.data): item.data for item, _ in pieces}.values()),
        catch_up=sum(n * len(item.data) for item, n in pieces if item.kind == "snapshot" or item.round < cohort.round),
        side=sum(n * (HEADER.size + (scalars[kind] if len(data) > HEADER.size else 0)) for kind, data, n in messages),
        once=SEED_BYTES * int((cohort.seen < 0).sum()) if algorithm.up else 0,
    )
