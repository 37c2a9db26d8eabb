"""Chooses again among the points that a search has tried, by the rule that `pfed1bs tune` has now; nothing is run.

python tools/tuned.py results/tuning-mnist.json ...        best options, their score and where they lie, in the files
"""

import json
import sys
from math import log
from pathlib import Path
from typing import Any

from pfed1bs.engine.metrics import METRICS
from pfed1bs.studies.search import FACTOR, Axis, Place, Search
from pfed1bs.studies.tuning import Tuned, axis

GRAIN = 2**11  # places of a factor that the digits of a value tell apart


def found(plain: dict[str, Any]) -> Tuned:
    """A method with its points; the first of them is where its search began."""
    name, points = plain["algorithm"], plain["points"]
    axes = tuple(axis(name, option, start) for option, start in points[0]["options"].items())
    metric = next(METRICS[key] for key in plain if key in METRICS)
    tuned = Tuned(name, Search(axes), metric=metric)
    for point in points:
        tuned.heard(_place(axes, point["options"]), point["scores"])
    tuned.search.refused |= {_place(axes, item["options"]): item["why"] for item in plain["refused"]}
    return tuned


def _place(axes: tuple[Axis, ...], options: dict[str, float]) -> Place:
    place = tuple(round(_factors(own, options[own.option]) * GRAIN) / GRAIN for own in axes)
    told = {own.option: own.value(at) for own, at in zip(axes, place, strict=True)}
    if told != options:
        raise ValueError(f"{options} lies at no place from {[own.start for own in axes]}")
    return place


def _factors(own: Axis, value: float) -> float:
    odds = (value / (1 - value)) / (own.start / (1 - own.start)) if own.share else value / own.start
    return log(odds, FACTOR)


def chosen(plain: dict[str, Any]) -> dict[str, Any]:
    """What a file says of a method, with the rule of now."""
    return {**plain, **found(plain).plain()}


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        whole = json.loads(path.read_text())
        whole["methods"] = [chosen(plain) for plain in whole["methods"]]
        path.write_text(json.dumps(whole, indent=1) + "\n")
