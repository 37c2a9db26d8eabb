"""How models are judged where they are: what the server must send for it, and what a client makes of that."""

from collections.abc import Mapping
from math import isfinite, prod

import torch

from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import tell
from pfed1bs.engine.rounds import Progress
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, decode, encode

MOST = 1e30  # that a client may report of a loss that can be anything
MOST_ENTROPY = 1e6  # of the others; the log of a probability in float32 is at most 104


def needed(algorithm: Algorithm, now: Progress, cohort: Cohort) -> list[list[bytes]]:
    """What each client of the cohort has to be sent before it can judge its models.

    Nothing, where a method judges what the client has; the next broadcast, where the client keeps a replica of the
    shared model; otherwise the server's model.
    """
    if algorithm.judged_with == "nothing":
        return [[] for _ in cohort.ids]
    if algorithm.judged_with == "replica":
        told = tell(algorithm, now.server, now.history, cohort, now.lost)
        return [[item.data for item in items] for items in told]
    layout = _layout(now.server)
    message = {name: now.server[name] for name in layout}
    return [[encode(layout, message, kind="snapshot", round=now.round)] for _ in cohort.ids]


def shared(algorithm: Algorithm, clients: State, sent: list[bytes], round: int) -> State:
    """The server's model as a client knows it after what was sent; `clients` have heard the news."""
    if algorithm.judged_with == "nothing":
        return {}
    if algorithm.judged_with == "replica":
        return {"w": clients["theta"][0], "theta": clients["theta"][0]}
    if len(sent) != 1:
        raise ValueError(f"to judge its model a client needs the server's in one message, got {len(sent)}")
    first = algorithm.init(1)[0]
    return {**first, **decode(_layout(first), sent[0], kind="snapshot", round=round)}


def possible(name: str, values: list[float], counts: Mapping[str, tuple[int, ...]], samples: int) -> None:
    """Refuse a score that is no `counts`, samples and loss, or more than anybody with so many samples can have."""
    width = sum(map(prod, counts.values()))
    answers = [*counts][:1] == ["correct"]  # then all counts are numbers of samples
    what = "right answers" if answers and width == 1 else f"{width} counts"
    if len(values) != width + 2 or not all(map(isfinite, values)) or values[-2] < 1:
        raise ValueError(f"its score {name} must be {what}, samples and loss, got {values}")
    *found, own, loss = values
    if own > samples or abs(loss) > (MOST_ENTROPY if answers else MOST):
        raise ValueError(f"its score {name} counts more samples or loss than anybody has, got {values}")
    if answers and not all(0 <= count <= own for count in found):
        raise ValueError(f"its score {name} must be {what}, samples and loss, got {values}")


def _layout(server: State) -> Layout:
    """The real numbers of a server, in an order that does not depend on where its state comes from."""
    return {name: Floats(tuple(value.shape)) for name, value in sorted(server.items()) if value.dtype == torch.float32}
