"""After which rounds models are judged, and the last of these scores."""

from collections.abc import Sequence

LATE = 5  # evaluations whose mean stands beside the last one


def due(number: int, every: int, rounds: int) -> bool:
    """Whether what is done every so many rounds, and after the last one, is done after this one; 0: only then."""
    return number == rounds - 1 or (every > 0 and (number + 1) % every == 0)


def last_scores(judged: Sequence[tuple[int, float]], done: int, every: int, rounds: int) -> list[float]:
    """The last few scores, given as (round, score); a run that rested keeps its last one until the end."""
    left = sum(due(number, every, rounds) for number in range(done, rounds))
    between = left and not due(judged[-1][0], every, rounds)  # judged because the run ended, when no other was
    own = judged[:-1] if between else judged
    return ([score for _, score in own] + [judged[-1][1]] * left)[-LATE:]
