"""Hyper-parameters by one rule and with the same number of runs for all methods, judged on training samples.

Searched are the step of the clients, that of the server where there is one, and a knob of the method's own. A point is
the mean score of its seeds, the score that tables have. Test samples choose nothing (data.validate).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

from pfed1bs.algorithms import algorithm_class
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import FRACTION, INSIDE, SHARE, keys
from pfed1bs.data import Federation
from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.report.groups import Spread
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import Config, Options
from pfed1bs.runs.environment import environment
from pfed1bs.runs.run import Run, judged_by
from pfed1bs.studies.comparison import Entry, Variant, agree, entries, finished, kept, rehearse
from pfed1bs.studies.design import PLAIN, Design
from pfed1bs.studies.search import FACTOR, Axis, Place, Search

EXACT = 9  # digits behind the point in which means differ
STEPS = ("lr", "server_lr", "step")  # of the clients; of the server, under either name
KNOBS = {
    "pfed1bs": "lam",
    "pfed1bs-delta": "lam",
    "delta-float32": "lam",
    "zsign": "sigma",
    "ditto": "lam",
    "pfedme": "lam",
    "fedprox": "prox",
    "fedrep": "head_share",
    "perfedavg": "alpha",
    "apfl": "alpha",
    "fedproto": "lam",
    "dispfl": "density",
    "knnper": "scale",
}
STARTS = {("pfed1bs-delta", "step"): 1.0, ("delta-float32", "step"): 1.0}  # where the default stands for a rule


def axes(
    method: str, among: Sequence[str] = (), given: Mapping[str, object] = MappingProxyType({})
) -> tuple[Axis, ...]:
    """The options of a method that are searched, from what is given or their defaults; or those `among` some names."""
    known = keys(algorithm_class(method))
    names = [name for name in among or (*STEPS, KNOBS.get(method, "")) if name in known]
    starts = {name: given.get(name) or STARTS.get((method, name), known[name].default) for name in names}
    return tuple(axis(method, name, start) for name, start in starts.items() if isinstance(start, float) and start > 0)


def axis(method: str, name: str, start: float) -> Axis:
    """An option of a method, searched from a value on."""
    return Axis(name, start, keys(algorithm_class(method))[name].range in (SHARE, FRACTION, INSIDE))


@dataclass
class Tuned:
    """A method, what was tried of it, and the score of every seed; None: that run diverged."""

    method: str
    search: Search
    scores: dict[Place, tuple[float | None, ...]] = field(default_factory=dict)
    metric: Metric = METRICS["accuracy"]  # that the scores are

    def variant(self, place: Place) -> Variant:
        """The method with the options of a place."""
        return Variant(self.method, {**self.search.options(place)})

    def heard(self, place: Place, scores: Sequence[float | None]) -> None:
        """Take the scores of a place; a run that diverged has the worst."""
        self.scores[place] = tuple(scores)
        mean = fmean(self.worst if score is None else score for score in scores)
        self.search.tried[place] = round(self.turned(mean), EXACT)  # equal means tie, whatever their last bits

    @property
    def worst(self) -> float:
        """What a run that diverged comes to."""
        return 0.0 if self.metric.percent else self.turned(-inf)

    def turned(self, value: float) -> float:
        """The metric as the search sees it, for which more is better, and back."""
        return value if self.metric.better == "higher" else -value

    @property
    def best(self) -> float:
        """The best mean score."""
        return self.turned(self.search.tried[self.search.best])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the best mean, over seeds; None for one seed, or where a run diverged."""
        found = [score for score in self.scores[self.search.best] if score is not None]
        return Spread.of(found, self.metric.name).interval if len(found) == len(self.scores[self.search.best]) else None

    @property
    def options(self) -> dict[str, float]:
        """The best ones."""
        return self.search.options(self.search.best)

    @property
    def edges(self) -> dict[str, str]:
        """Where the best value of each option lies among those tried."""
        return {axis.option: self.search.edge(at) for at, axis in enumerate(self.search.axes)}

    def told(self, value: float) -> float | None:
        """What the search has seen, for a file; None: a run diverged, and nothing is the worst value."""
        return self.turned(value) if isfinite(value) else None

    def plain(self) -> Options:
        """Everything, for a file."""
        points = [
            {"options": self.search.options(place), "scores": list(self.scores[place]), "mean": self.told(mean)}
            for place, mean in self.search.tried.items()
        ]
        refused = [{"options": self.search.options(place), "why": why} for place, why in self.search.refused.items()]
        count = sum(map(len, self.scores.values()))
        mean = {self.metric.name: self.told(self.search.tried[self.search.best]), "interval": self.interval}
        best: Options = {"options": self.options, **mean, "edges": self.edges}
        return {"algorithm": self.method, "runs": count, **best, "points": points, "refused": refused}


