"""What a table or figure consists of: recipes, what is changed in them, and the order in which their runs are done."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.runs import recipes
from pfed1bs.runs.config import Config, Options, load
from pfed1bs.studies import strict
from pfed1bs.studies.comparison import Entry, Variant, entries, methods, variant

T = TypeVar("T")
NAMES = (
    "table-main fig-accuracy fig-loss fig-participation fig-local-steps fig-projection table-sensitivity "
    "table-capabilities table-partitions table-bytes fig-pareto fig-why fig-memorise"
).split()
KEPT = 50  # rounds that a run loses at most when its process is killed
ORDER = ("mnist", "fmnist", "cifar10", "svhn", "cifar100")  # of the data sets in a table
QUICK: Options = {  # every part on embedded data, in a moment
    **{"data.name": "digits", "data.augment": False, "model.name": "mlp", "tf32": False},
    **{"rounds": 2, "steps": 2, "batch": 8, "evaluate_every": 1},
}


@dataclass(frozen=True)
class Piece:
    """Runs that share a recipe: methods, variants, and settings, of which lists are gone through."""

    recipe: str
    set: Options = field(default_factory=dict)
    algorithms: Sequence[str] = ()
    runs: Sequence[str] = ()  # variants, beside the algorithms
    seeds: int = 0  # how many; 0: those of the recipe
    name: str = ""  # of the part in tables, beside its data set

    def settings(self, quick: bool) -> Iterator[Options]:
        """What is set, once for every choice out of the lists."""
        lists = {key: _ends(value, quick) for key, value in self.set.items() if isinstance(value, list)}
        for values in product(*lists.values()):
            yield {**self.set, **(QUICK if quick else {}), **dict(zip(lists, values, strict=True))}

    def variants(self, quick: bool) -> list[Variant]:
        """Methods, then variants."""
        return [*methods(self.algorithms), *(variant(text) for text in _ends([*self.runs], quick))]

    def config(self, settings: Options, folder: Path) -> Config:
        """The recipe with these settings."""
        words = [
            word
            for key, value in settings.items()
            for word in (f"--{key}", str(value).lower() if value is True or value is False else str(value))
        ]
        return load(str(folder / f"{self.recipe}.toml"), words, [item.name for item in self.variants(quick=False)])

    def named(self, settings: Options, data: str) -> str:
        """The data set, its name, and what was chosen out of the lists."""
        lists = [key for key, value in self.set.items() if isinstance(value, list)]
        return " ".join([data, *self.name.split(), *(f"{key.rpartition('.')[2]}={settings[key]}" for key in lists)])


@dataclass(frozen=True)
class Planned:
    """One run of a table or figure."""

    target: str  # whose row it is
    part: str
    label: str  # method and options, as written after --runs
    entry: Entry


@dataclass(frozen=True)
class Target:
    """A table or figure."""

    name: str
    title: str
    parts: Sequence[Piece] = ()
    of: str = ""  # a target whose runs these are
    data: Sequence[str] = ()  # of its runs those on these data sets; none: all
    across: str = "data"  # the columns of its table: data sets, or methods
    pictures: Sequence[str] = ()  # of the report, or against-X: last values against the option X
    against: str = ""  # a label that the others are compared with, seed by seed
    tested: Sequence[str] = ()  # at most ten of them that are tested together in a part; none: all, if so few
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels that a label is compared with too
    shifts: bool = False  # whether labels are compared with themselves at other settings, in table.json
    times: bool = False  # whether its table has seconds
    logged: Sequence[str] = ()  # loss or diagnostics of the last evaluation that its table has
    peaks: bool = False  # whether its table has the highest evaluation, and what is lost from there to the end
    totals: bool = False  # whether its table has the bytes of all rounds, in place of those of a round
    ticks: Mapping[str, str] = field(default_factory=dict)  # of the paper's table of capabilities
    paper: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # label, data set: mean, deviation

    def planned(self, folder: Path, quick: bool = False, device: str = "auto") -> list[Planned]:
        """All runs, each once, by seed, then by data set; a quick one has the first part at one seed."""
        source, found = (read(self.of, folder) if self.of else self), dict[str, Planned]()
        for part in source.parts[: 1 if quick else None]:
            variants = part.variants(quick)
            for settings in part.settings(quick):
                config = source.config(part, {**settings, "device": device, "checkpoint_every": KEPT}, folder)
                name = part.named(settings, config.data.name)
                for seed in [0] if quick else range(part.seeds) if part.seeds else config.compare.seeds:
                    for item, entry in zip(variants, entries(config, variants, [seed]), strict=True):
                        place = f"{source.name}/{name.replace(' ', '-').replace(':', '')}-{entry.name}"
                        run = Planned(source.name, name, item.label, Entry(place, entry.config))
                        if found.setdefault(place, run) != run:
                            told = f"{source.name}: two parts have {item.label} on {name} with other settings"
                            raise UserError(told, "give one of the parts a name")
        if not quick:
            runs = {(run.label, run.entry.config.data.name) for run in found.values()}
            strict.refuse_strays(self.paper, runs, f"{self.name}.toml")
            if gone := {*self.data} - {data for _, data in runs}:
                raise UserError(
                    f"{self.name}.toml: there is no run on {', '.join(sorted(gone))}", "take it out of data"
                )
        wanted = [run for run in found.values() if quick or not self.data or run.entry.config.data.name in self.data]
        return sorted(wanted, key=lambda run: (run.entry.config.seed, _place(run.entry.config)))

    def config(self, part: Piece, settings: Options, folder: Path) -> Config:
        """The configuration of a part; what is wrong in it is told with its place."""
        try:
            return part.config(settings, folder)
        except UserError as error:
            raise UserError(f"{self.name}.toml, a part of {part.recipe}: {error.message}", error.hint) from error


def read(name: str, folder: Path, whose: str = "") -> Target:
    """A table or figure from its recipe, which is as strict as others; `whose` runs it has, if another asks."""
    path = folder / "reproduce" / f"{name}.toml"
    if Path(name).name != name or (not path.is_file() and name not in NAMES):
        raise UserError(f"unknown table or figure {name}, there is no {path}", nearest(name, [*NAMES, "all"]))
    if not path.is_file():
        raise UserError(f"there is no {path}", "call it in a checkout, or say with --recipes where its recipes are")
    plain: dict[str, Any] = recipes.read(str(path))
    shared, parts = plain.pop("shared", {}), plain.pop("parts", [])
    strict.refuse_unknown(Target, {**plain, "parts": parts}, str(path), without="name")
    strict.refuse_missing(Target, plain, str(path), without="name")
    strict.refuse_numbers(plain.get("paper", {}), str(path))
    strict.refuse_unknown(Piece, shared, f"{path}, shared")
    target = Target(name=name, parts=[_piece(shared, part, str(path)) for part in parts], **plain)
    if [bool(parts), bool(target.of), bool(target.ticks)].count(True) != 1:
        raise UserError(f"{path} has runs of its own in parts, or those of another table", "give it either parts or of")
    if whose and not parts:
        raise UserError(
            f"{name} has no runs of its own, which {whose} asks for with of", "name the table that has them"
        )
    source = read(target.of, folder, whose=str(path)) if target.of else target
    return replace(target, **_labelled(target, source.parts, str(path)))


def _piece(shared: dict[str, Any], part: dict[str, Any], path: str) -> Piece:
    """A part of a recipe, over what all parts share."""
    strict.refuse_unknown(Piece, part, f"{path}, a part")
    both: dict[str, Any] = {**shared, **part, "set": {**shared.get("set", {}), **part.get("set", {})}}
    strict.refuse_missing(Piece, both, f"{path}, a part")
    strict.refuse_settings(both.get("seeds", 0), both["set"], f"{path}, a part")
    if "/" in both.get("name", ""):
        raise UserError(f"{path}, a part: its name {both['name']} is a path", "it stands in names of folders")
    return Piece(**both)


def in_order(plans: Iterable[Sequence[Planned]]) -> list[Planned]:
    """The runs of some tables and figures, each once, and all at one seed before the next seed begins."""
    found = {run.entry.name: run for runs in plans for run in runs}
    return sorted(found.values(), key=lambda run: run.entry.config.seed)


def _labelled(target: Target, parts: Sequence[Piece], path: str) -> dict[str, Any]:
    """Every label that a recipe names, as rows have it; one that is none of its runs would be dropped in silence."""
    labels = [*dict.fromkeys(item.label for part in parts for item in part.variants(quick=False))]
    strict.refuse_pictures(target.pictures, labels, path)

    def known(text: str) -> str:
        label = variant(text).label
        if label not in labels:
            raise UserError(f"{path}: no run is {text}", nearest(text, labels))
        return label

    against = known(target.against) if target.against else ""
    tested = [known(name) for name in target.tested]
    rivals = {known(name): [known(other) for other in others] for name, others in target.rivals.items()}
    strict.refuse_comparisons(against, tested, rivals, path)
    paper = {known(name): numbers for name, numbers in target.paper.items()}
    return {"against": against, "tested": tested, "rivals": rivals, "paper": paper}


def _place(config: Config) -> int:
    return ORDER.index(config.data.name) if config.data.name in ORDER else len(ORDER)


def _ends(values: list[T], quick: bool) -> list[T]:
    """A list; if it is to be quick, its first and last value."""
    return [values[0], values[-1]] if quick and len(values) > 2 else values