@dataclass(frozen=True)
class Study:
    """Some methods under one budget: so many points each, with these seeds, in a folder."""

    config: Config
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    points: int
    folder: Path
    design: Design = PLAIN
    among: tuple[str, ...] = ()  # options that may be searched; none: the steps and the method's own
    start: Config | None = None  # whose values the search begins with; None: those of `config`

    def __post_init__(self) -> None:
        """Refuse the seeds of tables, options that cannot be searched, and methods without anything to search."""
        found = {axis.option for name in self.names for axis in self.axes(name)}
        for option in self.among:
            if option not in found:
                raise UserError(
                    f"{option} cannot be searched in {', '.join(self.names)}",
                    "--searched takes options that are numbers above 0, and a method that has them",
                )
        for name in self.names:
            if not self.axes(name):
                raise UserError(
                    f"{name} has no {', '.join(self.among)} to search", "leave it out, or add to --searched"
                )
        both = sorted({*self.seeds} & {*self.config.compare.seeds})
        if both:
            raise UserError(f"seed {both[0]} is one of the recipe's tables", "tune with others: --seeds 100,101")

    @cached_property
    def methods(self) -> list[Tuned]:
        """What is known of each method."""
        return [Tuned(name, Search(self.axes(name)), metric=self.metric) for name in self.names]

    def axes(self, method: str) -> tuple[Axis, ...]:
        """What is searched of a method, from the values that the recipe has for it unless others are given."""
        return axes(method, self.among, (self.start or self.config).with_method(method, self.seeds[0]).algorithm)

    @cached_property
    def metric(self) -> Metric:
        """What models are judged by."""
        return judged_by(self.config)

    @cached_property
    def judged(self) -> Config:
        """A run that is judged on training samples, after its last round; it goes on as a whole or not at all."""
        config = self.config
        return replace(
            config, data=replace(config.data, validate=True), evaluate_every=config.rounds, checkpoint_every=0
        )

    def waves(self) -> Iterator[list[Entry]]:
        """Runs that have to be finished before the next are asked for, until every method has had its points."""
        samples = kept()
        while wave := [(item, place) for item in self.methods for place in self.allowed(item, samples)]:
            variants = [item.variant(place) for item, place in wave]
            runs = entries(self.judged, variants, self.seeds, self.design)
            agree(runs, self.folder)
            yield runs
            scores = [score(self.folder, entry, self.metric.name) for entry in runs]  # seed by seed
            for at, (item, place) in enumerate(wave):
                item.heard(place, scores[at :: len(wave)])

    def allowed(self, item: Tuned, samples: Callable[[Config], Federation]) -> list[Place]:
        """The next places of a method that its options allow; a value that is refused is a limit, not a score."""
        room = self.points - len(item.search.tried)
        while places := item.search.wanted()[:room] if room > 0 else []:
            for place in places:
                try:
                    [entry] = entries(self.judged, [item.variant(place)], self.seeds[:1], self.design)
                    if not (self.folder / entry.name / "summary.json").exists():
                        rehearse(entry.config, samples(entry.config))
                except UserError as error:
                    if not item.search.tried:
                        raise
                    item.search.refused[place] = error.message
                    break
            else:
                return places
        return []

    def plain(self) -> Options:
        """What was tried and found, for a file."""
        told: Options = {
            "score": f"{self.metric.name} after the last round on a quarter of the clients' training samples"
        }
        told |= {"seeds": [*self.seeds], "points": self.points, "factor": FACTOR, "gradients": self.design.gradients}
        config, summaries = self.config, self.folder.glob("*/summary.json")
        told["commits"] = sorted({str(json.loads(path.read_text()).get("commit")) for path in summaries})
        told |= {"rounds": config.rounds, "steps": config.steps, "batch": config.batch, "clients": config.clients}
        told |= {"data": {**vars(config.data), "root": None}, "model": vars(config.model)}
        return {**environment(config.device), **told, "methods": [item.plain() for item in self.methods if item.scores]}

    def runs(self) -> list[Options]:
        """Every run with its folder and its score; None: it diverged."""
        found = []
        for item in self.methods:
            for place, scores in item.scores.items():
                tried = entries(self.judged, [item.variant(place)], self.seeds, self.design)
                for entry, score in zip(tried, scores, strict=True):
                    own = {"folder": str(self.folder / entry.name), "algorithm": item.method, "seed": entry.config.seed}
                    found.append({**own, "options": item.search.options(place), self.metric.name: score})
        return found


def score(folder: Path, entry: Entry, metric: str = "accuracy") -> float | None:
    """The metric of a run that has ended, whose checkpoint then goes; None: it diverged."""
    run = Run.prepare(entry.config, folder / entry.name)
    if not finished(run):
        return None
    checkpoint.discard(run.folder)
    return float(str(run.summary[metric]))
